//! An in-memory object store, for tests.
//!
//! **Invariant.** It fulfils the port's contract, and no call fails spuriously.
//!
//! **What would break it.** Checking for a name and inserting it under two separate locks: two concurrent
//! puts of one name could both succeed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::part::Part;
use super::port::{ObjectUpload, Objects, ObjectsError, ObjectsErrorKind, Page};

/// Objects in memory. Clones share them.
#[derive(Clone, Default)]
pub struct MemoryObjects(Arc<Mutex<BTreeMap<String, Arc<[u8]>>>>);

impl MemoryObjects {
    /// The page size: small, so that tests see more than one page.
    const PAGE: usize = 20;

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &str) -> Result<Arc<[u8]>, ObjectsError> {
        let found = self.lock().get(name).cloned();
        found.ok_or_else(|| {
            ObjectsError::new(ObjectsErrorKind::NotFound, format!("no such object: name={name}"))
        })
    }
}

impl Objects for MemoryObjects {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        let mut objects = self.lock();
        if objects.contains_key(name) {
            return Err(ObjectsError::new(
                ObjectsErrorKind::Taken,
                format!("the name is in use: name={name}"),
            ));
        }
        objects.insert(name.to_string(), bytes.into());
        Ok(())
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ObjectsError> {
        Ok(self.find(name)?.to_vec())
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError> {
        let bytes = self.find(name)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let to = from.saturating_add(length).min(bytes.len());
        Ok(bytes[from..to].to_vec())
    }

    fn head(&self, name: &str) -> Result<u64, ObjectsError> {
        Ok(self.find(name)?.len() as u64)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError> {
        let objects = self.lock();
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let names = objects.range::<str, _>((from, Bound::Unbounded)).map(|(name, _)| name);
        let mut names = names.take_while(|name| name.starts_with(prefix)).cloned();
        let page: Vec<String> = names.by_ref().take(MemoryObjects::PAGE).collect();
        Ok(Page { names: page, more: names.next().is_some() })
    }

    fn delete(&self, name: &str) -> Result<(), ObjectsError> {
        self.lock().remove(name);
        Ok(())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        self.lock().insert(name.to_string(), bytes.into());
        Ok(())
    }

    fn begin_upload(&self, name: &str) -> Result<Box<dyn ObjectUpload>, ObjectsError> {
        Ok(Box::new(MemoryUpload { objects: self.clone(), name: name.to_string(), parts: BTreeMap::new() }))
    }

    /// An upload that is not completed leaves nothing behind.
    fn abort_old_uploads(&self, _: &str) -> Result<usize, ObjectsError> {
        Ok(0)
    }
}

/// The parts that were sent so far, by number.
struct MemoryUpload {
    objects: MemoryObjects,
    name: String,
    parts: BTreeMap<usize, Vec<u8>>,
}

impl ObjectUpload for MemoryUpload {
    fn put_part(&mut self, number: usize, part: &Part) -> Result<(), ObjectsError> {
        self.parts.insert(number, part.bytes()?);
        Ok(())
    }

    fn complete(&mut self) -> Result<(), ObjectsError> {
        let bytes: Vec<u8> = self.parts.values().flatten().copied().collect();
        self.objects.put(&self.name, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_put_once_and_lists_are_sorted_pages() {
        let objects = MemoryObjects::default();
        let names: Vec<String> = (10..60).map(|n| format!("log/{n}")).collect();
        for name in names.iter().rev() {
            objects.put_if_absent(name, b"one").expect("a free name");
        }
        for name in ["log", "log0", "loh/1"] {
            objects.put_if_absent(name, b"beside").expect("a free name");
        }
        let taken = objects.put_if_absent("log/10", b"two").expect_err("in use");
        assert_eq!((taken.kind, objects.get("log/10")), (ObjectsErrorKind::Taken, Ok(b"one".to_vec())));

        let (mut listed, mut after) = (Vec::new(), String::new());
        loop {
            let page = objects.list("log/", &after).expect("a page");
            listed.extend(page.names);
            after.clone_from(listed.last().expect("some"));
            if !page.more {
                break;
            }
        }
        assert_eq!(listed, names);
        assert_eq!(objects.list("log/", "log/58").expect("a page").names, ["log/59"]);
    }
}
