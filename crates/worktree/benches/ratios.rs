//! The cost of the protocol relative to the system calls that it needs, and of a snapshot relative to `cp
//! -a`.
//!
//! ```text
//! cargo bench -p lockd-worktree                      # everything, in the system's temporary directory
//! cargo bench -p lockd-worktree -- --small           # a tenth of the files, for a quick look
//! cargo bench -p lockd-worktree -- lock large-file   # only these; also: status, small-files, one-change
//! TMPDIR=/mnt/disk cargo bench -p lockd-worktree     # on another filesystem
//! ```
//!
//! Both sides of a ratio are measured alternately in the same run, and the medians are compared, so that the
//! load of the machine cancels out. Nothing here fails on a slow machine.

#[path = "ratios/one_change.rs"]
mod one_change;

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use worktree::env::Env;
use worktree::fs::{Durability, Fs, RealFs};
use worktree::holder::HolderId;
use worktree::ids::SessionId;
use worktree::lock::AcquireRequest;
use worktree::policy::LockPolicy;
use worktree::repo::{NewWorktree, Repo};
use worktree::session::SessionStore;
use worktree::snapshot::{Consistency, SnapshotRequest};
use worktree::tree::NoProgress;
use worktree::worktree::{Mode, Worktree};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let small = args.iter().any(|arg| arg == "--small");
    let names: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| *wanted == name);
    let dir = std::env::temp_dir().join(format!("jvs-bench-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a writable temporary directory");
    let bench = Bench::new(&dir);
    let scale = if small { 10 } else { 1 };
    if wanted("lock") {
        bench.lock_and_release();
    }
    if wanted("status") {
        bench.status();
    }
    if wanted("small-files") {
        bench.snapshot_of("small files", |payload| many_files(payload, 100_000 / scale), 3);
    }
    if wanted("large-file") {
        bench.snapshot_of("one large file", |payload| large_file(payload, 1_000 / scale), 5);
    }
    if wanted("one-change") {
        bench.one_change(60_000 / scale);
    }
    fs::remove_dir_all(&dir).expect("our own directory");
}

struct Bench {
    dir: PathBuf,
    repo: Repo,
    main: Worktree,
}

impl Bench {
    fn new(dir: &Path) -> Self {
        let root = dir.join("repo");
        fs::create_dir(&root).expect("writable");
        let env = Env::system(SessionStore::new(Arc::new(RealFs), dir.join("sessions")));
        let repo = Repo::init(env, &root, LockPolicy::DEFAULT).expect("an empty directory");
        let new = NewWorktree {
            worktree_id: "main".parse().expect("valid"),
            path: PathBuf::from("main").try_into().expect("valid"),
            mode: Mode::Exclusive,
            policy: LockPolicy::DEFAULT,
        };
        let main = repo.add_worktree(new).expect("a new name");
        Self { dir: dir.to_owned(), repo, main }
    }

    fn acquire(&self) -> SessionId {
        let request = AcquireRequest {
            holder: HolderId::this_process(),
            policy: LockPolicy::DEFAULT,
            only_steal: false,
            on_watch: &|_| {},
        };
        self.repo.acquire(&self.main, &request).expect("a free lock").session.session_id
    }

    fn lock_and_release(&self) {
        let bare = self.dir.join("bare");
        fs::create_dir(&bare).expect("writable");
        let mut number = 0;
        let (ours, theirs) = in_turns(
            200,
            || {
                let session = self.acquire();
                self.repo.lock(&self.main).release(&session).expect("ours");
            },
            || {
                for _ in 0..2 {
                    number += 1;
                    create_bare(&bare, number);
                }
            },
        );
        report("acquire + release", ours, "two synced files, linked", theirs, 3.0);
    }

    fn status(&self) {
        let session = self.acquire();
        let (library, bare) = in_turns(
            200,
            || drop(self.repo.status(&self.main).expect("readable")),
            || drop(fs::read(self.repo.layout().lock_copy(&self.main.worktree_id)).expect("there")),
        );
        self.repo.lock(&self.main).release(&session).expect("ours");
        let entries = self.repo.status(&self.main).expect("readable").newest_entry;
        println!(
            "{:<22} {:>9.3} ms  (reading the copy: {:.3} ms; entries={entries}; target under 5 ms)",
            "status, in process",
            ms(library),
            ms(bare)
        );
    }

