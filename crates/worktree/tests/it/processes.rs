//! Real processes: a thousand stealers, hosts with different clocks, holders that are stopped or killed.
//!
//! A child is this test binary again; environment variables select its role, see [`part`].

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier};

use rustix::process::{Pid, Signal, kill_process};
use worktree::clock::{BootId, BootMs, Clock, Millis, MonoMs, SystemClock, UnixMs};
use worktree::doctor::DoctorRequest;
use worktree::error::ErrorClass;
use worktree::fs::RealFs;
use worktree::ids::SessionId;
use worktree::lock::AcquireRequest;
use worktree::policy::{LockPolicy, PolicyChanges};
use worktree::record::EntryEvent;
use worktree::repo::Repo;
use worktree::sequence::Sequence;
use worktree::snapshot::Consistency;
use worktree::status::LockState;
use worktree::tree::NoProgress;
use worktree::worktree::{Mode, Worktree};

use crate::support::{env, new_worktree, request_with, scratch, short_or_long, snapshot};

/// The clocks of this machine as a host with a wrong wall clock would have them.
struct HostClock {
    real: SystemClock,
    boot_id: BootId,
    wall_offset: i64,
}

impl Clock for HostClock {
    fn wall(&self) -> UnixMs {
        UnixMs(self.real.wall().0 + self.wall_offset)
    }

    fn boot(&self) -> BootMs {
        self.real.boot()
    }

    fn monotonic(&self) -> MonoMs {
        self.real.monotonic()
    }

    fn boot_id(&self) -> BootId {
        self.boot_id.clone()
    }

    fn wait(&self, ms: Millis) {
        self.real.wait(ms);
    }
}

/// A repository that several processes share.
struct Shared {
    dir: PathBuf,
    repo: Repo,
    main: Worktree,
}

impl Shared {
    fn make(dir: &Path) -> Self {
        let root = dir.join("repo");
        std::fs::create_dir(&root).expect("writable");
        let env = env(dir, Arc::new(RealFs), Arc::new(SystemClock::new()));
        let repo = Repo::init(env, &root, LockPolicy::DEFAULT).expect("an empty directory");
        let main = repo.add_worktree(new_worktree("main", Mode::Exclusive)).expect("a new name");
        Self { dir: dir.to_owned(), repo, main }
    }

    fn open(dir: &Path, clock: Arc<dyn Clock>) -> Self {
        let repo = Repo::open(env(dir, Arc::new(RealFs), clock), &dir.join("repo")).expect("it exists");
        let main = repo.worktree(&"main".parse().expect("a valid name")).expect("it exists");
        Self { dir: dir.to_owned(), repo, main }
    }

    fn clock(&self) -> &dyn Clock {
        &*self.repo.env().clock
    }

    /// Waits until the lock may be stolen, for a minute at most.
    fn wait_until_stealable(&self) {
        for _ in 0..6_000 {
            if self.repo.status(&self.main).expect("readable").state == LockState::Stealable {
                return;
            }
            self.clock().wait(10);
        }
        panic!("the lock never became stealable");
    }

    fn newest(&self) -> u64 {
        self.repo.status(&self.main).expect("readable").newest_entry.0
    }

    fn start(&self, part: &str, host: &str, wall_offset: i64) -> ChildProcess {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["processes::part", "--exact", "--nocapture", "--test-threads=1"])
            .env("JVS_TEST_PART", part)
            .env("JVS_TEST_DIR", &self.dir)
            .env("JVS_TEST_HOST", host)
            .env("JVS_TEST_WALL_OFFSET", wall_offset.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        ChildProcess { child, input, output }
    }
}

