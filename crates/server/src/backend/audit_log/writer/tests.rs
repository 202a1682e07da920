//! The queue and the writer with a disk that is full, slow, or gone.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use super::super::line::{AuditItem, ServerEvent};
use super::*;

/// How long a test waits for the writer.
const DEADLINE: Duration = Duration::from_secs(20);

/// A file in memory that takes nothing while it is full.
#[derive(Clone, Default)]
struct TestDisk(Arc<Mutex<DiskState>>);

#[derive(Default)]
struct DiskState {
    is_full: bool,
    /// A write does not return.
    is_stuck: bool,
    attempts: usize,
    syncs: usize,
    lines: Vec<u8>,
}

impl AuditSink for TestDisk {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut disk = self.0.lock().expect("no panic");
        disk.attempts += 1;
        while disk.is_stuck {
            drop(disk);
            std::thread::park_timeout(Duration::from_millis(1));
            disk = self.0.lock().expect("no panic");
        }
        if disk.is_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.lines.extend_from_slice(lines);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.lock().expect("no panic").syncs += 1;
        Ok(())
    }

    fn name(&self) -> String {
        "test".into()
    }
}

impl TestDisk {
    fn set_full(&self, is_full: bool) {
        self.0.lock().expect("no panic").is_full = is_full;
    }

    fn attempts(&self) -> usize {
        self.0.lock().expect("no panic").attempts
    }

    /// The lines, each as its store or its number of lost entries.
    fn lines(&self) -> Vec<Value> {
        let bytes = self.0.lock().expect("no panic").lines.clone();
        let text = String::from_utf8(bytes).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect()
    }
}

struct World {
    disk: TestDisk,
    queue: Arc<AuditQueue>,
    metrics: Arc<Metrics>,
}

impl World {
    /// A queue for `items` entries.
    fn new(items: usize, is_full: bool) -> World {
        let (disk, metrics) = (TestDisk::default(), Arc::new(Metrics::new()));
        disk.set_full(is_full);
        let queue = Arc::new(AuditQueue::new(items * item(0).bytes(), Arc::clone(&metrics)));
        let wall: WallClock = Arc::new(|| Duration::from_millis(1_794_855_903_250));
        let (sink, interval) = (Box::new(disk.clone()), Duration::from_millis(1));
        let mut writer = Writer::new(sink, Arc::clone(&queue), Arc::clone(&metrics), wall, interval);
        std::thread::spawn(move || writer.run());
        World { disk, queue, metrics }
    }

    fn push(&self, numbers: std::ops::Range<usize>) {
        for number in numbers {
            self.queue.push(std::iter::once(item(number)));
        }
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(&World) -> bool) {
        let is_in_time = (0..DEADLINE.as_millis()).any(|_| {
            std::thread::park_timeout(Duration::from_millis(1));
            is_so(self)
        });
        assert!(is_in_time, "{what}: {:?}", self.disk.lines());
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.metrics.text(&[]);
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {text}"))
    }
}

fn item(number: usize) -> AuditItem {
    AuditItem::Server(0, ServerEvent::Started { store: number.to_string(), clean_stop: Some(true) })
}

fn stores(lines: &[Value]) -> Vec<usize> {
    lines.iter().filter_map(|line| line["store"].as_str()?.parse().ok()).collect()
}

#[test]
fn a_disk_that_is_full_for_a_while_costs_no_entry_while_the_queue_has_capacity() {
    let world = World::new(100, true);
    world.push(0..50);
    world.wait_for("it is retried", |world| world.disk.attempts() > 3);
    assert_eq!(world.disk.lines(), [] as [Value; 0]);
    world.disk.set_full(false);
    world.wait_for("all are written", |world| world.disk.lines().len() == 50);
    assert_eq!(stores(&world.disk.lines()), (0..50).collect::<Vec<_>>());
    assert_eq!(world.metric("lockd_audit_entries_total{result=\"lost\"}"), 0);
    assert!(world.metric("lockd_audit_failures_total") > 2);
    world.queue.close();
    assert!(world.queue.wait_until_ended(DEADLINE));
}

