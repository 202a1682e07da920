//! Power cuts: any combination of unsynced names and bytes may be lost.
//!
//! A process dies at one of its calls; another process completes an operation; then the power is cut. The
//! second operation must be durable, and the sequence must be whole.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use worktree::clock::Clock;
use worktree::doctor::DoctorRequest;
use worktree::error::Result;
use worktree::fs::{Fs, RealFs};
use worktree::holder::{HolderId, Maker};
use worktree::ids::{Digest, SystemEntropy};
use worktree::policy::LockPolicy;
use worktree::repo::Repo;
use worktree::session::{LockSession, SessionStore};
use worktree::worktree::{Mode, Worktree};

use crate::support::sim::{Rng, SimFs};
use crate::support::{STEALABLE_MS, TestClock, new_worktree, passing, request, short_or_long};

/// A repository on a disk that can lose power.
struct Machine {
    disk: SimFs,
    sessions: tempfile::TempDir,
    clock: Arc<TestClock>,
    repo: Repo,
    main: Worktree,
}

impl Machine {
    fn new() -> Self {
        let root = Path::new("/disk");
        let disk = SimFs::new(root);
        let sessions = crate::support::scratch();
        let clock = Arc::new(TestClock::new());
        let env = env(&disk, sessions.path(), clock.clone(), &clock.passed);
        let repo = Repo::init(env, root, LockPolicy::DEFAULT).expect("an empty disk");
        let main = repo.add_worktree(new_worktree("main", Mode::Exclusive)).expect("a new name");
        Self { disk, sessions, clock, repo, main }
    }

    /// After a power cut: another boot, whose clock starts again.
    fn rebooted(&self) -> Repo {
        let clock = Arc::new(TestClock::of_another_host("the next boot"));
        let env = env(&self.disk, self.sessions.path(), clock, &self.clock.passed);
        Repo::open(env, Path::new("/disk")).expect("it survives")
    }
}

fn env(disk: &SimFs, sessions: &Path, clock: Arc<TestClock>, passed: &Arc<AtomicI64>) -> worktree::env::Env {
    let real: Arc<dyn Fs> = Arc::new(RealFs);
    let sessions = SessionStore::new(real, sessions.to_owned());
    let maker = Maker::this_process(&clock.boot_id());
    worktree::env::Env {
        fs: passing::ahead_fs(Arc::new(disk.clone()), passed),
        clock: passing::ahead_clock(clock, passed),
        entropy: Arc::new(SystemEntropy),
        sessions,
        maker,
        process: HolderId::this_process(),
    }
}

const NEW_HEAD: &str = "20261116t002902483z-ef0d6e14";

fn publish(machine: &Machine, session: &LockSession) -> Result<()> {
    let lock = machine.repo.lock(&machine.main);
    let id = NEW_HEAD.parse().expect("a valid id");
    lock.publish_under(session, &id, Digest::NONE).map(drop)
}

/// The operation that the process dies in.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Acquire,
    Steal,
    Renew,
    Release,
    Publish,
}

impl Operation {
    fn prepare(self, machine: &Machine) -> Option<LockSession> {
        if let Self::Acquire = self {
            return None;
        }
        let grant = machine.repo.acquire(&machine.main, &request()).expect("a free lock");
        if let Self::Steal = self {
            machine.clock.advance(STEALABLE_MS);
        }
        Some(grant.session)
    }

    fn act(self, machine: &Machine, session: Option<&LockSession>) -> Result<()> {
        let lock = machine.repo.lock(&machine.main);
        let session = || session.expect("prepared");
        match self {
            Self::Acquire | Self::Steal => machine.repo.acquire(&machine.main, &request()).map(drop),
            Self::Renew => lock.renew(&session().session_id).map(drop),
            Self::Release => lock.release(&session().session_id).map(drop),
            Self::Publish => publish(machine, session()),
        }
    }
}

