//! Deadlock detection: verdicts are compared with a search of the whole graph, searches cost a bounded number of visits
//! per turn, and a suspended search stays right while the graph changes.

use std::collections::{BTreeMap, BTreeSet};

use engine::internals::decider::Decider;
use engine::internals::shard::Shard;
use engine::internals::waiting::{Session, VISITS_MAX, session_of};
use engine::waiters::{Advice, Ticket, Wait, WaiterConnection};
use engine::{Decision, Reply, Submission, Unavailable};
use kernel::{
    Action, Bundle, Command, Granted, Kernel, LeaseRequest, OnExpiry, Outcome, Predicate, Response,
    SessionName, Span,
};
use sim::fixture::{grant, held, identity, key, member, one};
use sim::rng::Rng;
use store::Seq;

use crate::fixture::{TENURE, TestClock};

/// A shard whose callers are numbers. The visits of every turn are compared with the bound.
struct Driver {
    shard: Shard<u32>,
    replies: BTreeMap<u32, Reply>,
    connections: BTreeMap<u32, WaiterConnection>,
    next: u32,
    turns: usize,
}

impl Driver {
    fn new() -> Driver {
        let decider = Decider::open(Kernel::new(), Seq(0), Box::new(TestClock::default()), &TENURE);
        let shard = Shard::new(decider.expect("a valid clock"));
        let (replies, connections) = (BTreeMap::new(), BTreeMap::new());
        Driver { shard, replies, connections, next: 0, turns: 0 }
    }

    /// Submits a command in a turn of its own.
    fn send(&mut self, action: Action, wait: bool) -> u32 {
        self.next += 1;
        let connection = WaiterConnection::default();
        self.connections.insert(self.next, connection.clone());
        let wait = wait.then_some(Wait { timeout: Span(60_000), connection });
        self.shard.housekeep();
        let command = Command::by(&identity("ada"), action);
        self.shard.submit(Submission { wait, ..Submission::new(command, self.next) });
        self.end_turn();
        self.next
    }

    fn turn(&mut self) {
        self.shard.housekeep();
        self.end_turn();
    }

    fn end_turn(&mut self) {
        let visits = self.shard.visits();
        assert!(visits.searching <= VISITS_MAX && visits.serving <= VISITS_MAX, "{visits:?}");
        self.turns += 1;
        for (to, reply, lease) in self.shard.end_turn().replies {
            assert!(self.replies.insert(to, reply).is_none(), "two replies to {to}");
            if let Some(lease) = lease {
                self.shard.delivered(lease, true);
            }
        }
    }

    /// Runs turns while work is unfinished.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.shard.until_due() != Some(Span(0)) {
                return;
            }
            self.turn();
        }
        panic!("work is unfinished after 10,000 turns");
    }

    fn granted(&self, number: u32) -> Option<Granted> {
        match self.replies.get(&number) {
            Some(Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _)))) => Some(*granted),
            _ => None,
        }
    }

    fn advice(&self, number: u32) -> Option<Advice> {
        match self.replies.get(&number) {
            Some(Ok(Decision::Blocked(blocked))) => Some(blocked.advice),
            _ => None,
        }
    }

    /// A lease that the session is granted at once.
    fn hold(&mut self, name: &str, bundle: Bundle) -> Granted {
        let number = self.send(Action::Acquire(session(name, bundle)), false);
        self.granted(number).expect("free")
    }

    fn wait(&mut self, name: &str, bundle: Bundle) -> u32 {
        self.send(Action::Acquire(session(name, bundle)), true)
    }

    fn waits(&self, number: u32) -> bool {
        let connection = &self.connections[&number];
        self.shard.waiters().iter().any(|(_, waiter)| waiter.connection == *connection)
    }

    fn live_leases(&self) -> Vec<Granted> {
        let is_live = |lease: &Granted| {
            let view = self.shard.kernel().lease(lease.lease, self.shard.now());
            view.is_ok_and(|view| view.ended.is_none())
        };
        (1..=self.next).filter_map(|number| self.granted(number)).filter(is_live).collect()
    }

    fn is_undecided(&self, number: u32) -> bool {
        !self.replies.contains_key(&number)
    }

    /// Sessions `{prefix}0` to `{prefix}{length}`, each with the key of its name, and each but the last waiting for the
    /// key of the next.
    fn chain(&mut self, prefix: &str, length: u32) -> Vec<u32> {
        for n in 0..=length {
            let name = format!("{prefix}{n}");
            self.hold(&name, key(&name));
        }
        let waiters = (0..length)
            .map(|n| self.wait(&format!("{prefix}{n}"), key(&format!("{prefix}{}", n + 1))))
            .collect();
        self.settle();
        waiters
    }
}

