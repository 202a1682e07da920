//! The conditional creates that a server has processed, so that a test can prove that no name was won twice.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use crate::call::{Call, Condition, Operation};
use crate::outcome::{Outcome, Written};

/// The most creates that are remembered; then the oldest is forgotten.
const CAPACITY: usize = 100_000;

/// A write under the condition that no object has its name.
#[derive(Debug, Clone)]
pub struct CreateAttempt {
    /// The bucket.
    pub bucket: String,
    /// The name of the object.
    pub key: String,
    /// `Put`, `Copy` or `UploadComplete`.
    pub operation: Operation,
    /// The client's address.
    pub client: SocketAddr,
    /// The server's address at which the request arrived.
    pub address: SocketAddr,
    /// The generation of the object, if it was written.
    pub generation: Option<u64>,
    /// The object was written although one of this name existed: a second winner.
    pub replaced: bool,
    /// The status of the response; `None` if none was sent.
    pub status: Option<u16>,
}

impl CreateAttempt {
    /// Whether the object was written, no matter what the response said.
    pub fn took_effect(&self) -> bool {
        self.generation.is_some()
    }
}

#[derive(Debug, Default)]
pub(crate) struct History(Mutex<VecDeque<CreateAttempt>>);

impl History {
    pub(crate) fn attempts(&self) -> Vec<CreateAttempt> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Remembers the outcome of a call if it is a conditional create.
    pub(crate) fn record(
        &self,
        call: &Call,
        client: SocketAddr,
        address: SocketAddr,
        written: Option<&Written>,
        status: Option<u16>,
    ) {
        if *call.condition() != Condition::Absent {
            return;
        }
        let attempt = CreateAttempt {
            bucket: call.bucket.clone(),
            key: call.key.clone(),
            operation: call.operation(),
            client,
            address,
            generation: written.map(|written| written.head.generation),
            replaced: written.is_some_and(|written| written.replaced),
            status,
        };
        let mut attempts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if attempts.len() == CAPACITY {
            attempts.pop_front();
        }
        attempts.push_back(attempt);
    }
}

/// The write that an outcome reports.
pub(crate) fn written(outcome: &Outcome) -> Option<&Written> {
    match outcome {
        Outcome::Written(written) | Outcome::Copied(written) | Outcome::Completed(written) => Some(written),
        _ => None,
    }
}
