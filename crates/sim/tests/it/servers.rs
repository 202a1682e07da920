//! Simulation of whole servers: every response holds, a run follows from its seed, and the seeds reach every function and
//! every bound of the sequencer.

use std::sync::Arc;

use kernel::{Action, Command, Span};
use sim::fixture::{grant, identity, key};
use sim::objects::{NetworkFaults, SimObjects};
use sim::rng::Rng;
use sim::servers::clock::{Machine, TrueTime};
use sim::servers::ledger::Ledger;
use sim::servers::server::{Backend, Server, ServerRequest, WorldSize};
use sim::servers::{BoundsReached, ServerStats, run};
use store::object::WriterId;

/// Three simulated minutes.
const SHORT: u64 = 180_000;

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 4, 7] {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let one = run(seed, SHORT, &mut |line| first.push(line));
        let two = run(seed, SHORT, &mut |line| second.push(line));
        assert!(first.len() > 100 || seed == 7 && first.len() > 5, "the trace is not empty");
        assert_eq!((first, one), (second, two), "seed {seed}");
    }
}

/// A request with a token was underway for 23 s. Its retries arrived first, and one of them used the token's grant: the token
/// had counted when the request was sent, and counted as new when it arrived. A later request was granted, rightly, and
/// reported as having overtaken it.
#[test]
fn a_token_whose_grant_was_used_on_the_way_gives_no_place() {
    run(164, 72_000, &mut drop).unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn every_response_holds_over_many_seeds() {
    let mut all = ServerStats::default();
    for seed in 0..120 {
        let stats = run(seed, SHORT, &mut drop);
        all.add(&stats.unwrap_or_else(|what| {
            panic!("{what}\nto reproduce: cargo run --release -p lockd-sim -- --seed {seed} --hours 0.05")
        }));
    }
    // Every kind of event must have occurred.
    let ServerStats {
        responses,
        grants,
        commits,
        crashes,
        snapshots,
        relocations,
        deadlock_rejections,
        undelivered,
        pipelined,
        undecided,
        out_of_space,
        deposed,
        clean_stops,
        panics,
        bounds,
    } = all;
    for (what, count) in [
        ("responses", responses),
        ("grants", grants),
        ("commits", commits),
        ("crashes", crashes),
        ("snapshots", snapshots),
        ("relocations", relocations),
        ("deadlock rejections", deadlock_rejections),
        ("undelivered", undelivered),
        ("pipelined", pipelined),
        ("undecided", undecided),
        ("out of space", out_of_space),
    ] {
        assert!(count > 100, "{what}: {count}");
    }
    for (what, count) in [("deposed", deposed), ("clean stops", clean_stops), ("panics", panics)] {
        assert!(count > 10, "{what}: {count}");
    }
    let BoundsReached {
        full_by_bytes,
        full_by_commands,
        hand_off_by_bytes,
        hand_off_by_count,
        inbox_full,
        rotations,
        reserve,
    } = bounds;
    for (what, count) in [
        ("batch full by bytes", full_by_bytes),
        ("batch full by commands", full_by_commands),
        ("hand-off stopped by bytes", hand_off_by_bytes),
        ("hand-off stopped by count", hand_off_by_count),
        ("inbox full", inbox_full),
        ("several segments", rotations),
        ("log space for releases only", reserve),
    ] {
        assert!(count > 0, "{what}");
    }
    let unreached = engine::internals::reach::unreached();
    assert!(unreached.is_empty(), "functions of the sequencer that no seed reached: {unreached:?}");
}

/// A network failure made the outcome of an append unknown. Requests went on to arrive until the next batch was full, and
/// from then on no timer was set: the append was never repeated, also not when the network was back.
#[test]
fn an_undecided_append_is_repeated_although_the_next_batch_is_full() {
    const REQUESTS: u64 = 34_000;
    let (machine, mut ledger, mut rng) = (Machine::new(TrueTime(0), 1, 0), Ledger::default(), Rng::new(1));
    let objects =
        SimObjects::new(1, NetworkFaults { fault_percent: 0, delay_max: 4, ..NetworkFaults::default() });
    let handle = objects.handle();
    let backend = Backend::Objects(Arc::new(handle.clone()), WriterId(1));
    let mut server =
        Server::start(&WorldSize::SMALL, &backend, &machine, 1, &mut ledger).expect("an empty store");
    server.settle(&mut rng, &mut ledger).expect("the tenure is opened");
    handle.set_partitioned(true);
    // More than a batch for another machine takes, which counts blocked requests twice, and less than the inbox takes
    // beside it.
    for number in 1..REQUESTS {
        let action = Action::Acquire(grant(key(&format!("{}", number % 7)), Span(60_000)));
        let command = Command::by(&identity("ada"), action);
        let request = ServerRequest { number, command, document: None, wait: None, attempt: None };
        server.submit(request, &mut ledger).expect("an outage ends nothing");
    }
    for second in 1..10 {
        server.settle(&mut rng, &mut ledger).expect("an outage ends nothing");
        assert!(server.health().is_undecided && server.take_replies().is_empty(), "nothing is durable");
        machine.set(TrueTime(second * 1000));
    }
    handle.set_partitioned(false);
    let mut replies = 0;
    for ms in 0..20 {
        // A batch may be held back for a moment.
        machine.set(TrueTime(10_000 + ms));
        server.settle(&mut rng, &mut ledger).expect("the append is repeated");
        replies += server.take_replies().len() as u64;
    }
    assert_eq!(replies, REQUESTS - 1, "every request has its response");
}
