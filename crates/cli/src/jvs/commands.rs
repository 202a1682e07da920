//! Each command: one call of the `worktree` crate, and its result as JSON and text.

use std::fmt::Write;

use serde_json::{Value, json};
use worktree::clock::Millis;
use worktree::doctor::{DoctorReport, DoctorRequest};
use worktree::error::{Error, Result};
use worktree::history::DamagedRecord;
use worktree::history_filter::HistoryFilter;
use worktree::holder::HolderId;
use worktree::ids::SnapshotId;
use worktree::lock::{AcquireRequest, ReleaseOutcome};
use worktree::policy::LockPolicy;
use worktree::repo::{NewWorktree, Repo};
use worktree::snapshot::{Descriptor, SnapshotRequest};
use worktree::status::{LockState, Status};
use worktree::tree::RelPath;
use worktree::worktree::{Mode, PayloadPath, Worktree};

use crate::args::{DoctorArgs, Init, LockCommand, SnapshotArgs, WorktreeArg, WorktreeCommand};
use crate::context::{RepoContext, allow_group, default_worktree, real_path, required, system_env};
use crate::output::CommandOutput;
use crate::policy_args::PolicyArgs;
use crate::restoring::settled_note;
use crate::snapshot_args::HistoryArgs;
use crate::waiting::WaitArg;
use cli::progress::ByteProgress;

/// `jvs init`
pub(crate) fn init(args: &Init) -> Result<CommandOutput> {
    let policy = LockPolicy::DEFAULT.with(&args.policy.changes())?;
    let env = system_env()?;
    std::fs::create_dir_all(&args.dir).map_err(|cause| Error::io("create", &args.dir, &cause))?;
    let root = real_path(&args.dir)?;
    let repo = if args.shared {
        allow_group();
        Repo::init_shared(env, &root, policy)?
    } else {
        Repo::init(env, &root, policy)?
    };
    let worktree_id = args.worktree.clone().unwrap_or_else(default_worktree);
    let path = std::path::PathBuf::from(worktree_id.as_str()).try_into()?;
    let worktree = repo.add_worktree(NewWorktree { worktree_id, path, mode: args.mode.into(), policy })?;
    let text = format!(
        "repository created in {}\nput files into {}, then: jvs run -- COMMAND, or jvs lock acquire",
        root.display(),
        repo.payload(&worktree).display()
    );
    Ok(CommandOutput::new(json!({"root": root, "repo": repo.record(), "worktree": worktree}), text))
}

/// `jvs worktree …`
pub(crate) fn worktree(context: &RepoContext, command: &WorktreeCommand) -> Result<CommandOutput> {
    let repo = &context.repo;
    match command {
        WorktreeCommand::Add { worktree, path, mode, policy } => {
            let default = || std::path::Path::new("worktrees").join(worktree.as_str());
            let new = NewWorktree {
                worktree_id: worktree.clone(),
                path: PayloadPath::try_from(path.clone().unwrap_or_else(default))?,
                mode: (*mode).into(),
                policy: repo.record().policy.with(&policy.changes())?,
            };
            let added = repo.add_worktree(new)?;
            let text =
                format!("added {} at {}{}", worktree, repo.payload(&added).display(), shared_note(&added));
            Ok(CommandOutput::new(added, text))
        }
        WorktreeCommand::List => list_worktrees(repo),
        WorktreeCommand::Remove { worktree } => {
            let removed = repo.remove_worktree(worktree)?;
            let files = repo.payload(&removed);
            let text = format!("removed {worktree}; its files are still in {}", files.display());
            Ok(CommandOutput::new(json!({"removed": removed, "files": files}), text))
        }
    }
}

