//! Every system call that an operation makes on the filesystem fails once, with EIO and with ENOSPC, and once the
//! process is killed in it: acquire, renew, release, snapshot, restore, restore of a path, fork, removal and repair. Afterwards the sequence is whole, every visible snapshot is intact, the files are
//! the old ones or the new ones, and a repair leaves nothing behind.
//!
//! The process is this test binary in another role; `strace` attaches to it once it is ready, and injects the fault. A
//! clean run first shows which calls there are. Without `strace`, or where it may not attach, the tests are skipped
//! with a message. `cargo test` tries a sample of the calls, `LOCKD_LONG=1` all of them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use worktree::clock::{Clock, SystemClock};
use worktree::doctor::{DoctorRequest, Finding};
use worktree::error::ErrorClass;
use worktree::fs::RealFs;
use worktree::holder::Maker;
use worktree::ids::SessionId;
use worktree::policy::{LockPolicy, PolicyChanges};
use worktree::repo::Repo;
use worktree::restore::RestoreRequest;
use worktree::retention::RemovalTarget;
use worktree::snapshot::{Consistency, Descriptor};
use worktree::tree::{NoProgress, RelPath};
use worktree::worktree::{Mode, Worktree};

use crate::support::layer::{Call, HookedFs};
use crate::support::{env, new_worktree, request_with, scratch, short_or_long, snapshot};

/// Calls that do not touch the filesystem: memory, threads, signals, time. Failing one of them ends the process like a
/// kill, and a kill in it leaves the files as the call of the filesystem before it did.
const OTHER_CALLS: [&str; 34] = [
    "mmap",
    "munmap",
    "mremap",
    "mprotect",
    "madvise",
    "brk",
    "futex",
    "clone",
    "clone3",
    "exit",
    "exit_group",
    "set_robust_list",
    "rseq",
    "prctl",
    "arch_prctl",
    "sigaltstack",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_yield",
    "sched_getaffinity",
    "getrandom",
    "gettid",
    "getpid",
    "getuid",
    "geteuid",
    "uname",
    "kill",
    "clock_nanosleep",
    "clock_gettime",
    "restart_syscall",
    "poll",
    "ppoll",
    "prlimit64",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Snapshot,
    Restore,
    RestorePath,
    Fork,
    Remove,
    Acquire,
    Renew,
    Release,
    Repair,
}

/// A held repository with one snapshot, and other files in the worktree.
struct Scene {
    dir: tempfile::TempDir,
    repo: Repo,
    main: Worktree,
    session: SessionId,
    first: Descriptor,
}

impl Scene {
    fn new(operation: Operation) -> Self {
        let dir = scratch();
        let root = dir.path().join("repo");
        std::fs::create_dir(&root).expect("writable");
        let policy = LockPolicy::DEFAULT
            .with(&PolicyChanges { lease_duration_ms: Some(600_000), ..PolicyChanges::default() })
            .expect("valid");
        let repo = Repo::init(open_env(dir.path()), &root, policy).expect("an empty directory");
        let main = repo.add_worktree(new_worktree("main", Mode::Exclusive)).expect("a new name");
        let session = repo.acquire(&main, &request_with(policy)).expect("a free lock").session.session_id;
        let files = repo.payload(&main);
        std::fs::create_dir(files.join("dir")).expect("writable");
        std::fs::write(files.join("dir/file"), b"one").expect("writable");
        let first = snapshot(&repo, &main, Some(&session), Consistency::BestEffort).expect("ours").descriptor;
        std::fs::write(files.join("dir/file"), b"two").expect("writable");
        std::os::unix::fs::symlink("dir/file", files.join("link")).expect("writable");
        let scene = Self { dir, repo, main, session, first };
        scene.prepare(operation);
        scene
    }

