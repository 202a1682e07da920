//! The command line. Texts here are what `--help` shows.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use cli::man_pages::{Completions, Man};
use worktree::ids::{SessionId, WorktreeId};
use worktree::policy::PolicyChanges;
use worktree::snapshot::Consistency;
use worktree::worktree::Mode;

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
pub(crate) struct Args {
    /// The repository; by default the nearest one above the working directory.
    #[arg(long, global = true, env = "JVS_REPO", value_name = "DIR")]
    pub(crate) repo: Option<PathBuf>,
    /// Answer with one JSON object.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a repository, with one worktree.
    Init(Init),
    /// Add, list and remove worktrees.
    Worktree {
        #[command(subcommand)]
        command: WorktreeCommand,
    },
    /// Take, keep, give back and look at the lock of a worktree.
    Lock {
        #[command(subcommand)]
        command: LockCommand,
    },
    /// Run a command while holding the lock.
    Run(Run),
    /// Take a snapshot of a worktree, and publish it.
    Snapshot(Snapshot),
    /// List the published snapshots of a worktree, newest first.
    #[command(
        after_help = "Example:\n  jvs history --limit 5\n  jvs history --json | jq '.data.snapshots[0].risk'"
    )]
    History {
        #[command(flatten)]
        target: Target,
        /// At most so many.
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: usize,
    },
    /// Show what is known of a snapshot.
    #[command(after_help = "Example:\n  jvs info\n  jvs info 20261115t0812 --json")]
    Info {
        #[command(flatten)]
        target: Target,
        /// The snapshot: its id, the beginning of it, or `head`.
        #[arg(default_value = "head")]
        snapshot: String,
    },
    /// Make a worktree's files those of a snapshot.
    Restore(Restore),
    /// Read snapshots again, whole, and compare them with their hashes.
    #[command(after_help = "Example:\n  jvs verify head\n  jvs verify --all")]
    Verify {
        #[command(flatten)]
        target: Target,
        /// The snapshot: its id, the beginning of it, or `head`.
        #[arg(default_value = "head", conflicts_with = "all")]
        snapshot: String,
        /// Every published snapshot of the worktree.
        #[arg(long)]
        all: bool,
    },
    /// Look for what is wrong. Exits 0 when healthy, 1 with findings, 2 when it could not look.
    #[command(after_help = "Example:\n  jvs doctor\n  jvs doctor --strict\n  jvs doctor --repair")]
    Doctor {
        /// Also look for what was left half done, and at the clock.
        #[arg(long)]
        strict: bool,
        /// Mend what can be mended; looks as hard as --strict.
        #[arg(long)]
        repair: bool,
    },
    /// Print completions for a shell.
    #[command(
        after_help = "Example:\n  jvs completions bash > ~/.local/share/bash-completion/completions/jvs"
    )]
    Completions(Completions),
    /// Write manual pages, one for each command.
    #[command(after_help = "Example:\n  jvs man --out ~/.local/share/man/man1")]
    Man(Man),
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  jvs init\n  jvs init /mnt/shared/models --lease-duration-ms 60000")]
pub(crate) struct Init {
    /// Where; made if it is not there.
    #[arg(default_value = ".")]
    pub(crate) dir: PathBuf,
    /// The name and directory of the first worktree.
    #[arg(long, value_name = "ID")]
    pub(crate) worktree: Option<WorktreeId>,
    /// Whether the first worktree has one writer.
    #[arg(long, default_value = "exclusive")]
    pub(crate) mode: ModeArg,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

#[derive(Subcommand)]
pub(crate) enum WorktreeCommand {
    /// Add a worktree, and make its directory unless it is there.
    #[command(after_help = "Example:\n  jvs worktree add experiment\n  \
                            jvs worktree add scratch --mode shared --path team/scratch")]
    Add {
        /// Name of the worktree.
        #[arg(value_name = "ID")]
        worktree: WorktreeId,
        /// Its directory below the repository's root; by default `worktrees/<ID>`.
        #[arg(long)]
        path: Option<PathBuf>,
        /// Whether it has one writer.
        #[arg(long, default_value = "exclusive")]
        mode: ModeArg,
        #[command(flatten)]
        policy: PolicyArgs,
    },
    /// List worktrees, with their locks and heads.
    #[command(after_help = "Example:\n  jvs worktree list --json")]
    List,
    /// Remove a worktree that nobody has locked. Its files, snapshots and audit stay.
    #[command(after_help = "Example:\n  jvs worktree remove experiment")]
    Remove {
        /// Name of the worktree.
        #[arg(value_name = "ID")]
        worktree: WorktreeId,
    },
}

#[derive(Subcommand)]
pub(crate) enum LockCommand {
    /// Take the lock; steal it if its lease has been over for long enough.
    #[command(
        after_help = "Example:\n  export JVS_SESSION_ID=$(jvs lock acquire --json | jq -r .data.lock.session_id)"
    )]
    Acquire {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        policy: PolicyArgs,
    },
    /// Extend the lease by its duration, from now.
    #[command(after_help = "Example:\n  jvs lock renew --session-id s-2f6c...")]
    Renew {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        session: SessionArg,
    },
    /// Give the lock back.
    #[command(after_help = "Example:\n  jvs lock release --session-id s-2f6c...")]
    Release {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        session: SessionArg,
    },
    /// Take the lock from a holder whose lease has been over for long enough.
    #[command(after_help = "Example:\n  jvs lock steal --worktree main")]
    Steal {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        policy: PolicyArgs,
    },
    /// Show who holds the lock.
    #[command(after_help = "Example:\n  jvs lock status --json | jq -r .data.state")]
    Status {
        #[command(flatten)]
        target: Target,
    },
}

