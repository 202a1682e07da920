//! `lockd store who`: the holder of a key at past instants, across restarts, snapshots and truncation.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cli::times::now_unix_ms;
use engine::internals::checkpoint::{Mark, plan, take};
use engine::internals::decider::Decider;
use engine::internals::shard::StateDigest;
use engine::{Clock, Origin, TenureConfig};
use kernel::{Action, Command, Kernel, Limits, Outcome, Shard, Span, Store};
use serde_json::Value;
use sim::fixture::{grant, identity, key};
use store::disk::{DiskDir, DiskLog, LogOptions, StoreFile};
use store::fs::RealFs;
use store::{BlobStore, LogStore};

use crate::lockd::serve::Running;
use crate::lockd::support::{Ran, lockd};

fn who(store: &Path, key: &str, at_unix_ms: u64) -> Ran {
    let at = format!("{}.{:03}", at_unix_ms / 1000, at_unix_ms % 1000);
    lockd(&["store", "who", key, "--store", store.to_str().expect("plain"), "--at", &at, "--output", "json"])
}

/// The holder, or `None` if the key was free.
fn holder(ran: &Ran) -> Option<String> {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let answer: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let holder = answer["leases"][0]["holder"].as_str().map(str::to_string);
    assert_eq!(answer["held"].as_bool(), Some(holder.is_some()), "{answer}");
    holder
}

/// Waits until the wall clock shows a later millisecond.
fn next_ms() -> u64 {
    let before = now_unix_ms();
    while now_unix_ms() <= before + 1 {
        std::thread::yield_now();
    }
    before + 1
}