    fn prepare(&self, operation: Operation) {
        let (repo, main) = (&self.repo, &self.main);
        match operation {
            Operation::Acquire => drop(repo.lock(main).release(&self.session).expect("ours")),
            // The first snapshot must not be the head.
            Operation::Remove => {
                drop(snapshot(repo, main, Some(&self.session), Consistency::BestEffort).expect("ours"));
            }
            // An unfinished snapshot and a temporary file of a process that has ended.
            Operation::Repair => {
                let dead = Maker::of_process(&SystemClock::new().boot_id(), 4_194_305, 1);
                std::fs::write(repo.layout().tmp().join(format!("{dead}.00")), b"torn").expect("writable");
                let layer = HookedFs::killed_from(Call::SyncDir);
                let mut env = env(self.dir.path(), Arc::new(layer), Arc::new(SystemClock::new()));
                env.maker = dead;
                let dying = Repo::open(env, repo.layout().root()).expect("ours");
                snapshot(&dying, main, Some(&self.session), Consistency::BestEffort).expect_err("dies");
            }
            _ => {}
        }
    }

    fn start(&self, operation: Operation) -> Child {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["faults::operation_under_fault", "--exact", "--nocapture", "--test-threads=1"]);
        child.env("JVS_TEST_FAULT", format!("{operation:?}")).env("JVS_TEST_DIR", self.dir.path());
        child.env("JVS_TEST_SESSION", self.session.as_str());
        child.env("JVS_TEST_SNAPSHOT", self.first.snapshot_id.as_str());
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        child.spawn().expect("this program starts again")
    }

    /// Runs the operation under `strace` with `options`; whether it succeeded, and the trace. `None` if `strace` cannot
    /// attach.
    fn run(&self, operation: Operation, options: &[String]) -> Option<(bool, String)> {
        let mut child = self.start(operation);
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let is_ready = lines.any(|line| line.is_ok_and(|line| line.contains("ready")));
        let trace = self.dir.path().join("trace");
        let mut tracer = is_ready.then(|| attach(child.id(), &trace, options)).flatten();
        let mut said =
            tracer.as_mut().map(|tracer| BufReader::new(tracer.stderr.take().expect("piped")).lines());
        let first = said.as_mut().and_then(|said| said.next()?.ok());
        let is_attached = first.is_some_and(|line| line.contains("attached"));
        drop(child.stdin.take().expect("piped").write_all(b"go\n"));
        let status = child.wait().expect("our own child");
        if let Some(mut tracer) = tracer {
            tracer.wait().expect("our own child");
        }
        let text = std::fs::read_to_string(trace).unwrap_or_default();
        is_attached.then_some((status.code() == Some(DONE), text))
    }

    /// Everything that holds after a fault, whether the operation succeeded or not.
    fn check(&self, operation: Operation, succeeded: bool, story: &str) {
        let (repo, main) = (&self.repo, &self.main);
        let report = repo.doctor(DoctorRequest::default()).expect("readable");
        let broken = |code: &str| ["audit_broken", "snapshot_damaged"].contains(&code);
        assert!(!report.findings.iter().any(|one| broken(one.code)), "{story}: {:?}", report.findings);
        let history = repo.history(main, 10).expect("whole");
        for one in &history {
            repo.verify(one, &NoProgress).unwrap_or_else(|error| panic!("{story}: {error}"));
        }
        match (operation, history.len()) {
            (Operation::Snapshot, 1) => assert!(!succeeded, "{story}: reported and not published"),
            (Operation::Remove, 2) => assert!(!succeeded, "{story}: reported and not removed"),
            (Operation::Snapshot, 2) | (_, 1) => {}
            other => panic!("{story}: {other:?}"),
        }
        self.check_lock(operation, succeeded, story);
        let next =
            repo.acquire(main, &request_with(main.policy)).unwrap_or_else(|error| panic!("{story}: {error}"));
        self.check_files(operation, succeeded, story);
        let repaired =
            repo.doctor(DoctorRequest { repair: true, ..DoctorRequest::default() }).expect("readable");
        // A replaced tree that could not be read again is kept, which is a finding for a person.
        let is_open = |one: &Finding| !one.repaired && one.code != "rescued_files";
        assert!(!repaired.findings.iter().any(is_open), "{story}: {:?}", repaired.findings);
        let again =
            repo.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() }).expect("readable");
        assert!(!again.findings.iter().any(is_open), "{story}: {:?}", again.findings);
        repo.lock(main).release(&next.session.session_id).expect("ours");
    }

    /// Frees the lock: whoever holds it, the secret is there to release it.
    fn check_lock(&self, operation: Operation, succeeded: bool, story: &str) {
        let lock = self.repo.lock(&self.main);
        let holder = lock.view().expect("whole").lock;
        assert!(holder.is_some() || operation != Operation::Acquire || !succeeded, "{story}: not acquired");
        assert!(holder.is_none() || operation != Operation::Release || !succeeded, "{story}: not released");
        let session = match (operation, holder) {
            (Operation::Acquire, None) => return,
            (Operation::Acquire, Some(lock)) => lock.session_id,
            _ => self.session.clone(),
        };
        lock.release(&session).unwrap_or_else(|error| panic!("{story}: {error}"));
    }

    /// A fork is whole, or is not there, or is locked by the process that was making it.
    fn check_fork(&self, succeeded: bool, story: &str) {
        let fork = self.repo.worktree(&"fork".parse().expect("a name"));
        let content = self.repo.layout().root().join("fork/dir/file");
        match fork {
            Err(error) => assert!(!succeeded && error.class() == ErrorClass::NotFound, "{story}: {error}"),
            Ok(fork) => {
                let is_whole = std::fs::read(content).is_ok_and(|bytes| bytes == b"one");
                let is_locked = self.repo.lock(&fork).view().is_ok_and(|view| view.lock.is_some());
                let is_half_made = self.repo.head(&fork).map_or(true, |head| head.is_none());
                assert!(is_whole || (!succeeded && (is_locked || is_half_made)), "{story}: a torn fork");
            }
        }
    }

    /// The files are all old or all new, and agree with the head.
    fn check_files(&self, operation: Operation, succeeded: bool, story: &str) {
        let files = self.repo.payload(&self.main);
        let content =
            std::fs::read(files.join("dir/file")).unwrap_or_else(|error| panic!("{story}: {error}"));
        let linked = files.join("link").symlink_metadata().is_ok();
        if operation == Operation::Fork {
            self.check_fork(succeeded, story);
        }
        let is_new = match (&content[..], linked, operation) {
            (b"one", false, Operation::Restore) | (b"one", true, Operation::RestorePath) => true,
            (b"two", true, _) => false,
            other => panic!("{story}: a mixture, or a change that was not asked for: {other:?}"),
        };
        let restores = [Operation::Restore, Operation::RestorePath].contains(&operation);
        assert!(is_new || !restores || !succeeded, "{story}: reported and not restored");
    }
}