/// `jvs lock …`
pub(crate) fn lock(context: &RepoContext, command: &LockCommand) -> Result<CommandOutput> {
    match command {
        LockCommand::Acquire { target, policy, wait } => acquire(context, target, policy, Some(wait)),
        LockCommand::Steal { target, policy } => acquire(context, target, policy, None),
        LockCommand::Renew { target, session } => {
            let session = required(session.session_id.as_ref())?;
            let worktree = context.worktree(target)?;
            let lock = context.repo.lock(&worktree).renew(session)?;
            let text = format!(
                "renewed worktree={} lease_expires_at={}",
                worktree.worktree_id,
                lock.lease_expires_at.rfc3339()
            );
            Ok(CommandOutput::new(json!({"lock": lock}), text))
        }
        LockCommand::Release { target, session } => {
            let session = required(session.session_id.as_ref())?;
            let worktree = context.worktree(target)?;
            let before = context.repo.lock(&worktree).release(session)? == ReleaseOutcome::AlreadyReleased;
            let verb = if before { "already released" } else { "released" };
            let text = format!("{verb} worktree={}", worktree.worktree_id);
            let data = json!({"worktree_id": worktree.worktree_id, "released": true, "already": before});
            Ok(CommandOutput::new(data, text))
        }
        LockCommand::Status { target } => {
            let status = context.repo.status(&context.worktree(target)?)?;
            let text = describe_status(&status);
            Ok(CommandOutput::new(status, text))
        }
    }
}

/// `jvs snapshot`
pub(crate) fn snapshot(context: &RepoContext, args: &SnapshotArgs) -> Result<CommandOutput> {
    let worktree = context.worktree(&args.target)?;
    let bar = ByteProgress::new("copying", context.json);
    let request = SnapshotRequest {
        note: args.note.clone(),
        consistency: args.consistency.into(),
        session: args.session.session_id.clone(),
        progress: &bar,
    };
    let published = context.repo.snapshot(&worktree, &request)?;
    drop(bar);
    let snapshot = &published.descriptor;
    let mut text = format!(
        "published {} files={} bytes={} content_hash={}",
        snapshot.snapshot_id, snapshot.files, snapshot.bytes, snapshot.content_hash
    );
    if !published.is_head {
        text.push_str("\nthe head did not move: the snapshot was taken without the lock");
    }
    if let Some(risk) = &snapshot.risk {
        write!(text, "\nrisk: {risk} changed={}", snapshot.changed_while_read.len()).expect("a string");
    }
    text.push_str(shared_note(&worktree));
    let unfinished = context.repo.unfinished_snapshots().unwrap_or_default();
    if !unfinished.is_empty() {
        write!(
            text,
            "\nearlier snapshots were interrupted, and occupy disk space until `jvs gc` removes them: unfinished={}",
            unfinished.len()
        )
        .expect("a string");
    }
    Ok(CommandOutput::new(snapshot_data(snapshot, published.is_head), text))
}

/// `jvs history`
pub(crate) fn history(context: &RepoContext, args: &HistoryArgs) -> Result<CommandOutput> {
    let worktree = context.worktree(&args.target)?;
    let path = args.path.as_deref().map(RelPath::parse).transpose()?;
    let filter = HistoryFilter { note: args.grep.clone(), path, tagged: args.tagged };
    let limit = if filter.is_empty() { args.limit } else { usize::MAX };
    let listing = context.repo.history_listing(&worktree, limit)?;
    let (head, any) = (listing.head, !listing.snapshots.is_empty());
    let listed = |head: &SnapshotId| listing.snapshots.iter().any(|one| one.snapshot_id == *head);
    let foreign_head = head.as_ref().filter(|head| listing.snapshots.len() < limit && !listed(head));
    let snapshots = context.repo.filtered(&listing.snapshots, &filter, args.limit)?;
    let tags = context.repo.tags()?;
    let is_head = |id: &SnapshotId| head.as_ref() == Some(id);
    let data: Vec<Value> =
        snapshots.iter().map(|one| snapshot_data(one, is_head(&one.snapshot_id))).collect();
    let mut text = String::new();
    for one in &snapshots {
        let mark = if is_head(&one.snapshot_id) { '*' } else { ' ' };
        let risk = if one.risk.is_some() { " [risk: best_effort]" } else { "" };
        let note = one.note.as_deref().unwrap_or("");
        let tagged = tags.iter().filter(|tag| tag.snapshot_id == one.snapshot_id);
        let tags = tagged.fold(String::new(), |text, tag| format!("{text} [{}]", tag.tag));
        let (id, time) = (&one.snapshot_id, one.created_at.rfc3339());
        writeln!(
            text,
            "{mark} {id}  {time}  {:>7} files {:>12} bytes  {note}{tags}{risk}",
            one.files, one.bytes
        )
        .expect("a string");
    }
    if snapshots.is_empty() && listing.damaged.is_empty() {
        let none = "no snapshots yet; take one with `jvs snapshot`";
        text.push_str(if any { "no snapshot matches" } else { none });
    }
    if let Some(head) = foreign_head {
        write!(text, "\nthe head is a snapshot of another worktree: {head}").expect("a string");
    }
    text.push_str(shared_note(&worktree));
    let data =
        json!({"worktree_id": worktree.worktree_id, "mode": worktree.mode, "head": head, "snapshots": data});
    Ok(CommandOutput::new(data, text).with_damaged(&listing.damaged))
}

