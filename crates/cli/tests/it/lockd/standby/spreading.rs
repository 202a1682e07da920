//! How shards spread over servers, how long takeovers take, and what idle servers cost. Times are printed; the long form
//! (`LOCKD_LONG=1`, on a machine that does nothing else) also judges them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use objectserver::Operation;
use serde_json::json;
use worktree::clock::{Clock, SystemClock};

use super::super::bucket::{object_server, request, serve, wait_ms};
use super::{FAST, REQUESTS, acquire, is_long, loads, servers, shard_of};
use crate::lockd::serve::Running;
use crate::running::until;

/// The longest time until the next grant after the owner is killed, by the silence in seconds.
const TAKEOVERS_MS: [(&str, u64); 2] = [("3s", 5000), ("1s", 1500)];

#[test]
fn a_takeover_takes_little_longer_than_the_silence() {
    let clock = SystemClock::new();
    let rounds = if is_long() { 20 } else { 1 };
    for (silence, most_ms) in TAKEOVERS_MS {
        let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
        let flags = ["--takeover-silence", silence];
        let mut running = servers(&objects, dir.path(), 2, &flags);
        let mut times = Vec::new();
        for round in 0..rounds {
            until("the stand-by has seen the owner", || acquire(&running[1].address, "seen").0 != 503);
            wait_ms(1000);
            drop(running.remove(0));
            let killed = clock.boot();
            assert_eq!(acquire(&running[0].address, &format!("key-{round}")).0, 200);
            times.push(clock.boot().since(killed));
            running.push(serve(&objects, &dir.path().join(format!("r{round}")), &flags));
        }
        println!("silence {silence}: the next grant after {times:?} ms");
        assert!(!is_long() || times.iter().all(|ms| *ms <= most_ms), "silence {silence}: {times:?}");
        assert!(objects.double_wins().is_empty());
    }
}

/// Servers that start at the same time share the shards; five of twenty are killed at once.
#[test]
fn shards_spread_over_the_servers_and_move_on_when_some_are_killed() {
    let clock = SystemClock::new();
    let (count, shards, killed) = if is_long() { (20, 100, 5) } else { (4, 8, 1) };
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let text = shards.to_string();
    let flags = [FAST[0], FAST[1], "--shards", text.as_str()];
    let began = clock.boot();
    let mut servers: Vec<Running> = std::thread::scope(|scope| {
        let start = |number: usize| serve(&objects, &dir.path().join(number.to_string()), &flags);
        let starting: Vec<_> = (0..count).map(|number| scope.spawn(move || start(number))).collect();
        starting.into_iter().map(|server| server.join().expect("it starts")).collect()
    });
    let started_ms = clock.boot().since(began);
    until("every shard has an owner", || loads(&objects).iter().sum::<usize>() == shards);
    let owned_ms = clock.boot().since(began);
    until("the shards are spread", || {
        let loads = loads(&objects);
        let (least, most) = (loads.iter().min().copied(), loads.iter().max().copied());
        loads.len() == count
            && loads.iter().sum::<usize>() == shards
            && most.zip(least).is_some_and(|(most, least)| 2 * most <= 3 * least)
    });
    let spread_ms = clock.boot().since(began);
    println!(
        "{count} servers started after {started_ms} ms, {shards} shards owned after {owned_ms}, spread after {spread_ms}: {:?}",
        loads(&objects)
    );
    assert!(!is_long() || owned_ms <= 10_000, "all shards are owned within 10 s: {owned_ms} ms");
    let namespaces = namespaces_of_all_shards(&servers[0].address, shards);
    let victims = servers.split_off(count - killed);
    let (address, killed_at) = (servers[0].address.clone(), clock.boot());
    std::thread::scope(|scope| {
        for victim in victims {
            scope.spawn(move || drop(victim));
        }
    });
    for namespace in &namespaces {
        let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
        let body = json!({"namespace": namespace, "key": "after", "ttl_seconds": 60}).to_string();
        let headers = format!("x-idempotency-key: after-{number}\r\n");
        let (status, reply) = request(&address, "POST /v1/acquire", &headers, &body).expect("a response");
        assert_eq!(status, 200, "{reply}");
    }
    let granting_ms = clock.boot().since(killed_at);
    println!("{killed} killed: grants in all {shards} shards after {granting_ms} ms");
    assert!(!is_long() || granting_ms <= 2 * 1000 + 5000, "twice the silence and 5 s: {granting_ms} ms");
    assert!(objects.double_wins().is_empty());
}

/// A namespace of each shard: the id of a lease names its shard.
fn namespaces_of_all_shards(address: &str, shards: usize) -> Vec<String> {
    let mut found = BTreeMap::new();
    for number in 0..shards * 100 {
        if found.len() == shards {
            return found.into_values().collect();
        }
        let namespace = format!("space-{number}");
        found.entry(shard_of(address, &namespace)).or_insert(namespace);
    }
    panic!("no namespace of some shard");
}

/// A follower polled the log of an idle owner four times within the silence, for ever.
#[test]
fn an_idle_shard_is_polled_once_within_the_silence() {
    let (clock, dir) = (SystemClock::new(), tempfile::tempdir().expect("a directory"));
    let objects = object_server(0);
    let _running = servers(&objects, dir.path(), 2, &[]);
    // Until the log has not grown for the silence.
    wait_ms(2500);
    objects.reset_counts();
    let began = clock.boot();
    wait_ms(6000);
    let (heads, silences) = (objects.counts().of(Operation::Head), clock.boot().since(began) / 1000);
    let counts = objects.counts();
    println!(
        "in {silences} silences: {heads} HEAD, {} GET, {} PUT, {} LIST",
        counts.of(Operation::Get),
        counts.of(Operation::Put),
        counts.of(Operation::List)
    );
    assert!((1..=silences + 2).contains(&heads), "{heads} in {silences} silences");
    assert!(
        counts.of(Operation::Put) <= 2 * (4 * silences + 4),
        "two servers: {}",
        counts.of(Operation::Put)
    );
}