/// A child process and its pipes.
struct ChildProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// The next line that the child reports; lines of the test harness are skipped.
    fn next_line(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("readable") > 0 {
            if let Some((_, reported)) = line.trim_end().rsplit_once("report ") {
                return Some(reported.to_owned());
            }
            line.clear();
        }
        None
    }

    fn send_go(&mut self) {
        self.input.write_all(b"go\n").expect("the child listens");
    }

    fn all_lines(mut self) -> Vec<String> {
        let lines = std::iter::from_fn(|| self.next_line()).collect();
        self.child.wait().expect("our own child");
        lines
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("not zero");
        kill_process(pid, signal).expect("our own child");
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn report(what: &str) {
    println!("report {what}");
    std::io::stdout().flush().expect("the parent listens");
}

fn wait_for_go() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the parent speaks");
}

fn policy(lease_duration_ms: Millis, max_clock_skew_ms: Millis) -> LockPolicy {
    let changes = PolicyChanges {
        lease_duration_ms: Some(lease_duration_ms),
        renew_interval_ms: Some(lease_duration_ms / 4),
        max_clock_skew_ms: Some(max_clock_skew_ms),
        steal_grace_ms: Some(10),
    };
    LockPolicy::DEFAULT.with(&changes).expect("a valid policy")
}

/// The entry point of a child. Without a role in the environment it does nothing.
#[test]
fn part() {
    let Ok(part) = std::env::var("JVS_TEST_PART") else { return };
    // The parent reads until the pipe is closed, so this is the deadline of all its waits.
    std::thread::spawn(|| {
        SystemClock::new().wait(CHILD_DEADLINE_MS);
        std::process::abort();
    });
    let dir = PathBuf::from(std::env::var_os("JVS_TEST_DIR").expect("set by the parent"));
    let host = std::env::var("JVS_TEST_HOST").expect("set by the parent");
    let offset = std::env::var("JVS_TEST_WALL_OFFSET").expect("set by the parent");
    let real = SystemClock::new();
    let boot_id = if host.is_empty() { real.boot_id() } else { BootId(host) };
    let clock = HostClock { real, boot_id, wall_offset: offset.parse().expect("a number") };
    let shared = Shared::open(&dir, Arc::new(clock));
    match part.as_str() {
        "steal" => steal_with_many_threads(&dir),
        "cycle" => acquire_and_release_in_turn(&shared),
        "hold" => hold_and_be_stopped(&shared),
        "busy" => work_until_killed(&shared),
        other => panic!("no such part: {other}"),
    }
}

/// No child runs longer than this.
const CHILD_DEADLINE_MS: Millis = 180_000;
const PROCESSES: usize = 20;
const THREADS: usize = 50;

fn steal_with_many_threads(dir: &Path) {
    let barrier = Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let shared = Shared::open(dir, Arc::new(SystemClock::new()));
                barrier.wait();
                match shared.repo.acquire(&shared.main, &request_with(policy(600_000, 100))) {
                    Ok(grant) => {
                        report(&format!("won {} {}", grant.lock.fencing_token, grant.session.session_id));
                    }
                    Err(error) => report(&format!("lost {}", error.class().name())),
                }
            });
        }
        report("ready");
        wait_for_go();
        barrier.wait();
    });
}

