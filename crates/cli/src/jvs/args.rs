//! The command line. Texts here are what `--help` shows.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use cli::man_pages::{Completions, Man};
use cli::output::Output;
use worktree::ids::{SessionId, WorktreeId};
use worktree::snapshot::Consistency;
use worktree::worktree::Mode;

use crate::policy_args::PolicyArgs;
use crate::snapshot_args::{
    CloneArgs, DiffArgs, ForkArgs, GcArgs, HistoryArgs, PinCommand, ShowArgs, SnapshotCommand, StatusArgs,
    TagCommand,
};
use crate::waiting::WaitArg;

/// Locks and snapshots for worktrees on a shared filesystem, with no server.
#[derive(Parser)]
#[command(
    name = "jvs",
    version,
    after_help = "Exit codes: 0 done; 1 failed; 2 wrong usage; 20 E_LOCK_CONFLICT; 21 E_LOCK_EXPIRED; \
                  22 E_LOCK_NOT_HELD; 23 E_FENCING_MISMATCH; 24 E_CLOCK_SKEW_EXCEEDED; \
                  25 E_CONSISTENCY_UNAVAILABLE; 26 E_PARTIAL_SNAPSHOT. `jvs run` passes its command's on.\n\n\
                  Example:\n  jvs init\n  jvs run -- make -C main\n  jvs doctor"
)]
pub(crate) struct JvsArgs {
    /// Repository directory [default: the nearest at or above the working directory].
    #[arg(long, global = true, env = "JVS_REPO", value_name = "DIR")]
    pub(crate) repo: Option<PathBuf>,
    /// Print one JSON object; the same as --output json.
    #[arg(long, global = true)]
    json: bool,
    /// Format of the output.
    #[arg(long, global = true, value_enum, default_value_t = Output::Text, conflicts_with = "json")]
    output: Output,
    #[command(subcommand)]
    pub(crate) command: JvsCommand,
}

impl JvsArgs {
    /// The format of the output.
    pub(crate) fn format(&self) -> Output {
        if self.json { Output::Json } else { self.output }
    }
}

#[derive(Subcommand)]
pub(crate) enum JvsCommand {
    /// Create a repository with one worktree.
    Init(Init),
    /// Add, list and remove worktrees.
    Worktree {
        #[command(subcommand)]
        command: WorktreeCommand,
    },
    /// Acquire, renew, release, steal and show the lock of a worktree.
    Lock {
        #[command(subcommand)]
        command: LockCommand,
    },
    /// Run a command while holding the lock.
    Run(JvsRunArgs),
    /// Take and publish a snapshot of a worktree; `snapshot rm` removes one.
    Snapshot(SnapshotArgs),
    /// List the published snapshots of a worktree, newest first.
    History(HistoryArgs),
    /// List the paths that differ between two snapshots, or between a snapshot and the files.
    Diff(DiffArgs),
    /// Show the lock, the head, and the changes that are in no snapshot.
    Status(StatusArgs),
    /// Write a file of a snapshot to standard output, or list a directory of it.
    Show(ShowArgs),
    /// Add, list and remove tags, which are names of snapshots.
    Tag {
        #[command(subcommand)]
        command: TagCommand,
    },
    /// Add, list and remove pins, which keep snapshots from being removed.
    Pin {
        #[command(subcommand)]
        command: PinCommand,
    },
    /// Add a worktree with the files of a snapshot.
    Fork(ForkArgs),
    /// Copy the repository, with a new repository id.
    Clone(CloneArgs),
    /// Remove old snapshots, and free their disk space.
    Gc(GcArgs),
    /// Show the description of a snapshot.
    #[command(after_help = "Example:\n  jvs info\n  jvs info 20261115t0812 --json")]
    Info {
        #[command(flatten)]
        target: WorktreeArg,
        /// Snapshot id, unique prefix of an id, tag, or `head`.
        #[arg(default_value = "head")]
        snapshot: String,
    },
    /// Replace a worktree's files with those of a snapshot.
    Restore(Restore),
    /// Verify snapshots against their hashes.
    #[command(after_help = "Example:\n  jvs verify head\n  jvs verify --all")]
    Verify {
        #[command(flatten)]
        target: WorktreeArg,
        /// Snapshot id, unique prefix of an id, tag, or `head`.
        #[arg(default_value = "head", conflicts_with = "all")]
        snapshot: String,
        /// Verify every published snapshot of the worktree.
        #[arg(long)]
        all: bool,
    },
    /// Check the repository. Exits 0 if healthy, 1 with findings, 2 if it could not be examined.
    Doctor(DoctorArgs),
    /// Print shell completions.
    #[command(
        after_help = "Example:\n  jvs completions bash > ~/.local/share/bash-completion/completions/jvs"
    )]
    Completions(Completions),
    /// Write man pages, one per command.
    #[command(after_help = "Example:\n  jvs man --out ~/.local/share/man/man1")]
    Man(Man),
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  jvs init\n  jvs init /mnt/shared/models --lease-duration 1m\n  \
                         chgrp team /mnt/shared/models && jvs init /mnt/shared/models --shared")]
