//! `lockd auth`: creates, renews, exports, lists, revokes, inspects and verifies identities.
//!
//! The `identity` crate makes all decisions. This module provides the clock, finds the files, and prints
//! reports as text or JSON.

mod args;
mod passphrase;
mod ca;
mod identity_file;
mod export;
mod new;
mod renew;
mod trust;
mod record;
mod list;
mod revoke;
mod inspect;
mod verify;
mod view;

use std::path::Path;

use identity::{ClientBundle, Denylist, Error, ServerBundle, UnixTime, file};
use system::random::fill;

pub(crate) use self::args::AuthCommand;
use self::args::{CheckCommand, InspectCommand, NewCommand, RevokeCommand, UnrevokeCommand};

pub(crate) fn run(command: &AuthCommand) -> Result<(), String> {
    match command {
        AuthCommand::New { command: NewCommand::Server(args) } => new::server(args),
        AuthCommand::New { command: NewCommand::Client(args) } => new::client(args),
        AuthCommand::New { command: NewCommand::Ca(args) } => new::ca(args),
        AuthCommand::Renew(args) => renew::renew(args),
        AuthCommand::Export(args) => export::export(args),
        AuthCommand::Trust(args) => trust::trust(args),
        AuthCommand::List(args) => list::list(args),
        AuthCommand::Revoke { command: RevokeCommand::Client(args) } => revoke::client(args),
        AuthCommand::Revoke { command: RevokeCommand::Server(args) } => revoke::server(args),
        AuthCommand::Unrevoke { command: UnrevokeCommand::Client(args) } => revoke::unrevoke_client(args),
        AuthCommand::Inspect { command: InspectCommand::Server(args) } => inspect::server(args),
        AuthCommand::Inspect { command: InspectCommand::Client(args) } => inspect::client(args),
        AuthCommand::Verify { command: CheckCommand::Server(args) } => verify::server(args),
        AuthCommand::Verify { command: CheckCommand::Client(args) } => verify::client(args),
    }
}

/// The wall-clock time, for the validity of certificates. The only place where these commands read a clock.
fn now() -> UnixTime {
    UnixTime::now()
}

fn read_server(path: &Path) -> Result<ServerBundle, Error> {
    ServerBundle::parse(&file::read(path)?).map_err(|error| error.in_file(path))
}

fn read_client(path: &Path) -> Result<ClientBundle, Error> {
    ClientBundle::parse(&file::read(path)?).map_err(|error| error.in_file(path))
}

fn read_denylist(path: Option<&Path>) -> Result<Denylist, Error> {
    let Some(path) = path else { return Ok(Denylist::default()) };
    Denylist::parse(&file::read(path)?).map_err(|error| error.in_file(path))
}