fn session(name: &str, bundle: Bundle) -> LeaseRequest {
    let session = SessionName::new(name).expect("a valid name");
    LeaseRequest { session: Some(session), ..grant(bundle, Span(60_000)) }
}

/// Sessions with one lease each queued for one key. One more cost a visit of all that waited already, 32 ms with 6,000 of
/// them, and beyond 20,000 visits a cycle was assumed.
#[test]
fn sessions_with_a_lease_of_their_own_queue_for_a_hot_key_at_a_constant_cost() {
    let mut driver = Driver::new();
    driver.hold("holder", key("hot"));
    for n in 0..10_000 {
        let name = format!("s{n}");
        driver.hold(&name, key(&name));
        let waiter = driver.wait(&name, key("hot"));
        assert!(driver.shard.visits().searching <= 8, "{:?}", driver.shard.visits());
        assert!(driver.is_undecided(waiter), "{:?}", driver.replies.get(&waiter));
        if n % 100 == 0 {
            let advised = driver.send(Action::Acquire(session(&name, key("hot"))), false);
            assert!(driver.shard.visits().searching <= 8, "{:?}", driver.shard.visits());
            assert!(driver.advice(advised).is_some(), "a request that does not wait is answered at once");
        }
    }
    // The holder of the hot key wants a resource without contention.
    let quiet = driver.hold("quiet", key("quiet"));
    let waiter = driver.wait("holder", key("quiet"));
    assert!(driver.shard.visits().searching <= 8, "{:?}", driver.shard.visits());
    assert!(driver.is_undecided(waiter));
    driver.send(Action::Release(held(&quiet)), false);
    assert!(driver.granted(waiter).is_some());
}

/// A search that exceeded its bound counted as a deadlock. Now it is suspended: the request stands in its queue, and is
/// refused some turns later.
#[test]
fn a_cycle_that_is_longer_than_the_budget_of_a_turn_is_found_over_several_turns() {
    let mut driver = Driver::new();
    driver.chain("s", 400);
    let before = driver.turns;
    let closing = driver.wait("s400", key("s0"));
    assert!(driver.is_undecided(closing) && driver.waits(closing), "the search is suspended");
    let behind = driver.wait("other", key("s0"));
    driver.settle();
    assert!(driver.turns - before > 3, "several turns");
    assert_eq!(driver.advice(closing), Some(Advice::Deadlock));
    assert!(!driver.waits(closing) && driver.waits(behind));
    // The same advice without a wait.
    let closing = driver.send(Action::Acquire(session("s400", key("s0"))), false);
    assert!(driver.is_undecided(closing), "it waits for its answer only");
    driver.settle();
    assert_eq!(driver.advice(closing), Some(Advice::Deadlock));
}

#[test]
fn a_long_search_without_a_cycle_ends_with_a_wait() {
    let mut driver = Driver::new();
    driver.chain("a", 400);
    driver.chain("b", 400);
    let waiter = driver.wait("a400", key("b0"));
    let advised = driver.send(Action::Acquire(session("a400", key("b0"))), false);
    driver.settle();
    assert!(driver.is_undecided(waiter) && driver.waits(waiter));
    // It would queue behind its own session's waiter.
    assert_eq!(driver.advice(advised), Some(Advice::Deadlock));
}

