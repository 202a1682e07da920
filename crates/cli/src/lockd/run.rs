//! `lockd run`: runs a command only while a lease is held.
//!
//! **Invariant.** While this process is scheduled, the command's process group is killed before the server can grant the
//! lease to another client: `termination` computes when it gets SIGTERM and SIGKILL. The lease is released only when no
//! process of the group is left. [`cli::child`] lists the limits.
//!
//! The lease is renewed on another thread. This thread waits for the command, for signals and for the loss of the lease, and
//! never blocks on the network.

mod termination;

use std::ffi::OsString;
use std::time::Duration;

use api::agents::{Intent, Manifest};
use cli::child::{BootInstant, Job, JobExit, Signals, WANTS_TERMINAL, Waker, unkilled, waker};
use lockd_client::{AcquireOptions, Client, DeclareOutcome, Kind, Lease, LossReason};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use self::termination::{LeaseStatus, TerminationPolicy};
use crate::notice;
use cli::remote::agents::{AgentArgs, intent, rejection};
use cli::remote::{
    ConnectionArgs, Failure, LeaseTerms, Output, client_failure, connect, duration, failed, not_granted,
    usage_error, values,
};
use cli::wait_notices;

/// The exit code when the lease was lost.
const LOST: u8 = cli::exit_codes::EXPIRED;

#[derive(clap::Args)]
#[command(
    after_help = "The environment of the command has LOCKD_FENCING_TOKEN, LOCKD_PUBLIC_ID, LOCKD_KEY and LOCKD_NAMESPACE, and the \
                  variables that `lockd client acquire` exports, so that `lockd client` uses the lease. With --intent there is no key. \
                  SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to its process group. When the command exits, the rest of the \
                  group is killed and the lease is released.\n\n\
                  When the lease is lost, the group gets SIGTERM, and SIGKILL after --grace; both before the server \
                  can grant the lease to another client. If the server reports that the lease has already ended, the group gets SIGKILL at once.\n\n\
                  Exit codes: the command's own (128 plus the signal number if a signal killed it, 126 or 127 if it could not be \
                  started); 12 the lease was lost; 14 lost because the servers refuse the identity; 10 held by another; others as in `lockd --help`.\n\n\
                  Examples:\n  lockd run --key orders -- ./import-orders\n  \
                  lockd run --key orders --ttl 30s --block 10m --owner nightly -- sh -c 'psql -v token=$LOCKD_FENCING_TOKEN -f import.sql'\n  \
                  lockd run --key orders -- lockd client set orders runs++\n  \
                  lockd run --intent MUTATES:FILE:src/auth.rs --intent 'CONSUMES:FILE:src/*' --block 10m -- make fix"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Key to hold a lease on.
    #[arg(long, required_unless_present = "intents", conflicts_with = "intents")]
    key: Option<String>,
    /// Resource that the command uses, and how, as PREDICATE:KIND:name. Repeatable: all are granted together or none.
    /// --owner is ignored: other clients see the agent name and --reason.
    #[arg(long = "intent", value_name = "INTENT", value_parser = intent)]
    intents: Vec<Intent>,
    /// Purpose of the intents, shown to clients that are blocked by them.
    #[arg(long, conflicts_with = "key")]
    reason: Option<String>,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    terms: LeaseTerms,
    /// Time between SIGTERM and SIGKILL when the lease is lost; at most a third of the TTL.
    #[arg(long, value_parser = duration, default_value = "5s")]
    grace: Duration,
    /// Format of failures; those of `lockd run` itself go to standard error.
    #[arg(long, env = "LOCKD_CLIENT_OUTPUT", value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Command to run, with its arguments.
    #[arg(last = true, required = true, num_args = 1..)]
    command: Vec<OsString>,
}

