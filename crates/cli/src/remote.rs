//! `lockd client`: leases and documents from a shell.
//!
//! **Invariant.** Server responses are untrusted: the exports that `acquire` prints are safe to eval, and output
//! for people and JSON contain no characters that direct a terminal or the order of text. A lease from the environment is used for its own key only.
//!
//! Its exit codes are in [`exit_codes`].
//!
//! The modules in reading order: `args` is the command line; `environment` is the `LOCKD_CLIENT_*` variables that `acquire`
//! exports; `agents` is for `lockd run --intent` and `lockd mcp`; `leases`, `documents`, `views` and `watch` are the
//! commands.

mod args;
mod environment;
pub mod agents;
pub mod leases;
pub mod documents;
mod views;
mod watch;
mod client_identity;

use std::io::{self, Write};
use std::sync::Arc;

use lockd_client::{Builder, Client, Error};
use serde::Serialize;

use crate::exit_codes::{self, FAILED, USAGE};
use crate::progress::ByteProgress;
use crate::untrusted::{escape, escape_lines, quote};

use args::Verb;
pub use args::{ClientArgs, ConnectionArgs, LeaseTerms, Output, TlsFiles, WriteConditions, duration};
pub use client_identity::identity_file;
pub use documents::poison_output;
pub use environment::{LeaseCredential, quoted, servers, values};

/// The exit code and the error message.
pub type Failure = (u8, String);
/// The result of a command.
pub type CommandResult = Result<(), Failure>;

/// Runs a `lockd client` command.
pub fn run(args: &ClientArgs) -> CommandResult {
    let done = attempt(args);
    if let Err((_, what)) = &done
        && let Some(verb) = args.verb.pipes_a_document()
    {
        poison_output(verb, what);
    }
    done
}

fn attempt(args: &ClientArgs) -> CommandResult {
    if let Verb::Edit(edit) = &args.verb {
        return documents::edit(edit);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    runtime.block_on(dispatch(args))
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
        Verb::Why(arg) => views::why(&client, common, arg).await,
        Verb::List => views::list(&client, common).await,
        Verb::Revoke(arg) => {
            views::show(common, &client.revoke(&arg.public_id).await.map_err(client_failure)?)
        }
        Verb::Reclaim(arg) => {
            views::show(common, &client.reclaim(&arg.public_id).await.map_err(client_failure)?)
        }
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

/// A client error as an exit code and a message with the refusal's hints.
#[expect(clippy::needless_pass_by_value, reason = "the signature that `map_err` needs")]
pub fn client_failure(error: Error) -> Failure {
    let code = exit_codes::of_kind(error.kind());
    let hints = error.refusal().map(|refusal| hints(&refusal.hints)).unwrap_or_default();
    (code, escape(&format!("{error}{hints}")))
}

fn hints(hints: &api::Hints) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text = format!("{text} {name}={value}");
        }
    };
    add("holder", hints.holder.as_deref().map(quote));
    add("position", hints.position.map(|position| position.to_string()));
    add("current_version", hints.current_version.map(|version| version.to_string()));
    add("current_etag", hints.current_etag.clone());
    text
}

/// A failure on this machine: exit code 1.
pub fn failed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    (FAILED, format!("{what}: {error}"))
}

/// Wrong usage or invalid input: exit code 2.
pub fn usage_error(what: impl Into<String>) -> Failure {
    (USAGE, what.into())
}

/// Prints a response as JSON or as `text`.
pub fn print(output: Output, response: &impl Serialize, text: impl FnOnce() -> String) -> CommandResult {
    let text = match output {
        Output::Json => escape_lines(&serde_json::to_string(response).expect("plain data")) + "\n",
        Output::Text => text(),
    };
    print_bytes(text.as_bytes())
}

/// Writes to standard output. A closed pipe is no failure.
pub fn print_bytes(bytes: &[u8]) -> CommandResult {
    write_stdout(bytes).map(drop)
}

/// Writes to standard output and flushes; false if the reader has closed the pipe.
fn write_stdout(bytes: &[u8]) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(failed("writing the output", &error)),
    }
}
