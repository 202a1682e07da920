//! Checks that a lease covers a key, before a command names both.

use kernel::{Credential, Identity, Rejection, ResourceName};

use crate::backend::error::BackendError;
use crate::backend::shards::{Backend, ShardView};

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