#[test]
fn of_a_thousand_simultaneous_stealers_exactly_one_wins_in_every_round() {
    let dir = scratch();
    let shared = Shared::make(dir.path());
    let mut last_token = 0;
    for round in 0..3 {
        // On a slow machine the lease expires before this returns: the call fails, and the lock is still
        // held.
        drop(shared.repo.acquire(&shared.main, &request_with(policy(40, 100))));
        shared.wait_until_stealable();
        let newest = shared.newest();
        let mut children: Vec<ChildProcess> = (0..PROCESSES).map(|_| shared.start("steal", "", 0)).collect();
        for child in &mut children {
            assert_eq!(child.next_line().as_deref(), Some("ready"));
        }
        children.iter_mut().for_each(ChildProcess::send_go);
        let lines: Vec<String> = children.into_iter().flat_map(ChildProcess::all_lines).collect();
        assert_eq!(lines.len(), PROCESSES * THREADS, "everyone tried");
        let (won, lost): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.starts_with("won "));
        assert_eq!(won.len(), 1, "round {round}: {won:?}");
        assert!(
            lost.iter().all(|line| *line == "lost E_LOCK_CONFLICT"),
            "{:?}",
            lost.iter().collect::<BTreeSet<_>>()
        );
        let mut words = won[0].split(' ').skip(1);
        let token: u64 = words.next().and_then(|word| word.parse().ok()).expect("a token");
        assert!(token > last_token, "tokens only grow");
        assert_eq!((shared.newest(), token), (newest + 1, newest + 1), "one entry, and it is the winner's");
        last_token = token;
        let session: SessionId = words.next().expect("a session").parse().expect("a valid id");
        shared.repo.lock(&shared.main).release(&session).expect("the winner's");
    }
    let report =
        shared.repo.doctor(DoctorRequest { strict: true, ..DoctorRequest::default() }).expect("readable");
    let serious: Vec<_> = report.findings.iter().filter(|found| found.code != "session_left").collect();
    assert!(serious.is_empty(), "{serious:?}");
}

/// How often each host acquires the lock.
const TURNS: u32 = 4;

fn acquire_and_release_in_turn(shared: &Shared) {
    let dies_holding = std::env::var("JVS_TEST_HOST").is_ok_and(|host| host == "mortal");
    let (lock, began) = (shared.repo.lock(&shared.main), shared.clock().monotonic());
    let mut turns = 0;
    while turns < TURNS && shared.clock().monotonic().since(began) < 60_000 {
        match shared.repo.acquire(&shared.main, &request_with(policy(400, 2_000))) {
            Ok(grant) => {
                report(&format!("token {}", grant.lock.fencing_token));
                if dies_holding {
                    return;
                }
                // Both may come too late on a slow machine; the tokens must be unique even then.
                drop(lock.renew(&grant.session.session_id));
                drop(lock.release(&grant.session.session_id));
                turns += 1;
            }
            Err(error) if error.class() == ErrorClass::LockConflict => shared.clock().wait(10),
            Err(error) => return report(error.class().name()),
        }
    }
}

#[test]
fn hosts_with_different_clocks_never_share_a_token_and_a_wrong_one_gets_none() {
    let dir = scratch();
    let shared = Shared::make(dir.path());
    let hosts = [("mortal", 0), ("slow", -1_500), ("fast", 1_500), ("exact", 0)];
    let children: Vec<ChildProcess> =
        hosts.iter().map(|(host, offset)| shared.start("cycle", host, *offset)).collect();
    let wrong = shared.start("cycle", "wrong", 30_000).all_lines();
    assert_eq!(wrong, ["E_CLOCK_SKEW_EXCEEDED"]);
    let lines: Vec<Vec<String>> = children.into_iter().map(ChildProcess::all_lines).collect();
    let tokens: Vec<u64> = lines.iter().flatten().map(|line| token_of(line)).collect();
    assert_eq!(lines[0].len(), 1, "the mortal host held it once");
    assert!(lines[1..].iter().all(|lines| !lines.is_empty()), "everyone else got on: {lines:?}");
    assert_eq!(tokens.iter().collect::<BTreeSet<_>>().len(), tokens.len(), "no token twice: {tokens:?}");
    let grants = granted(&shared);
    assert_eq!(grants.iter().copied().collect::<BTreeSet<_>>(), tokens.into_iter().collect());
    let report = shared.repo.doctor(DoctorRequest::default()).expect("readable");
    assert!(report.findings.iter().all(|finding| finding.code != "audit_broken"), "{:?}", report.findings);
}

fn token_of(line: &str) -> u64 {
    let number = line.strip_prefix("token ").unwrap_or_else(|| panic!("not a token: {line}"));
    number.parse().expect("a number")
}

