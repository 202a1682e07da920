//! [`FencedObject`]: an object that is replaced under its token, in a store with conditional puts.
//!
//! **Invariant.** The crate's. Each put is conditional on the version whose token was compared: the store's own check makes
//! compare and put one atomic step. No two versions have the same bytes ([`version`](crate::version)), so a condition that
//! has failed once never holds again.
//!
//! **What would break it.** A store that ignores the condition ([`FencedObject::probe`] finds out); a name that is
//! deleted, since the token is lost with it, and a late put on the condition that the object is absent succeeds.
//!
//! **Lost responses.** A put that timed out may have been applied, or may be applied at any later time. Both retrying and
//! giving up are safe:
//! - The put carries its condition. It is applied only if the compared version is still current, and its token is not
//!   older than that version's. After any other put it can never be applied.
//! - So the loop reads again. If it finds its own bytes, it is done. If the old version is still current, it puts the same
//!   bytes on the same condition: at most one of the two is applied.
//! - If it finds a newer token, its own write may have been applied before: [`Error::Indeterminate`]. A retry then gets
//!   [`Error::Stale`].
//! - If it gives up, the put may still be applied until the next claim or write. A read does not prevent that, so a new
//!   holder starts with a claim. The same holds for a future that is dropped before it completes.
//!
//! **What is not covered.** Programs that put or delete by other means, and rules of the store that do (lifecycle,
//! replication back from another region).

use std::future::Future;

use crate::error::Error;
use crate::token::Token;
use crate::version::{Change, VERSION_MAX, Version};

pub mod memory;
#[cfg(test)]
mod tests;

/// Maximum number of puts for one write.
const ATTEMPTS_MAX: usize = 16;

/// A store with conditional puts: S3 and compatible stores, GCS (generations), Azure. Users implement it on top of their
/// client.
///
/// Assumptions: puts are atomic; of two puts on the same condition at most one is applied; the `ETag` and the bytes of
/// a [`StoredObject`] come from the same get.
pub trait ObjectStore {
    /// The object, if it exists.
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<StoredObject>, GetError>> + Send;

    /// Puts an object, if the condition holds.
    fn put(
        &self,
        name: &str,
        bytes: &[u8],
        condition: &Condition,
    ) -> impl Future<Output = Result<(), PutError>> + Send;
}

/// An object with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// The complete content.
    pub bytes: Vec<u8>,
    /// The store's identifier of this version.
    pub etag: String,
}

/// The condition of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `If-None-Match: *`: the object does not exist.
    Absent,
    /// `If-Match`: this is the current version.
    Matches(String),
}

/// A get that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetError(pub String);

/// A put that was not certainly applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutError {
    /// 412: the condition did not hold. Only for a put that was sent once: a client that retries on its own may be refused
    /// because its own first attempt was applied, and must return [`PutError::Unknown`].
    Precondition,
    /// A timeout, a broken connection, 409, 5xx: the put may have been applied, or may be applied later.
    Unknown(String),
    /// The put was not applied and never will be: permissions, configuration, no connection.
    Refused(String),
}

/// An object that only the newest holder can replace.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockd_fence::{Error, FencedObject, Token, object::memory::MemoryObjects};
///
/// let object = FencedObject::new(MemoryObjects::default(), "jobs/orders");
/// let (ours, newer) = (Token(41), Token(42)); // `Token(lease.fencing_token())`
/// object.write(ours, b"page 1").await?;
/// // A new holder takes over: its claim fences off all earlier ones.
/// assert_eq!(object.claim(newer).await?.as_deref(), Some(b"page 1".as_slice()));
/// assert_eq!(object.write(ours, b"page 2").await, Err(Error::Stale { current: Some(newer) }));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FencedObject<S> {
    store: S,
    name: String,
}

impl<S: ObjectStore> FencedObject<S> {
    /// An object that may or may not exist. If it exists, it must have been put by this type.
    pub fn new(store: S, name: impl Into<String>) -> FencedObject<S> {
        FencedObject { store, name: name.into() }
    }

