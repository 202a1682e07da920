//! Checking a repository for damage and litter, and repairing what can be repaired without a decision.
//!
//! **Invariant.** A repair removes or rewrites only files that decide nothing. It never touches an entry of a
//! sequence, nor a snapshot that was or may have been published: only one with an intent is ever removed. It
//! touches nothing of a worktree whose sequence is damaged (`audit`), and nothing that a running process may
//! be using: only makers that certainly ended, tokens that are fenced, and files over a day old count.
//!
//! **What would break it.** Other processes work concurrently, so the order of reads matters: first whether a
//! process can still be using a file, then whether the sequence has it. In the other order the file could be
//! published in between. For the same reason all sequences are audited before the first repair.

mod audit;
mod litter;
mod locks;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::clock::{Millis, UnixMs};
use crate::error::{Error, ErrorClass, Result};
use crate::ids::WorktreeId;
use crate::probe;
use crate::repo::Repo;
use crate::worktree::Worktree;

use audit::Audit;

/// Parameters of an examination.
#[derive(Clone, Copy, Debug, Default)]
pub struct DoctorRequest {
    /// Also check for litter, stored snapshots and the clock.
    pub strict: bool,
    /// Repair findings that can be repaired; implies `strict`.
    pub repair: bool,
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
    /// The skew between this machine's clock and the filesystem's.
    pub clock_skew_ms: Millis,
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
        let reading = probe::read(&self.env, &self.layout)?;
        let mut checkup = Checkup {
            repo: self,
            strict: request.strict || request.repair,
            repair: request.repair,
            now: reading.now.fs,
            audits: BTreeMap::new(),
            report: DoctorReport {
                findings: Vec::new(),
                worktrees: 0,
                entries: 0,
                snapshots: 0,
                clock_skew_ms: reading.skew_ms(),
            },
        };
        let worktrees = self.worktrees()?;
        for worktree in &worktrees {
            checkup.report.worktrees += 1;
            checkup.audit(&worktree.worktree_id)?;
        }
        if checkup.strict {
            checkup.check_stored_snapshots()?;
        }
        checkup.check_for_lost_tails()?;
        for worktree in &worktrees {
            checkup.check_removal(worktree);
            checkup.check_lock(worktree)?;
            checkup.check_published(worktree)?;
        }
        if checkup.strict {
            checkup.check_clock(&worktrees);
            checkup.check_litter(&worktrees)?;
        }
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

    /// Turns damage into a finding, so that the examination continues; an I/O error ends it.
    fn damage_is_a_finding<T>(
        &mut self,
        code: &'static str,
        subject: &str,
        result: Result<T>,
    ) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if matches!(error.class(), ErrorClass::Damaged | ErrorClass::NotFound) => {
                self.note(code, subject, error.detail());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn check_clock(&mut self, worktrees: &[Worktree]) {
        let policies = worktrees.iter().map(|worktree| worktree.policy);
        let bounds = policies.chain([self.repo.record.policy]).map(|policy| policy.max_clock_skew_ms());
        let bound = bounds.min().expect("the repository has a policy of its own");
        let skew = self.report.clock_skew_ms;
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
