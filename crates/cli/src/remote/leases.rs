//! `acquire`, `keepalive`, `activate`, `touch`, `rebind`, `fence`, `release`.

use api::requests;
use api::responses::{Extended, Granted};
use lockd_client::{Client, Error};
use serde::Serialize;

use super::args::{AcquireArgs, Common, FenceArgs, KeepaliveArgs, LeaseKey};
use super::environment::{Exporter, held_lease, key};
use super::views::resource_text;
use super::{
    CommandResult, ConnectionArgs, Failure, LeaseTerms, Output, client_failure, not_granted, print,
    usage_error,
};
use crate::exit_codes::FENCED;
use crate::stderr::notice;
use crate::untrusted::word;
use crate::wait_notices;

/// Acquires a lease and prints it as exports. If printing fails the lease is released: its credential would be lost.
pub(crate) async fn acquire(client: &Client, common: &Common, args: &AcquireArgs) -> CommandResult {
    let exporter = Exporter::new(&common.connection)?;
    let request = requests::Acquire {
        key: args.key.clone(),
        resources: Some(args.resources.clone()).filter(|resources| !resources.is_empty()),
        reserve: args.reserve.then_some(true),
        on_expiry: args.on_expiry,
        session_id: args.session_id.clone(),
        metadata: args.metadata.clone(),
        ..request(&common.connection, &args.terms)?
    };
    let granted = grant_request(client, request, &args.terms).await?;
    if !common.output.is_parsed() {
        warn_of_replaced(client, &exporter, &granted).await;
    }
    let printed = print(common.output, &granted, || exporter.exports(&granted));
    if printed.is_err() {
        let _ = client.release(&granted.lease_id).await;
    }
    printed
}

/// Says which lease the variables do not name any more, if it is still held: it would block its key until it expires.
async fn warn_of_replaced(client: &Client, exporter: &Exporter, granted: &Granted) {
    let Some(lease) = exporter.replaced(granted) else { return };
    if client.lease(lease.public_id()).await.is_ok_and(|lease| lease.state == "active") {
        let key = word(&lease.key);
        notice(
            "lockd",
            &format!(
                "the lease on another key is still held, and LOCKD_CLIENT_LEASE_ID no longer names it; name its key, as in \
                 `lockd client release {key}`: key={key}"
            ),
        );
    }
}

/// Acquires a lease on a key.
pub async fn grant(
    client: &Client,
    connection: &ConnectionArgs,
    key: &str,
    terms: &LeaseTerms,
) -> Result<Granted, Failure> {
    let request = requests::Acquire { key: Some(key.to_string()), ..request(connection, terms)? };
    grant_request(client, request, terms).await
}

fn request(connection: &ConnectionArgs, terms: &LeaseTerms) -> Result<requests::Acquire, Failure> {
    Ok(requests::Acquire {
        namespace: connection.namespace.clone(),
        ttl_ms: terms.ttl_ms()?,
        owner: terms.owner.clone(),
        ..requests::Acquire::default()
    })
}

async fn grant_request(
    client: &Client,
    request: requests::Acquire,
    terms: &LeaseTerms,
) -> Result<Granted, Failure> {
    let members = request.resources.iter().flatten().map(|one| resource_text(&one.kind, &one.name));
    let named = request.key.clone().unwrap_or_else(|| members.collect::<Vec<_>>().join(","));
    let granted = client.grant(request, wait_notices::reported(terms.block)).await;
    granted.map_err(|error| not_granted(error, &named, terms.block))
}

pub(crate) async fn keepalive(client: &Client, common: &Common, args: &KeepaliveArgs) -> CommandResult {
    let lease_id = held_lease(&common.connection, args.held.key.as_deref(), &args.held.lease)?;
    let extended = client.keepalive(&lease_id, args.ttl).await.map_err(client_failure)?;
    print_extended(common.output, &extended)
}