/// Two suspended searches: each request alone closes no cycle, both together do. The later one has to see the edges of the
/// earlier one.
#[test]
fn of_two_pending_searches_that_together_close_a_cycle_the_later_is_refused() {
    let mut driver = Driver::new();
    driver.chain("a", 300);
    driver.chain("b", 300);
    let first = driver.wait("a300", key("b0"));
    let second = driver.wait("b300", key("a0"));
    assert!(driver.is_undecided(first) && driver.is_undecided(second));
    driver.settle();
    assert!(driver.waits(first) && driver.is_undecided(first));
    assert_eq!(driver.advice(second), Some(Advice::Deadlock));
}

/// A cycle through a waiter that leaves before the search arrives there is no cycle.
#[test]
fn a_waiter_that_leaves_during_the_search_closes_no_cycle() {
    let mut driver = Driver::new();
    let waiters = driver.chain("s", 400);
    let closing = driver.wait("s400", key("s0"));
    assert!(driver.is_undecided(closing));
    let connection = driver.connections[&waiters[200]].clone();
    driver.shard.disconnect(&connection);
    driver.settle();
    assert!(driver.waits(closing) && driver.is_undecided(closing));
}

/// A waiter on the cycle is granted during the search, between any two visits: it moves from the wait queue to the leases,
/// and its session stays on the cycle. A search that read leases before wait queues would see it in neither.
#[test]
fn a_grant_during_the_search_keeps_its_session_on_the_cycle() {
    let mut during = 0;
    for (a, b) in [(1, 1), (1, 6), (6, 1)] {
        for release_after in 0..60 {
            let mut driver = Driver::new();
            driver.chain("a", a);
            driver.chain("b", b);
            // The last of `a` waits for `q` behind b0, which waits for the quiet holder of `q`.
            let quiet = driver.hold("quiet", key("q"));
            let granted = driver.wait("b0", key("q"));
            driver.wait(&format!("a{a}"), key("q"));
            driver.settle();
            driver.shard.set_visits_max(1);
            let closing = driver.wait(&format!("b{b}"), key("a0"));
            for _ in 0..release_after {
                driver.turn();
            }
            during += usize::from(driver.is_undecided(closing));
            driver.send(Action::Release(held(&quiet)), false);
            driver.settle();
            assert!(driver.granted(granted).is_some());
            let context = format!("chains of {a} and {b}, released after {release_after} turns");
            assert_eq!(driver.advice(closing), Some(Advice::Deadlock), "{context}");
        }
    }
    assert!(during > 20, "released during the search: {during}");
}

/// A pending request that gets its lease, disconnects or is stopped needs no verdict any more.
#[test]
fn a_pending_request_may_be_granted_or_dismissed_before_its_search_ends() {
    let mut driver = Driver::new();
    driver.chain("a", 400);
    driver.chain("b", 400);
    let hot = driver.hold("holder", key("hot"));
    let both = vec![member(Predicate::Mutates, "KEY:hot"), member(Predicate::Consumes, "KEY:cold")];
    let first = driver.wait("a400", key("b0"));
    let waiter = driver.wait("a399", Bundle::new(both).expect("two"));
    let advised = driver.send(Action::Acquire(session("b400", key("a0"))), false);
    assert!(driver.is_undecided(waiter) && driver.is_undecided(advised));
    driver.send(Action::Release(held(&hot)), false);
    assert!(driver.granted(waiter).is_some());
    driver.shard.stop();
    driver.turn();
    for to in [advised, first] {
        let reply = driver.replies.get(&to);
        assert!(matches!(reply, Some(Err(Unavailable::Dismissed(_)))), "{reply:?}");
    }
    assert_eq!(driver.shard.until_due(), None, "nothing is left to search");
}

/// Pending searches are bounded.
#[test]
fn beyond_the_bound_of_pending_searches_requests_are_refused_as_busy() {
    let mut driver = Driver::new();
    driver.chain("a", 400);
    driver.shard.set_visits_max(1);
    let mut busy = 0;
    for _ in 0..1100 {
        let number = driver.send(Action::Acquire(session("a400", key("a0"))), false);
        busy += usize::from(driver.replies.get(&number) == Some(&Err(Unavailable::Busy)));
    }
    assert!((70..=80).contains(&busy), "{busy}");
}

