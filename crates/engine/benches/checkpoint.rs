//! The memory of a checkpoint, beside the live state: an allocator counts live bytes.
//!
//! `cargo bench -p lockd-engine --bench checkpoint`; an argument after `--` is the number of leases.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![allow(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::internals::checkpoint::{Mark, take};
use engine::internals::decider::Decider;
use engine::internals::shard::StateDigest;
use engine::{MachineClock, Origin, TenureConfig};
use kernel::{Action, Command, Kernel, Limits, Shard, Span, Store};
use sim::fixture::{grant, identity, key};
use store::disk::DiskBlobs;
use store::fs::RealFs;
use store::memory::MemoryLog;
use store::{LogStore, Seq};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call on to the system's allocator, and counts it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's obligations are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's obligations are the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a step; returns the peak of live bytes during it, and the live bytes after it, both above those before it.
fn measured<T>(step: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = step();
    (result, PEAK.load(Ordering::Relaxed) - before, LIVE.load(Ordering::Relaxed).saturating_sub(before))
}

fn main() {
    let leases = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(1_000_000);
    let dir = tempfile::tempdir().expect("a directory");
    let blobs = DiskBlobs::open(RealFs, dir.path()).expect("an empty directory");
    let mut log = MemoryLog::default();
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let limits = Limits { leases_per_identity_max: u32::MAX, ..Limits::default() };
    let opening = TenureConfig { store, writer: 1, limits, slots: kernel::Slots::ALL };
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let mut decider = Decider::open(Kernel::new(), Seq(0), clock, &opening).expect("a right clock");
    for n in 0..leases {
        let request = grant(key(&format!("key-{n:012}")), Span(300_000));
        decider.decide(&Command::by(&identity("ada"), Action::Acquire(request)), &Origin::default(), None);
        if n % 1000 == 0 {
            append(&mut decider, &mut log);
        }
    }
    let mark = append(&mut decider, &mut log);
    let shard = Shard(0);
    let check =
        |mark: &Mark| take(&blobs, &mut *log.reader(), shard, mark, 0, &mut |_| ()).expect("a checkpoint");
    let (first, _, state) = measured(|| check(&mark));
    drop(first);
    let request = grant(key("one-more"), Span(300_000));
    decider.decide(&Command::by(&identity("ada"), Action::Acquire(request)), &Origin::default(), None);
    let mark = append(&mut decider, &mut log.clone());
    let (second, peak, _) = measured(|| check(&mark));
    drop(second);
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let ratio = peak as f64 / state as f64;
    println!(
        "{leases} leases: the state takes {} MB; a checkpoint {} MB beside it, {ratio:.2} times",
        mb(state),
        mb(peak)
    );
}

fn append(decider: &mut Decider, log: &mut MemoryLog) -> Mark {
    let sealed = decider.seal().expect("something was decided");
    log.append(sealed.seq, sealed.lsns, &sealed.payload).expect("memory does not fail");
    let state = StateDigest { lsn: decider.kernel().last_lsn(), hash: decider.kernel().state_hash() };
    Mark { next: sealed.seq.next(), state, extents: log.extents() }
}

fn mb(bytes: usize) -> usize {
    bytes / 1_000_000
}
