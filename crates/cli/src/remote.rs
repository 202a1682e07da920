//! `lockd client`: leases and documents from a shell.
//!
//! **Invariant.** Server responses are untrusted: the exports that `acquire` prints are safe to eval, and output
//! for people and JSON contain no characters that direct a terminal or the order of text. A lease from the environment is
//! used for its own key only.
//!
//! Its exit codes are in [`crate::exit_codes`].
//!
//! The modules in reading order: `args` is the command line; `environment` is the `LOCKD_CLIENT_*` variables that `acquire`
//! exports; `agents` is for `lockd run --intent` and `lockd mcp`; `leases`, `documents`, `views`, `keys`, `why`,
//! `watch`, `events`, `operators`, `agent_commands` and `server_texts` are the commands.

mod args;
mod environment;
mod input_document;
mod output_file;
pub mod agents;
pub mod leases;
pub mod documents;
mod views;
mod keys;
mod why;
mod watch;
mod events;
mod history;
mod operators;
mod agent_commands;
mod server_texts;
pub mod calls;
mod client_identity;
mod termination;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use lockd_client::{Builder, Client};
use rustix::fs::fstat;

use crate::progress::ByteProgress;

pub use crate::failure::{CommandResult, Failure, client_failure, failed, not_granted, usage_error};
use crate::output::write_stdout;
pub use crate::output::{Output, print, print_bytes};
use args::{AdminVerb, Common, Verb};
pub use args::{ClientArgs, ConnectionArgs, LeaseTerms, TlsFiles, WriteConditions, duration, output_file};
pub use client_identity::identity_file;
pub use documents::poison_output;
pub use environment::{LeaseCredential, quoted, servers, values};

/// Runs a `lockd client` command.
pub fn run(args: &ClientArgs) -> CommandResult {
    let mut done = attempt(args);
    if let Err(failure) = &mut done {
        if is_evaluated(args) {
            fail_eval(failure.code);
        } else if let Some(verb) = args.verb.pipes_a_document() {
            poison_output(verb, &failure.message);
            failure.is_shown = stdout_is_stderr();
        }
    }
    done
}

/// Whether a shell evaluates the output.
fn is_evaluated(args: &ClientArgs) -> bool {
    let grants =
        matches!(args.verb, Verb::Acquire(_) | Verb::Rebind(_) | Verb::Administer(AdminVerb::Manifest(_)));
    grants && !args.common.output.is_parsed()
}

/// Whether standard output and standard error go to the same pipe or file, as with `2>&1`.
pub fn stdout_is_stderr() -> bool {
    let of = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let (out, err) = (fstat(io::stdout()), fstat(io::stderr()));
    !io::stdout().is_terminal() && matches!((out.map(of), err.map(of)), (Ok(out), Ok(err)) if out == err)
}

/// Makes the eval of a failed acquire's output fail. Does nothing on a terminal.
pub fn fail_eval(code: u8) {
    let mut out = io::stdout().lock();
    if !out.is_terminal() {
        // With the pipe closed there is nothing to evaluate.
        let _ = out.write_all(environment::failing_eval(code).as_bytes()).and_then(|()| out.flush());
    }
}

fn attempt(args: &ClientArgs) -> CommandResult {
    if let Verb::Edit(edit) = &args.verb {
        return documents::edit(edit);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    runtime.block_on(async {
        tokio::select! {
            done = dispatch(args) => done,
            failure = termination::terminated(), if is_evaluated(args) => Err(failure),
        }
    })
}

async fn dispatch(args: &ClientArgs) -> CommandResult {
    let common = &args.common;
    if let Verb::Watch(watch) = &args.verb {
        return watch::watch(common, watch).await;
    }
    let client = connect(&common.connection)?;
    match &args.verb {
        Verb::Acquire(acquire) => leases::acquire(&client, common, acquire).await,
        Verb::Keepalive(keepalive) => leases::keepalive(&client, common, keepalive).await,
        Verb::Release(lease) => leases::release(&client, common, lease).await,
        Verb::Get(get) => documents::get(&client, common, get).await,
        Verb::Update(update) => documents::update(&client, common, update).await,
        Verb::Set(set) => documents::set(&client, common, set).await,
        Verb::Remove(remove) => documents::remove(&client, common, remove).await,
        Verb::Edit(_) | Verb::Watch(_) => unreachable!("handled above: they need no client, or their own"),
        Verb::Describe(arg) => views::describe(&client, common, arg).await,
        Verb::Why(arg) => why::why(&client, common, arg).await,
        Verb::List(list) => views::list(&client, common, list).await,
        Verb::Keys(keys) => keys::keys(&client, common, keys).await,
        Verb::Lease(lease) => views::lease(&client, common, lease).await,
        Verb::Resource(resource) => views::resource(&client, common, resource).await,
        Verb::History(resource) => history::history(&client, common, resource).await,
        Verb::Whoami => history::whoami(&client, common).await,
        Verb::Contention => views::contention(&client, common).await,
        Verb::Events(args) => events::events(&client, common, args).await,
        Verb::Activate(lease) => leases::activate(&client, common, lease).await,
        Verb::Rebind(lease) => leases::rebind(&client, common, lease).await,
        Verb::Touch(lease) => leases::touch(&client, common, lease).await,
        Verb::Fence(fence) => leases::fence(&client, common, fence).await,
        Verb::Metrics => server_texts::metrics(&client, common).await,
        Verb::Openapi => server_texts::openapi(&client, common).await,
        Verb::Administer(verb) => administer(&client, common, verb).await,
    }
}

async fn administer(client: &Client, common: &Common, verb: &AdminVerb) -> CommandResult {
    match verb {
        AdminVerb::Revoke(args) => operators::revoke(client, common, args).await,
        AdminVerb::Reclaim(args) => operators::reclaim(client, common, args).await,
        AdminVerb::Pause(args) => operators::pause(client, common, args, true).await,
        AdminVerb::Resume(args) => operators::pause(client, common, args, false).await,
        AdminVerb::Quotas => operators::quotas(client, common).await,
        AdminVerb::SetQuota(args) => operators::set_quota(client, common, args).await,
        AdminVerb::Namespaces => operators::namespaces(client, common).await,
        AdminVerb::DeleteNamespace(args) => operators::delete_namespace(client, common, args).await,
        AdminVerb::Agents => agent_commands::agents(client, common).await,
        AdminVerb::SetAgent(args) => agent_commands::set_agent(client, common, args).await,
        AdminVerb::Manifest(args) => agent_commands::manifest(client, common, args).await,
        AdminVerb::Heartbeat(args) => agent_commands::heartbeat(client, common, args).await,
        AdminVerb::ReleaseAll(args) => agent_commands::release_all(client, common, args).await,
        AdminVerb::Reconcile(args) => agent_commands::reconcile(client, common, args).await,
    }
}

/// Builds a client for the servers. Sends nothing yet.
pub fn connect(connection: &ConnectionArgs) -> Result<Client, Failure> {
    prepare(connection)?.build().map_err(client_failure)
}

fn prepare(connection: &ConnectionArgs) -> Result<Builder, Failure> {
    let bar = Arc::new(ByteProgress::new("document", false));
    let builder = Client::builder().answer_timeout(connection.answer_timeout()).progress(bar);
    let builder = if connection.mtls { builder } else { builder.plain() };
    let location = client_identity::private_location(connection)?;
    let builder = location.into_iter().fold(builder, Builder::identity_location);
    let builder = connection.denylist_path.iter().fold(builder, Builder::denylist_file);
    Ok(connection.server.iter().fold(builder, Builder::endpoint))
}