/// The tokens that the sequence grants, in order.
fn granted(shared: &Shared) -> Vec<u64> {
    let sequence = Sequence::new(shared.repo.env(), shared.repo.layout(), &shared.main.worktree_id);
    let read = |n| sequence.read(worktree::ids::EntryNumber(n)).expect("readable").entry;
    let grants = (1..=shared.newest()).map(read).filter_map(|entry| match entry.event {
        EntryEvent::Acquire { lock } | EntryEvent::Steal { lock, .. } => Some(lock.fencing_token.0),
        _ => None,
    });
    grants.collect()
}

fn hold_and_be_stopped(shared: &Shared) {
    let grant = shared.repo.acquire(&shared.main, &request_with(policy(3_000, 100))).expect("a free lock");
    let session = grant.session.session_id;
    report("held");
    wait_for_go();
    let lock = shared.repo.lock(&shared.main);
    report(lock.renew(&session).map_or_else(|error| error.class().name(), |_| "renewed"));
    report(lock.release(&session).map_or_else(|error| error.class().name(), |_| "released"));
    let published = snapshot(&shared.repo, &shared.main, Some(&session), Consistency::Quiesced);
    report(published.map_or_else(|error| error.class().name(), |_| "published"));
}

#[test]
fn a_stopped_process_that_wakes_after_the_steal_is_refused_everything() {
    let dir = scratch();
    let shared = Shared::make(dir.path());
    let mut holder = shared.start("hold", "", 0);
    assert_eq!(holder.next_line().as_deref(), Some("held"));
    holder.signal(Signal::STOP);
    shared.wait_until_stealable();
    let stealer = shared.repo.acquire(&shared.main, &request_with(policy(600_000, 100))).expect("stealable");
    holder.send_go();
    holder.signal(Signal::CONT);
    assert_eq!(holder.all_lines(), ["E_LOCK_NOT_HELD", "E_LOCK_NOT_HELD", "E_FENCING_MISMATCH"]);
    shared.repo.lock(&shared.main).release(&stealer.session.session_id).expect("undisturbed");
}

fn work_until_killed(shared: &Shared) {
    let payload = shared.repo.payload(&shared.main);
    report("working");
    for n in 0_u64.. {
        let request: AcquireRequest<'_> = request_with(policy(200, 100));
        let Ok(grant) = shared.repo.acquire(&shared.main, &request) else { continue };
        let session = grant.session.session_id;
        std::fs::write(payload.join("counter"), n.to_string()).expect("writable");
        drop(shared.repo.lock(&shared.main).renew(&session));
        drop(snapshot(&shared.repo, &shared.main, Some(&session), Consistency::Quiesced));
        drop(shared.repo.lock(&shared.main).release(&session));
    }
}

#[test]
fn a_worker_killed_at_any_moment_leaves_a_repository_that_can_be_repaired() {
    let dir = scratch();
    let shared = Shared::make(dir.path());
    for round in 0..short_or_long(6, 40) as u64 {
        let mut worker = shared.start("busy", "", 0);
        assert_eq!(worker.next_line().as_deref(), Some("working"));
        shared.clock().wait(17 * round % 90);
        worker.signal(Signal::KILL);
        worker.child.wait().expect("our own child");
        if shared.repo.status(&shared.main).expect("readable").lock.is_some() {
            shared.wait_until_stealable();
        }
        let next = shared.repo.acquire(&shared.main, &request_with(policy(600_000, 100))).expect("to be had");
        let mended = shared
            .repo
            .doctor(DoctorRequest { strict: true, repair: true, ..DoctorRequest::default() })
            .expect("readable");
        assert!(mended.is_healthy(), "round {round}: {:?}", mended.findings);
        for published in shared.repo.history(&shared.main, usize::MAX).expect("readable") {
            shared.repo.verify(&published, &NoProgress).expect("what is visible is whole");
        }
        shared.repo.lock(&shared.main).release(&next.session.session_id).expect("ours");
    }
}
