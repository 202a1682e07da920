//! Fixtures: a repository in a temporary directory, with clocks that a test can move.
#![allow(unreachable_pub, reason = "the modules of the test binary share this")]

pub mod layer;
pub mod passing;
pub mod sim;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use worktree::clock::{BootId, BootMs, Clock, Millis, MonoMs, SystemClock, UnixMs};
use worktree::env::Env;
use worktree::error::{ErrorClass, Result};
use worktree::fs::{Fs, RealFs};
use worktree::holder::{HolderId, Maker};
use worktree::ids::{SessionId, SystemEntropy};
use worktree::lock::{AcquireRequest, AcquiredLock};
use worktree::policy::LockPolicy;
use worktree::repo::{NewWorktree, Repo};
use worktree::session::SessionStore;
use worktree::snapshot::{Consistency, PublishedSnapshot, SnapshotRequest};
use worktree::tree::NoProgress;
use worktree::worktree::{Mode, Worktree};

/// The real clocks plus an offset; waiting advances the offset instead of sleeping.
pub struct TestClock {
    real: SystemClock,
    boot_id: BootId,
    wall_offset: AtomicI64,
    elapsed: AtomicI64,
    /// The time that has passed for everyone: the wall clocks of all hosts, and the filesystem's.
    pub passed: Arc<AtomicI64>,
}

impl TestClock {
    /// This machine's time.
    pub fn new() -> Self {
        let real = SystemClock::new();
        let boot_id = real.boot_id();
        Self {
            real,
            boot_id,
            wall_offset: AtomicI64::new(0),
            elapsed: AtomicI64::new(0),
            passed: Arc::default(),
        }
    }

    /// The clock of another machine, with another boot id and boot time.
    pub fn of_another_host(name: &str) -> Self {
        let clock = Self { boot_id: BootId(name.to_owned()), ..Self::new() };
        clock.elapsed.store(7_000_000, Ordering::SeqCst);
        clock
    }

    /// Advances every clock by `ms`; that of the filesystem too, if this is the fixture's own clock.
    pub fn advance(&self, ms: Millis) {
        let ms = i64::try_from(ms).expect("a test's time is short");
        self.elapsed.fetch_add(ms, Ordering::SeqCst);
        self.passed.fetch_add(ms, Ordering::SeqCst);
    }

    /// Advances the boot clock alone, as if this were a clone of the machine.
    pub fn advance_boot_clock(&self, ms: i64) {
        self.elapsed.fetch_add(ms, Ordering::SeqCst);
    }

