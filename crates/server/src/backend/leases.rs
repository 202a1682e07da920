//! Checks of a lease that come before a command: that the caller may know of it, that it covers a key, that it is in the
//! namespace that the request names.
//!
//! **Invariant.** A lease in a namespace that is hidden from the caller is reported exactly like an id in the same range
//! that was never issued. A namespace never changes for a lease, so a check stays valid until the command is decided.

use kernel::{Credential, Identity, LeaseId, LeaseView, Namespace, Rejection, ResourceName};

use crate::backend::error::BackendError;
use crate::backend::moment::Moment;
use crate::backend::shards::{Backend, ShardView};

/// A lease, if the caller may know of leases in its namespace.
pub(crate) async fn visible_lease(
    backend: &Backend,
    id: LeaseId,
    is_visible: impl Fn(&Namespace) -> bool,
) -> Result<(LeaseView, Moment), BackendError> {
    let shard = backend.shard_of_lease(id)?;
    let read = move |view: &ShardView<'_>| (view.kernel.lease(id, view.now), view.moment);
    let (lease, moment) = backend.query(shard, read).await?;
    let lease = lease.map_err(BackendError::Rejected)?;
    if is_visible(&lease.namespace) {
        return Ok((lease, moment));
    }
    // As for an id up to the last LSN that was never issued: neither `forbidden` nor `not_found`, which would tell.
    Err(BackendError::Rejected(Rejection::Retired))
}

/// Checks that a lease is in the namespace. One that is not known passes: the kernel refuses it.
pub(crate) async fn check_namespace(
    backend: &Backend,
    identity: &Identity,
    credential: Credential,
    (namespace, key): (&Namespace, &ResourceName),
) -> Result<(), BackendError> {
    let shard = backend.shard_of_lease(credential.lease)?;
    let found = backend.peek(shard, move |kernel| kernel.lease_namespace(credential.lease)).await?;
    if found.is_ok_and(|found| found != *namespace) {
        // An ended lease is refused as such, and only a live one for its namespace.
        check_covers(backend, identity, credential, key.clone()).await?;
        return Err(BackendError::OtherNamespace(namespace.clone()));
    }
    Ok(())
}

/// Checks that the credential is current and that its lease covers the key.
pub(crate) async fn check_covers(
    backend: &Backend,
    identity: &Identity,
    credential: Credential,
    key: ResourceName,
) -> Result<(), BackendError> {
    let shard = backend.shard_of_lease(credential.lease)?;
    let identity = identity.clone();
    let query = move |view: &ShardView<'_>| view.kernel.may_read(view.now, &identity, credential, &key);
    backend.query(shard, query).await?.map_err(BackendError::Rejected)
}

/// Checks that the lease covers the key, or covered it before it ended. A lease whose history was deleted passes: it
/// may have covered the key.
pub(crate) async fn check_covered(
    backend: &Backend,
    credential: Credential,
    key: ResourceName,
) -> Result<(), BackendError> {
    let shard = backend.shard_of_lease(credential.lease)?;
    let query = move |view: &ShardView<'_>| {
        let lease = view.kernel.lease(credential.lease, view.now).ok();
        lease.is_none_or(|lease| lease.members.iter().any(|member| member.resource == key))
    };
    if backend.query(shard, query).await? { Ok(()) } else { Err(BackendError::Rejected(Rejection::NotHeld)) }
}