/// Acquires the lease, runs the command, and returns its exit code.
pub(crate) fn run(args: &RunArgs) -> Result<u8, Failure> {
    let client = connect(&args.connection)?;
    let target = args.target()?;
    // Before any other thread is started.
    let signals = Signals::take().map_err(|error| failed("listening for signals", &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    let acquisition = Acquisition { client: &client, target: &target, block: args.terms.block };
    let lease = acquire(&runtime, &acquisition, args.connection.answer_timeout(), &signals)?;
    let supervisor = Supervisor { args, runtime: &runtime, lease: &lease };
    let outcome = supervisor.run(&signals);
    if matches!(outcome, Ok(RunOutcome { all_killed: false, .. } | RunOutcome { lost: Some(_), .. })) {
        // Processes that may still run keep the lease until it expires, and a lost lease cannot be released. Dropping the
        // runtime first keeps the lease's drop from releasing it.
        drop(runtime);
    } else {
        release_lease(&runtime, lease, args.connection.answer_timeout());
    }
    outcome?.exit_code()
}

/// Waits for the lease on another thread, so that this one can handle signals.
fn acquire(
    runtime: &Runtime,
    acquisition: &Acquisition<'_>,
    within: Duration,
    signals: &Signals,
) -> Result<Lease, Failure> {
    let (wakeups, waker) = waker().map_err(|error| failed("creating a pipe", &error))?;
    let (cancel, cancelled) = oneshot::channel::<()>();
    let (result, signal) = std::thread::scope(|scope| {
        let request = std::thread::Builder::new().spawn_scoped(scope, move || {
            // Dropped at the end, which wakes the main thread.
            let _waker = waker;
            runtime.block_on(async {
                tokio::select! {
                    result = acquisition.send() => Some(result),
                    _ = cancelled => None,
                }
            })
        })?;
        let signal = signals.wait_or(&wakeups);
        drop(cancel);
        Ok((request.join().expect("the request does not panic"), signal?))
    })
    .map_err(|error: std::io::Error| failed("waiting for the lease", &error))?;
    match (signal, result) {
        (None, Some(result)) => result,
        (None, None) => unreachable!("only a signal cancels"),
        (Some(signal), result) => {
            if let Some(Ok(lease)) = result {
                release_lease(runtime, lease, within);
            }
            let code = u8::try_from(128 + signal.as_raw()).expect("signal numbers are below 65");
            Err(Failure::new(code, "interrupted before the command was started"))
        }
    }
}

/// The resources to acquire.
enum LeaseTarget {
    Key(String, AcquireOptions),
    Bundle(Manifest),
}

impl RunArgs {
    fn target(&self) -> Result<LeaseTarget, Failure> {
        if let Some(key) = &self.key {
            let options = AcquireOptions {
                namespace: self.connection.namespace.clone(),
                ttl: self.terms.ttl,
                owner: self.terms.owner.clone(),
                block: self.terms.block,
                on_wait: Some(wait_notices::observer()),
                ..AcquireOptions::default()
            };
            return Ok(LeaseTarget::Key(key.clone(), options));
        }
        let agent = self.agent.begin("run", &self.connection)?;
        Ok(LeaseTarget::Bundle(Manifest {
            ttl_ms: self.terms.ttl_ms()?,
            reason: self.reason.clone(),
            ..agent.manifest(self.connection.namespace.clone(), self.intents.clone())
        }))
    }
}

struct Acquisition<'a> {
    client: &'a Client,
    target: &'a LeaseTarget,
    block: Duration,
}

impl Acquisition<'_> {
    /// Sends the request. For a manifest that must back off, the client library waits and retries with the same attempt id.
    async fn send(&self) -> Result<Lease, Failure> {
        match self.target {
            LeaseTarget::Key(key, options) => {
                let leased = self.client.acquire(key, options).await;
                leased.map_err(|error| not_granted(error, key, options.block))
            }
            LeaseTarget::Bundle(manifest) => {
                match self
                    .client
                    .declare(manifest, wait_notices::reported(self.block))
                    .await
                    .map_err(client_failure)?
                {
                    DeclareOutcome::Granted(lease) => Ok(lease),
                    DeclareOutcome::NotGranted(judged) => Err(rejection(&judged)),
                }
            }
        }
    }
}

/// Releases the lease. If that fails or times out the lease expires by itself; the command is done either way.
fn release_lease(runtime: &Runtime, lease: Lease, within: Duration) {
    let released = runtime.block_on(async { tokio::time::timeout(within, lease.release()).await });
    let why = match released {
        Ok(Ok(())) => return,
        Ok(Err(error)) => client_failure(error).message,
        Err(_) => "the server did not respond in time".into(),
    };
    notice(&format!("the lease could not be released and will expire: {why}"));
}

