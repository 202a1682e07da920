//! `get`, `update`, `remove`, `set`, `edit`.
//!
//! **Invariant.** In `get | edit | update` a command that fails is not mistaken for one that found nothing. All of them run
//! at once, and none learns the exit code of another: so one that fails says so in its output ([`spoil`]), with a line that
//! no JSON begins with, and those behind it refuse that. What is killed before it writes anything cannot.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use api::tell::{Committed, Removed};
use client::{Client, Conditions};
use jsonstream::edit::{apply, parse_edit};
use rustix::time::{ClockId, clock_gettime};

use super::args::{Common, Edit, Get, Only, Remove, Set, Update, Verb};
use super::environment::{Held, held, key};
use super::{Done, Failure, Output, failed, misused, print, told, write_out};
use crate::file::replace;
use crate::stderr::shown;

pub(crate) async fn get(client: &Client, common: &Common, args: &Get) -> Done {
    let read = if args.public {
        let key = key(args.held.key.as_deref())?;
        client.get_public_state(&key, common.connection.namespace.as_deref()).await
    } else {
        let held = held(args.held.key.as_deref(), &args.held.lease)?;
        client.get_state(&held.key, &held.lease_id).await
    };
    let document = read.map_err(told)?.document.unwrap_or_default();
    write_output(&args.out, &document)
}

/// Writes a document to a file; `-` is standard output.
pub fn write_output(out: &Path, document: &[u8]) -> Done {
    if out.as_os_str() == "-" {
        return write_out(document);
    }
    std::fs::write(out, document).map_err(|error| failed_file("writing", out, &error))
}

pub(crate) async fn update(client: &Client, common: &Common, args: &Update) -> Done {
    let held = held(args.held.key.as_deref(), &args.held.lease)?;
    let document = read_input(Some(&args.file))?;
    commit(client, common.output, &held, document, &args.only.conditions(&held)).await.map(drop)
}

pub(crate) async fn remove(client: &Client, common: &Common, args: &Remove) -> Done {
    let held = held(args.held.key.as_deref(), &args.held.lease)?;
    let conditions = args.only.conditions(&held);
    let removed: Removed = client.remove_state(&held.key, &held.lease_id, &conditions).await.map_err(told)?;
    let what = if removed.removed { "removed" } else { "there was none" };
    print(common.output, &removed, || format!("{what} version={}\n", removed.new_version))
}

impl Only {
    /// As conditions of a write under a lease.
    pub fn conditions(&self, held: &Held) -> Conditions {
        Conditions {
            fencing_token: held.fencing_token,
            if_version: self.if_version,
            if_etag: self.if_etag.clone(),
            release: self.release,
        }
    }
}

/// The edits are made to what was read, or not at all.
pub(crate) async fn set(client: &Client, common: &Common, args: &Set) -> Done {
    let held = held(Some(&args.key), &args.lease)?;
    let read = client.get_state(&held.key, &held.lease_id).await.map_err(told)?;
    let document = edited(&read.document.unwrap_or_default(), &args.edits)?;
    let conditions = Conditions {
        fencing_token: held.fencing_token,
        if_version: Some(read.version),
        ..Conditions::default()
    };
    commit(client, common.output, &held, document, &conditions).await.map(drop)
}

/// Commits a document, and prints what that came to.
pub async fn commit(
    client: &Client,
    output: Output,
    held: &Held,
    document: Vec<u8>,
    conditions: &Conditions,
) -> Result<Committed, Failure> {
    let committed: Committed =
        client.update_state(&held.key, &held.lease_id, document, conditions).await.map_err(told)?;
    let text = || format!("committed version={} bytes={}\n", committed.new_version, committed.bytes);
    print(output, &committed, text)?;
    Ok(committed)
}

pub(crate) fn edit(args: &Edit) -> Done {
    let document = edited(&read_input(args.file.as_deref())?, &args.edits)?;
    match &args.file {
        None => write_out(&document),
        Some(file) => replace(file, &document).map_err(|error| failed_file("writing", file, &error)),
    }
}

/// A document, changed by edits.
pub fn edited(document: &[u8], edits: &[String]) -> Result<Vec<u8>, Failure> {
    let edits = edits.iter().map(|text| parse_edit(text)).collect::<Result<Vec<_>, _>>();
    let edited = edits.and_then(|edits| apply(document, &edits, &now()));
    edited.map_err(|error| misused(shown(&error.to_string())))
}

/// The wall clock, for people to read.
pub(crate) fn now() -> String {
    let now = clock_gettime(ClockId::Realtime);
    let since = Duration::from_secs(now.tv_sec.try_into().unwrap_or(0));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

/// Reads a document; from standard input if no file is named, or `-`.
pub fn read_input(file: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let bytes = match file.filter(|file| file.as_os_str() != "-") {
        Some(file) => std::fs::read(file).map_err(|error| failed_file("reading", file, &error))?,
        None => read_stdin().map_err(|error| failed("reading standard input", &error))?,
    };
    if bytes.starts_with(SPOILT) {
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = shown(&String::from_utf8_lossy(line));
        return Err(misused(format!(
            "the input is what a command before this one said when it failed: {line:?}"
        )));
    }
    Ok(bytes)
}

fn read_stdin() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// How the output of a command that failed begins.
const SPOILT: &[u8] = b"lockd: ";

/// Makes sure that nobody takes the output of a command that failed for a document. On a terminal there is nobody to.
pub fn spoil(verb: &str, what: &str) {
    let mut out = io::stdout().lock();
    if !out.is_terminal() {
        // If nobody reads, nobody is fooled.
        let _ = writeln!(out, "lockd: {verb} failed: {}", shown(what)).and_then(|()| out.flush());
    }
}

impl Verb {
    /// Its name, if it writes a document to standard output.
    pub(crate) fn fills_a_pipe(&self) -> Option<&'static str> {
        match self {
            Verb::Get(get) if get.out.as_os_str() == "-" => Some("get"),
            Verb::Edit(Edit { file: None, .. }) => Some("edit"),
            _ => None,
        }
    }
}

/// A file that could not be read or written.
pub fn failed_file(what: &str, file: &Path, error: &io::Error) -> Failure {
    (1, format!("{what} a file: {error}: path={}", file.display()))
}