/// Who took the key away at 02:13 could not be told from the log: commands without outcomes, times since the store was
/// created.
#[test]
fn the_holder_at_each_instant_is_found_while_the_server_runs_and_after_it_was_killed() {
    let data = tempfile::tempdir().expect("a directory");
    let started = now_unix_ms();
    let server = Running::start(data.path(), &[]);
    let mut connection = server.connect(&data.path().join("client.pem"));
    let mut ask = |path: &str, body: &str| -> Value {
        let (status, reply) = connection.ask("POST", path, body).expect("a response");
        assert_eq!(status, 200, "{reply}");
        serde_json::from_str(&reply).expect("JSON")
    };
    let free_before = next_ms();
    let lease = ask("/v1/acquire", r#"{"key":"orders","owner":"pump","ttl_seconds":300}"#);
    let held = next_ms();
    ask("/v1/release", &serde_json::json!({"lease_id": lease["lease_id"]}).to_string());
    let free_after = next_ms();
    ask("/v1/acquire", r#"{"key":"other"}"#);
    let store = data.path().join("store");
    for _ in 0..2 {
        assert_eq!(holder(&who(&store, "orders", free_before)), None);
        assert_eq!(holder(&who(&store, "orders", held)).as_deref(), Some("operator"));
        assert_eq!(holder(&who(&store, "orders", free_after)), None);
        server.signal(rustix::process::Signal::KILL);
    }
    let at = humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + std::time::Duration::from_millis(held));
    let store = store.to_str().expect("plain");
    let text = lockd(&["store", "who", "KEY:orders", "--store", store, "--at", &at.to_string()]);
    assert_eq!(text.code, 0, "{}", text.stderr);
    assert!(text.stdout.contains("held by operator owner=pump lease=L-"), "{}", text.stdout);
    let soon = lockd(&["store", "who", "other", "--store", store, "--at", "-0s"]);
    assert!(soon.stdout.contains("held by operator"), "{}{}", soon.stdout, soon.stderr);

    let before = who(Path::new(store), "orders", started - 5000);
    assert_eq!(before.code, 1);
    assert!(before.stdout.contains("the store was created later than that"), "{}", before.stdout);
    let future = lockd(&["store", "who", "k", "--store", store, "--at", "2100-01-01T00:00:00Z"]);
    assert_eq!(future.code, 2);
    assert!(future.stderr.contains("in the future"), "{}", future.stderr);
}

/// A clock that the test sets, in milliseconds after a base.
#[derive(Clone)]
struct StepClock(u64, Arc<AtomicU64>);

impl Clock for StepClock {
    fn boot_clock(&self) -> Span {
        Span(self.1.load(Ordering::Relaxed))
    }

    fn boot_id(&self) -> u128 {
        1
    }

    fn unix_micros(&self) -> u64 {
        (self.0 + self.1.load(Ordering::Relaxed)) * 1000
    }
}

/// A shard that the test drives: it decides, appends, takes snapshots and truncates its log.
struct SmallShard {
    log: DiskLog<RealFs>,
    blobs: Arc<dyn BlobStore>,
    decider: Decider,
}

/// Bytes of log that are retained.
const RETAIN: u64 = 12_000;

impl SmallShard {
    fn open(dir: &DiskDir, clock: &StepClock) -> SmallShard {
        let log = dir.log(0, LogOptions::SEGMENT_BYTES_MIN * 2).expect("a log").0;
        let tenure = TenureConfig {
            store: Store { shard: Shard(0), shards: 1, hash_seed: 9 },
            writer: 3,
            limits: Limits::default(),
            slots: kernel::Slots::ALL,
        };
        let next = log.bounds().next;
        let decider =
            Decider::open(Kernel::new(), next, Box::new(clock.clone()), &tenure).expect("a right clock");
        SmallShard { log, blobs: Arc::new(dir.blobs().expect("blobs")), decider }
    }

    fn acquire(&mut self, name: &str, ttl: Span) -> Mark {
        let acquire = Command::by(&identity(name), Action::Acquire(grant(key("k"), ttl)));
        let outcome = self.decider.decide(&acquire, &Origin::default(), None);
        assert!(matches!(outcome, Outcome::Applied(..)), "{outcome:?}");
        let sealed = self.decider.seal().expect("a record");
        self.log.append(sealed.seq, sealed.lsns, &sealed.payload).expect("space");
        let kernel = self.decider.kernel();
        let state = StateDigest { lsn: kernel.last_lsn(), hash: kernel.state_hash() };
        Mark { next: sealed.seq.next(), state, extents: self.log.extents() }
    }

    fn checkpoint(&mut self, mark: &Mark) {
        let mut reader = self.log.reader();
        let taken =
            take(&*self.blobs, &mut *reader, Shard(0), mark, RETAIN, &mut |_| ()).expect("a snapshot");
        if let Some(plan) = plan(&taken, &mut *reader, mark, RETAIN).expect("readable") {
            self.log.raise_floor(plan.floor).expect("truncated");
        }
    }
}

/// Only the last two snapshots were kept, and the log before them told nothing of the leases that it had not granted
/// itself. Now every instant since the oldest kept snapshot has an answer, and an earlier one is refused with that time.
#[test]
fn every_retained_instant_has_an_answer_and_an_earlier_one_is_refused_with_the_oldest() {
    let data = tempfile::tempdir().expect("a directory");
    let dir =
        DiskDir::open(data.path(), StoreFile { store_id: 5, shards: 1 }, &[7; 32], true).expect("a store");
    // Names alternate with pauses: 60 ms held, 40 ms free.
    let (rounds, step, ttl) = (300, 100, 60);
    let base = now_unix_ms() - rounds * step - 1000;
    let clock = StepClock(base, Arc::default());
    let mut shard = SmallShard::open(&dir, &clock);
    for round in 1..=rounds {
        clock.1.store(round * step, Ordering::Relaxed);
        let mark = shard.acquire(&format!("holder-{round}"), Span(ttl));
        if round % 10 == 0 {
            shard.checkpoint(&mark);
        }
    }
    assert!(shard.log.bounds().floor.0 > 0, "the log was truncated");
    let early = who(data.path(), "k", base + step + 10);
    assert_eq!(early.code, 1, "{}", early.stdout);
    let since = early.stdout.split("retained_since=").nth(1).expect("the oldest time").split(' ').next();
    let since = humantime::parse_rfc3339(since.expect("a time")).expect("RFC 3339");
    let since = since.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
    let first = (u64::try_from(since).expect("small") - base) / step + 1;
    // The two newest snapshots are of the last round and of the tenth before it.
    assert!(first + 40 <= rounds, "answers begin in round {first}");
    for round in [first, first + 1, first + 7, u64::midpoint(first, rounds), rounds - 11, rounds - 1, rounds]
    {
        let began = base + round * step;
        assert_eq!(holder(&who(data.path(), "k", began + 5)), Some(format!("holder-{round}")), "{round}");
        assert_eq!(holder(&who(data.path(), "k", began + ttl + 10)), None, "{round}");
    }
    let snapshots = shard.blobs.list("snapshot/0/").expect("listed").len();
    assert!((3..=8).contains(&snapshots), "a bounded number is kept: {snapshots}");

    // The dump has an outcome for every record since then.
    let dump = lockd(&["store", "dump", "--store", data.path().to_str().expect("plain")]);
    let lines = dump.lines();
    let (without, with): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["events"].is_null());
    assert!(with.len() > without.len(), "{} and {}", with.len(), without.len());
    assert!(without.iter().all(|line| line["lsn"].as_u64() < with[0]["lsn"].as_u64()));
    let last = lines.last().expect("lines");
    let lease = last["lease"].as_str().expect("a lease");
    let ended = last["events"][0]["event"].as_str();
    assert!(matches!(ended, Some("expired" | "granted")), "{last}");
    assert_eq!(last["outcome"]["lease"].as_str(), Some(lease));
    let unix_ms = last["unix_ms"].as_u64().expect("a time");
    assert!(unix_ms.abs_diff(base + rounds * step) <= 1, "{last}");
    let expired = with
        .iter()
        .flat_map(|line| line["events"].as_array().expect("a list"))
        .filter(|event| event["event"] == "expired");
    assert!(expired.count() + 2 >= with.len() / 2, "an expiry is shown where it was logged");
}
