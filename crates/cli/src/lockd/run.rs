//! `lockd run`: a command that runs while, and only while, a lease is held.
//!
//! **Invariant.** While this process gets to run, the command's process group is gone before the server can give the
//! lease to another: `term` says when it is told to end, and when it is killed. The lease is given back only when nothing
//! of the group is left. What cannot be reached is in [`cli::child`].
//!
//! The lease renews itself on another thread; this one waits for the command, for signals and for the lease's end, and
//! nothing that hangs on the network can hold it up.

mod term;

use std::ffi::{OsStr, OsString};
use std::io::{PipeWriter, Write};
use std::time::Duration;

use api::agents::{Intent, Manifest};
use cli::child::{Ended, Job, Moment, Signals, WANTS_TERMINAL};
use client::{Client, Declared, Lease, Lost, Options};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use self::term::{Standing, Term};
use crate::say;
use cli::remote::agents::{AgentArgs, intent, refused};
use cli::remote::{Connection, Failure, Terms, connect, duration, failed, misused, told, values};

/// The exit code when the lease was lost.
const LOST: u8 = 12;

#[derive(clap::Args)]
#[command(
    after_help = "The command gets LOCKD_FENCING_TOKEN, LOCKD_PUBLIC_ID, LOCKD_KEY and LOCKD_NAMESPACE, and what `lockd \
                  client acquire` exports, so that `lockd client` finds the lease. With --intent there is no key. SIGINT, SIGTERM, SIGHUP and SIGQUIT \
                  are passed on to its process group. When it ends, what is left of that group is killed, and the \
                  lease is given back.\n\n\
                  When the lease is lost, the group gets SIGTERM, and SIGKILL after --grace; both before the server \
                  would give the lease to another. A lease that the server says is over already gets SIGKILL at once.\n\n\
                  Exit codes: the command's own (128 and the signal if one killed it, 126 or 127 if it could not be \
                  started); 12 when the lease was lost; 10 held by another; and those of `lockd --help`.\n\n\
                  Examples:\n  lockd run --key orders -- ./import-orders\n  \
                  lockd run --key orders --ttl 30s --block 10m --owner nightly -- sh -c 'psql -v token=$LOCKD_FENCING_TOKEN -f import.sql'\n  \
                  lockd run --key orders -- lockd client set orders runs++\n  \
                  lockd run --intent MUTATES:FILE:src/auth.rs --intent 'CONSUMES:FILE:src/*' --block 10m -- make fix"
)]
pub(crate) struct Run {
    #[command(flatten)]
    connection: Connection,
    /// The key to hold.
    #[arg(long, required_unless_present = "intents", conflicts_with = "intents")]
    key: Option<String>,
    /// What the command will touch, and how, as PREDICATE:KIND:name; several are held all together, or not at all.
    /// --owner says nothing here: others are shown the agent, and --reason.
    #[arg(long = "intent", value_name = "INTENT", value_parser = intent)]
    intents: Vec<Intent>,
    /// Why, for others who find these intents in their way.
    #[arg(long, conflicts_with = "key")]
    reason: Option<String>,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    terms: Terms,
    /// How long the command has between SIGTERM and SIGKILL when the lease is lost; at most a third of the TTL.
    #[arg(long, value_parser = duration, default_value = "5s")]
    grace: Duration,
    /// The command and its arguments.
    #[arg(last = true, required = true, num_args = 1..)]
    command: Vec<OsString>,
}

/// Runs the command under the lease, and passes its exit code on.
pub(crate) fn run(args: &Run) -> Result<u8, Failure> {
    let client = connect(&args.connection)?;
    let wanted = args.wanted()?;
    // Before there is another thread.
    let signals = Signals::take().map_err(|error| failed("listening for signals", &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    let asking = Asking { client: &client, wanted: &wanted, block: args.terms.block };
    let lease = acquire(&runtime, &asking, args.connection.answer_timeout(), &signals)?;
    let under = Under { args, runtime: &runtime, lease: &lease };
    let ended = under.work(&signals);
    if matches!(ended, Ok(Outcome { gone: false, .. } | Outcome { lost: Some(_), .. })) {
        // What may still run keeps its protection for as long as it lasts; and what is lost cannot be given back. Without
        // its runtime a lease that is dropped stays as it is.
        drop(runtime);
    } else {
        give_back(&runtime, lease, args.connection.answer_timeout());
    }
    ended?.exit_code()
}

/// Waits for the lease on another thread, so that this one hears signals.
fn acquire(
    runtime: &Runtime,
    asking: &Asking<'_>,
    within: Duration,
    signals: &Signals,
) -> Result<Lease, Failure> {
    let (rung, bell) = std::io::pipe().map_err(|error| failed("making a pipe", &error))?;
    let (cancel, cancelled) = oneshot::channel::<()>();
    let (asked, heard) = std::thread::scope(|scope| {
        let asking = std::thread::Builder::new().spawn_scoped(scope, move || {
            // Rings when it is dropped.
            let _bell = bell;
            runtime.block_on(async {
                tokio::select! {
                    asked = asking.ask() => Some(asked),
                    _ = cancelled => None,
                }
            })
        })?;
        let heard = signals.wait_or(&rung);
        drop(cancel);
        Ok((asking.join().expect("it does not panic"), heard?))
    })
    .map_err(|error: std::io::Error| failed("waiting for the lease", &error))?;
    match (heard, asked) {
        (None, Some(asked)) => asked,
        (None, None) => unreachable!("only a signal cancels"),
        (Some(signal), asked) => {
            if let Some(Ok(lease)) = asked {
                give_back(runtime, lease, within);
            }
            let code = u8::try_from(128 + signal.as_raw()).expect("signals are small");
            Err((code, "interrupted before the command was started".into()))
        }
    }
}

/// What the lease is to be over.
enum Wanted {
    Key(String, Options),
    Bundle(Manifest),
}

impl Run {
    fn wanted(&self) -> Result<Wanted, Failure> {
        if let Some(key) = &self.key {
            let options = Options {
                namespace: self.connection.namespace.clone(),
                ttl: self.terms.ttl,
                owner: self.terms.owner.clone(),
                block: self.terms.block,
                ..Options::default()
            };
            return Ok(Wanted::Key(key.clone(), options));
        }
        let agent = self.agent.begin("run", &self.connection)?;
        Ok(Wanted::Bundle(Manifest {
            ttl_ms: self.terms.ttl_ms()?,
            reason: self.reason.clone(),
            ..agent.manifest(self.connection.namespace.clone(), self.intents.clone())
        }))
    }
}

struct Asking<'a> {
    client: &'a Client,
    wanted: &'a Wanted,
    block: Duration,
}

impl Asking<'_> {
    /// The one place that knows how each kind is asked for. Where a bundle has to stay away for a while, the client does
    /// that, and comes again with the same attempt.
    async fn ask(&self) -> Result<Lease, Failure> {
        match self.wanted {
            Wanted::Key(key, options) => self.client.acquire(key, options).await.map_err(told),
            Wanted::Bundle(manifest) => {
                match self.client.declare(manifest, self.block).await.map_err(told)? {
                    Declared::Granted { lease, .. } => Ok(lease),
                    Declared::Not(judged) => Err(refused(&judged)),
                }
            }
        }
    }
}

