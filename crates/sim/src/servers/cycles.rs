//! Checks the wait queues by brute force: there is no deadlock cycle, every attempt under wait-die is older than
//! everything that blocks it, and no request waits twice.

use std::collections::{BTreeMap, BTreeSet};

use engine::internals::shard::Shard;
use engine::internals::waiting::{Session, session_of};
use engine::waiters::{Ticket, Waiter};

/// A node of the wait-for graph: a session, or a waiter without one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WaitNode {
    Session(Session),
    Waiter(Ticket),
}

/// Checks all waiters of a shard.
pub fn check<R>(shard: &Shard<R>) -> Result<(), String> {
    check_requests(shard)?;
    check_ages(shard)?;
    check_cycles(shard)
}

fn check_requests<R>(shard: &Shard<R>) -> Result<(), String> {
    let mut requests = BTreeSet::new();
    for (_, waiter) in shard.waiters().iter() {
        let command = &waiter.command;
        let request = command.identity.clone().zip(command.request.map(|request| request.key));
        if request.is_some_and(|request| !requests.insert(request)) {
            return Err(format!("a request waits twice: {command:?}"));
        }
    }
    Ok(())
}

fn check_ages<R>(shard: &Shard<R>) -> Result<(), String> {
    let waiting: Vec<_> = shard.waiters().iter().collect();
    for (index, (ticket, waiter)) in waiting.iter().enumerate() {
        let grant = waiter.request();
        if !grant.is_wait_die() {
            continue;
        }
        let ahead = waiting[..index].iter().map(|(_, other)| *other).filter(|other| blocks(other, waiter));
        let holders = shard.kernel().conflicts(&grant.namespace, &grant.bundle, shard.now());
        let mut ages = ahead.map(|other| other.age).chain(holders.map(|lease| lease.age));
        if let Some(age) = ages.find(|age| *age <= waiter.age) {
            return Err(format!("{ticket:?} of age {:?} is blocked by age {age:?}", waiter.age));
        }
    }
    Ok(())
}

/// Whether an earlier waiter blocks a later one.
fn blocks(earlier: &Waiter, later: &Waiter) -> bool {
    let (earlier, later) = (earlier.request(), later.request());
    earlier.namespace == later.namespace && earlier.bundle.conflicts_with(&later.bundle)
}

fn check_cycles<R>(shard: &Shard<R>) -> Result<(), String> {
    let edges = edges(shard);
    for start in edges.keys() {
        let (mut visited, mut unvisited) = (BTreeSet::new(), vec![start]);
        while let Some(node) = unvisited.pop() {
            for next in edges.get(node).into_iter().flatten() {
                if next == start && matches!(start, WaitNode::Session(_)) {
                    return Err(format!("deadlock cycle through {start:?}: {}", described(shard)));
                }
                if visited.insert(next) {
                    unvisited.push(next);
                }
            }
        }
    }
    Ok(())
}

/// All waiters and leases, for the report of a cycle.
fn described<R>(shard: &Shard<R>) -> String {
    let mut lines = Vec::new();
    for (ticket, waiter) in shard.waiters().iter() {
        let request = waiter.request();
        let names: Vec<_> =
            request.bundle.members().iter().map(|m| (m.resource.as_str(), m.predicate)).collect();
        lines.push(format!(
            "{ticket:?} {:?} {:?} {names:?} {:?}",
            waiter.command.identity, request.session, waiter.age
        ));
        for lease in shard.kernel().conflicts(&request.namespace, &request.bundle, shard.now()) {
            lines.push(format!(
                "  held: {:?} {:?} {:?}",
                lease.identity, lease.details.session, lease.members
            ));
        }
    }
    lines.join("\n")
}

fn edges<R>(shard: &Shard<R>) -> BTreeMap<WaitNode, BTreeSet<WaitNode>> {
    let mut edges: BTreeMap<WaitNode, BTreeSet<WaitNode>> = BTreeMap::new();
    let waiting: Vec<_> = shard.waiters().iter().collect();
    for (index, (ticket, waiter)) in waiting.iter().enumerate() {
        let node =
            |ticket: Ticket, command| session_of(command).map_or(WaitNode::Waiter(ticket), WaitNode::Session);
        let grant = waiter.request();
        let from = edges.entry(node(*ticket, &waiter.command)).or_default();
        let ahead = waiting[..index].iter().filter(|(_, other)| blocks(other, waiter));
        from.extend(ahead.map(|(ticket, other)| node(*ticket, &other.command)));
        let holders = shard.kernel().conflicts(&grant.namespace, &grant.bundle, shard.now());
        let sessions =
            holders.filter_map(|lease| Some((lease.namespace, lease.identity, lease.details.session?)));
        from.extend(sessions.map(WaitNode::Session));
    }
    edges
}
