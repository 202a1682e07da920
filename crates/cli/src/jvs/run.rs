//! `jvs run`: a command that runs while, and only while, the lock is held.
//!
//! Invariant: while jvs gets to run, the command's process group is dead once the lease is over on this
//! machine's boot clock. The lease is renewed by another thread, because a renewal may hang with the filesystem; this thread only
//! waits, with the expiry as its deadline, so a hang ends the command in time. What remains is in [`cli::child`]; fencing
//! refuses what such processes would publish.

use std::io::{PipeReader, PipeWriter, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use cli::child::{Ended, Job, Order, Signals, WANTS_TERMINAL};
use serde_json::json;
use worktree::clock::{BootMs, Clock};
use worktree::error::{Class, Error, Result};
use worktree::holder::HolderId;
use worktree::lock::{Grant, Request};
use worktree::worktree::Worktree;

use crate::answer::Answer;
use crate::args::Run;
use crate::commands::announce_watch;
use crate::context::Context;

/// Runs the command under the lock, and passes its exit code on.
pub(crate) fn run(context: &Context, args: &Run) -> Result<Answer> {
    let worktree = context.worktree(&args.target)?;
    let grant = context.repo.acquire(
        &worktree,
        &Request {
            holder: HolderId::this_process(),
            policy: worktree.policy.with(&args.policy.changes())?,
            only_steal: false,
            on_watch: &announce_watch,
        },
    )?;
    // Taken over only now, so that a long wait for the lock can be interrupted; and before there is a command
    // or another thread, so that every signal from here on arrives through the descriptor.
    let ended = Signals::take().map_err(not_made("signalfd")).and_then(|signals| {
        let (rung, bell) = std::io::pipe().map_err(not_made("pipe"))?;
        let job = start(context, &worktree, &grant, args, &signals, rung)?;
        Ok(supervise(context, &worktree, &grant, job, bell))
    });
    let release = || context.repo.lock(&worktree).release(&grant.session.session_id);
    let (exit_code, released) = match ended {
        // What may still run keeps its protection, for as long as it lasts.
        Ok((exit_code, Gone(false))) => return Err(exit_code.err().unwrap_or_else(not_ended)),
        Ok((exit_code, Gone(true))) => (exit_code, release()),
        Err(error) => (Err(error), release()),
    };
    let exit_code = exit_code?;
    released?;
    let data = json!({"exit_code": exit_code, "fencing_token": grant.lock.fencing_token});
    Ok(Answer::new(data, "").with_exit_code(exit_code))
}

fn not_made(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |cause| Error::io("make", what.as_ref(), &cause)
}

fn not_ended() -> Error {
    Error::new(Class::Io, cli::child::unkilled("lock"))
}

/// What a renewal came to.
enum Renewed {
    Until(BootMs),
    Lost(Error),
}

/// Whether nothing of the command's group is left.
struct Gone(bool);

fn start<'a>(
    context: &Context,
    worktree: &Worktree,
    grant: &Grant,
    args: &Run,
    signals: &'a Signals,
    rung: PipeReader,
) -> Result<Job<'a>> {
    let variables = [
        ("JVS_FENCING_TOKEN", grant.lock.fencing_token.to_string().into()),
        ("JVS_SESSION_ID", grant.session.session_id.as_str().into()),
        ("JVS_WORKTREE", worktree.worktree_id.as_str().into()),
        ("JVS_REPO", context.repo.layout().root().as_os_str().to_owned()),
    ];
    Job::start(&args.command, variables, signals, rung)
        .map_err(|cause| Error::io("start", "/proc/self/exe".as_ref(), &cause))
}

/// Keeps the lease and the command together until one of them ends.
fn supervise(
    context: &Context,
    worktree: &Worktree,
    grant: &Grant,
    mut job: Job,
    bell: PipeWriter,
) -> (Result<u8>, Gone) {
    let (stop, stopped) = mpsc::channel();
    let (report, reports) = mpsc::channel();
    std::thread::scope(|scope| {
        let renewing = std::thread::Builder::new()
            .spawn_scoped(scope, move || renew(context, worktree, grant, &stopped, &report, bell))
            .map_err(not_made("thread"));
        let expires = grant.lock.boot.expires_boot_ms;
        let mut term = Term { clock: &*context.repo.env().clock, reports, expires };
        let ended = renewing.and_then(|_| match job.watch(|| term.order()) {
            Ended::Exited(exit_code) => Ok(exit_code),
            Ended::Killed(error) => Err(error),
            Ended::WantsTerminal => Err(Error::invalid(WANTS_TERMINAL)),
        });
        // Whatever is left of the group must not write once the lock is another's.
        let gone = Gone(job.end());
        drop(stop);
        (ended, gone)
    })
}

/// Renews until told to stop, and rings the bell after each try.
fn renew(
    context: &Context,
    worktree: &Worktree,
    grant: &Grant,
    stopped: &Receiver<()>,
    report: &Sender<Renewed>,
    mut bell: PipeWriter,
) {
    let interval = Duration::from_millis(grant.lock.policy.renew_interval_ms());
    while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let renewed = context.repo.lock(worktree).renew(&grant.session.session_id);
        let lost = renewed.is_err();
        let message = renewed.map_or_else(Renewed::Lost, |lock| Renewed::Until(lock.boot.expires_boot_ms));
        if report.send(message).is_err() || bell.write_all(b".").is_err() || lost {
            return;
        }
    }
}

/// For how long the command may run.
struct Term<'a> {
    clock: &'a dyn Clock,
    reports: Receiver<Renewed>,
    expires: BootMs,
}

impl Term<'_> {
    fn order(&mut self) -> Order<Error> {
        for renewed in self.reports.try_iter() {
            match renewed {
                Renewed::Until(later) => self.expires = later,
                Renewed::Lost(error) => return Order::Kill(error),
            }
        }
        let now = self.clock.boot();
        if now > self.expires {
            return Order::Kill(Error::new(
                Class::LockExpired,
                "no renewal came through before the lease ran out, so the command was stopped; look at the \
                 filesystem, and run it again",
            ));
        }
        Order::Run(Duration::from_millis(self.expires.since(now) + 1))
    }
}