/// What cannot be given back in time runs out by itself; the command is done either way.
fn give_back(runtime: &Runtime, lease: Lease, within: Duration) {
    let released = runtime.block_on(async { tokio::time::timeout(within, lease.release()).await });
    let why = match released {
        Ok(Ok(())) => return,
        Ok(Err(error)) => told(error).1,
        Err(_) => "no answer in time".into(),
    };
    say(&format!("the lease could not be given back, and runs out by itself: {why}"));
}

/// A command that has ended.
struct Outcome {
    ended: Ended<Lost>,
    /// The lease was lost before that.
    lost: Option<Lost>,
    /// Nothing of its group is left.
    gone: bool,
}

impl Outcome {
    fn exit_code(self) -> Result<u8, Failure> {
        if let Some(lost) = self.lost {
            return Err((LOST, format!("the lease was lost while the command ran: {lost}")));
        }
        if !self.gone {
            let what = "processes of the command could not be killed, so the lease is left to run out; look for what they wait for";
            return Err((1, what.into()));
        }
        match self.ended {
            Ended::Exited(code) => Ok(code),
            Ended::WantsTerminal => Err(misused(WANTS_TERMINAL)),
            Ended::Killed(_) => unreachable!("only for a lost lease"),
        }
    }
}

/// The command's surroundings.
struct Under<'a> {
    args: &'a Run,
    runtime: &'a Runtime,
    lease: &'a Lease,
}

impl Under<'_> {
    fn work(&self, signals: &Signals) -> Result<Outcome, Failure> {
        let (rung, bell) = std::io::pipe().map_err(|error| failed("making a pipe", &error))?;
        let variables = self.variables()?;
        let (stop, stopped) = oneshot::channel();
        std::thread::scope(|scope| {
            let keeping = || self.runtime.block_on(keep(self.lease, bell, stopped));
            std::thread::Builder::new()
                .spawn_scoped(scope, keeping)
                .map_err(|error| failed("starting a thread", &error))?;
            let mut job = Job::start(&self.args.command, variables, signals, rung)
                .map_err(|error| failed("starting the command", &error))?;
            let mut term = Term::new(self.args.grace, Duration::from_millis(self.lease.granted().ttl_ms));
            let ended = job.watch(|| term.order(self.standing()));
            let lost = term.lost_at_the_end(self.lease.why_lost());
            let gone = job.end();
            drop(stop);
            Ok(Outcome { ended, lost, gone })
        })
    }

    fn standing(&self) -> Standing {
        // In this order, so that nothing counts for longer than it lasts: see `Standing`.
        let now = Moment::now();
        let left = self.lease.remaining();
        Standing { now, left, lost: self.lease.why_lost() }
    }

    fn variables(&self) -> Result<Vec<(&'static str, OsString)>, Failure> {
        let granted = self.lease.granted();
        let mut all = vec![
            ("LOCKD_FENCING_TOKEN", granted.fencing_token.to_string().into()),
            ("LOCKD_PUBLIC_ID", granted.public_id.clone().into()),
            ("LOCKD_NAMESPACE", granted.namespace.clone().into()),
            // Empty where there is none: that of a run around this one is not this one's.
            ("LOCKD_KEY", granted.key.clone().unwrap_or_default().into()),
        ];
        all.extend(values(&self.args.connection, granted)?.map(|(name, value)| (name, value.into())));
        if let Some(file) = &self.args.connection.identity {
            // The command may go to another folder.
            let file =
                std::path::absolute(file).map_err(|error| failed("finding the identity file", &error))?;
            all.push(("LOCKD_CLIENT_IDENTITY", OsStr::new(&file).to_owned()));
        }
        Ok(all)
    }
}

/// Lets the lease renew itself until it is told to stop, and rings when it is lost.
async fn keep(lease: &Lease, mut bell: PipeWriter, mut stopped: oneshot::Receiver<()>) {
    tokio::select! {
        _ = lease.lost() => drop(bell.write_all(b".")),
        _ = &mut stopped => return,
    }
    let _ = stopped.await;
}
