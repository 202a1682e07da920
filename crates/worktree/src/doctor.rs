//! Checking a repository for damage and litter, and repairing what can be repaired without a decision.
//!
//! **Invariant.** A repair moves to the trash, or rewrites, only files that decide nothing. It never touches an
//! entry of a sequence, nor a snapshot that was or may have been published: only one with an intent is ever
//! removed. It touches nothing of a worktree whose sequence is damaged (`audit`), and nothing that a running
//! process may be using: only makers that certainly ended, tokens that are fenced, and files over a day old
//! count. A damaged sequence is continued only on request (`loss`).
//!
//! **What would break it.** Other processes work concurrently, so the order of reads matters: first whether a
//! process can still be using a file, then whether the sequence has it. In the other order the file could be
//! published in between. For the same reason all sequences are audited before the first repair.
//!
//! One damaged record is one finding, and does not end the examination. Without a repair nothing is written but
//! the probe of the clock, and that is left out where nothing can be written.

mod audit;
mod litter;
mod locks;
mod loss;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::clock::{Millis, UnixMs};
use crate::error::{Error, ErrorClass, Result};
use crate::ids::WorktreeId;
use crate::lease::LeaseTime;
use crate::probe;
use crate::repo::Repo;
use crate::trash::TrashContent;
use crate::worktree::Worktree;

use audit::Audit;

/// Parameters of an examination.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct DoctorRequest {
    /// Also check for litter, stored snapshots and the clock.
    pub strict: bool,
    /// Repair findings that can be repaired; implies `strict`.
    pub repair: bool,
    /// Continue sequences that lost entries; implies `repair`.
    pub accept_loss: bool,
    /// Empty the trash after everything else.
    pub purge: bool,
}

/// One problem.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its kind, for programs.
    pub code: &'static str,
    /// The affected path or id.
    pub subject: String,
    /// The problem, and what to do next.
    pub detail: String,
    /// Whether it has been repaired.
    pub repaired: bool,
}

/// The result of an examination.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    /// The problems found.
    pub findings: Vec<Finding>,
    /// The number of worktrees examined.
    pub worktrees: u64,
    /// The number of entries audited.
    pub entries: u64,
    /// The number of published snapshots examined.
    pub snapshots: u64,
    /// The skew between this machine's clock and the filesystem's; none if nothing can be written here.
    pub clock_skew_ms: Option<Millis>,
    /// The content of the trash at the end.
    pub trash: TrashContent,
    /// The items that `purge` deleted.
    pub purged: TrashContent,
}

impl DoctorReport {
    /// Whether no unrepaired problem is left.
    pub fn is_healthy(&self) -> bool {
        self.findings.iter().all(|finding| finding.repaired)
    }
}

impl Repo {
    /// Examines the repository, and repairs it if requested.
    pub fn doctor(&self, request: DoctorRequest) -> Result<DoctorReport> {
        let mut checkup = Checkup::new(self, request);
        let listing = self.worktree_listing()?;
        for damaged in &listing.damaged {
            let detail = format!(
                "{}; restore it from a backup, or move it away and add the worktree again with its path",
                damaged.error.detail()
            );
            checkup.note("worktree_damaged", &damaged.subject, detail);
        }
        let worktrees = listing.worktrees;
        checkup.report.worktrees = worktrees.len() as u64;
        checkup.audit_all(&worktrees)?;
        if checkup.strict {
            checkup.check_stored_snapshots()?;
        }
        if request.accept_loss {
            checkup.accept_losses()?;
        }
        for worktree in &worktrees {
            checkup.check_removal(worktree);
            checkup.check_lock(worktree)?;
            checkup.check_published(worktree);
        }
        if checkup.strict {
            checkup.check_clock(&worktrees);
            checkup.check_litter(&worktrees)?;
        }
        if request.purge {
            checkup.report.purged = self.purge_trash()?;
        }
        checkup.report.trash = self.trash_content()?;
        Ok(checkup.report)
    }
}

/// One examination.
struct Checkup<'a> {
    repo: &'a Repo,
    strict: bool,
    repair: bool,
    now: UnixMs,
    audits: BTreeMap<WorktreeId, Audit>,
    report: DoctorReport,
}

impl<'a> Checkup<'a> {
    fn new(repo: &'a Repo, request: DoctorRequest) -> Self {
        // A filesystem that is read-only or full can still be examined; then the local clock is trusted.
        let reading = probe::read(&repo.env, &repo.layout).ok();
        let repair = request.repair || request.accept_loss;
        Checkup {
            repo,
            strict: request.strict || repair,
            repair,
            now: reading.as_ref().map_or_else(|| repo.env.clock.wall(), |reading| reading.now.fs),
            audits: BTreeMap::new(),
            report: DoctorReport {
                findings: Vec::new(),
                worktrees: 0,
                entries: 0,
                snapshots: 0,
                clock_skew_ms: reading.map(|reading| reading.skew_ms()),
                trash: TrashContent::default(),
                purged: TrashContent::default(),
            },
        }
    }
}

impl Checkup<'_> {
    /// Records a finding that only a person can repair.
    fn note(&mut self, code: &'static str, subject: impl Into<String>, detail: impl Into<String>) {
        let finding = Finding { code, subject: subject.into(), detail: detail.into(), repaired: false };
        self.report.findings.push(finding);
    }

    /// Records a finding that can be repaired, and repairs it if that was requested.
    fn note_or_repair(
        &mut self,
        code: &'static str,
        subject: impl Into<String>,
        detail: &str,
        repair: impl FnOnce(&Repo) -> Result<()>,
    ) {
        let (detail, repaired) = match self.repair.then(|| repair(self.repo)) {
            None => (format!("{detail}; `jvs doctor --repair` repairs it"), false),
            Some(Ok(())) => (detail.to_owned(), true),
            Some(Err(error)) => (format!("{detail}; the repair failed: {error}"), false),
        };
        self.report.findings.push(Finding { code, subject: subject.into(), detail, repaired });
    }

    /// The times that decide leases, as of the beginning of the examination.
    fn lease_time(&self) -> LeaseTime {
        let clock = &self.repo.env.clock;
        LeaseTime { fs: self.now, boot: clock.boot(), boot_id: clock.boot_id() }
    }

    fn check_clock(&mut self, worktrees: &[Worktree]) {
        let policies = worktrees.iter().map(|worktree| worktree.policy);
        let bounds = policies.chain([self.repo.record.policy]).map(|policy| policy.max_clock_skew_ms());
        let bound = bounds.min().expect("the repository has a policy of its own");
        let Some(skew) = self.report.clock_skew_ms else { return };
        if skew > bound / 2 {
            let detail = format!(
                "this machine's clock is off by more than half of the allowed skew; synchronize it before \
                 locks are refused: skew_ms={skew} max_clock_skew_ms={bound}"
            );
            self.note("clock_offset", "clock", detail);
        }
    }

    /// Whether a file last modified at `at` is too old to be in use on any host.
    fn is_ancient(&self, at: UnixMs) -> bool {
        self.now.since(at) > ANCIENT_MS
    }
}

/// A day: how long a file of another host counts as in use.
const ANCIENT_MS: Millis = 24 * 3600 * 1000;

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn is_missing(error: &Error) -> bool {
    error.class() == ErrorClass::NotFound
}
