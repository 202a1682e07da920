//! The memory of 404 responses, for the fault that repeats them although the object exists by now.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::call::Call;

type Place = (SocketAddr, String, String);

/// Until when an object counts as absent, for each address, bucket and key.
#[derive(Debug, Default)]
pub(crate) struct AbsenceCache(Mutex<BTreeMap<Place, Instant>>);

impl AbsenceCache {
    pub(crate) fn holds(&self, at: SocketAddr, call: &Call, now: Instant) -> bool {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = place(at, call);
        let cached = entries.get(&place).is_some_and(|until| now < *until);
        if !cached {
            entries.remove(&place);
        }
        cached
    }

    pub(crate) fn remember(&self, at: SocketAddr, call: &Call, now: Instant, duration: Duration) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.entry(place(at, call)).or_insert(now + duration);
    }
}

fn place(at: SocketAddr, call: &Call) -> Place {
    (at, call.bucket.clone(), call.key.clone())
}
