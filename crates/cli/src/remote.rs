//! `lockd client`: leases and documents from a shell.
//!
//! **Invariant.** Whatever a server says, what `acquire` prints is safe to eval, and what is printed for people has no
//! control characters. A lease from the environment is used for its own key only.
//!
//! Exit codes: 0 done; 1 failed here; 2 wrong usage or invalid input; 10 held by another; 11 fenced or not held;
//! 12 expired; 13 unavailable; 14 denied; 15 indeterminate (it may have happened).
//!
//! The modules in reading order: `args` is the command line; `environment` is what `acquire` leaves to the commands after
//! it; `agents` is for `lockd run --intent` and `lockd mcp`; `leases`, `documents`, `views` and `watch` are the commands.

mod args;
mod environment;
pub mod agents;
pub mod leases;
pub mod documents;
mod views;
mod watch;
mod who;

use std::io::{self, Write};
use std::sync::Arc;

use client::{Builder, Client, Error, Kind};
use serde::Serialize;

use crate::progress::Bar;
use crate::stderr::shown;

use args::Verb;
pub use args::{ClientArgs, Connection, Only, Output, Terms, duration};
pub use documents::spoil;
pub use environment::{Held, servers, values};
pub use who::identity_file;

/// The exit code, and what to say.
pub type Failure = (u8, String);
/// Done, or why not.
pub type Done = Result<(), Failure>;

/// Does what was asked for.
pub fn run(args: &ClientArgs) -> Done {
    let done = attempt(args);
    if let Err((_, what)) = &done
        && let Some(verb) = args.verb.fills_a_pipe()
    {
        spoil(verb, what);
    }
    done
}

fn attempt(args: &ClientArgs) -> Done {
    if let Verb::Edit(edit) = &args.verb {
        return documents::edit(edit);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    runtime.block_on(ask(args))
}

async fn ask(args: &ClientArgs) -> Done {
    let common = &args.common;
    if let Verb::Watch(watch) = &args.verb {
        return watch::watch(common, watch).await;
    }
    let client = connect(&common.connection)?;
    match &args.verb {
        Verb::Acquire(acquire) => leases::acquire(&client, common, acquire).await,
        Verb::Keepalive(keepalive) => leases::keepalive(&client, common, keepalive).await,
        Verb::Release(held) => leases::release(&client, common, held).await,
        Verb::Get(get) => documents::get(&client, common, get).await,
        Verb::Update(update) => documents::update(&client, common, update).await,
        Verb::Set(set) => documents::set(&client, common, set).await,
        Verb::Remove(remove) => documents::remove(&client, common, remove).await,
        Verb::Edit(_) | Verb::Watch(_) => unreachable!("they need no client, or one of their own"),
        Verb::Describe(named) => views::describe(&client, common, named).await,
        Verb::Why(named) => views::why(&client, common, named).await,
        Verb::List => views::list(&client, common).await,
        Verb::Revoke(named) => views::show(common, &client.revoke(&named.public_id).await.map_err(told)?),
        Verb::Reclaim(named) => views::show(common, &client.reclaim(&named.public_id).await.map_err(told)?),
    }
}

/// A client of the servers. Nothing is sent yet.
pub fn connect(connection: &Connection) -> Result<Client, Failure> {
    prepare(connection)?.build().map_err(told)
}

fn prepare(connection: &Connection) -> Result<Builder, Failure> {
    let bar = Arc::new(Bar::new("document", false));
    let builder = Client::builder().answer_timeout(connection.answer_timeout()).progress(bar);
    let builder = if connection.mtls { builder } else { builder.plain() };
    let builder = match who::identity(connection)? {
        Some(identity) => builder.identity(identity),
        None => builder,
    };
    Ok(connection.server.iter().fold(builder, Builder::endpoint))
}

/// A failure of the client, with its exit code.
#[expect(clippy::needless_pass_by_value, reason = "it stands in `map_err`")]
pub fn told(error: Error) -> Failure {
    let code = match error.kind() {
        Kind::Held => 10,
        Kind::Fenced => 11,
        Kind::Expired => 12,
        Kind::Unavailable => 13,
        Kind::Denied => 14,
        Kind::Indeterminate => 15,
        Kind::Invalid => 2,
    };
    let hints = error.refusal().map(|refusal| hints(&refusal.hints)).unwrap_or_default();
    (code, shown(&format!("{error}{hints}")))
}

fn hints(hints: &api::Hints) -> String {
    let mut text = String::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text = format!("{text} {name}={value}");
        }
    };
    add("holder", hints.holder.clone());
    add("position", hints.position.map(|position| position.to_string()));
    add("current_version", hints.current_version.map(|version| version.to_string()));
    add("current_etag", hints.current_etag.clone());
    text
}

/// Something of this machine's that went wrong.
pub fn failed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    (1, format!("{what}: {error}"))
}

/// Something that was asked for in the wrong way.
pub fn misused(what: impl Into<String>) -> Failure {
    (2, what.into())
}

/// Prints an answer: as JSON, or as the text of it.
pub fn print(output: Output, answer: &impl Serialize, text: impl FnOnce() -> String) -> Done {
    let text = match output {
        Output::Json => serde_json::to_string(answer).expect("plain data") + "\n",
        Output::Text => text(),
    };
    write_out(text.as_bytes())
}

/// A reader that has gone away has had enough: that is no failure.
pub fn write_out(bytes: &[u8]) -> Done {
    is_read(bytes).map(drop)
}

/// Writes, and tells whether anybody still reads.
fn is_read(bytes: &[u8]) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(failed("writing the output", &error)),
    }
}
