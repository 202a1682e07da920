//! Looks at all who wait: does anybody, over any number of others, wait for itself? By brute force.

use std::collections::{BTreeMap, BTreeSet};

use engine::shard::Shard;
use engine::waiters::{Session, Ticket, session_of};

/// Someone in a ring: a session, or a waiter without one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    Session(Session),
    Waiter(Ticket),
}

/// Who waits for whom has no ring in it.
pub fn check<R>(shard: &Shard<R>) -> Result<(), String> {
    let edges = edges(shard);
    for start in edges.keys() {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![start]);
        while let Some(party) = todo.pop() {
            for next in edges.get(party).into_iter().flatten() {
                if next == start && matches!(start, Party::Session(_)) {
                    return Err(format!("a ring of sessions that wait for each other, through {start:?}"));
                }
                if seen.insert(next) {
                    todo.push(next);
                }
            }
        }
    }
    Ok(())
}

fn edges<R>(shard: &Shard<R>) -> BTreeMap<Party, BTreeSet<Party>> {
    let mut edges: BTreeMap<Party, BTreeSet<Party>> = BTreeMap::new();
    let waiting: Vec<_> = shard.waiters().iter().collect();
    for (place, (ticket, waiter)) in waiting.iter().enumerate() {
        let party =
            |ticket: Ticket, command| session_of(command).map_or(Party::Waiter(ticket), Party::Session);
        let grant = waiter.grant();
        let from = edges.entry(party(*ticket, &waiter.command)).or_default();
        let ahead = waiting[..place].iter().filter(|(_, other)| {
            other.grant().namespace == grant.namespace && other.grant().bundle.conflicts_with(&grant.bundle)
        });
        from.extend(ahead.map(|(ticket, other)| party(*ticket, &other.command)));
        let holders = shard.kernel().conflicts(&grant.namespace, &grant.bundle, shard.now());
        let sessions =
            holders.filter_map(|lease| Some((lease.namespace, lease.identity, lease.details.session?)));
        from.extend(sessions.map(Party::Session));
    }
    edges
}
