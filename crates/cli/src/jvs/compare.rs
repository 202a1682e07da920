//! `jvs diff`, `jvs status` and `jvs show`: what a snapshot contains, and how it differs from another tree.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cli::progress::ByteProgress;
use serde_json::json;
use worktree::diff::{NodeKind, PathChange, PathDifference, TreeDifferences};
use worktree::error::{Error, Result};
use worktree::snapshot::Descriptor;
use worktree::stored::StoredName;
use worktree::tree::RelPath;

use crate::commands::describe_status;
use crate::context::RepoContext;
use crate::output::CommandOutput;
use crate::snapshot_args::{DiffArgs, ShowArgs, StatusArgs};

/// `jvs diff`
pub(crate) fn diff(context: &RepoContext, args: &DiffArgs) -> Result<CommandOutput> {
    let worktree = context.worktree(&args.target)?;
    let before = context.repo.find(&worktree, &args.before)?;
    let (after, found) = if let Some(name) = &args.after {
        let after = context.repo.find(&worktree, name)?;
        let found = context.repo.diff_snapshots(&before, &after)?;
        (Some(after.snapshot_id), found)
    } else {
        let bar = ByteProgress::new("reading", context.json);
        (None, context.repo.diff_files(&worktree, Some(&before), &bar)?)
    };
    let (bytes_added, bytes_removed) = found.bytes();
    let text = if args.stat { stat_lines(&found) } else { lines(&found.changes) };
    let data = json!({
        "before": before.snapshot_id,
        "after": after,
        "changes": found.changes,
        "bytes_added": bytes_added,
        "bytes_removed": bytes_removed,
    });
    Ok(CommandOutput::new(data, text))
}

/// `jvs status`
pub(crate) fn status(context: &RepoContext, args: &StatusArgs) -> Result<CommandOutput> {
    let worktree = context.worktree(&args.target)?;
    let lock = context.repo.status(&worktree)?;
    let head: Option<Descriptor> = match &lock.head {
        Some(head) => Some(context.repo.find(&worktree, head.as_str())?),
        None => None,
    };
    let bar = ByteProgress::new("reading", context.json);
    let found = context.repo.diff_files(&worktree, head.as_ref(), &bar)?;
    drop(bar);
    let mut text = describe_status(&lock);
    match found.changes.len() {
        0 => text.push_str("\nno unsaved changes"),
        count => {
            write!(text, "\nunsaved changes: {count}").expect("a string");
            let shown = &found.changes[..count.min(args.limit)];
            write!(text, "\n{}", lines(shown)).expect("a string");
            if shown.len() < count {
                write!(text, "and {} more; `jvs diff` lists all", count - shown.len()).expect("a string");
            }
        }
    }
    let mut data = serde_json::to_value(&lock).expect("a status is plain data");
    data["clean"] = found.is_empty().into();
    data["changes"] = json!(found.changes);
    Ok(CommandOutput::new(data, text))
}

/// `jvs show`
pub(crate) fn show(context: &RepoContext, args: &ShowArgs) -> Result<CommandOutput> {
    let worktree = context.worktree(&args.target)?;
    let (snapshot, path) = split_name(&args.name)?;
    let snapshot = context.repo.find(&worktree, snapshot)?;
    let name = context.repo.stored_name(&snapshot, &path)?;
    let mut data = json!({"snapshot_id": snapshot.snapshot_id, "name": name});
    match name.kind {
        NodeKind::Dir => {
            let names = context.repo.stored_names(&snapshot, &path)?;
            let text: String = names.iter().map(list_line).collect();
            data["names"] = json!(names);
            Ok(CommandOutput::new(data, text))
        }
        NodeKind::File | NodeKind::HardLink if !context.json => {
            let mut stdout = std::io::stdout().lock();
            context.repo.write_stored(&snapshot, &path, &mut stdout)?;
            stdout.flush().map_err(|cause| Error::io("write", "standard output".as_ref(), &cause))?;
            Ok(CommandOutput::new(data, ""))
        }
        _ => {
            let target = name.target.clone().unwrap_or_default();
            Ok(CommandOutput::new(data, target))
        }
    }
}

/// `SNAPSHOT[:PATH]`; a snapshot's name has no colon.
fn split_name(name: &OsStr) -> Result<(&str, RelPath)> {
    let bytes = name.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':').unwrap_or(bytes.len());
    let snapshot = std::str::from_utf8(&bytes[..colon])
        .map_err(|_| Error::invalid(format!("a snapshot's name is text: got={}", name.display())))?;
    let path = OsStr::from_bytes(bytes.get(colon + 1..).unwrap_or_default());
    Ok((snapshot, RelPath::parse(Path::new(path))?))
}

pub(crate) fn lines(changes: &[PathDifference]) -> String {
    let mut text = String::new();
    for one in changes {
        writeln!(text, "{} {}", letter(one.change), shown_path(&one.path, one.kind)).expect("a string");
    }
    text
}

fn stat_lines(found: &TreeDifferences) -> String {
    let mut text = String::new();
    for one in &found.changes {
        let size = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        let (before, after) = (size(one.bytes_before), size(one.bytes_after));
        let path = shown_path(&one.path, one.kind);
        writeln!(text, "{} {before:>12} -> {after:>12}  {path}", letter(one.change)).expect("a string");
    }
    let count = |change| found.changes.iter().filter(|one| one.change == change).count();
    let (bytes_added, bytes_removed) = found.bytes();
    let altered = found.changes.len() - count(PathChange::Added) - count(PathChange::Removed);
    writeln!(
        text,
        "paths={} added={} removed={} altered={altered} bytes_added={bytes_added} bytes_removed={bytes_removed}",
        found.changes.len(),
        count(PathChange::Added),
        count(PathChange::Removed),
    )
    .expect("a string");
    text
}

fn letter(change: PathChange) -> char {
    match change {
        PathChange::Added => 'A',
        PathChange::Removed => 'D',
        PathChange::Modified => 'M',
        PathChange::ModeChanged => 'm',
        PathChange::TypeChanged => 'T',
    }
}

fn shown_path(path: &str, kind: NodeKind) -> String {
    if kind == NodeKind::Dir { format!("{path}/") } else { path.to_owned() }
}

fn list_line(name: &StoredName) -> String {
    let size = name.bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
    let mode = name.mode.as_deref().unwrap_or("-");
    let target = name.target.as_ref().map_or(String::new(), |target| format!(" -> {target}"));
    format!("{mode:>4} {size:>12} {}{target}\n", shown_path(&name.path, name.kind))
}