/// The leases of thousands of shared holders are read in pages.
#[test]
fn holders_are_read_in_pages() {
    let mut driver = Driver::new();
    for n in 0..1000 {
        driver.hold(&format!("r{n}"), one(Predicate::Consumes, "KEY:shared"));
    }
    driver.hold("x", key("x"));
    for n in 0..1000 {
        driver.wait(&format!("w{n}"), key("x"));
    }
    // r999 waits for x; then x wants what r999 holds, with 999 others.
    let waiter = driver.wait("r999", key("x"));
    let closing = driver.wait("x", key("shared"));
    driver.settle();
    assert!(driver.is_undecided(waiter) && driver.advice(closing) == Some(Advice::Deadlock));
}

/// A rebind moves a lease to the front of the holders while they are read in pages.
#[test]
fn a_rebind_during_the_search_hides_no_holder() {
    let decider = |clock: &TestClock| Decider::open(Kernel::new(), Seq(0), Box::new(clock.clone()), &TENURE);
    let clock = TestClock::default();
    let mut driver = Driver::new();
    driver.shard = Shard::new(decider(&clock).expect("a valid clock"));
    let shared = || one(Predicate::Consumes, "KEY:shared");
    let manual = LeaseRequest { on_expiry: OnExpiry::Manual, ttl: Span(100), ..session("m", shared()) };
    let number = driver.send(Action::Acquire(manual), false);
    let lease = driver.granted(number).expect("free");
    for n in 0..200 {
        driver.hold(&format!("r{n}"), shared());
    }
    driver.hold("x", key("x"));
    for n in 0..200 {
        driver.wait(&format!("w{n}"), key("x"));
    }
    driver.wait("m", key("x"));
    driver.settle();
    clock.0.fetch_add(101, std::sync::atomic::Ordering::Relaxed);
    driver.turn();
    driver.shard.set_visits_max(40);
    let closing = driver.wait("x", key("shared"));
    driver.turn();
    assert!(driver.is_undecided(closing), "the search is suspended");
    driver.send(Action::Rebind(held(&lease)), false);
    driver.settle();
    assert_eq!(driver.advice(closing), Some(Advice::Deadlock));
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Session(Session),
    Waiter(Ticket),
}

/// The wait-for graph, computed from every pair of waiters and every lease; with a request as the last waiter.
fn graph(shard: &Shard<u32>, last: Option<&Command>) -> BTreeMap<Node, BTreeSet<Node>> {
    let mut waiting: Vec<(Ticket, &Command)> =
        shard.waiters().iter().map(|(ticket, waiter)| (ticket, &waiter.command)).collect();
    waiting.extend(last.map(|command| (Ticket::LAST, command)));
    let node = |ticket, command: &Command| session_of(command).map_or(Node::Waiter(ticket), Node::Session);
    let request = |command: &Command| match &command.action {
        Action::Acquire(request) => request.clone(),
        other => panic!("{other:?} waits"),
    };
    let mut edges: BTreeMap<Node, BTreeSet<Node>> = BTreeMap::new();
    for (index, (ticket, command)) in waiting.iter().enumerate() {
        let wanted = request(command);
        let from = edges.entry(node(*ticket, command)).or_default();
        let ahead = waiting[..index].iter().filter(|(_, other)| {
            let other = request(other);
            other.bundle.conflicts_with(&wanted.bundle)
        });
        from.extend(ahead.map(|(ticket, other)| node(*ticket, other)));
        let holders = shard.kernel().conflicts(&wanted.namespace, &wanted.bundle, shard.now());
        let sessions =
            holders.filter_map(|lease| Some((lease.namespace, lease.identity, lease.details.session?)));
        from.extend(sessions.map(Node::Session));
    }
    edges
}

fn is_on_cycle(edges: &BTreeMap<Node, BTreeSet<Node>>, start: &Node) -> bool {
    let (mut visited, mut unvisited) = (BTreeSet::new(), vec![start]);
    while let Some(node) = unvisited.pop() {
        for next in edges.get(node).into_iter().flatten() {
            if next == start {
                return true;
            }
            if visited.insert(next) {
                unvisited.push(next);
            }
        }
    }
    false
}