#[derive(clap::Args)]
#[command(
    after_help = "The command gets JVS_FENCING_TOKEN, JVS_SESSION_ID, JVS_WORKTREE and JVS_REPO. When the lock is \
                  lost, its whole process group is killed at once, and jvs exits with the code of the loss (21, \
                  22, 24, or 1). When it ends, what is left of its group is stopped, and the lock is given back.\n\n\
                  Example:\n  jvs run -- make all\n  jvs run -- sh -c 'train.sh && jvs snapshot \"epoch 3\"'"
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// The command and its arguments.
    #[arg(last = true, required = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
}

#[derive(clap::Args)]
#[command(
    after_help = "A quiesced snapshot needs the lock (in an exclusive worktree), and is refused if the tree changes \
                  meanwhile. A best_effort one needs neither, and says so for ever; taken without the lock it \
                  does not move the head.\n\nExample:\n  jvs snapshot \"before the migration\"\n  \
                  jvs snapshot --consistency best_effort"
)]
pub(crate) struct Snapshot {
    /// A line for people.
    #[arg(value_parser = one_line)]
    pub(crate) note: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// How sure it has to be to show one moment.
    #[arg(long, default_value = "quiesced")]
    pub(crate) consistency: ConsistencyArg,
}

#[derive(clap::Args)]
#[command(
    after_help = "The worktree's directory is replaced in one step: a shell that stands in it has to `cd` there \
                  again.\n\nExample:\n  jvs restore head --discard-changes\n  jvs restore 20261115t0812"
)]
pub(crate) struct Restore {
    /// The snapshot: its id, the beginning of it, or `head`.
    pub(crate) snapshot: String,
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Lose changes that are in no snapshot.
    #[arg(long)]
    pub(crate) discard_changes: bool,
}

#[derive(clap::Args)]
pub(crate) struct Target {
    /// The worktree; by default the one around the working directory, else main.
    #[arg(long, env = "JVS_WORKTREE", value_name = "ID")]
    pub(crate) worktree: Option<WorktreeId>,
}

#[derive(clap::Args)]
pub(crate) struct SessionArg {
    /// The session that holds the lock, as `jvs lock acquire` printed it.
    #[arg(long, env = "JVS_SESSION_ID", value_name = "ID")]
    pub(crate) session_id: Option<SessionId>,
}

#[derive(clap::Args)]
#[expect(clippy::struct_field_names, reason = "the unit belongs in the name, and the names are the flags")]
pub(crate) struct PolicyArgs {
    /// How long a lease lasts without renewal; 30000 unless set before.
    #[arg(long, value_name = "MS")]
    lease_duration_ms: Option<u64>,
    /// How often the holder renews, at most half the duration; 10000 unless set before.
    #[arg(long, value_name = "MS")]
    renew_interval_ms: Option<u64>,
    /// How far a clock may be off; 2000 unless set before.
    #[arg(long, value_name = "MS")]
    max_clock_skew_ms: Option<u64>,
    /// How long a steal waits after expiry and skew; 1000 unless set before.
    #[arg(long, value_name = "MS")]
    steal_grace_ms: Option<u64>,
}

impl PolicyArgs {
    /// The values that were given.
    pub(crate) fn changes(&self) -> PolicyChanges {
        PolicyChanges {
            lease_duration_ms: self.lease_duration_ms,
            renew_interval_ms: self.renew_interval_ms,
            max_clock_skew_ms: self.max_clock_skew_ms,
            steal_grace_ms: self.steal_grace_ms,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ModeArg {
    /// One writer at a time, the holder of the lock.
    Exclusive,
    /// Anyone writes at any time; no promise of a single writer.
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

/// Lists print a note on one line, and a control character could make a terminal show anything.
fn one_line(text: &str) -> Result<String, &'static str> {
    if text.chars().any(char::is_control) {
        return Err("a note is one line, without control characters");
    }
    Ok(text.to_owned())
}
