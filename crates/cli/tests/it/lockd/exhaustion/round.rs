//! One round: an attack, or its control, beside the victim.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Arena, Connection, RESIDENT_MAX_KIB, Spawn, duration, report};
use crate::lockd::frame_client::Protocol;

/// The figures of a round.
pub(super) struct Round {
    /// The victim's p99.
    pub(super) p99: Duration,
    /// The server's resident memory at its peak.
    pub(super) resident_kib: u64,
    /// The part of the processor that other programs used.
    pub(super) others: f64,
}

/// Runs a round of an attack beside the victim. `spawn` starts the attack's threads, which end when the flag is set, and
/// count what the server refused.
pub(super) fn attack(protocol: Protocol, name: &str, is_control: bool, spawn: Spawn) -> Round {
    let arena = Arena::start(protocol, is_control);
    let (stop, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    // Before the attack: both are on one address, and share its limit of handshakes.
    let mut connection = arena.server.connect(&arena.victim);
    connection.ask("GET", "/healthz", "").expect("a response");
    let before = ProcessorTime::now(&arena);
    let mut took = std::thread::scope(|scope| {
        spawn(scope, &arena, &stop, &refused);
        let victim = scope.spawn(|| victim(connection, &stop));
        std::thread::park_timeout(duration());
        stop.store(true, Ordering::Release);
        victim.join().expect("every request of the victim succeeds")
    });
    let others = ProcessorTime::now(&arena).others_since(&before);
    let (p50, p99) = (percentile(&mut took, 50), percentile(&mut took, 99));
    let resident_kib = arena.peak_resident_kib();
    report(&format!(
        "{name}{}: victim p50 {p50:.1?} p99 {p99:.1?} of {} requests; {} refused; peak resident {} MiB",
        if is_control { " (control)" } else { "" },
        took.len(),
        refused.load(Ordering::Relaxed),
        resident_kib >> 10
    ));
    assert!(resident_kib < RESIDENT_MAX_KIB, "{name}: {resident_kib} KiB");
    Round { p99, resident_kib, others }
}

/// Acquires and releases as the victim until the attack is over, some of the time with an idempotency key. Returns the
/// latencies.
fn victim(mut connection: Connection, stop: &AtomicBool) -> Vec<Duration> {
    let mut took = Vec::new();
    while !stop.load(Ordering::Acquire) || took.len() < 20 {
        let begun = now();
        let body = r#"{"namespace":"victim","key":"k","ttl_seconds":60}"#;
        let header = format!("x-idempotency-key: victim-{}\r\n", took.len());
        let header = if took.len().is_multiple_of(50) { header.as_str() } else { "" };
        let (status, reply) = connection.send("POST", "/v1/acquire", header, body).expect("a response");
        assert_eq!(status, 200, "the victim was refused: {reply}");
        let lease: Value = serde_json::from_str(&reply).expect("JSON");
        let body = json!({"lease_id": lease["lease_id"]}).to_string();
        let (status, reply) = connection.ask("POST", "/v1/release", &body).expect("a response");
        assert_eq!(status, 200, "the victim was refused: {reply}");
        took.push(begun.elapsed());
    }
    took
}

#[expect(clippy::disallowed_methods, reason = "latency is printed")]
fn now() -> Instant {
    Instant::now()
}

pub(super) fn percentile<T: PartialOrd + Copy>(values: &mut [T], percent: usize) -> T {
    values.sort_unstable_by(|one, other| one.partial_cmp(other).expect("numbers"));
    values[(values.len() - 1) * percent / 100]
}

/// Times of the processor since the start of the machine, in clock ticks.
struct ProcessorTime {
    all: u64,
    idle: u64,
    /// Of this process, with the attacker, the victim and the sink, and of the server.
    own: u64,
}

impl ProcessorTime {
    fn now(arena: &Arena) -> ProcessorTime {
        let text = std::fs::read_to_string("/proc/stat").expect("Linux");
        let line = text.lines().next().expect("the sum of all processors");
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).take(8).map(|field| field.parse().expect("a number")).collect();
        let own = [std::process::id(), arena.server.id()].map(process_ticks).iter().sum();
        // The fourth and fifth are idle, and idle while a disk is waited for.
        ProcessorTime { all: ticks.iter().sum(), idle: ticks[3] + ticks[4], own }
    }

    fn others_since(&self, before: &ProcessorTime) -> f64 {
        let all = (self.all - before.all).max(1);
        let busy = all.saturating_sub(self.idle.saturating_sub(before.idle));
        #[expect(clippy::cast_precision_loss, reason = "a few thousand ticks")]
        let part = busy.saturating_sub(self.own - before.own) as f64 / all as f64;
        part
    }
}

/// User and system time of a process.
fn process_ticks(id: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).expect("it runs");
    // The name in parentheses may contain spaces. The times are the 14th and 15th field.
    let (_, fields) = text.rsplit_once(')').expect("a name");
    fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}
