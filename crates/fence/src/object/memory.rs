//! An in-memory store, for examples and tests.
//!
//! **Invariant.** As [`ObjectStore`] requires. The `ETag` of an object is a hash of its bytes, as in S3: the same bytes
//! have the same `ETag`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Condition, GetError, ObjectStore, PutError, StoredObject};

/// Objects in memory. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct MemoryObjects(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl MemoryObjects {
    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectStore for MemoryObjects {
    async fn get(&self, name: &str) -> Result<Option<StoredObject>, GetError> {
        Ok(self.objects().get(name).map(|bytes| StoredObject { bytes: bytes.clone(), etag: etag(bytes) }))
    }

    async fn put(&self, name: &str, bytes: &[u8], condition: &Condition) -> Result<(), PutError> {
        let mut objects = self.objects();
        let holds = match (condition, objects.get(name)) {
            (Condition::Absent, found) => found.is_none(),
            (Condition::Matches(wanted), Some(found)) => *wanted == etag(found),
            (Condition::Matches(_), None) => false,
        };
        if !holds {
            return Err(PutError::Precondition);
        }
        objects.insert(name.to_string(), bytes.to_vec());
        Ok(())
    }
}

fn etag(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}
