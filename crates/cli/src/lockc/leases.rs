//! `acquire`, `keepalive`, `release`, `list`, `use`.

use std::time::Duration;

use cli::remote::leases::{grant, say_extended, say_released};
use cli::remote::{Done, Failure, Output, connect, failed, identity_file, print, servers, told};
use cli::stderr::shown;
use client::Client;
use serde::Serialize;
use worktree::clock::SystemClock;

use crate::args::Acquire;
use crate::context::{Context, Store};
use crate::entry::Entry;
use crate::say;

/// If it cannot be remembered it is given back: nobody could use it.
pub(crate) async fn acquire(store: &Store, output: Output, mut args: Acquire) -> Done {
    let identity = identity_file(&args.connection)?.map(std::path::absolute).transpose();
    args.connection.identity = identity.map_err(|error| failed("finding this folder", &error))?;
    let namespace = args.connection.namespace.as_deref().unwrap_or(api::DEFAULT_NAMESPACE);
    let servers = servers(&args.connection)?;
    store.change(|context| context.check_room(&args.key, namespace, &servers))?;
    let client = connect(&args.connection)?;
    let granted = grant(&client, &args.connection, &args.key, &args.terms).await?;
    let kept = Entry::new(&args.connection, &granted).and_then(|entry| {
        store.change(|context| context.add(entry.clone()))?;
        Ok(entry)
    });
    match kept {
        Ok(entry) => {
            let view = View::new(&entry, true);
            print(output, &view, || format!("acquired {}\n", view.text()))
        }
        Err(failure) => {
            let _ = client.release(&granted.lease_id).await;
            Err(failure)
        }
    }
}

pub(crate) async fn keepalive(
    store: &Store,
    output: Output,
    key: Option<&str>,
    ttl: Option<Duration>,
) -> Done {
    let (client, entry) = held(store, key)?;
    let ttl = ttl.unwrap_or(entry.ttl());
    let extended = client.keepalive(&entry.lease_id, Some(ttl)).await.map_err(told);
    let extended = forget_if_over(store, &entry, extended)?;
    store.change(|context| {
        if let Some(kept) = context.get_mut(&entry.lease_id) {
            kept.extend(&extended, ttl);
        }
        Ok(())
    })?;
    say_extended(output, &extended)
}

pub(crate) async fn release(store: &Store, output: Output, key: Option<&str>) -> Done {
    let (client, entry) = held(store, key)?;
    let released = client.release(&entry.lease_id).await.map_err(told);
    forget_if_over(store, &entry, released)?;
    forget(store, &entry)?;
    say_released(output)
}

/// The lease over a key or the current one, and a client to ask for it.
pub(crate) fn held(store: &Store, key: Option<&str>) -> Result<(Client, Entry), Failure> {
    let entry = store.change(|context| context.find(key))?;
    Ok((connect(&entry.connection())?, entry))
}

pub(crate) fn forget(store: &Store, entry: &Entry) -> Done {
    store.change(|context| {
        context.remove(&entry.lease_id);
        Ok(())
    })
}

/// A lease that the server says is over is dropped.
pub(crate) fn forget_if_over<T>(
    store: &Store,
    entry: &Entry,
    done: Result<T, Failure>,
) -> Result<T, Failure> {
    if matches!(done, Err((12, _))) {
        forget(store, entry)?;
        say(&shown(&format!("the lease is over, and is dropped from the context: key={}", entry.key)));
    }
    done
}

pub(crate) fn choose(store: &Store, output: Output, key: &str) -> Done {
    let entry = store.change(|context| {
        let entry = context.find(Some(key))?;
        context.current = Some(entry.key.clone());
        Ok(entry)
    })?;
    print(output, &View::new(&entry, true), String::new)
}

pub(crate) fn list(store: &Store, output: Output) -> Done {
    let listed = store.change(|context| Ok(Listed::new(context)))?;
    print(output, &listed, || listed.leases.iter().map(View::line).collect())
}

/// What is shown. Programs read it: fields are added, and not renamed.
#[derive(Serialize)]
struct Listed {
    leases: Vec<View>,
}

impl Listed {
    fn new(context: &Context) -> Listed {
        let is_current = |entry: &Entry| context.current.as_deref() == Some(entry.key.as_str());
        Listed { leases: context.leases.iter().map(|entry| View::new(entry, is_current(entry))).collect() }
    }
}

/// A lease without its credential.
#[derive(Serialize)]
struct View {
    key: String,
    current: bool,
    namespace: String,
    servers: Vec<String>,
    owner: String,
    public_id: String,
    fencing_token: u64,
    remaining_ms: u64,
}

impl View {
    fn new(entry: &Entry, current: bool) -> View {
        View {
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
            self.key,
            self.namespace,
            self.servers.join(","),
            self.owner,
            self.fencing_token,
            self.remaining_ms
        );
        shown(&text)
    }

    fn line(&self) -> String {
        format!("{} {}\n", if self.current { "*" } else { " " }, self.text())
    }
}