pub(crate) struct Init {
    /// Directory of the repository; created if it does not exist.
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Name and directory of the first worktree [default: main].
    #[arg(long, value_name = "ID")]
    pub(crate) worktree: Option<WorktreeId>,
    /// Whether the first worktree has a single writer.
    #[arg(long, default_value = "exclusive")]
    pub(crate) mode: ModeArg,
    /// Let all users of the directory's group use the repository.
    #[arg(long)]
    pub(crate) shared: bool,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

#[derive(Subcommand)]
pub(crate) enum WorktreeCommand {
    /// Add a worktree, and create its directory unless it exists.
    #[command(after_help = "Example:\n  jvs worktree add experiment\n  \
                            jvs worktree add scratch --mode shared --path team/scratch")]
    Add {
        /// Name of the worktree.
        #[arg(value_name = "ID")]
        worktree: WorktreeId,
        /// Directory below the repository's root (default: `worktrees/<ID>`).
        #[arg(long)]
        path: Option<PathBuf>,
        /// Whether it has a single writer.
        #[arg(long, default_value = "exclusive")]
        mode: ModeArg,
        #[command(flatten)]
        policy: PolicyArgs,
    },
    /// List worktrees with their lock states and heads.
    #[command(after_help = "Example:\n  jvs worktree list --json")]
    List,
    /// Remove a worktree whose lock is free. Its files, snapshots and sequence stay.
    #[command(after_help = "Example:\n  jvs worktree remove experiment")]
    Remove {
        /// Name of the worktree.
        #[arg(value_name = "ID")]
        worktree: WorktreeId,
    },
}

#[derive(Subcommand)]
pub(crate) enum LockCommand {
    /// Acquire the lock, or steal it if its lease expired long enough ago.
    #[command(
        after_help = "Example:\n  export JVS_SESSION_ID=$(jvs lock acquire --json | jq -r .data.lock.session_id)\n  \
                      jvs lock acquire --wait=5m --lease-duration 1h"
    )]
    Acquire {
        #[command(flatten)]
        target: WorktreeArg,
        #[command(flatten)]
        policy: PolicyArgs,
        #[command(flatten)]
        wait: WaitArg,
    },
    /// Renew the lease: it then expires one lease duration from now.
    #[command(after_help = "Example:\n  jvs lock renew --session-id s-2f6c...")]
    Renew {
        #[command(flatten)]
        target: WorktreeArg,
        #[command(flatten)]
        session: SessionArg,
    },
    /// Release the lock.
    #[command(after_help = "Example:\n  jvs lock release --session-id s-2f6c...")]
    Release {
        #[command(flatten)]
        target: WorktreeArg,
        #[command(flatten)]
        session: SessionArg,
    },
    /// Steal the lock from a holder whose lease expired long enough ago.
    #[command(after_help = "Example:\n  jvs lock steal --worktree main")]
    Steal {
        #[command(flatten)]
        target: WorktreeArg,
        #[command(flatten)]
        policy: PolicyArgs,
    },
    /// Show the holder and the state of the lock.
    #[command(after_help = "Example:\n  jvs lock status --json | jq -r .data.state")]
    Status {
        #[command(flatten)]
        target: WorktreeArg,
    },
}

#[derive(clap::Args)]
#[command(after_help = "The command's environment has JVS_FENCING_TOKEN, JVS_SESSION_ID, JVS_WORKTREE and \
                  JVS_REPO. When the lock is lost, its process group is killed at once, and jvs exits with \
                  the code of the error (21, 22, 24 or 1). When the command ends, the rest of its process \
                  group is stopped and the lock is released.\n\n\
                  Example:\n  jvs run -- make all\n  jvs run --wait=10m -- ./nightly.sh\n  jvs run -- sh -c 'train.sh && jvs snapshot \"epoch 3\"'")]