    /// Sets the wall clock back.
    pub fn set_wall_back_by(&self, ms: i64) {
        self.wall_offset.fetch_sub(ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    /// Without the time that has passed, which [`passing`] adds to all wall clocks and to the filesystem's.
    fn wall(&self) -> UnixMs {
        UnixMs(self.real.wall().0 + self.wall_offset.load(Ordering::SeqCst))
    }

    fn boot(&self) -> BootMs {
        BootMs(self.real.boot().0 + self.elapsed.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> MonoMs {
        MonoMs(self.real.monotonic().0 + self.elapsed.load(Ordering::SeqCst))
    }

    fn boot_id(&self) -> BootId {
        self.boot_id.clone()
    }

    fn wait(&self, ms: Millis) {
        // Short waits are for the filesystem's clock, and take real time.
        if ms <= 25 {
            self.advance_boot_clock(i64::try_from(ms).expect("short"));
            return self.real.wait(ms);
        }
        self.advance(ms);
        self.real.wait(1);
    }
}

/// A repository with one worktree, `main`.
pub struct Fixture {
    pub dir: tempfile::TempDir,
    pub clock: Arc<TestClock>,
    pub repo: Repo,
    pub main: Worktree,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with_mode(Mode::Exclusive)
    }

    pub fn with_mode(mode: Mode) -> Self {
        let dir = scratch();
        let clock = Arc::new(TestClock::new());
        let env = passing::env(dir.path(), Arc::new(RealFs), clock.clone(), &clock.passed);
        let root = dir.path().join("repo");
        std::fs::create_dir(&root).expect("writable");
        let repo = Repo::init(env, &root, LockPolicy::DEFAULT).expect("an empty directory");
        let main = repo.add_worktree(new_worktree("main", mode)).expect("a new name");
        Self { dir, clock, repo, main }
    }

    /// The same repository with another filesystem and clock.
    pub fn seen_by(&self, fs: Arc<dyn Fs>, clock: Arc<dyn Clock>) -> Repo {
        let env = passing::env(self.dir.path(), fs, clock, &self.clock.passed);
        Repo::open(env, self.repo.layout().root()).expect("it exists")
    }

    /// The same repository, opened by a process that counts as ended.
    pub fn seen_by_the_dead(&self, fs: Arc<dyn Fs>) -> Repo {
        let mut env = passing::env(self.dir.path(), fs, self.clock.clone(), &self.clock.passed);
        // One more than the largest pid on Linux.
        env.maker = Maker::of_process(&self.clock.boot_id(), 4_194_305, 1);
        Repo::open(env, self.repo.layout().root()).expect("it exists")
    }

    pub fn payload(&self, name: &str) -> PathBuf {
        self.repo.payload(&self.main).join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.payload(name);
        std::fs::create_dir_all(path.parent().expect("below the worktree")).expect("writable");
        std::fs::write(path, bytes).expect("writable");
    }

    pub fn acquire(&self) -> Result<AcquiredLock> {
        self.repo.acquire(&self.main, &request())
    }

    pub fn snapshot(&self, session: &SessionId) -> Result<PublishedSnapshot> {
        snapshot(&self.repo, &self.main, Some(session), Consistency::Quiesced)
    }
}

/// A directory in memory if possible: the tests sync thousands of times.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
        .expect("a directory for the test")
}

pub fn env(dir: &Path, fs: Arc<dyn Fs>, clock: Arc<dyn Clock>) -> Env {
    let sessions = SessionStore::new(fs.clone(), dir.join("sessions"));
    let maker = Maker::this_process(&clock.boot_id());
    Env { fs, clock, entropy: Arc::new(SystemEntropy), sessions, maker, process: HolderId::this_process() }
}

pub fn new_worktree(name: &str, mode: Mode) -> NewWorktree {
    NewWorktree {
        worktree_id: name.parse().expect("a valid name"),
        path: PathBuf::from(name).try_into().expect("a valid path"),
        mode,
        policy: LockPolicy::DEFAULT,
    }
}

pub fn request() -> AcquireRequest<'static> {
    request_with(LockPolicy::DEFAULT)
}

pub fn request_with(policy: LockPolicy) -> AcquireRequest<'static> {
    AcquireRequest { holder: HolderId::this_process(), policy, only_steal: false, on_watch: &|_| {} }
}

pub fn snapshot(
    repo: &Repo,
    worktree: &Worktree,
    session: Option<&SessionId>,
    consistency: Consistency,
) -> Result<PublishedSnapshot> {
    let request =
        SnapshotRequest { note: None, consistency, session: session.cloned(), progress: &NoProgress };
    repo.snapshot(worktree, &request)
}

/// Waits until files that were written before count as unchanged in the next snapshot but one: their times must be
/// older than its start by more than a step of the file clock.
pub fn let_files_settle() {
    SystemClock::new().wait(60);
}

/// The class of an error; a success fails the test.
pub fn class<T: fmt::Debug>(result: Result<T>) -> ErrorClass {
    result.expect_err("this must be refused").class()
}

/// Later than expiry, skew and grace of the default policy.
pub const STEALABLE_MS: Millis = 30_000 + 2_000 + 1_000 + 10;

/// How much a randomised or exhaustive test does: little by default, more with `LOCKD_LONG=1`.
pub fn short_or_long(short: usize, long: usize) -> usize {
    if std::env::var_os("LOCKD_LONG").is_some_and(|value| value == "1") { long } else { short }
}