/// `strace` on a running process; `None` if it is not installed.
fn attach(pid: u32, trace: &Path, options: &[String]) -> Option<Child> {
    let mut tracer = Command::new("strace");
    tracer.args(["-f", "-o"]).arg(trace).args(options).args(["-p", &pid.to_string()]);
    tracer.stderr(Stdio::piped()).spawn().ok()
}

fn open_env(dir: &Path) -> worktree::env::Env {
    env(dir, Arc::new(RealFs), Arc::new(SystemClock::new()))
}

/// The exit codes of the role; a panic of the test harness has another.
const DONE: i32 = 40;
const REFUSED: i32 = 41;
/// How long the role may take.
const DEADLINE_MS: u64 = 60_000;

/// The role of the child. Without its environment it does nothing.
#[test]
fn operation_under_fault() {
    let Ok(operation) = std::env::var("JVS_TEST_FAULT") else { return };
    let dir = PathBuf::from(std::env::var_os("JVS_TEST_DIR").expect("set by the parent"));
    let text = |name| std::env::var(name).expect("set by the parent");
    let repo = Repo::open(open_env(&dir), &dir.join("repo")).expect("the parent's");
    let main = repo.worktree(&"main".parse().expect("valid")).expect("the parent's");
    let session: SessionId = text("JVS_TEST_SESSION").parse().expect("valid");
    let first = repo.visible(&text("JVS_TEST_SNAPSHOT").parse().expect("valid")).expect("published");
    // A fault must not make the test wait for ever.
    std::thread::spawn(|| {
        SystemClock::new().wait(DEADLINE_MS);
        std::process::abort();
    });
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("the parent's");
    let request =
        RestoreRequest { session: Some(session.clone()), discard_changes: true, progress: &NoProgress };
    let done = match operation.as_str() {
        "Snapshot" => snapshot(&repo, &main, Some(&session), Consistency::BestEffort).is_ok(),
        "Restore" => repo.restore(&main, &first, &request).is_ok(),
        "RestorePath" => {
            let path = RelPath::parse(Path::new("dir")).expect("plain");
            repo.restore_path(&main, &first, &path, &request).is_ok()
        }
        "Fork" => repo.fork(&first, new_worktree("fork", Mode::Exclusive), &NoProgress).is_ok(),
        "Remove" => repo.remove_snapshots(&[RemovalTarget::from(&first)], false).is_ok(),
        "Acquire" => repo.acquire(&main, &request_with(main.policy)).is_ok(),
        "Renew" => repo.lock(&main).renew(&session).is_ok(),
        "Release" => repo.lock(&main).release(&session).is_ok(),
        "Repair" => repo.doctor(DoctorRequest { repair: true, ..DoctorRequest::default() }).is_ok(),
        other => panic!("no such operation: {other}"),
    };
    end(if done { DONE } else { REFUSED });
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test harness would make calls of its own, and fail in them"
)]
fn end(code: i32) {
    std::process::exit(code);
}

