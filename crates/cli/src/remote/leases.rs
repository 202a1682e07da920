//! `acquire`, `keepalive`, `release`.

use api::requests;
use api::responses::{Extended, Granted, Released};
use lockd_client::Client;

use super::args::{AcquireArgs, Common, KeepaliveArgs, LeaseKey};
use super::environment::{exports, lease_credential};
use super::{CommandResult, ConnectionArgs, Failure, LeaseTerms, Output, client_failure, print};

/// Acquires a lease and prints it as exports. If printing fails the lease is released: its credential would be lost.
pub(crate) async fn acquire(client: &Client, common: &Common, args: &AcquireArgs) -> CommandResult {
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

/// Acquires a lease on a key.
pub async fn grant(
    client: &Client,
    connection: &ConnectionArgs,
    key: &str,
    terms: &LeaseTerms,
) -> Result<Granted, Failure> {
    let request = requests::Acquire {
        namespace: connection.namespace.clone(),
        key: Some(key.to_string()),
        ttl_ms: terms.ttl_ms()?,
        owner: terms.owner.clone(),
        ..requests::Acquire::default()
    };
    client.grant(request, terms.block).await.map_err(client_failure)
}

pub(crate) async fn keepalive(client: &Client, common: &Common, args: &KeepaliveArgs) -> CommandResult {
    let lease = lease_credential(&common.connection, args.held.key.as_deref(), &args.held.lease)?;
    let extended = client.keepalive(&lease.lease_id, args.ttl).await.map_err(client_failure)?;
    print_extended(common.output, &extended)
}

/// Prints the response to a keepalive.
pub fn print_extended(output: Output, extended: &Extended) -> CommandResult {
    print(output, extended, || format!("extended remaining_ms={}\n", extended.remaining_ms))
}

pub(crate) async fn release(client: &Client, common: &Common, args: &LeaseKey) -> CommandResult {
    let lease = lease_credential(&common.connection, args.key.as_deref(), &args.lease)?;
    client.release(&lease.lease_id).await.map_err(client_failure)?;
    print_released(common.output)
}

/// Prints that a lease was released.
pub fn print_released(output: Output) -> CommandResult {
    print(output, &Released { released: true }, String::new)
}