pub(crate) struct JvsRunArgs {
    #[command(flatten)]
    pub(crate) target: WorktreeArg,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) wait: WaitArg,
    /// Command and arguments.
    #[arg(last = true, required = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
}

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "In an exclusive worktree a quiesced snapshot needs the lock; it fails if the tree changes \
                  while it is read. A best_effort snapshot needs no lock and tolerates changes, and keeps \
                  that risk label for ever; taken without the lock it does not move the head.\n\n\
                  Example:\n  jvs snapshot \"before the migration\"\n  \
                  jvs snapshot --consistency best_effort"
)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) command: Option<SnapshotCommand>,
    /// Note for the history, on one line.
    #[arg(value_parser = one_line)]
    pub(crate) note: Option<String>,
    #[command(flatten)]
    pub(crate) target: WorktreeArg,
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Consistency that the snapshot must have.
    #[arg(long, default_value = "quiesced")]
    pub(crate) consistency: ConsistencyArg,
}

#[derive(clap::Args)]
#[command(
    after_help = "The worktree's directory is replaced atomically: a shell in that directory must `cd` \
                  into it again. Files that change while they are replaced are kept in .jvs/rescued.\n\n\
                  Example:\n  jvs restore head --preview\n  jvs restore head --discard-changes\n  \
                  jvs restore 20261115t0812\n  jvs restore before-upgrade --path etc/app.conf"
)]
pub(crate) struct Restore {
    /// Snapshot id, unique prefix of an id, tag, or `head`.
    pub(crate) snapshot: String,
    #[command(flatten)]
    pub(crate) target: WorktreeArg,
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Discard changes that are in no snapshot.
    #[arg(long)]
    pub(crate) discard_changes: bool,
    /// List what would change, and change nothing. Needs no lock.
    #[arg(long, conflicts_with = "discard_changes")]
    pub(crate) preview: bool,
    /// Restore only this path, and everything below it; repeatable. The head does not move.
    #[arg(long, value_name = "PATH", conflicts_with = "preview")]
    pub(crate) path: Vec<PathBuf>,
}

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  jvs doctor\n  jvs doctor --strict\n  jvs doctor --repair\n  jvs doctor --purge"
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct DoctorArgs {
    /// Also check for litter, stored snapshots and the clock.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Repair findings that can be repaired; implies --strict. Never removes a published snapshot, nor anything of
    /// a worktree whose sequence is damaged. Removed files go to .jvs/trash.
    #[arg(long)]
    pub(crate) repair: bool,
    /// Continue damaged sequences after every number that may have been used, and list their snapshots again;
    /// implies --repair. Only without a backup of .jvs/locks, and with all users of the repository stopped.
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Delete the content of .jvs/trash for good.
    #[arg(long)]
    pub(crate) purge: bool,
}

#[derive(clap::Args)]
pub(crate) struct WorktreeArg {
    /// Worktree [default: the one that contains the working directory, else main].
    #[arg(long, env = "JVS_WORKTREE", value_name = "ID")]
    pub(crate) worktree: Option<WorktreeId>,
}

#[derive(clap::Args)]
pub(crate) struct SessionArg {
    /// Session that holds the lock, as printed by `jvs lock acquire`.
    #[arg(long, env = "JVS_SESSION_ID", value_name = "ID")]
    pub(crate) session_id: Option<SessionId>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ModeArg {
    /// A single writer at a time: the holder of the lock.
    Exclusive,
    /// No lock: any process may write at any time.
    Shared,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Exclusive => Self::Exclusive,
            ModeArg::Shared => Self::Shared,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ConsistencyArg {
    /// Nothing changed while it was taken.
    Quiesced,
    /// Files may have changed while they were read.
    #[value(name = "best_effort", alias = "best-effort")]
    BestEffort,
}

impl From<ConsistencyArg> for Consistency {
    fn from(consistency: ConsistencyArg) -> Self {
        match consistency {
            ConsistencyArg::Quiesced => Self::Quiesced,
            ConsistencyArg::BestEffort => Self::BestEffort,
        }
    }
}

/// The longest note, in bytes.
const NOTE_BYTES_MAX: usize = 1024;

/// Lists print a note on one line, and control characters could manipulate the terminal.
fn one_line(text: &str) -> Result<String, &'static str> {
    if text.chars().any(char::is_control) {
        return Err("a note must be one line without control characters");
    }
    if text.len() > NOTE_BYTES_MAX {
        return Err("a note must be at most 1024 bytes");
    }
    Ok(text.to_owned())
}