/// How often each call of the filesystem is made, by the thread that makes it most often.
fn calls_in(trace: &str) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in trace.lines() {
        let mut words = line.split_whitespace();
        let (Some(thread), Some(call)) = (words.next(), words.next()) else { continue };
        let Some((name, _)) = call.split_once('(') else { continue };
        if !OTHER_CALLS.contains(&name)
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            *counts.entry((thread.to_owned(), name.to_owned())).or_default() += 1;
        }
    }
    let mut most: BTreeMap<String, usize> = BTreeMap::new();
    for ((_, name), count) in counts {
        let entry = most.entry(name).or_default();
        *entry = count.max(*entry);
    }
    most
}

fn sweep(operation: Operation, sample: usize) {
    let Some((true, trace)) = Scene::new(operation).run(operation, &[]) else {
        println!("skipped: strace is missing, or may not attach");
        return;
    };
    let mut cases = Vec::new();
    for (call, count) in calls_in(&trace) {
        for n in 1..=count {
            for fault in ["error=EIO", "error=ENOSPC", "signal=SIGKILL"] {
                cases.push(format!("inject={call}:{fault}:when={n}"));
            }
        }
    }
    assert!(cases.len() > 60, "only {} faults to inject", cases.len());
    let step = cases.len().div_ceil(short_or_long(sample, usize::MAX)).max(1);
    // Another sample each time: the process id is as random as it needs to be, and the failing case is printed.
    let first = std::process::id() as usize % step;
    let mut injected = 0;
    for case in cases.iter().skip(first).step_by(step) {
        let scene = Scene::new(operation);
        let story = format!("{operation:?} with strace -f -e {case}");
        let (succeeded, trace) =
            scene.run(operation, &["-e".to_owned(), case.clone()]).expect("it could attach");
        injected += usize::from(trace.contains("INJECTED") || trace.contains("killed by SIGKILL"));
        scene.check(operation, succeeded, &story);
    }
    let tried = cases.iter().skip(first).step_by(step).count();
    println!("{operation:?}: {injected} of {tried} faults were injected, of {} possible", cases.len());
    assert!(injected * 2 > tried, "only {injected} of {tried} faults were injected");
}

#[test]
fn a_snapshot_survives_a_fault_in_every_call() {
    sweep(Operation::Snapshot, 24);
}

#[test]
fn a_restore_survives_a_fault_in_every_call() {
    sweep(Operation::Restore, 24);
}

#[test]
fn a_restore_of_a_path_survives_a_fault_in_every_call() {
    sweep(Operation::RestorePath, 16);
}

#[test]
fn a_fork_survives_a_fault_in_every_call() {
    sweep(Operation::Fork, 12);
}

#[test]
fn a_removal_survives_a_fault_in_every_call() {
    sweep(Operation::Remove, 12);
}

#[test]
fn a_repair_survives_a_fault_in_every_call() {
    sweep(Operation::Repair, 12);
}

#[test]
fn acquire_renew_and_release_survive_a_fault_in_every_call() {
    for operation in [Operation::Acquire, Operation::Renew, Operation::Release] {
        sweep(operation, 6);
    }
}