fn random_bundle(rng: &mut Rng) -> Bundle {
    let names = ["KEY:a", "KEY:b", "KEY:c", "KEY:d", "FILE:/x", "FILE:/x/y", "FILE:/x/*", "FILE:/z/*"];
    let members = (0..=rng.below(2)).map(|_| {
        let predicate = if rng.one_in(2) { Predicate::Mutates } else { *rng.pick(&Predicate::ALL) };
        member(predicate, rng.pick::<&str>(&names))
    });
    Bundle::merged(members.collect()).expect("one or two members")
}

/// One random run. With `budget` a search may be suspended, and the graph changes before its verdict.
fn compare_with_the_whole_graph(seed: u64, budget: Option<usize>) -> (usize, usize) {
    let mut rng = Rng::new(seed);
    let mut driver = Driver::new();
    if let Some(budget) = budget {
        driver.shard.set_visits_max(budget);
    }
    let (mut refused, mut suspended) = (0, 0);
    // The verdict of the whole graph when the request was submitted.
    let mut expected: BTreeMap<u32, bool> = BTreeMap::new();
    for step in 0..250 {
        let context = format!("seed {seed}, step {step}, budget {budget:?}");
        let leases = driver.live_leases();
        match rng.below(10) {
            0..7 => {
                let bundle = random_bundle(&mut rng);
                let request = if rng.one_in(5) {
                    grant(bundle, Span(60_000))
                } else {
                    session(&format!("s{}", rng.below(6)), bundle)
                };
                let action = Action::Acquire(request);
                let command = Command::by(&identity("ada"), action.clone());
                let node = session_of(&command).map(Node::Session);
                let closes =
                    node.is_some_and(|node| is_on_cycle(&graph(&driver.shard, Some(&command)), &node));
                let wait = !rng.one_in(4);
                let number = driver.send(action, wait);
                expected.insert(number, closes);
                suspended += usize::from(budget.is_some() && driver.shard.until_due() == Some(Span(0)));
                let is_refused = driver.advice(number) == Some(Advice::Deadlock);
                if budget.is_none() && (driver.is_undecided(number) || driver.advice(number).is_some()) {
                    assert_eq!(is_refused, closes, "{context}: {command:?}");
                }
            }
            7..9 if !leases.is_empty() => {
                let lease = *rng.pick(&leases);
                driver.send(Action::Release(held(&lease)), false);
            }
            _ => {
                let waiting: Vec<WaiterConnection> =
                    driver.shard.waiters().iter().map(|(_, waiter)| waiter.connection.clone()).collect();
                if !waiting.is_empty() {
                    driver.shard.disconnect(rng.pick(&waiting));
                }
            }
        }
        if budget.is_none() || rng.one_in(4) {
            driver.settle();
            let edges = graph(&driver.shard, None);
            for node in edges.keys().filter(|node| matches!(node, Node::Session(_))) {
                assert!(!is_on_cycle(&edges, node), "{context}: deadlock cycle through {node:?}");
            }
        }
    }
    driver.settle();
    for (number, closes) in expected {
        let is_refused = driver.advice(number) == Some(Advice::Deadlock);
        assert!(!is_refused || closes, "seed {seed}: {number} was refused without a cycle");
        refused += usize::from(is_refused);
    }
    (refused, suspended)
}

#[test]
fn verdicts_agree_with_a_search_of_the_whole_graph() {
    let refused: usize = (0..150).map(|seed| compare_with_the_whole_graph(seed, None).0).sum();
    assert!(refused > 500, "the runs reach deadlocks: {refused}");
}

#[test]
fn verdicts_of_suspended_searches_are_never_assumed_and_leave_no_cycle() {
    let (mut refused, mut suspended) = (0, 0);
    for seed in 0..150 {
        let run = compare_with_the_whole_graph(seed, Some(1 + usize::try_from(seed % 5).expect("small")));
        (refused, suspended) = (refused + run.0, suspended + run.1);
    }
    assert!(refused > 300 && suspended > 1000, "the runs reach both: {refused}, {suspended}");
}