/// Kills `operation` at each of its calls; returns their number.
fn attack(operation: Operation, seed: u64) -> u64 {
    for calls in 0.. {
        let machine = Machine::new();
        let session = operation.prepare(&machine);
        machine.disk.die_after(calls);
        let finished = operation.act(&machine, session.as_ref()).is_ok();
        machine.disk.live();
        let newest_before_next = machine.repo.status(&machine.main).expect("readable").newest_entry;
        // Another process acquires the lock, and gets its acknowledgement.
        machine.clock.advance(STEALABLE_MS);
        let next = machine.repo.acquire(&machine.main, &request()).expect("stealable or free");
        machine.disk.cut_power(&mut Rng(seed.wrapping_mul(0x9e37_79b9).wrapping_add(calls + 1)));
        check(
            &machine,
            &next.session,
            newest_before_next,
            &format!("{operation:?} calls={calls} seed={seed}"),
        );
        if finished {
            return calls;
        }
    }
    unreachable!("the loop has no end")
}

fn check(machine: &Machine, acknowledged: &LockSession, before: worktree::ids::EntryNumber, story: &str) {
    let repo = machine.rebooted();
    let status = repo.status(&machine.main).unwrap_or_else(|error| panic!("{story}: {error}"));
    assert_eq!(
        status.newest_entry,
        before.next(),
        "{story}: the acknowledged entry is durable, and is the newest"
    );
    let lock = status.lock.unwrap_or_else(|| panic!("{story}: the lock that was granted is gone"));
    assert_eq!(lock.session_id, acknowledged.session_id, "{story}");
    let report = repo.doctor(DoctorRequest::default()).expect("readable");
    let broken = report.findings.iter().any(|finding| finding.code == "audit_broken");
    assert!(!broken, "{story}: {:?}", report.findings);
}

#[test]
fn an_acknowledged_acquire_survives_a_power_cut() {
    for operation in
        [Operation::Acquire, Operation::Steal, Operation::Renew, Operation::Release, Operation::Publish]
    {
        for seed in 1..=short_or_long(6, 40) as u64 {
            assert!(attack(operation, seed) > 5, "{operation:?} makes more calls than this");
        }
    }
}

/// One process dies between linking its entry and syncing it; the next one links its own, and the power is
/// cut. If only the second entry survived, the numbers would have a hole, and bisection could end on either
/// side of it.
#[test]
fn two_deaths_and_a_power_cut_leave_no_hole_in_the_numbers() {
    let mut cuts = 0;
    for (first, second) in (0..30).flat_map(|first| (0..30).map(move |second| (first, second))) {
        let machine = Machine::new();
        for calls in [first, second] {
            machine.disk.die_after(calls);
            drop(machine.repo.acquire(&machine.main, &request()));
            machine.disk.live();
            machine.clock.advance(STEALABLE_MS);
        }
        let sequence = machine.repo.layout().sequence(&machine.main.worktree_id);
        for seed in 1..=16 {
            let after = machine.disk.cut_copy(&mut Rng(seed * 7919 + first * 31 + second));
            let names = after.list(&sequence).expect("there");
            let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
            numbers.sort_unstable();
            let dense: Vec<u64> = (1..=numbers.len() as u64).collect();
            assert_eq!(numbers, dense, "first={first} second={second} seed={seed}");
            cuts += u32::from(numbers.len() > 1);
        }
    }
    assert!(cuts > 50, "the attack came too early to hurt");
}

#[test]
fn a_publish_that_returned_survives_a_power_cut() {
    for seed in 1..=50 {
        let machine = Machine::new();
        let session = Operation::Publish.prepare(&machine).expect("prepared");
        publish(&machine, &session).expect("ours");
        machine.disk.cut_power(&mut Rng(seed));
        let head = machine.rebooted().head(&machine.main).expect("readable");
        assert_eq!(head.map(String::from).as_deref(), Some(NEW_HEAD), "seed={seed}");
    }
}

/// The simulation must be able to fail: a name that is not synced does get lost.
#[test]
fn the_disk_does_lose_what_was_not_synced() {
    let lost = (1..=20).filter(|seed| {
        let disk = SimFs::new(Path::new("/d"));
        let path = Path::new("/d/name");
        disk.write_new(path, b"bytes", 0o600, worktree::fs::Durability::Synced).expect("room");
        disk.cut_power(&mut Rng(*seed));
        disk.read(path).is_err()
    });
    assert!(lost.count() > 3);
}
