//! `jvs tag` and `jvs pin`: names that keep snapshots.

use std::fmt::Write as _;

use serde_json::json;
use worktree::error::Result;

use crate::context::RepoContext;
use crate::output::CommandOutput;
use crate::snapshot_args::{PinCommand, TagCommand};

/// `jvs tag …`
pub(crate) fn tag(context: &RepoContext, command: &TagCommand) -> Result<CommandOutput> {
    let repo = &context.repo;
    match command {
        TagCommand::Add { target, tag, snapshot } => {
            let snapshot = repo.find(&context.worktree(target)?, snapshot)?;
            let added = repo.add_tag(tag, &snapshot)?;
            let text = format!("tagged {} as {tag}", added.snapshot_id);
            Ok(CommandOutput::new(added, text))
        }
        TagCommand::List => {
            let tags = repo.tags()?;
            let mut text = String::new();
            for tag in &tags {
                writeln!(text, "{}  {}", tag.tag, tag.snapshot_id).expect("a string");
            }
            if tags.is_empty() {
                text.push_str("no tags; add one with `jvs tag add`");
            }
            Ok(CommandOutput::new(json!({"tags": tags}), text))
        }
        TagCommand::Rm { tag } => {
            let removed = repo.remove_tag(tag)?;
            let text = format!("removed the tag {tag} of {}", removed.snapshot_id);
            Ok(CommandOutput::new(json!({"removed": removed}), text))
        }
    }
}

/// `jvs pin …`
pub(crate) fn pin(context: &RepoContext, command: &PinCommand) -> Result<CommandOutput> {
    let repo = &context.repo;
    match command {
        PinCommand::Add { target, snapshot } => {
            let snapshot = repo.find(&context.worktree(target)?, snapshot)?;
            let pin = repo.pin(&snapshot)?;
            let text = format!("pinned {}", pin.snapshot_id);
            Ok(CommandOutput::new(pin, text))
        }
        PinCommand::List => {
            let pins = repo.pins()?;
            let ids: Vec<&str> = pins.iter().map(|pin| pin.snapshot_id.as_str()).collect();
            let mut text = ids.join("\n");
            if pins.is_empty() {
                text.push_str("no pins; add one with `jvs pin add`");
            }
            Ok(CommandOutput::new(json!({"pins": pins}), text))
        }
        PinCommand::Rm { target, snapshot } => {
            let snapshot = repo.find(&context.worktree(target)?, snapshot)?;
            let removed = repo.unpin(&snapshot.snapshot_id)?;
            let text = format!("unpinned {}", removed.snapshot_id);
            Ok(CommandOutput::new(json!({"removed": removed}), text))
        }
    }
}
