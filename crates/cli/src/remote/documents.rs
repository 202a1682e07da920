//! `get`, `update`, `remove`, `set`, `edit`.
//!
//! **Invariant.** In `get | edit | update` a failed command is not mistaken for an empty document. The commands run
//! concurrently and cannot see each other's exit codes, so a failing one writes a line that is not JSON
//! ([`poison_output`]), and the next one rejects it. A command that is killed before it writes cannot do that.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use api::responses::{Committed, Removed};
use jsonstream::edit::{apply, parse_edit};
use lockd_client::{Client, Conditions, DocumentBody, DocumentReader};
use rustix::time::{ClockId, clock_gettime};

use super::args::{Common, EditArgs, GetArgs, Remove, SetArgs, UpdateArgs, Verb, WriteConditions};
use super::environment::{LeaseCredential, key, lease_credential};
use super::input_document;
use super::output_file::OutputFile;
use super::{
    CommandResult, Failure, Output, client_failure, failed, print, print_bytes, usage_error, write_stdout,
};
use crate::untrusted::escape;
use system::file::replace_existing;

pub(crate) async fn get(client: &Client, common: &Common, args: &GetArgs) -> CommandResult {
    let read = if args.public {
        let key = key(args.held.key.as_deref())?;
        client.get_public_state(&key, common.connection.namespace.as_deref()).await
    } else {
        let lease = lease_credential(&common.connection, args.held.key.as_deref(), &args.held.lease)?;
        client.get_state(&lease.key, lease.namespace.as_deref(), &lease.lease_id).await
    };
    write_document(&args.out, &mut read.map_err(client_failure)?).await.map(drop)
}

/// Writes a document as it arrives to a file, or to standard output for `-`. Returns its length in bytes.
pub async fn write_document(out: &Path, document: &mut DocumentReader) -> Result<usize, Failure> {
    let mut bytes = 0;
    if out.as_os_str() == "-" {
        while let Some(chunk) = document.chunk().await.map_err(client_failure)? {
            bytes += chunk.len();
            if !write_stdout(&chunk)? {
                // The reader has closed the pipe.
                break;
            }
        }
        return Ok(bytes);
    }
    let failed = |error: io::Error| failed_file("writing", out, &error);
    let mut file = OutputFile::create(out).map_err(failed)?;
    while let Some(chunk) = document.chunk().await.map_err(client_failure)? {
        bytes += chunk.len();
        file.write(&chunk).map_err(failed)?;
    }
    file.finish().map_err(failed)?;
    Ok(bytes)
}

/// Writes a document to a file, or to standard output for `-`.
pub fn write_output(out: &Path, document: &[u8]) -> CommandResult {
    if out.as_os_str() == "-" {
        return print_bytes(document);
    }
    std::fs::write(out, document).map_err(|error| failed_file("writing", out, &error))
}

pub(crate) async fn update(client: &Client, common: &Common, args: &UpdateArgs) -> CommandResult {
    let lease = lease_credential(&common.connection, args.held.key.as_deref(), &args.held.lease)?;
    let document = input_document::open(&args.file)?;
    commit(client, common.output, &lease, document, &args.only.conditions(&lease)).await.map(drop)
}

pub(crate) async fn remove(client: &Client, common: &Common, args: &Remove) -> CommandResult {
    let lease = lease_credential(&common.connection, args.held.key.as_deref(), &args.held.lease)?;
    let conditions = args.only.conditions(&lease);
    let namespace = lease.namespace.as_deref();
    let removed = client.remove_state(&lease.key, namespace, &lease.lease_id, &conditions).await;
    let removed: Removed = removed.map_err(client_failure)?;
    let what = if removed.removed { "removed" } else { "no document" };
    print(common.output, &removed, || format!("{what} version={}\n", removed.new_version))
}

impl WriteConditions {
    /// The conditions of a write under `lease`.
    pub fn conditions(&self, lease: &LeaseCredential) -> Conditions {
        Conditions {
            fencing_token: lease.fencing_token,
            if_version: self.if_version,
            if_etag: self.if_etag.clone(),
            release: self.release,
        }
    }
}

