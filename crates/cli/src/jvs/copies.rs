//! `jvs fork`, `jvs restore --path` and `jvs clone`: copies of snapshots, of paths and of repositories.

use std::path::Path;

use cli::progress::ByteProgress;
use serde_json::json;
use worktree::error::{Error, Result};
use worktree::repo::NewWorktree;
use worktree::restore::RestoreRequest;
use worktree::snapshot::Descriptor;
use worktree::tree::RelPath;
use worktree::worktree::{PayloadPath, Worktree};

use crate::args::Restore;
use crate::context::{RepoContext, real_path, system_env};
use crate::output::CommandOutput;
use crate::snapshot_args::{CloneArgs, ForkArgs};

/// `jvs fork`
pub(crate) fn fork(context: &RepoContext, args: &ForkArgs) -> Result<CommandOutput> {
    let (snapshot, name) = args.snapshot_and_name();
    let source = context.worktree(&args.target)?;
    let snapshot = context.repo.find(&source, snapshot)?;
    let default = || Path::new("worktrees").join(name);
    let new = NewWorktree {
        worktree_id: name.parse()?,
        path: PayloadPath::try_from(args.path.clone().unwrap_or_else(default))?,
        mode: source.mode,
        policy: source.policy.with(&args.policy.changes())?,
    };
    let bar = ByteProgress::new("copying", context.json);
    let forked = context.repo.fork(&snapshot, new, &bar)?;
    drop(bar);
    let files = context.repo.payload(&forked);
    let text = format!("forked {} as {name} in {}", snapshot.snapshot_id, files.display());
    let data = json!({"worktree": forked, "snapshot_id": snapshot.snapshot_id, "files": files});
    Ok(CommandOutput::new(data, text))
}

/// `jvs restore --path`
pub(crate) fn restore_paths(
    context: &RepoContext,
    worktree: &Worktree,
    snapshot: &Descriptor,
    args: &Restore,
) -> Result<CommandOutput> {
    let bar = ByteProgress::new("restoring", context.json);
    let request = RestoreRequest {
        session: args.session.session_id.clone(),
        discard_changes: args.discard_changes,
        progress: &bar,
    };
    let (mut text, mut data) = (String::new(), Vec::new());
    for path in &args.path {
        let path = RelPath::parse(path)?;
        let restored = context.repo.restore_path(worktree, snapshot, &path, &request)?;
        text = format!("{text}restored {path} of {}\n", snapshot.snapshot_id);
        if let Some(rescued) = &restored.rescued {
            text = format!(
                "{text}it changed while it was replaced; the replaced files are in {}\n",
                rescued.display()
            );
        }
        data.push(json!({
            "path": path.to_string(), "replaced": restored.replaced, "rescued": restored.rescued,
        }));
    }
    text.push_str("the head did not move: take a snapshot to save the change");
    let data = json!({
        "worktree_id": worktree.worktree_id, "snapshot_id": snapshot.snapshot_id, "paths": data,
    });
    Ok(CommandOutput::new(data, text))
}

/// `jvs clone`
pub(crate) fn clone(context: &RepoContext, args: &CloneArgs) -> Result<CommandOutput> {
    std::fs::create_dir_all(&args.dir).map_err(|cause| Error::io("create", &args.dir, &cause))?;
    let root = real_path(&args.dir)?;
    let bar = ByteProgress::new("copying", context.json);
    let cloned = context.repo.clone_into(system_env()?, &root, &bar)?;
    drop(bar);
    let text = format!(
        "cloned into {} with a new repository id: worktrees={} snapshots={}\n\
         changes that are in no snapshot were not copied",
        root.display(),
        cloned.worktrees,
        cloned.snapshots
    );
    let data = json!({
        "root": root, "repo": cloned.repo.record(), "worktrees": cloned.worktrees,
        "snapshots": cloned.snapshots,
    });
    Ok(CommandOutput::new(data, text).with_damaged(&cloned.damaged))
}
