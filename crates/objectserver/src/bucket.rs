//! One bucket: its objects, open uploads, recent changes and settings.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use crate::call::{Condition, ListQuery};
use crate::changes::Changes;
use crate::clock;
use crate::listing;
use crate::object::{Object, ObjectHead};
use crate::outcome::{Page, Refusal};
use crate::uploads::Upload;

#[derive(Debug, Default)]
pub(crate) struct Bucket {
    pub(crate) objects: BTreeMap<String, Object>,
    pub(crate) uploads: BTreeMap<String, Upload>,
    /// The lifecycle configuration, as the XML that `GET ?lifecycle` returns.
    pub(crate) lifecycle: Option<String>,
    pub(crate) versioned: bool,
    changes: Changes,
}

impl Bucket {
    /// Whether a write under `condition` may take effect now.
    pub(crate) fn check(&self, key: &str, condition: &Condition) -> Result<(), Refusal> {
        let present = self.objects.get(key).map(|object| &object.head);
        match (condition, present) {
            (Condition::None, _) | (Condition::Absent, None) => Ok(()),
            (Condition::Absent, Some(_)) => Err(Refusal::AlreadyExists),
            (Condition::Etag(_), None) => Err(Refusal::NoSuchKey),
            (Condition::Etag(etag), Some(head)) if etag == "*" || *etag == *head.etag => Ok(()),
            (Condition::Generation(generation), Some(head)) if *generation == head.generation => Ok(()),
            (Condition::Etag(_) | Condition::Generation(_), _) => Err(Refusal::ConditionFailed),
        }
    }

    /// Stores an object. Returns whether it replaced another.
    pub(crate) fn put(&mut self, key: &str, object: Object) -> bool {
        let before = self.objects.insert(key.to_owned(), object).map(|object| object.head);
        let replaced = before.is_some();
        self.changes.record(clock::now(), key, before);
        replaced
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Object> {
        let removed = self.objects.remove(key)?;
        self.changes.record(clock::now(), key, Some(removed.head.clone()));
        Some(removed)
    }

    /// The upload with this id, if it is of this key.
    pub(crate) fn upload(&mut self, key: &str, id: &str) -> Result<&mut Upload, Refusal> {
        self.uploads.get_mut(id).filter(|upload| upload.key == key).ok_or(Refusal::NoSuchUpload)
    }

    /// A page of the state `age` ago.
    pub(crate) fn list(&self, query: &ListQuery, age: Duration, page_size: usize) -> Page {
        let from = (Bound::Included(listing::lower_bound(query)), Bound::Unbounded);
        if age.is_zero() {
            let present = self.objects.range::<str, _>(from);
            return listing::page(
                query,
                page_size,
                present.map(|(key, object)| (key.as_str(), &object.head)),
            );
        }
        let heads = self.objects.iter().map(|(key, object)| (key.clone(), object.head.clone()));
        let mut earlier: BTreeMap<String, ObjectHead> = heads.collect();
        self.changes.undo(clock::now(), age, &mut earlier);
        let earlier = earlier.range::<str, _>(from);
        listing::page(query, page_size, earlier.map(|(key, head)| (key.as_str(), head)))
    }
}