/// Applies the edits to the current document, on the condition that its version has not changed.
pub(crate) async fn set(client: &Client, common: &Common, args: &SetArgs) -> CommandResult {
    let lease = lease_credential(&common.connection, Some(&args.key), &args.lease)?;
    let read = client
        .read_state(&lease.key, lease.namespace.as_deref(), &lease.lease_id)
        .await
        .map_err(client_failure)?;
    let document = edited(&read.document.unwrap_or_default(), &args.edits)?;
    let conditions = Conditions {
        fencing_token: lease.fencing_token,
        if_version: Some(read.version),
        ..Conditions::default()
    };
    commit(client, common.output, &lease, document, &conditions).await.map(drop)
}

/// Commits a document and prints the response.
pub async fn commit(
    client: &Client,
    output: Output,
    lease: &LeaseCredential,
    document: impl Into<DocumentBody>,
    conditions: &Conditions,
) -> Result<Committed, Failure> {
    let committed: Committed = client
        .update_state(&lease.key, lease.namespace.as_deref(), &lease.lease_id, document, conditions)
        .await
        .map_err(client_failure)?;
    let text = || format!("committed version={} bytes={}\n", committed.new_version, committed.bytes);
    print(output, &committed, text)?;
    Ok(committed)
}

pub(crate) fn edit(args: &EditArgs) -> CommandResult {
    let document = edited(&read_input(args.file.as_deref())?, &args.edits)?;
    match &args.file {
        None => print_bytes(&document),
        Some(file) => replace_existing(file, &document).map_err(|error| failed_file("writing", file, &error)),
    }
}

/// Applies edits to a document.
pub fn edited(document: &[u8], edits: &[String]) -> Result<Vec<u8>, Failure> {
    let edits = edits.iter().map(|text| parse_edit(text)).collect::<Result<Vec<_>, _>>();
    let edited = edits.and_then(|edits| apply(document, &edits, &now()));
    edited.map_err(|error| usage_error(escape(&error.to_string())))
}

/// The wall-clock time in RFC 3339.
pub(crate) fn now() -> String {
    let now = clock_gettime(ClockId::Realtime);
    let since = Duration::from_secs(now.tv_sec.try_into().unwrap_or(0));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

/// Opens a document in a file, or on standard input for `-`, to be sent as it is read.
pub fn open_input(file: &Path) -> Result<DocumentBody, Failure> {
    input_document::open(file)
}

/// Reads a document from a file, or from standard input for `-` or no file.
pub fn read_input(file: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let bytes = match file.filter(|file| file.as_os_str() != "-") {
        Some(file) => std::fs::read(file).map_err(|error| failed_file("reading", file, &error))?,
        None => read_stdin().map_err(|error| failed("reading standard input", &error))?,
    };
    poisoned(&bytes).map_or(Ok(bytes), Err)
}

/// The failure if a document is the error message of another command.
pub(crate) fn poisoned(document: &[u8]) -> Option<Failure> {
    if !document.starts_with(POISON_PREFIX) {
        return None;
    }
    let line = document.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = escape(&String::from_utf8_lossy(line));
    Some(usage_error(format!("the input is the error message of the previous command in the pipe: {line:?}")))
}

fn read_stdin() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The first bytes of a failed command's output; no JSON document starts with them.
pub(crate) const POISON_PREFIX: &[u8] = b"lockd: ";

/// Writes a line that no JSON parser accepts, so that the next command in a pipe rejects the output of a failed one.
/// Does nothing on a terminal.
pub fn poison_output(verb: &str, what: &str) {
    let mut out = io::stdout().lock();
    if !out.is_terminal() {
        // With the pipe closed there is no reader to mislead.
        let _ = writeln!(out, "lockd: {verb} failed: {}", escape(what)).and_then(|()| out.flush());
    }
}

impl Verb {
    /// The command's name, if it writes a document to standard output.
    pub(crate) fn pipes_a_document(&self) -> Option<&'static str> {
        match self {
            Verb::Get(get) if get.out.as_os_str() == "-" => Some("get"),
            Verb::Edit(EditArgs { file: None, .. }) => Some("edit"),
            _ => None,
        }
    }
}

/// A failed file operation: exit code 1.
pub fn failed_file(what: &str, file: &Path, error: &io::Error) -> Failure {
    Failure::new(1, format!("{what} a file: {error}: path={}", file.display()))
}
