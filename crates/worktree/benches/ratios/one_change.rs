//! One changed file among many: time and disk space of the next snapshot, relative to `git add -A && git commit`
//! of the same files.
//!
//! git does not sync its objects unless told to, so both sides are followed by a sync of the filesystem. Automatic
//! repacking is off: it would run in the background of later rounds.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use super::{Bench, in_turns, many_files, ms, report, sync};

impl Bench {
    pub(super) fn one_change(&self, count: u32) {
        if Command::new("git").arg("--version").output().is_err() {
            println!("one change in {count}: skipped, git is not installed");
            return;
        }
        let (payload, tracked) = (self.repo.payload(&self.main), self.dir.join("tracked"));
        fs::create_dir(&tracked).expect("writable");
        for dir in [&payload, &tracked] {
            many_files(dir, count);
        }
        git(&tracked, &["init", "-q"]);
        for (name, value) in [("gc.auto", "0"), ("user.name", "bench"), ("user.email", "bench@localhost")] {
            git(&tracked, &["config", name, value]);
        }
        sync();
        let (first, first_git) = in_turns(1, || self.take_snapshot(), || commit(&tracked));
        println!("first snapshot of {count}: {:.0} ms, git {:.0} ms", ms(first), ms(first_git));
        let (jvs, dot_git) = (self.repo.layout().jvs(), tracked.join(".git"));
        let before = [space(&jvs), space(&dot_git)];
        let round = Cell::new(0);
        let (ours, theirs) = in_turns(
            ROUNDS,
            || {
                round.set(round.get() + 1);
                change(&payload, round.get());
                self.take_snapshot();
            },
            || {
                change(&tracked, round.get());
                commit(&tracked);
            },
        );
        report(&format!("one change in {count}"), ours, "git add, commit and sync", theirs, 2.0);
        let after = [space(&jvs), space(&dot_git)];
        let each = |at: usize| (after[at] - before[at]) / ROUNDS as u64 / 1024;
        let alone = self.space_under_one_lock(&payload, round.get()) / 1024;
        println!(
            "disk space of each: {alone} KiB, {} KiB with acquire and release, git {} KiB, {} % of git's; of all: {} MiB, \
             git {} MiB, {} % of git's (target 120 %)",
            each(0),
            each(1),
            alone * 100 / each(1),
            after[0] >> 20,
            after[1] >> 20,
            after[0] * 100 / after[1]
        );
    }
}

impl Bench {
    /// The space of one snapshot while the lock is held: its directory and its entry, in bytes.
    fn space_under_one_lock(&self, payload: &Path, round: usize) -> u64 {
        let session = self.acquire();
        let jvs = self.repo.layout().jvs();
        let before = space(&jvs);
        change(payload, round + 1);
        self.take_snapshot_under(&session);
        let taken = space(&jvs) - before;
        self.repo.lock(&self.main).release(&session).expect("ours");
        taken
    }
}

const ROUNDS: usize = 5;

fn change(dir: &Path, round: usize) {
    fs::write(dir.join("001/file-250"), format!("round {round}")).expect("writable");
}

fn commit(dir: &Path) {
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-q", "-m", "bench"]);
    assert!(Command::new("sync").arg("-f").arg(dir).status().expect("`sync` exists").success());
}

fn git(dir: &Path, args: &[&str]) {
    assert!(Command::new("git").current_dir(dir).args(args).status().expect("`git` exists").success());
}

/// Allocated bytes of a directory and everything in it.
fn space(dir: &Path) -> u64 {
    let mut bytes = dir.symlink_metadata().expect("there").blocks() * 512;
    if dir.is_dir() {
        for entry in fs::read_dir(dir).expect("readable") {
            let path = entry.expect("readable").path();
            let meta = path.symlink_metadata().expect("there");
            bytes += if meta.is_dir() { space(&path) } else { meta.blocks() * 512 };
        }
    }
    bytes
}
