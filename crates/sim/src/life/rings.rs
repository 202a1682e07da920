//! Looks at all who wait, by brute force: does anybody, over any number of others, wait for itself? Is every attempt
//! under wait-die older than all that are in its way? Does a request wait twice?

use std::collections::{BTreeMap, BTreeSet};

use engine::shard::Shard;
use engine::waiters::{Session, Ticket, Waiter, session_of};

/// Someone in a ring: a session, or a waiter without one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    Session(Session),
    Waiter(Ticket),
}

/// Who waits for whom has no ring in it, and each may wait as it does.
pub fn check<R>(shard: &Shard<R>) -> Result<(), String> {
    check_requests(shard)?;
    check_ages(shard)?;
    check_rings(shard)
}

fn check_requests<R>(shard: &Shard<R>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for (_, waiter) in shard.waiters().iter() {
        let command = &waiter.command;
        let request = command.identity.clone().zip(command.request.map(|request| request.key));
        if request.is_some_and(|request| !seen.insert(request)) {
            return Err(format!("one request waits twice: {command:?}"));
        }
    }
    Ok(())
}

fn check_ages<R>(shard: &Shard<R>) -> Result<(), String> {
    let waiting: Vec<_> = shard.waiters().iter().collect();
    for (place, (ticket, waiter)) in waiting.iter().enumerate() {
        let grant = waiter.grant();
        if grant.attempt.is_none() {
            continue;
        }
        let ahead =
            waiting[..place].iter().map(|(_, other)| *other).filter(|other| in_the_way(other, waiter));
        let holders = shard.kernel().conflicts(&grant.namespace, &grant.bundle, shard.now());
        let mut ages = ahead.map(|other| other.age).chain(holders.map(|lease| lease.age));
        if let Some(age) = ages.find(|age| *age <= waiter.age) {
            return Err(format!("{ticket:?} of age {:?} waits for one of age {age:?}", waiter.age));
        }
    }
    Ok(())
}

/// Would one that came earlier keep the other out?
fn in_the_way(earlier: &Waiter, later: &Waiter) -> bool {
    let (earlier, later) = (earlier.grant(), later.grant());
    earlier.namespace == later.namespace && earlier.bundle.conflicts_with(&later.bundle)
}

fn check_rings<R>(shard: &Shard<R>) -> Result<(), String> {
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
        let ahead = waiting[..place].iter().filter(|(_, other)| in_the_way(other, waiter));
        from.extend(ahead.map(|(ticket, other)| party(*ticket, &other.command)));
        let holders = shard.kernel().conflicts(&grant.namespace, &grant.bundle, shard.now());
        let sessions =
            holders.filter_map(|lease| Some((lease.namespace, lease.identity, lease.details.session?)));
        from.extend(sessions.map(Party::Session));
    }
    edges
}