pub(crate) async fn activate(client: &Client, common: &Common, args: &LeaseKey) -> CommandResult {
    let lease_id = held_lease(&common.connection, args.key.as_deref(), &args.lease)?;
    let extended = client.activate(&lease_id).await.map_err(client_failure)?;
    print(common.output, &extended, || format!("active remaining_ms={}\n", extended.remaining_ms))
}

pub(crate) async fn touch(client: &Client, common: &Common, args: &LeaseKey) -> CommandResult {
    let lease_id = held_lease(&common.connection, args.key.as_deref(), &args.lease)?;
    let extended = client.touch(&lease_id).await.map_err(client_failure)?;
    print(common.output, &extended, || format!("touched remaining_ms={}\n", extended.remaining_ms))
}

/// Takes a lease back, and prints its new credential as exports.
pub(crate) async fn rebind(client: &Client, common: &Common, args: &LeaseKey) -> CommandResult {
    let lease_id = held_lease(&common.connection, args.key.as_deref(), &args.lease)?;
    let exporter = Exporter::new(&common.connection)?;
    let granted = client.rebind(&lease_id).await.map_err(client_failure)?;
    print(common.output, &granted, || exporter.exports(&granted))
}

pub(crate) async fn fence(client: &Client, common: &Common, args: &FenceArgs) -> CommandResult {
    let key = key(args.key.as_deref())?;
    let token =
        args.token.ok_or_else(|| usage_error("no fencing token given, and none in the environment"))?;
    let namespace = common.connection.namespace.as_deref();
    let fence = client.fence(&key, namespace, token).await.map_err(client_failure)?;
    let word = if fence.current { "current" } else { "stale" };
    print(common.output, &fence, || format!("{word}\n"))?;
    if fence.current {
        return Ok(());
    }
    Err(Failure { is_shown: true, ..Failure::new(FENCED, "the fencing token is not current") })
}

/// Prints the response to a keepalive.
pub fn print_extended(output: Output, extended: &Extended) -> CommandResult {
    print(output, extended, || format!("extended remaining_ms={}\n", extended.remaining_ms))
}

pub(crate) async fn release(client: &Client, common: &Common, args: &LeaseKey) -> CommandResult {
    let lease_id = held_lease(&common.connection, args.key.as_deref(), &args.lease)?;
    let outcome = release_lease(client, &lease_id).await.map_err(client_failure)?;
    print_released("lockd", common.output, &outcome)
}

/// A released lease, and whether it had ended before. The JSON form is stable: fields are added, never renamed.
#[derive(Serialize)]
pub struct ReleaseOutcome {
    released: bool,
    /// `released`; `expired`, `revoking` or `revoked` if it had ended before; missing if the server has forgotten it.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
}

impl ReleaseOutcome {
    /// Reads the state of a lease that was released: a release succeeds for a lease that has ended, too.
    pub async fn read(client: &Client, lease_id: &str) -> ReleaseOutcome {
        let public_id = lease_id.split('.').next().unwrap_or_default();
        // Only informs: the release has succeeded.
        let state = client.lease(public_id).await.ok().map(|lease| lease.state);
        ReleaseOutcome { released: true, state }
    }

    /// What a holder must know of a lease that had ended before its release.
    pub fn ended_before(&self) -> Option<&'static str> {
        match self.state.as_deref() {
            Some("expired") => Some("the lease had expired before it was released"),
            Some("revoking") => Some(
                "the lease had ended before it was released, and its resources stay blocked until it is reclaimed",
            ),
            Some("revoked") => Some("the lease had been revoked before it was released"),
            _ => None,
        }
    }
}

/// Releases a lease.
pub async fn release_lease(client: &Client, lease_id: &str) -> Result<ReleaseOutcome, Error> {
    client.release(lease_id).await?;
    Ok(ReleaseOutcome::read(client, lease_id).await)
}

/// Prints that a lease was released; on standard error, whether it had ended before.
pub fn print_released(program: &str, output: Output, outcome: &ReleaseOutcome) -> CommandResult {
    if let Some(what) = outcome.ended_before() {
        notice(program, what);
    }
    print(output, outcome, String::new)
}