/// How the command ended.
struct RunOutcome {
    exit: JobExit<LossReason>,
    /// Why the lease was lost before the command ended, if it was.
    lost: Option<Failure>,
    /// No process of the group is left.
    all_killed: bool,
}

impl RunOutcome {
    fn exit_code(self) -> Result<u8, Failure> {
        if let Some(lost) = self.lost {
            return Err(lost);
        }
        if !self.all_killed {
            return Err(Failure::new(1, unkilled("lease")));
        }
        match self.exit {
            JobExit::Exited(code) => Ok(code),
            JobExit::WantsTerminal => Err(usage_error(WANTS_TERMINAL)),
            JobExit::Killed(_) => unreachable!("only for a lost lease"),
        }
    }
}

/// Runs the command while renewing the lease.
struct Supervisor<'a> {
    args: &'a RunArgs,
    runtime: &'a Runtime,
    lease: &'a Lease,
}

impl Supervisor<'_> {
    fn run(&self, signals: &Signals) -> Result<RunOutcome, Failure> {
        let (wakeups, waker) = waker().map_err(|error| failed("creating a pipe", &error))?;
        let variables = self.variables()?;
        let (stop, stopped) = oneshot::channel();
        std::thread::scope(|scope| {
            let renewing = || self.runtime.block_on(renew_until_stopped(self.lease, waker, stopped));
            std::thread::Builder::new()
                .spawn_scoped(scope, renewing)
                .map_err(|error| failed("starting a thread", &error))?;
            let mut job = Job::start(&self.args.command, variables, signals, wakeups)
                .map_err(|error| failed("starting the command", &error))?;
            let ttl = Duration::from_millis(self.lease.granted().ttl_ms);
            let mut policy = TerminationPolicy::new(self.args.grace, ttl);
            let exit = job.watch(|| policy.order(self.status()));
            let lost = policy.loss_at_exit(self.lease.why_lost()).map(|lost| self.explain(lost));
            let all_killed = job.end();
            drop(stop);
            Ok(RunOutcome { exit, lost, all_killed })
        })
    }

    /// A lease that no server confirmed because they refuse the identity is denied, not expired.
    fn explain(&self, lost: LossReason) -> Failure {
        let what = "the lease was lost while the command ran";
        match self.lease.renewal_error().filter(|_| lost == LossReason::Unreachable) {
            Some(error) if error.kind() == Kind::Denied => {
                let denied = client_failure(error);
                Failure { message: format!("{what}: {}", denied.message), ..denied }
            }
            Some(error) => {
                let why = client_failure(error).message;
                Failure::new(LOST, format!("{what}: {lost}; the last renewal failed: {why}"))
            }
            None => Failure::new(LOST, format!("{what}: {lost}")),
        }
    }

    fn status(&self) -> LeaseStatus {
        // The order of the reads matters: see `LeaseStatus`.
        let now = BootInstant::now();
        let left = self.lease.remaining();
        LeaseStatus { now, left, lost: self.lease.why_lost() }
    }

    fn variables(&self) -> Result<Vec<(String, OsString)>, Failure> {
        let granted = self.lease.granted();
        let mut all = vec![
            ("LOCKD_FENCING_TOKEN".to_string(), granted.fencing_token.to_string().into()),
            ("LOCKD_PUBLIC_ID".to_string(), granted.public_id.clone().into()),
            ("LOCKD_NAMESPACE".to_string(), granted.namespace.clone().into()),
            // Empty without a key, to override the variable of an enclosing `lockd run`.
            ("LOCKD_KEY".to_string(), granted.key.clone().unwrap_or_default().into()),
        ];
        let found_by_client = values(&self.args.connection, granted)?;
        all.extend(found_by_client.into_iter().map(|(name, value)| (name, value.into())));
        Ok(all)
    }
}

/// Drives the renewals until stopped, and wakes the main thread when the lease is lost.
async fn renew_until_stopped(lease: &Lease, mut waker: Waker, mut stopped: oneshot::Receiver<()>) {
    tokio::select! {
        _ = lease.lost() => drop(waker.wake()),
        _ = &mut stopped => return,
    }
    let _ = stopped.await;
}
