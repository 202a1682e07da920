//! `jvs restore`, its preview, and the texts about restores that other commands settled.

use std::fmt::Write;

use serde_json::json;
use worktree::error::Result;
use worktree::restore::{RestoreRequest, SettledOutcome, SettledRestore};
use worktree::snapshot::Descriptor;
use worktree::worktree::Worktree;

use crate::args::Restore;
use crate::commands::shared_note;
use crate::compare::lines;
use crate::context::RepoContext;
use crate::copies::restore_paths;
use crate::output::CommandOutput;
use cli::progress::ByteProgress;

/// `jvs restore`
pub(crate) fn restore(context: &RepoContext, args: &Restore) -> Result<CommandOutput> {
    let worktree = context.worktree(&args.target)?;
    let snapshot = context.repo.find(&worktree, &args.snapshot)?;
    if args.preview {
        return preview(context, &worktree, &snapshot);
    }
    if !args.path.is_empty() {
        return restore_paths(context, &worktree, &snapshot, args);
    }
    let bar = ByteProgress::new("restoring", context.json);
    let request = RestoreRequest {
        session: args.session.session_id.clone(),
        discard_changes: args.discard_changes,
        progress: &bar,
    };
    let restored = context.repo.restore(&worktree, &snapshot, &request)?;
    drop(bar);
    let files = context.repo.payload(&worktree);
    let mut text = format!(
        "restored {} into {}; a shell in that directory must `cd` into it again{}{}",
        snapshot.snapshot_id,
        files.display(),
        settled_note(&restored.settled),
        shared_note(&worktree)
    );
    if let Some(kept) = &restored.rescued {
        text.push_str(&rescued_note(kept));
    }
    let data = json!({
        "worktree_id": worktree.worktree_id, "snapshot_id": snapshot.snapshot_id, "files": files,
        "rescued": restored.rescued, "settled": restored.settled,
    });
    Ok(CommandOutput::new(data, text))
}

/// Lists what a restore would change.
fn preview(context: &RepoContext, worktree: &Worktree, snapshot: &Descriptor) -> Result<CommandOutput> {
    let bar = ByteProgress::new("comparing", context.json);
    let preview = context.repo.preview_restore(worktree, snapshot, &bar)?;
    drop(bar);
    let mut text = lines(&preview.changes.changes);
    if preview.changes.is_empty() && preview.attributes.is_empty() {
        text.push_str("nothing would change\n");
    }
    if !preview.unsaved.is_empty() {
        write!(
            text,
            "changes that are in no snapshot, and would need --discard-changes:\n{}",
            lines(&preview.unsaved.changes)
        )
        .expect("a string");
    }
    if !preview.attributes.is_empty() {
        text.push_str(
            "owners, extended attributes or access control lists would change, which needs --discard-changes:\n",
        );
        for path in &preview.attributes {
            writeln!(text, "P {path}").expect("a string");
        }
    }
    let data = json!({
        "worktree_id": worktree.worktree_id, "snapshot_id": snapshot.snapshot_id,
        "changes": preview.changes.changes, "unsaved": preview.unsaved.changes, "attributes": preview.attributes,
    });
    Ok(CommandOutput::new(data, text))
}

/// One line for each restore of an earlier holder that this command finished, undid or skipped.
pub(crate) fn settled_note(settled: &[SettledRestore]) -> String {
    let mut text = String::new();
    for one in settled {
        let outcome = match one.outcome {
            SettledOutcome::Finished => "finished, so the worktree has its files now",
            SettledOutcome::Undone => "undone, because its files could not be swapped in",
            SettledOutcome::Skipped => "skipped, because the worktree was written to since",
        };
        write!(text, "\nan interrupted restore was {outcome}: snapshot={}", one.snapshot_id)
            .expect("a string");
        if let Some(kept) = &one.rescued {
            text.push_str(&rescued_note(kept));
        }
    }
    text
}

fn rescued_note(kept: &std::path::Path) -> String {
    format!(
        "\nfiles changed while they were replaced; the replaced ones are kept, copy what is needed and remove them: \
         path={}",
        kept.display()
    )
}