/// `jvs info`
pub(crate) fn info(context: &RepoContext, target: &WorktreeArg, name: &str) -> Result<CommandOutput> {
    let worktree = context.worktree(target)?;
    let snapshot = context.repo.find(&worktree, name)?;
    let is_head = context.repo.head(&worktree)?.as_ref() == Some(&snapshot.snapshot_id);
    let data = snapshot_data(&snapshot, is_head);
    let mut text = String::new();
    for (name, value) in data.as_object().expect("a descriptor is an object") {
        match value {
            Value::Null => {}
            Value::String(value) => writeln!(text, "{name}: {value}").expect("a string"),
            Value::Number(_) if name.ends_with("_at") => {
                writeln!(text, "{name}: {}", snapshot.created_at.rfc3339()).expect("a string");
            }
            value => writeln!(text, "{name}: {value}").expect("a string"),
        }
    }
    Ok(CommandOutput::new(data, text))
}

/// `jvs verify`
pub(crate) fn verify(
    context: &RepoContext,
    target: &WorktreeArg,
    name: &str,
    all: bool,
) -> Result<CommandOutput> {
    let worktree = context.worktree(target)?;
    let (snapshots, mut damaged) = if all {
        let listing = context.repo.history_listing(&worktree, usize::MAX)?;
        (listing.snapshots, listing.damaged)
    } else {
        (vec![context.repo.find(&worktree, name)?], Vec::new())
    };
    let bar = ByteProgress::new("verifying", context.json);
    let (mut verified, mut text) = (Vec::new(), String::new());
    for snapshot in &snapshots {
        match context.repo.verify(snapshot, &bar) {
            Ok(one) => {
                writeln!(text, "intact {} content_hash={}", one.snapshot_id, one.content_hash)
                    .expect("a string");
                verified.push(one);
            }
            Err(error) if !all => return Err(error),
            Err(error) => {
                damaged.push(DamagedRecord { subject: snapshot.snapshot_id.to_string(), error });
            }
        }
    }
    drop(bar);
    Ok(CommandOutput::new(json!({"verified": verified}), text).with_damaged(&damaged))
}

/// `jvs doctor`
pub(crate) fn doctor(context: &RepoContext, args: &DoctorArgs) -> Result<CommandOutput> {
    let DoctorArgs { strict, repair, accept_loss, purge } = *args;
    let report = context.repo.doctor(DoctorRequest { strict, repair, accept_loss, purge })?;
    let text = describe_report(&report);
    let exit_code = u8::from(!report.is_healthy());
    let mut data = serde_json::to_value(&report).expect("a report is plain data");
    data["healthy"] = report.is_healthy().into();
    Ok(CommandOutput::new(data, text).with_exit_code(exit_code))
}

/// Explains a long wait on standard error.
pub(crate) fn announce_watch(watch_ms: Millis) {
    eprintln!(
        "jvs: the holder is on another boot or host; checking that it no longer renews: watch_ms={watch_ms}"
    );
}

fn acquire(
    context: &RepoContext,
    target: &WorktreeArg,
    policy: &PolicyArgs,
    wait: Option<&WaitArg>,
) -> Result<CommandOutput> {
    let worktree = context.worktree(target)?;
    let request = AcquireRequest {
        // This process ends at once, so its parent is recorded as the holder.
        holder: HolderId::parent_process(),
        policy: worktree.policy.with(&policy.changes())?,
        only_steal: wait.is_none(),
        on_watch: &announce_watch,
    };
    let acquired = match wait {
        Some(wait) => wait.acquire(context, &worktree, &request)?,
        None => context.repo.acquire(&worktree, &request)?,
    };
    let lock = &acquired.lock;
    let verb = if acquired.stolen_from.is_some() { "stolen" } else { "acquired" };
    let text = format!(
        "{verb} worktree={} fencing_token={} lease_expires_at={}\nto use the lock: export JVS_SESSION_ID={}{}",
        lock.worktree_id,
        lock.fencing_token,
        lock.lease_expires_at.rfc3339(),
        lock.session_id,
        settled_note(&acquired.settled)
    );
    let data = json!({"lock": lock, "stolen_from": acquired.stolen_from, "settled": acquired.settled});
    Ok(CommandOutput::new(data, text))
}

