//! `jvs snapshot rm` and `jvs gc`: removing snapshots, with the disk space before and after.

use std::fmt::Write as _;

use indicatif::HumanBytes;
use worktree::error::Result;
use worktree::retention::{KeepPolicy, KeepReason, RemovalReport};

use crate::context::RepoContext;
use crate::output::CommandOutput;
use crate::snapshot_args::{GcArgs, SnapshotRmArgs};

/// `jvs snapshot rm`
pub(crate) fn remove(context: &RepoContext, args: &SnapshotRmArgs) -> Result<CommandOutput> {
    let worktree = context.worktree(&args.target)?;
    let named = args.snapshots.iter().map(|name| context.repo.removal_target(&worktree, name));
    let mut snapshots = named.collect::<Result<Vec<_>>>()?;
    snapshots.sort();
    snapshots.dedup();
    let report = context.repo.remove_snapshots(&snapshots, args.dry_run)?;
    let text = describe(&report);
    Ok(CommandOutput::new(report, text))
}

/// `jvs gc`
pub(crate) fn gc(context: &RepoContext, args: &GcArgs) -> Result<CommandOutput> {
    let worktrees = match &args.target.worktree {
        Some(id) => vec![context.repo.worktree(id)?],
        None => context.repo.worktrees()?,
    };
    let policy = KeepPolicy { last: args.keep_last, days: args.keep_days };
    let report = context.repo.collect_garbage(&worktrees, policy, args.dry_run)?;
    let text = describe(&report);
    Ok(CommandOutput::new(report, text))
}

fn describe(report: &RemovalReport) -> String {
    let mut text = String::new();
    let verb = if report.dry_run { "would remove" } else { "removed" };
    for id in &report.removed {
        writeln!(text, "{verb} {id}").expect("a string");
    }
    for id in &report.unfinished {
        writeln!(text, "{verb} {id} (unfinished: its process was interrupted)").expect("a string");
    }
    for kept in report.kept.iter().filter(|kept| kept.reason != KeepReason::Policy) {
        let reason = serde_json::to_value(kept.reason).expect("a word");
        writeln!(text, "kept {} ({})", kept.snapshot_id, reason.as_str().unwrap_or_default())
            .expect("a string");
    }
    for id in &report.blocked_by {
        writeln!(
            text,
            "no space is freed, because a damaged snapshot may share the files; restore it from a backup, or remove it \
             with `jvs snapshot rm`: snapshot={id}"
        )
        .expect("a string");
    }
    let (before, after) = (report.bytes_before, report.bytes_after);
    write!(
        text,
        "snapshots {verb}={} kept={} disk space: {} before, {} after",
        report.removed.len(),
        report.kept.len(),
        HumanBytes(before),
        HumanBytes(after)
    )
    .expect("a string");
    text
}
