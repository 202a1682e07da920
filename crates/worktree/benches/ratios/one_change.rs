//! One changed file among many: time and disk space of the next snapshot, relative to `git add -A && git commit`
//! of the same files.
//!
//! Enough rounds that folding the entries of the lock is part of the result.
//!
//! git does not sync its objects unless told to, so both sides are followed by a sync of the filesystem. Automatic
//! repacking is off: it would run in the background of later rounds.

use std::cell::Cell;
use std::collections::BTreeSet;
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
            "disk space of each: {} KiB with acquire and release, git {} KiB, {} % of git's; under a held lock {alone} KiB; \
             of all: {} MiB, git {} MiB, {} % of git's (target 120 %)",
            each(0),
            each(1),
            (after[0] - before[0]) * 100 / (after[1] - before[1]),
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

const ROUNDS: usize = 48;

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

/// Allocated bytes of a directory and everything in it; a file with several names counts once, as in `du`.
fn space(dir: &Path) -> u64 {
    let mut counted = BTreeSet::new();
    let mut bytes = 0;
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let meta = path.symlink_metadata().expect("there");
        if counted.insert(meta.ino()) {
            bytes += meta.blocks() * 512;
        }
        if meta.is_dir() {
            left.extend(fs::read_dir(&path).expect("readable").map(|entry| entry.expect("readable").path()));
        }
    }
    bytes
}