fn list_worktrees(repo: &Repo) -> Result<CommandOutput> {
    let (mut data, mut text) = (Vec::new(), String::new());
    let listing = repo.worktree_listing()?;
    let mut damaged = listing.damaged;
    for worktree in listing.worktrees {
        let status = match repo.status(&worktree) {
            Ok(status) => status,
            Err(error) => {
                damaged.push(DamagedRecord { subject: worktree.worktree_id.to_string(), error });
                continue;
            }
        };
        let head = status.head.as_ref().map_or("none", SnapshotId::as_str);
        let (id, path) = (&worktree.worktree_id, worktree.path.as_path().display());
        writeln!(text, "{id}  {path}  {}  head={head}", lock_state_name(&status)).expect("a string");
        let mut value = serde_json::to_value(&worktree).expect("a worktree is plain data");
        value["lock_state"] = json!(status.state);
        value["head"] = json!(status.head);
        data.push(value);
    }
    if data.is_empty() && damaged.is_empty() {
        text.push_str("no worktrees; add one with `jvs worktree add`");
    }
    Ok(CommandOutput::new(json!({"worktrees": data}), text).with_damaged(&damaged))
}

fn lock_state_name(status: &Status) -> &'static str {
    match (status.mode, status.state) {
        (Mode::Shared, _) => "shared",
        (_, LockState::Free) => "free",
        (_, LockState::Live) => "locked",
        (_, LockState::Expired) => "expired",
        (_, LockState::Stealable) => "stealable",
        (_, LockState::ClockSkew) => "clock-skew",
    }
}

pub(crate) fn describe_status(status: &Status) -> String {
    let head = status.head.as_ref().map_or("none", SnapshotId::as_str);
    let mut text = format!("{} {} head={head}", status.worktree_id, lock_state_name(status));
    if let (Some(lock), Some(stealable_at)) = (&status.lock, status.stealable_at) {
        let process = serde_json::to_value(status.holder).expect("a word");
        write!(
            text,
            "\nholder={} ({}) session_id={} fencing_token={}\nlease_expires_at={} stealable_at={}",
            lock.holder_id,
            process.as_str().unwrap_or("unknown"),
            lock.session_id,
            lock.fencing_token,
            lock.lease_expires_at.rfc3339(),
            stealable_at.rfc3339()
        )
        .expect("a string");
    }
    text
}

fn describe_report(report: &DoctorReport) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let mark = if finding.repaired { "repaired" } else { "found" };
        writeln!(text, "{mark} {}: {} ({})", finding.code, finding.detail, finding.subject)
            .expect("a string");
    }
    let verdict = if report.is_healthy() { "healthy" } else { "not healthy" };
    let skew = report.clock_skew_ms.map_or("unknown".to_owned(), |skew| skew.to_string());
    write!(
        text,
        "{verdict}: worktrees={} entries={} snapshots={} clock_skew_ms={skew}",
        report.worktrees, report.entries, report.snapshots
    )
    .expect("a string");
    if report.purged.items > 0 {
        write!(text, "\npurged: items={}", report.purged.items).expect("a string");
    }
    if report.trash.items > 0 {
        let items = report.trash.items;
        write!(text, "\nin the trash: items={items}; `jvs doctor --purge` deletes them").expect("a string");
    }
    text
}

fn snapshot_data(snapshot: &Descriptor, is_head: bool) -> Value {
    let mut data = serde_json::to_value(snapshot).expect("a descriptor is plain data");
    data["is_head"] = is_head.into();
    data
}

/// A warning for shared worktrees.
pub(crate) fn shared_note(worktree: &Worktree) -> &'static str {
    match worktree.mode {
        Mode::Exclusive => "",
        Mode::Shared => {
            "\nthis worktree is shared: any process may write to it at any time, so there is no single writer"
        }
    }
}
