//! `jvs run`: runs a command only while the lock is held.
//!
//! **Invariant.** While jvs is scheduled, the command's process group is dead once the lease has expired on
//! this machine's boot clock. Another thread renews the lease, because a renewal may block on the filesystem;
//! this thread only waits, with the expiry as its deadline, so a blocked renewal ends the command in time.
//! [`cli::child`] lists the remaining cases; fencing rejects publishes by processes that survive.

use std::io::{PipeReader, PipeWriter, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use cli::child::{Job, JobExit, Order, Signals, WANTS_TERMINAL};
use serde_json::json;
use worktree::clock::{BootMs, Clock};
use worktree::error::{Error, ErrorClass, Result};
use worktree::holder::HolderId;
use worktree::lock::{AcquireRequest, AcquiredLock};
use worktree::worktree::Worktree;

use crate::args::JvsRunArgs;
use crate::commands::announce_watch;
use crate::context::RepoContext;
use crate::output::CommandOutput;
use crate::restoring::settled_note;

/// Runs the command under the lock, and passes its exit code on.
pub(crate) fn run(context: &RepoContext, args: &JvsRunArgs) -> Result<CommandOutput> {
    let worktree = context.worktree(&args.target)?;
    let acquired = args.wait.acquire(
        context,
        &worktree,
        &AcquireRequest {
            holder: HolderId::this_process(),
            policy: worktree.policy.with(&args.policy.changes())?,
            only_steal: false,
            on_watch: &announce_watch,
        },
    )?;
    if !acquired.settled.is_empty() {
        eprintln!("jvs: {}", settled_note(&acquired.settled).trim_start());
    }
    // Not earlier, so that a wait or a watch can be interrupted; and before the command or another thread starts,
    // so that every later signal arrives through the descriptor.
    let ended = Signals::take().map_err(not_made("signalfd")).and_then(|signals| {
        let (woken, wake) = std::io::pipe().map_err(not_made("pipe"))?;
        let job = start(context, &worktree, &acquired, args, &signals, woken)?;
        Ok(supervise(context, &worktree, &acquired, job, wake))
    });
    let release = || context.repo.lock(&worktree).release(&acquired.session.session_id);
    let (exit_code, released) = match ended {
        // Processes that may still run keep the lock until its lease expires.
        Ok((exit_code, GroupEnded(false))) => return Err(exit_code.err().unwrap_or_else(not_ended)),
        Ok((exit_code, GroupEnded(true))) => (exit_code, release()),
        Err(error) => (Err(error), release()),
    };
    let exit_code = exit_code?;
    released?;
    let data = json!({"exit_code": exit_code, "fencing_token": acquired.lock.fencing_token});
    Ok(CommandOutput::new(data, "").with_exit_code(exit_code))
}

fn not_made(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |cause| Error::io("make", what.as_ref(), &cause)
}

fn not_ended() -> Error {
    Error::new(ErrorClass::Io, cli::child::unkilled("lock"))
}

/// The outcome of a renewal.
enum RenewalReport {
    RenewedUntil(BootMs),
    Lost(Error),
}

/// Whether every process of the command's group has ended.
struct GroupEnded(bool);

fn start<'a>(
    context: &RepoContext,
    worktree: &Worktree,
    acquired: &AcquiredLock,
    args: &JvsRunArgs,
    signals: &'a Signals,
    woken: PipeReader,
) -> Result<Job<'a>> {
    let variables = [
        ("JVS_FENCING_TOKEN", acquired.lock.fencing_token.to_string().into()),
        ("JVS_SESSION_ID", acquired.session.session_id.as_str().into()),
        ("JVS_WORKTREE", worktree.worktree_id.as_str().into()),
        ("JVS_REPO", context.repo.layout().root().as_os_str().to_owned()),
    ];
    Job::start(&args.command, variables, signals, woken)
        .map_err(|cause| Error::io("start", "/proc/self/exe".as_ref(), &cause))
}

/// Renews the lease while the command runs, and ends the command when the lease is lost.
fn supervise(
    context: &RepoContext,
    worktree: &Worktree,
    acquired: &AcquiredLock,
    mut job: Job,
    wake: PipeWriter,
) -> (Result<u8>, GroupEnded) {
    let (stop, stopped) = mpsc::channel();
    let (report, reports) = mpsc::channel();
    std::thread::scope(|scope| {
        let renewing = std::thread::Builder::new()
            .spawn_scoped(scope, move || renew(context, worktree, acquired, &stopped, &report, wake))
            .map_err(not_made("thread"));
        let expires = acquired.lock.boot.expires_boot_ms;
        let mut deadline = LeaseDeadline { clock: &*context.repo.env().clock, reports, expires };
        let ended = renewing.and_then(|_| match job.watch(|| deadline.order()) {
            JobExit::Exited(exit_code) => Ok(exit_code),
            JobExit::Killed(error) => Err(error),
            JobExit::WantsTerminal => Err(Error::invalid(WANTS_TERMINAL)),
        });
        // The rest of the group must not write after the lock is released.
        let group = GroupEnded(job.end());
        drop(stop);
        (ended, group)
    })
}

/// Renews until told to stop, and wakes the waiting thread after each try.
fn renew(
    context: &RepoContext,
    worktree: &Worktree,
    acquired: &AcquiredLock,
    stopped: &Receiver<()>,
    report: &Sender<RenewalReport>,
    mut wake: PipeWriter,
) {
    let interval = Duration::from_millis(acquired.lock.policy.renew_interval_ms());
    while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let renewed = context.repo.lock(worktree).renew(&acquired.session.session_id);
        let lost = renewed.is_err();
        let message = renewed
            .map_or_else(RenewalReport::Lost, |lock| RenewalReport::RenewedUntil(lock.boot.expires_boot_ms));
        if report.send(message).is_err() || wake.write_all(b".").is_err() || lost {
            return;
        }
    }
}

/// How long the command may run: until the lease expires or is lost.
struct LeaseDeadline<'a> {
    clock: &'a dyn Clock,
    reports: Receiver<RenewalReport>,
    expires: BootMs,
}

impl LeaseDeadline<'_> {
    fn order(&mut self) -> Order<Error> {
        for renewed in self.reports.try_iter() {
            match renewed {
                RenewalReport::RenewedUntil(later) => self.expires = later,
                RenewalReport::Lost(error) => return Order::Kill(error),
            }
        }
        let now = self.clock.boot();
        if now > self.expires {
            return Order::Kill(Error::new(
                ErrorClass::LockExpired,
                "no renewal succeeded before the lease expired, so the command was killed; check the \
                 filesystem and retry",
            ));
        }
        Order::Run(Duration::from_millis(self.expires.since(now) + 1))
    }
}
