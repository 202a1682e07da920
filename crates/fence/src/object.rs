//! An object that is replaced under its token, in a store with conditional puts.
//!
//! **Invariant.** The crate's. Each version is put on the condition that the version whose token was compared is still
//! the one that is there: the store's own check makes compare and put one step. No two versions are the same bytes
//! ([`version`](crate::version)), so no condition ever holds again once it has failed.
//!
//! **What would break it.** A store that ignores the condition ([`FencedObject::probe`] finds out); a name that is
//! deleted, for then the token is forgotten, and a late put on the condition that nothing is there goes through.
//!
//! **Answers that do not come.** A put that timed out may have been applied, or may be applied at any later time. It is
//! safe to put again, and to give up:
//! - It carries its condition. It is applied only if what was compared is still there, and then its token was not
//!   older than that. Once anything else was put, it can never be applied.
//! - So the loop reads again. If it finds its own bytes, it is done. If the old version is still there, it puts the same
//!   bytes on the same condition: one of the two is applied, at most.
//! - If it finds a newer token, its own may have been there before that: [`Error::Indeterminate`], and to try
//!   again gives [`Error::Stale`].
//! - If it gives up, the put may land later, until the next claim or write. Whoever only reads does not keep it out:
//!   who takes over begins with a claim. The same is true of a future that is dropped before it is done.
//!
//! **What is not covered.** Whoever puts or deletes by other means, and rules of the store that do (lifecycle,
//! replication back from another region).

use std::future::Future;

use crate::error::Error;
use crate::token::Token;
use crate::version::{Change, VERSION_MAX, Version};

pub mod memory;
#[cfg(test)]
mod tests;

/// How often a write is tried, before it gives up.
const TRIES: usize = 16;

/// A store with conditional puts: S3 and what speaks like it, GCS (generations), Azure. For its users to implement,
/// over the client that they have.
///
/// What is assumed: an object is there whole or not at all; of two puts on the same condition at most one is
/// applied; the `ETag` and the bytes of a [`Found`] are of one and the same get.
pub trait ObjectStore {
    /// The object, if there is one.
    fn get(&self, name: &str) -> impl Future<Output = Result<Option<Found>, GetError>> + Send;

    /// Puts an object, if the condition holds.
    fn put(
        &self,
        name: &str,
        bytes: &[u8],
        condition: &Condition,
    ) -> impl Future<Output = Result<(), PutError>> + Send;
}

/// An object as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// All of it.
    pub bytes: Vec<u8>,
    /// What the store calls this version of it.
    pub etag: String,
}

/// When a put may be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `If-None-Match: *`: if there is no such object.
    Absent,
    /// `If-Match`: if this is the version that is there.
    Matches(String),
}

/// A get that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetError(pub String);

/// A put that was not certainly applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutError {
    /// 412: the condition did not hold. Only for a put that was sent once: a client that repeats requests by itself may
    /// be refused for what its own first try has put, and says [`PutError::Unknown`].
    Precondition,
    /// A time-out, a broken connection, 409, 5xx: it may have been applied, or may be yet.
    Unknown(String),
    /// It was certainly not applied, and never will be: rights, configuration, no connection.
    Refused(String),
}

/// An object that only its newest holder can replace.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use fence::{Error, FencedObject, Token, object::memory::MemoryObjects};
///
/// let object = FencedObject::new(MemoryObjects::default(), "jobs/orders");
/// let (ours, newer) = (Token(41), Token(42)); // `Token(lease.fencing_token())`
/// object.write(ours, b"page 1").await?;
/// // Another takes over: from its claim on, whoever came before is refused.
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
    /// An object that may be there or not. What is there must have been put by this.
    pub fn new(store: S, name: impl Into<String>) -> FencedObject<S> {
        FencedObject { store, name: name.into() }
    }

    /// Replaces the content, unless a newer token has been here.
    pub async fn write(&self, token: Token, content: &[u8]) -> Result<(), Error> {
        self.change(token, Change::Write(content)).await.map(drop)
    }

    /// Raises the token and reads, in one step: what comes back stays, until this token or a newer one writes. Whatever
    /// was put before and has not been applied yet will never be.
    pub async fn claim(&self, token: Token) -> Result<Option<Vec<u8>>, Error> {
        self.change(token, Change::Claim).await.map(|version| version.content)
    }

    /// Removes the content, and keeps the token, unless a newer one has been here.
    pub async fn remove(&self, token: Token) -> Result<(), Error> {
        self.change(token, Change::Remove).await.map(drop)
    }

    /// What is there now; `None` if nobody ever wrote or claimed. It may be replaced the moment after: whoever is to
    /// write begins with [`FencedObject::claim`].
    pub async fn read(&self) -> Result<Option<Version>, Error> {
        Ok(self.look().await?.0)
    }

    /// Whether the store looks at conditions at all; to be asked with a name that is used for nothing else. One that
    /// does not makes every write a check and then a write. Whether it also keeps them in a race cannot be seen from here.
    pub async fn probe(&self) -> Result<(), Error> {
        self.change(Token(0), Change::Claim).await?;
        let (_, old) = self.look().await?;
        let newer = self.change(Token(0), Change::Claim).await?;
        for wrong in [Condition::Absent, old] {
            match self.store.put(&self.name, &newer.to_bytes(), &wrong).await {
                Err(PutError::Precondition) => {}
                Ok(()) => {
                    let what =
                        format!("the store ignores conditions, and can guard nothing: condition={wrong:?}");
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
        // Why an earlier put of this write may have been applied.
        let mut doubt: Option<String> = None;
        let mut sent: Option<Version> = None;
        for _ in 0..TRIES {
            let (current, condition) = self.look().await.map_err(|error| doubted(error, doubt.as_deref()))?;
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
        let what = format!("the object kept changing: tries={TRIES}");
        Err(doubted(Error::Unavailable(what), doubt.as_deref()))
    }

    /// What is there, and the condition that it still is.
    async fn look(&self) -> Result<(Option<Version>, Condition), Error> {
        let found = self.store.get(&self.name).await.map_err(|GetError(what)| Error::Unavailable(what))?;
        let Some(found) = found else { return Ok((None, Condition::Absent)) };
        if found.bytes.len() > VERSION_MAX {
            return Err(Error::Invalid("the object is longer than fenced content can be".to_string()));
        }
        Ok((Some(Version::parse(found.bytes)?), Condition::Matches(found.etag)))
    }
}

/// Of a write that may have been applied before it failed, nobody may say that it was not.
fn doubted(error: Error, doubt: Option<&str>) -> Error {
    match doubt {
        Some(doubt) => {
            Error::Indeterminate(format!("{error}; an earlier put went unanswered: cause={doubt}"))
        }
        None => error,
    }
}
