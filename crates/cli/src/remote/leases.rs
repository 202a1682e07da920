//! `acquire`, `keepalive`, `release`.

use api::ask;
use api::tell::{Extended, Granted, Released};
use client::Client;

use super::args::{Acquire, Common, HeldKey, Keepalive};
use super::environment::{exports, held};
use super::{Connection, Done, Failure, Output, Terms, print, told};

/// Prints the lease as exports. If they cannot be printed the lease is given back: nobody would know of it.
pub(crate) async fn acquire(client: &Client, common: &Common, args: &Acquire) -> Done {
    let granted = grant(client, &common.connection, &args.key, &args.terms).await?;
    let printed = match exports(&common.connection, &granted) {
        Ok(text) => print(common.output, &granted, || text),
        Err(failure) => Err(failure),
    };
    if printed.is_err() {
        let _ = client.release(&granted.lease_id).await;
    }
    printed
}

/// Takes a lease over a key.
pub async fn grant(
    client: &Client,
    connection: &Connection,
    key: &str,
    terms: &Terms,
) -> Result<Granted, Failure> {
    let asked = ask::Acquire {
        namespace: connection.namespace.clone(),
        key: Some(key.to_string()),
        ttl_ms: terms.ttl_ms()?,
        owner: terms.owner.clone(),
        ..ask::Acquire::default()
    };
    client.grant(asked, terms.block).await.map_err(told)
}

pub(crate) async fn keepalive(client: &Client, common: &Common, args: &Keepalive) -> Done {
    let held = held(args.held.key.as_deref(), &args.held.lease)?;
    let extended = client.keepalive(&held.lease_id, args.ttl).await.map_err(told)?;
    say_extended(common.output, &extended)
}

/// Prints what a keepalive came to.
pub fn say_extended(output: Output, extended: &Extended) -> Done {
    print(output, extended, || format!("extended remaining_ms={}\n", extended.remaining_ms))
}

pub(crate) async fn release(client: &Client, common: &Common, args: &HeldKey) -> Done {
    let held = held(args.key.as_deref(), &args.lease)?;
    client.release(&held.lease_id).await.map_err(told)?;
    say_released(common.output)
}

/// Prints that a lease was given back.
pub fn say_released(output: Output) -> Done {
    print(output, &Released { released: true }, String::new)
}
