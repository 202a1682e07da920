//! The command line of commands that read and name snapshots.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Subcommand;
use worktree::ids::{TagName, WorktreeId};

use crate::args::WorktreeArg;
use crate::policy_args::PolicyArgs;

#[derive(clap::Args)]
#[command(after_help = "Example:\n  jvs history --limit 5\n  jvs history --grep migration --path src/db\n  \
                  jvs history --json | jq '.data.snapshots[0].risk'")]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) target: WorktreeArg,
    /// Maximum number of snapshots.
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub(crate) limit: usize,
    /// Only snapshots whose note contains this text, in upper or lower case.
    #[arg(long, value_name = "TEXT")]
    pub(crate) grep: Option<String>,
    /// Only snapshots in which this path, or a name below it, differs from the snapshot before.
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    /// Only snapshots that have a tag.
    #[arg(long)]
    pub(crate) tagged: bool,
}

#[derive(clap::Args)]
#[command(
    after_help = "Prints one line per path: A added, D removed, M modified, m permission bits changed, T type \
                  changed. Files are compared as a whole; to see the differences within one:\n  \
                  jvs show head:notes.txt | diff - main/notes.txt\n\n\
                  Example:\n  jvs diff\n  jvs diff --stat before-upgrade\n  jvs diff 20261115t0812 head"
)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    pub(crate) target: WorktreeArg,
    /// First snapshot: an id, unique prefix of an id, tag, or `head`.
    #[arg(default_value = "head", value_name = "A")]
    pub(crate) before: String,
    /// Second snapshot [default: the files of the worktree].
    #[arg(value_name = "B")]
    pub(crate) after: Option<String>,
    /// Print sizes and totals as well.
    #[arg(long)]
    pub(crate) stat: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Files are read without the lock: what is written meanwhile may be missing.\n\n\
                  Example:\n  jvs status\n  jvs status --json | jq .data.clean")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) target: WorktreeArg,
    /// Maximum number of changed paths to print; JSON output has all.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub(crate) limit: usize,
}

#[derive(clap::Args)]
#[command(
    after_help = "A file is written to standard output as it is, and checked against its hash; with --json its \
                  size, mode and hash are printed instead. Of a directory the names are listed.\n\n\
                  Example:\n  jvs show head:src/main.rs > main.rs.old\n  jvs show before-upgrade:etc\n  jvs show head"
)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) target: WorktreeArg,
    /// Snapshot, and path in it after a colon; without a path, the root directory.
    #[arg(value_name = "SNAPSHOT[:PATH]")]
    pub(crate) name: OsString,
}

#[derive(Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Remove snapshots, and free the disk space of files that no other snapshot has.
    #[command(alias = "remove")]
    Rm(SnapshotRmArgs),
}

#[derive(clap::Args)]
#[command(
    after_help = "The head of a worktree, and a snapshot that has a tag or a pin or is being read, is not removed.\n\n\
                  Example:\n  jvs snapshot rm 20261115t0812\n  jvs snapshot rm --dry-run 20261115t0812 20261116t1007"
)]
pub(crate) struct SnapshotRmArgs {
    #[command(flatten)]
    pub(crate) target: WorktreeArg,
    /// Snapshot ids, unique prefixes of ids, or tags.
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,
    /// Print the result without removing anything.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(clap::Args)]
#[command(
    after_help = "A snapshot is kept if one rule keeps it, or if it is a head, has a tag or a pin, or is being read. \
                  Without a rule no published snapshot is removed: then gc only finishes interrupted removals, and \
                  removes what interrupted snapshots left.\n\n\
                  Example:\n  jvs gc --keep-last 10 --dry-run\n  jvs gc --keep-last 10 --keep-days 30"
)]
pub(crate) struct GcArgs {
    #[command(flatten)]
    pub(crate) target: GcTarget,
    /// Keep this many of the newest snapshots of each worktree.
    #[arg(long, value_name = "N")]
    pub(crate) keep_last: Option<usize>,
    /// Keep the snapshots of this many days.
    #[arg(long, value_name = "D")]
    pub(crate) keep_days: Option<u64>,
    /// Print the result without removing anything.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(clap::Args)]
pub(crate) struct GcTarget {
    /// Only the snapshots of this worktree [default: of all worktrees].
    #[arg(long, value_name = "ID")]
    pub(crate) worktree: Option<WorktreeId>,
}

#[derive(clap::Args)]
#[command(
    after_help = "The new worktree has the files of the snapshot, which is its head, and the mode and policy of the \
                  worktree that it is forked from. Its files are copies.\n\n\
                  Example:\n  jvs fork experiment\n  jvs fork before-upgrade experiment\n  \
                  jvs run --worktree experiment -- ./try.sh"
)]
pub(crate) struct ForkArgs {
    #[command(flatten)]
    pub(crate) target: WorktreeArg,
    /// Snapshot [default: `head`] and name of the new worktree.
    #[arg(value_names = ["SNAPSHOT", "NAME"], num_args = 1..=2, required = true)]
    names: Vec<String>,
    /// Directory below the repository's root (default: `worktrees/<NAME>`).
    #[arg(long)]
    pub(crate) path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

impl ForkArgs {
    /// The snapshot to copy, and the name of the new worktree.
    pub(crate) fn snapshot_and_name(&self) -> (&str, &str) {
        match self.names.as_slice() {
            [name] => ("head", name),
            [snapshot, name, ..] => (snapshot, name),
            [] => unreachable!("one is required"),
        }
    }
}

#[derive(clap::Args)]
#[command(
    after_help = "The clone has an id of its own, all worktrees, and all snapshots and tags. Sessions and locks of the \
                  original do not apply to it. A copy made with cp has the same id as the original: do not use both.\n\n\
                  Example:\n  jvs clone /mnt/other/models\n  jvs --repo /mnt/shared/models clone ~/models"
)]
pub(crate) struct CloneArgs {
    /// Directory of the new repository; created if it does not exist.
    pub(crate) dir: PathBuf,
}

#[derive(Subcommand)]
pub(crate) enum TagCommand {
    /// Give a snapshot a name, which also keeps it from being removed.
    #[command(after_help = "Example:\n  jvs tag add before-upgrade\n  jvs tag add v1 20261115t0812")]
    Add {
        #[command(flatten)]
        target: WorktreeArg,
        /// Name that begins with a letter.
        tag: TagName,
        /// Snapshot id, unique prefix of an id, tag, or `head`.
        #[arg(default_value = "head")]
        snapshot: String,
    },
    /// List all tags of the repository.
    #[command(after_help = "Example:\n  jvs tag list --json")]
    List,
    /// Remove a tag; its snapshot stays.
    #[command(alias = "remove", after_help = "Example:\n  jvs tag rm before-upgrade")]
    Rm {
        /// Name of the tag.
        tag: TagName,
    },
}

#[derive(Subcommand)]
pub(crate) enum PinCommand {
    /// Keep a snapshot until it is unpinned.
    #[command(after_help = "Example:\n  jvs pin add head\n  jvs pin add 20261115t0812")]
    Add {
        #[command(flatten)]
        target: WorktreeArg,
        /// Snapshot id, unique prefix of an id, tag, or `head`.
        snapshot: String,
    },
    /// List all pins of the repository.
    #[command(after_help = "Example:\n  jvs pin list --json")]
    List,
    /// Remove a pin; the snapshot stays until it is removed.
    #[command(alias = "remove", after_help = "Example:\n  jvs pin rm 20261115t0812")]
    Rm {
        #[command(flatten)]
        target: WorktreeArg,
        /// Snapshot id, unique prefix of an id, tag, or `head`.
        snapshot: String,
    },
}