    fn snapshot_of(&self, what: &str, fill: impl Fn(&Path), rounds: usize) {
        let payload = self.repo.payload(&self.main);
        fill(&payload);
        sync();
        let copy = self.dir.join("copy");
        let (ours, theirs) = in_turns_with_cleanup(
            rounds,
            || self.take_snapshot(),
            || {
                let copied = Command::new("cp").arg("-a").args([&payload, &copy]).status();
                assert!(copied.expect("`cp` exists").success());
                sync();
            },
            || {
                remove(&copy);
                remove(&self.repo.layout().snapshots());
                fs::create_dir(self.repo.layout().snapshots()).expect("writable");
                sync();
            },
        );
        let target = if what == "one large file" { 1.2 } else { 1.5 };
        report(&format!("snapshot, {what}"), ours, "cp -a and sync", theirs, target);
        remove(&payload);
        fs::create_dir(&payload).expect("writable");
    }

    fn take_snapshot(&self) {
        let session = self.acquire();
        self.take_snapshot_under(&session);
        self.repo.lock(&self.main).release(&session).expect("ours");
    }

    fn take_snapshot_under(&self, session: &SessionId) {
        let request = SnapshotRequest {
            note: None,
            consistency: Consistency::Quiesced,
            session: Some(session.clone()),
            progress: &NoProgress,
        };
        self.repo.snapshot(&self.main, &request).expect("nobody writes");
    }
}

/// What one entry needs at the least: a whole, synced file that appears at its name, durably.
fn create_bare(dir: &Path, number: u32) {
    let (temp, name) = (dir.join("temp"), dir.join(number.to_string()));
    RealFs.write_new(&temp, &[b'x'; 900], 0o666, Durability::Synced).expect("writable");
    RealFs.link(&temp, &name).expect("a new name");
    RealFs.remove_file(&temp).expect("ours");
    RealFs.sync_dir(dir).expect("syncable");
}

fn many_files(payload: &Path, count: u32) {
    for n in 0..count {
        let dir = payload.join(format!("{:03}", n / 250));
        if n % 250 == 0 {
            fs::create_dir(&dir).expect("writable");
        }
        fs::write(dir.join(format!("file-{n}")), format!("{n:>8} ").repeat(110)).expect("writable");
    }
}

fn large_file(payload: &Path, megabytes: u32) {
    let block: Vec<u8> = (0..1_000_000_u32).map(|n| u8::try_from(n * 31 % 251).expect("small")).collect();
    let mut file = fs::File::create(payload.join("large")).expect("writable");
    for _ in 0..megabytes {
        file.write_all(&block).expect("writable");
    }
}

/// Medians of both, measured alternately.
fn in_turns(rounds: usize, one: impl FnMut(), other: impl FnMut()) -> (Duration, Duration) {
    in_turns_with_cleanup(rounds, one, other, || {})
}

fn in_turns_with_cleanup(
    rounds: usize,
    mut one: impl FnMut(),
    mut other: impl FnMut(),
    cleanup: impl Fn(),
) -> (Duration, Duration) {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ones.push(timed(&mut one));
        cleanup();
        others.push(timed(&mut other));
        cleanup();
    }
    (median(ones), median(others))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark is a clock")]
fn timed(work: &mut impl FnMut()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn report(what: &str, ours: Duration, baseline: &str, theirs: Duration, target: f64) {
    println!(
        "{what:<28} {:>10.3} ms   {baseline}: {:>10.3} ms   ratio {:.2} (target {target})",
        ms(ours),
        ms(theirs),
        ours.as_secs_f64() / theirs.as_secs_f64()
    );
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn sync() {
    assert!(Command::new("sync").status().expect("`sync` exists").success());
}

fn remove(path: &Path) {
    assert!(!path.as_os_str().as_bytes().is_empty(), "never the root");
    if path.exists() {
        fs::remove_dir_all(path).expect("our own files");
    }
}
