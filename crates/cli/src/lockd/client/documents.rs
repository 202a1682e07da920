//! `get`, `update`, `set`, `edit`.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use ::client::{Client, Conditions};
use api::tell::Committed;
use jsonstream::edit::{apply, parse_edit};
use rustix::time::{ClockId, clock_gettime};

use super::args::{Common, Edit, Get, Set, Update};
use super::environment::{Held, held, key};
use super::{Done, Failure, failed, misused, print, told, write_out};

pub(crate) async fn get(client: &Client, common: &Common, args: &Get) -> Done {
    let read = if args.public {
        let key = key(args.held.key.as_deref())?;
        client.get_public_state(&key, common.connection.namespace.as_deref()).await
    } else {
        let held = held(args.held.key.as_deref(), &args.held.lease)?;
        client.get_state(&held.key, &held.lease_id).await
    };
    let document = read.map_err(told)?.document.unwrap_or_default();
    if args.out.as_os_str() == "-" {
        return write_out(&document);
    }
    std::fs::write(&args.out, &document).map_err(|error| failed_file("writing", &args.out, &error))
}

pub(crate) async fn update(client: &Client, common: &Common, args: &Update) -> Done {
    let held = held(args.held.key.as_deref(), &args.held.lease)?;
    let document = read_input(Some(&args.file).filter(|file| file.as_os_str() != "-"))?;
    let conditions = Conditions {
        fencing_token: held.fencing_token,
        if_version: args.if_version,
        if_etag: args.if_etag.clone(),
        release: args.release,
    };
    commit(client, common, &held, document, &conditions).await
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
    commit(client, common, &held, document, &conditions).await
}

async fn commit(
    client: &Client,
    common: &Common,
    held: &Held,
    document: Vec<u8>,
    conditions: &Conditions,
) -> Done {
    let committed: Committed =
        client.update_state(&held.key, &held.lease_id, document, conditions).await.map_err(told)?;
    let text = || format!("committed version={} bytes={}\n", committed.new_version, committed.bytes);
    print(common, &committed, text)
}

pub(crate) fn edit(args: &Edit) -> Done {
    let document = edited(&read_input(args.file.as_ref())?, &args.edits)?;
    match &args.file {
        None => write_out(&document),
        Some(file) => replace(file, &document).map_err(|error| failed_file("writing", file, &error)),
    }
}

fn edited(document: &[u8], edits: &[String]) -> Result<Vec<u8>, Failure> {
    let edits = edits.iter().map(|text| parse_edit(text)).collect::<Result<Vec<_>, _>>();
    let edited = edits.and_then(|edits| apply(document, &edits, &now()));
    edited.map_err(|error| misused(super::shown(&error.to_string())))
}

/// The wall clock, for `time:path=NOW`: for people to read.
fn now() -> String {
    let now = clock_gettime(ClockId::Realtime);
    let since = Duration::from_secs(now.tv_sec.try_into().unwrap_or(0));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

fn read_input(file: Option<&PathBuf>) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    match file {
        Some(file) => std::fs::read(file).map_err(|error| failed_file("reading", file, &error)),
        None => match io::stdin().lock().read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(failed("reading standard input", &error)),
        },
    }
}

/// The file is as it was, or as it should be; never half of it.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = std::fs::canonicalize(file)?;
    let mut name = file.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let tmp = file.with_file_name(name);
    let written = std::fs::OpenOptions::new().write(true).create_new(true).open(&tmp).and_then(|mut out| {
        out.write_all(bytes)?;
        out.set_permissions(std::fs::metadata(&file)?.permissions())?;
        out.sync_all()?;
        std::fs::rename(&tmp, &file)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&tmp);
    }
    written
}

fn failed_file(what: &str, file: &Path, error: &io::Error) -> Failure {
    (1, format!("{what} a file: {error}: path={}", file.display()))
}