/// The promise to an auditor: a file without a gap line is complete. Entries beyond the queue's capacity are counted, and
/// the line with their number stands where they are missing.
#[test]
fn entries_that_do_not_fit_are_counted_and_marked_at_their_place() {
    let world = World::new(10, true);
    world.push(0..25);
    world.wait_for("it is retried", |world| world.disk.attempts() > 3);
    assert_eq!(world.metric("lockd_audit_entries_total{result=\"lost\"}"), 15);
    world.disk.set_full(false);
    // The writer may take the entries between two pushes: then there are several gap lines.
    let lost = |lines: &[Value]| lines.iter().filter_map(|line| line["entries"].as_u64()).sum::<u64>();
    world.wait_for("all are written", |world| lost(&world.disk.lines()) == 15);
    world.wait_for("the queue is empty", |world| world.metric("lockd_audit_queue_bytes") == 0);
    world.push(25..27);
    world.wait_for("the next ones too", |world| stores(&world.disk.lines()).len() == 12);
    let lines = world.disk.lines();
    assert_eq!(stores(&lines), (0..10).chain(25..27).collect::<Vec<_>>());
    let gaps = &lines[10..lines.len() - 2];
    let is_gap = |line: &Value| line["kind"] == "gap" && line["event"] == "lost";
    assert!(gaps.iter().all(is_gap) && lost(gaps) == 15, "{gaps:?}");
    assert_eq!(world.metric("lockd_audit_entries_total{result=\"written\"}"), 12);
    assert_eq!(world.metric("lockd_audit_queue_bytes"), 0);
    world.queue.close();
    assert!(world.queue.wait_until_ended(DEADLINE));
}

#[test]
fn a_stop_on_a_full_disk_ends_and_counts_what_is_left() {
    let world = World::new(10, true);
    world.push(0..4);
    world.wait_for("it is tried", |world| world.disk.attempts() > 0);
    world.queue.close();
    assert!(world.queue.wait_until_ended(DEADLINE));
    assert_eq!(world.metric("lockd_audit_entries_total{result=\"lost\"}"), 4);
    world.push(4..5);
    assert_eq!(
        world.metric("lockd_audit_entries_total{result=\"lost\"}"),
        5,
        "after the end nothing is taken"
    );
}

/// A device that hangs is worse than a full one: the write does not return. Requests go on, and so does a stop.
#[test]
fn a_write_that_hangs_delays_neither_entries_nor_a_stop() {
    let world = World::new(10, false);
    world.disk.0.lock().expect("no panic").is_stuck = true;
    world.push(0..1);
    world.wait_for("it is tried", |world| world.disk.attempts() > 0);
    world.push(1..100);
    assert_eq!(world.metric("lockd_audit_entries_total{result=\"lost\"}"), 90);
    world.queue.close();
    assert!(!world.queue.wait_until_ended(Duration::from_millis(50)), "the caller goes on");
    world.disk.0.lock().expect("no panic").is_stuck = false;
    assert!(world.queue.wait_until_ended(DEADLINE));
    assert_eq!(stores(&world.disk.lines()), (0..10).collect::<Vec<_>>());
}

/// Lines were synced when none had come for a second. On a server that is always busy none ever was, and a power failure
/// took much more than the last second, which is what the documentation says.
#[test]
fn a_file_that_is_written_all_the_time_is_synced_once_per_interval() {
    let (disk, metrics) = (TestDisk::default(), Arc::new(Metrics::new()));
    let queue = Arc::new(AuditQueue::new(1 << 20, Arc::clone(&metrics)));
    // A millisecond passes whenever the clock is read, and an entry comes: the writer is never idle.
    let (now, reader) = (Arc::new(AtomicU64::new(0)), Arc::downgrade(&queue));
    let wall = Arc::clone(&now);
    let wall: WallClock = Arc::new(move || {
        let now = wall.fetch_add(1, Ordering::Relaxed);
        let queue = reader.upgrade().expect("the writer has it");
        if now < 1000 {
            queue.push(std::iter::once(item(0)));
        } else {
            queue.close();
        }
        Duration::from_millis(now)
    });
    queue.push(std::iter::once(item(0)));
    let (sink, interval) = (Box::new(disk.clone()), Duration::from_millis(100));
    Writer::new(sink, Arc::clone(&queue), metrics, wall, interval).run();
    assert!(now.load(Ordering::Relaxed) >= 1000, "it was never idle");
    let syncs = disk.0.lock().expect("no panic").syncs;
    // Ten intervals; the last sync is that of the end.
    assert!((9..=11).contains(&syncs), "{syncs}");
}

#[test]
fn a_name_cannot_break_a_line() {
    let mut out = String::new();
    let store = "a\nb\u{2028}c\u{85}d\"\u{1b}".to_string();
    AuditItem::Server(0, ServerEvent::Started { store: store.clone(), clean_stop: Some(false) })
        .line(&mut out);
    assert_eq!(out.matches(|c: char| c.is_control() || c == '\u{2028}').count(), 1, "{out:?}");
    let line: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(line["store"].as_str(), Some(store.as_str()));
    assert_eq!(line["time"].as_str(), Some("1970-01-01T00:00:00.000Z"));
}