    /// Replaces the content, unless a newer token has written or claimed.
    pub async fn write(&self, token: Token, content: &[u8]) -> Result<(), Error> {
        self.change(token, Change::Write(content)).await.map(drop)
    }

    /// Raises the token and reads, in one atomic step: the content stays as returned until this token or a newer one
    /// writes. Earlier puts that were not applied yet never will be.
    pub async fn claim(&self, token: Token) -> Result<Option<Vec<u8>>, Error> {
        self.change(token, Change::Claim).await.map(|version| version.content)
    }

    /// Removes the content and keeps the token, unless a newer token has written or claimed.
    pub async fn remove(&self, token: Token) -> Result<(), Error> {
        self.change(token, Change::Remove).await.map(drop)
    }

    /// The current version; `None` if there was never a write or a claim. It may be replaced at any time: before a write
    /// that depends on it, use [`FencedObject::claim`].
    pub async fn read(&self) -> Result<Option<Version>, Error> {
        Ok(self.read_current().await?.0)
    }

    /// Fails if the store ignores conditions, in which case check and write are not atomic. Use a name that serves no other
    /// purpose. It cannot tell whether the store also honours conditions in a race.
    pub async fn probe(&self) -> Result<(), Error> {
        self.change(Token(0), Change::Claim).await?;
        let (_, old) = self.read_current().await?;
        let newer = self.change(Token(0), Change::Claim).await?;
        for wrong in [Condition::Absent, old] {
            match self.store.put(&self.name, &newer.to_bytes(), &wrong).await {
                Err(PutError::Precondition) => {}
                Ok(()) => {
                    let what = format!(
                        "the store ignores conditions and cannot be used for fencing: condition={wrong:?}"
                    );
                    return Err(Error::Invalid(what));
                }
                Err(PutError::Unknown(what) | PutError::Refused(what)) => {
                    return Err(Error::Unavailable(what));
                }
            }
        }
        Ok(())
    }

    async fn change(&self, token: Token, change: Change<'_>) -> Result<Version, Error> {
        // The error of an earlier put of this write that may have been applied.
        let mut doubt: Option<String> = None;
        let mut sent: Option<Version> = None;
        for _ in 0..ATTEMPTS_MAX {
            let (current, condition) =
                self.read_current().await.map_err(|error| doubted(error, doubt.as_deref()))?;
            if let Some(ours) = sent.take_if(|sent| current.as_ref() == Some(sent)) {
                return Ok(ours);
            }
            let next = Version::next(current, token, change);
            let next = next.map_err(|error| doubted(error, doubt.as_deref()))?;
            match self.store.put(&self.name, &next.to_bytes(), &condition).await {
                Ok(()) => return Ok(next),
                Err(PutError::Precondition) => {}
                Err(PutError::Unknown(what)) => doubt = Some(what),
                Err(PutError::Refused(what)) => {
                    return Err(doubted(Error::Unavailable(what), doubt.as_deref()));
                }
            }
            sent = Some(next);
        }
        let what = format!("the object kept changing: attempts={ATTEMPTS_MAX}");
        Err(doubted(Error::Unavailable(what), doubt.as_deref()))
    }

    /// The current version, and the condition that it is still current.
    async fn read_current(&self) -> Result<(Option<Version>, Condition), Error> {
        let found = self.store.get(&self.name).await.map_err(|GetError(what)| Error::Unavailable(what))?;
        let Some(found) = found else { return Ok((None, Condition::Absent)) };
        if found.bytes.len() > VERSION_MAX {
            return Err(Error::Invalid("the object is too long for fenced content".to_string()));
        }
        Ok((Some(Version::parse(found.bytes)?), Condition::Matches(found.etag)))
    }
}

/// A write that may have been applied before it failed must not be reported as not applied.
fn doubted(error: Error, doubt: Option<&str>) -> Error {
    match doubt {
        Some(doubt) => {
            Error::Indeterminate(format!("{error}; an earlier put got no response: cause={doubt}"))
        }
        None => error,
    }
}
