//! `acquire`, `keepalive`, `release`, `list`, `use`.

use std::time::Duration;

use cli::exit_codes::EXPIRED;
use cli::output::{Column, print_rows};
use cli::remote::leases::{grant, print_extended, print_released, release_lease};
use cli::remote::{
    CommandResult, Failure, Output, client_failure, connect, failed, identity_file, print, servers,
};
use cli::times::ms_text;
use cli::untrusted::{escape, quote, word};
use lockd_client::Client;
use serde::Serialize;
use worktree::clock::SystemClock;

use crate::args::LockcAcquireArgs;
use crate::context::{ContextStore, LeaseContext};
use crate::entry::LeaseEntry;
use crate::notice;

/// Acquires a lease and stores it. If storing fails the lease is released: its credential would be lost.
pub(crate) async fn acquire(
    store: &ContextStore,
    output: Output,
    mut args: LockcAcquireArgs,
) -> CommandResult {
    let identity = identity_file(&args.connection)?.map(std::path::absolute).transpose();
    args.connection.identity =
        identity.map_err(|error| failed("resolving the path of the identity file", &error))?;
    // Later commands may run in another directory.
    let files = &mut args.connection;
    let named =
        [&mut files.denylist_path, &mut files.tls.tls_cert, &mut files.tls.tls_key, &mut files.tls.tls_ca];
    for file in named.into_iter().flatten() {
        *file =
            std::path::absolute(&*file).map_err(|error| failed("resolving the path of a file", &error))?;
    }
    let namespace = args.connection.namespace.as_deref().unwrap_or(api::DEFAULT_NAMESPACE);
    let servers = servers(&args.connection)?;
    store.change(|context| context.check_can_add(&args.key, namespace, &servers))?;
    let client = connect(&args.connection)?;
    let granted = grant(&client, &args.connection, &args.key, &args.terms).await?;
    let kept = LeaseEntry::new(&args.connection, &granted).and_then(|entry| {
        store.change(|context| context.add(entry.clone()))?;
        Ok(entry)
    });
    match kept {
        Ok(entry) => {
            let view = LeaseListing::new(&entry, true);
            print(output, &view, || format!("acquired {}\n", view.text()))
        }
        Err(failure) => {
            let _ = client.release(&granted.lease_id).await;
            Err(failure)
        }
    }
}

pub(crate) async fn keepalive(
    store: &ContextStore,
    output: Output,
    key: Option<&str>,
    ttl: Option<Duration>,
) -> CommandResult {
    let (client, entry) = connect_current(store, key)?;
    let ttl = ttl.unwrap_or(entry.ttl());
    let extended = client.keepalive(&entry.lease_id, Some(ttl)).await.map_err(client_failure);
    let extended = forget_if_expired(store, &entry, extended)?;
    store.change(|context| {
        if let Some(kept) = context.get_mut(&entry.lease_id) {
            kept.extend(&extended, ttl);
        }
        Ok(())
    })?;
    print_extended(output, &extended)
}

pub(crate) async fn release(store: &ContextStore, output: Output, key: Option<&str>) -> CommandResult {
    let (client, entry) = connect_current(store, key)?;
    let released = release_lease(&client, &entry.lease_id).await.map_err(client_failure);
    let outcome = forget_if_expired(store, &entry, released)?;
    forget(store, &entry)?;
    print_released("lockc", output, &outcome)
}

/// The lease on `key` or on the current key, and a client of its server.
pub(crate) fn connect_current(
    store: &ContextStore,
    key: Option<&str>,
) -> Result<(Client, LeaseEntry), Failure> {
    let entry = store.change(|context| context.find(key))?;
    Ok((connect(&entry.connection())?, entry))
}

pub(crate) fn forget(store: &ContextStore, entry: &LeaseEntry) -> CommandResult {
    store.change(|context| {
        context.remove(&entry.lease_id);
        Ok(())
    })
}

/// Removes a lease that the server reports as expired.
pub(crate) fn forget_if_expired<T>(
    store: &ContextStore,
    entry: &LeaseEntry,
    done: Result<T, Failure>,
) -> Result<T, Failure> {
    if matches!(done, Err(Failure { code: EXPIRED, .. })) {
        forget(store, entry)?;
        notice(&escape(&format!("the lease has expired and is removed from the context: key={}", entry.key)));
    }
    done
}

pub(crate) fn choose(store: &ContextStore, output: Output, key: &str) -> CommandResult {
    let entry = store.change(|context| {
        let entry = context.find(Some(key))?;
        context.current = Some(entry.key.clone());
        Ok(entry)
    })?;
    print(output, &LeaseListing::new(&entry, true), String::new)
}

pub(crate) fn list(store: &ContextStore, output: Output) -> CommandResult {
    let listed = store.change(|context| Ok(LeaseList::new(context)))?;
    match output {
        Output::Table | Output::Wide => print_rows(output, &listed, &LISTING_COLUMNS, &listed.leases),
        _ => print(output, &listed, || listed.leases.iter().map(LeaseListing::line).collect()),
    }
}

const LISTING_COLUMNS: [Column<LeaseListing>; 8] = [
    Column::new("CURRENT", |lease| if lease.current { "*".into() } else { String::new() }),
    Column::new("KEY", |lease| word(&lease.key)),
    Column::new("NAMESPACE", |lease| word(&lease.namespace)),
    Column::new("OWNER", |lease| quote(&lease.owner)),
    Column::new("ENDS IN", |lease| ms_text(lease.remaining_ms)),
    Column::new("SERVER", |lease| word(&lease.servers.join(","))),
    Column::wide("PUBLIC ID", |lease| lease.public_id.clone()),
    Column::wide("FENCING TOKEN", |lease| lease.fencing_token.to_string()),
];

/// The JSON output of `list`. It is stable: fields are added, never renamed.
#[derive(Serialize)]
struct LeaseList {
    leases: Vec<LeaseListing>,
}

impl LeaseList {
    fn new(context: &LeaseContext) -> LeaseList {
        let is_current = |entry: &LeaseEntry| context.current.as_deref() == Some(entry.key.as_str());
        LeaseList {
            leases: context.leases.iter().map(|entry| LeaseListing::new(entry, is_current(entry))).collect(),
        }
    }
}

/// A lease without its credential.
#[derive(Serialize)]
struct LeaseListing {
    key: String,
    current: bool,
    namespace: String,
    servers: Vec<String>,
    owner: String,
    public_id: String,
    fencing_token: u64,
    remaining_ms: u64,
}

impl LeaseListing {
    fn new(entry: &LeaseEntry, current: bool) -> LeaseListing {
        LeaseListing {
            key: entry.key.clone(),
            current,
            namespace: entry.namespace.clone(),
            servers: entry.servers.clone(),
            owner: entry.owner.clone(),
            public_id: entry.public_id.clone(),
            fencing_token: entry.fencing_token,
            remaining_ms: entry.left(&SystemClock::new()).as_millis().try_into().unwrap_or(u64::MAX),
        }
    }

    fn text(&self) -> String {
        let text = format!(
            "{} namespace={} server={} owner={} fencing_token={} remaining_ms={}",
            word(&self.key),
            word(&self.namespace),
            word(&self.servers.join(",")),
            quote(&self.owner),
            self.fencing_token,
            self.remaining_ms
        );
        escape(&text)
    }

    fn line(&self) -> String {
        format!("{} {}\n", if self.current { "*" } else { " " }, self.text())
    }
}
