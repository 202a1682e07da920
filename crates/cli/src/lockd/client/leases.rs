//! `acquire`, `keepalive`, `release`.

use ::client::Client;
use api::ask;

use super::args::{Acquire, Common, HeldKey, Keepalive};
use super::environment::{exports, held};
use super::{Done, misused, print, told};

/// Prints the lease as exports. If they cannot be printed the lease is given back: nobody would know of it.
pub(crate) async fn acquire(client: &Client, common: &Common, args: &Acquire) -> Done {
    let ttl_ms = args.terms.ttl.map(|ttl| i64::try_from(ttl.as_millis())).transpose();
    let asked = ask::Acquire {
        namespace: common.connection.namespace.clone(),
        key: Some(args.key.clone()),
        ttl_ms: ttl_ms.map_err(|_| misused("--ttl is longer than can be counted"))?,
        owner: args.terms.owner.clone(),
        ..ask::Acquire::default()
    };
    let granted = client.grant(asked, args.terms.block).await.map_err(told)?;
    let printed = match exports(&common.connection, &granted) {
        Ok(text) => print(common, &granted, || text),
        Err(failure) => Err(failure),
    };
    if printed.is_err() {
        let _ = client.release(&granted.lease_id).await;
    }
    printed
}

pub(crate) async fn keepalive(client: &Client, common: &Common, args: &Keepalive) -> Done {
    let held = held(args.held.key.as_deref(), &args.held.lease)?;
    let extended = client.keepalive(&held.lease_id, args.ttl).await.map_err(told)?;
    let text = || format!("extended remaining_ms={}\n", extended.remaining_ms);
    print(common, &extended, text)
}

pub(crate) async fn release(client: &Client, common: &Common, args: &HeldKey) -> Done {
    let held = held(args.key.as_deref(), &args.lease)?;
    client.release(&held.lease_id).await.map_err(told)?;
    print(common, &api::tell::Released { released: true }, String::new)
}
