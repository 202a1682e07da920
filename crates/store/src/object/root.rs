//! The objects that every server of a store reads first: its key, its parameters and its map of slots.
//!
//! **Invariant.** Each is created once, by a conditional put, and never replaced: of several servers that create a store at
//! the same time, all use the key, the parameters and the map of those that were first. The key comes first and the
//! parameters last: a store that has parameters has everything. A copy of another store into an empty prefix is marked
//! by the object `copying` until then, and no server creates a store beside it.
//!
//! **What would break it.** Creating the parameters before the key is certain: a second server would create another key,
//! and one of the two would refuse all credentials. So what is in the bucket counts, never what this server drew.

use std::sync::Arc;

use super::format::WriterId;
use super::names;
use super::port::{Objects, ObjectsError, ObjectsErrorKind, RetryPolicy};
use crate::port::{Damage, ErrorKind, StoreError};
use crate::slot_map::SlotMap;
use crate::store_file::{self, Key, StoreFile, StoredFile};

/// The number of the first map.
const FIRST_MAP: u64 = 1;

/// Where the key of a store is kept.
#[derive(Clone, Copy)]
pub enum KeySource<'a> {
    /// In the bucket. If there is none, this one is put there.
    Bucket(&'a Key),
    /// Outside of the bucket, which has none: this is the key.
    Outside(&'a Key),
}

/// The parameters of an open store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectStoreRoot {
    /// The key of the store.
    pub key: Key,
    /// The parameters fixed at creation.
    pub file: StoreFile,
    /// The map of slots with the highest number.
    pub map: SlotMap,
}

impl ObjectStoreRoot {
    /// Whether nothing says that there is a store: its parameters were not found. Sends one request, once.
    pub fn is_missing(objects: &dyn Objects) -> bool {
        objects.head(names::STORE).is_err_and(|error| error.kind == ObjectsErrorKind::NotFound)
    }

    /// Reads the parameters of a store, or creates it with those in `fresh`.
    pub fn open(
        objects: &Arc<dyn Objects>,
        policy: &RetryPolicy,
        fresh: StoreFile,
        key: KeySource<'_>,
    ) -> Result<ObjectStoreRoot, StoreError> {
        let root = RootObjects { objects, policy };
        let existing = root.get(names::STORE)?;
        let key = root.key(key, existing.is_some())?;
        let bytes = existing.map_or_else(|| root.create_store(fresh, &key), Ok)?;
        let file = verified(&bytes, &key)?;
        let map = root.map(file)?;
        Ok(ObjectStoreRoot { key, file, map })
    }

    /// Reads the parameters of a store; `None` if there is no store. Writes nothing.
    pub fn read(
        objects: &Arc<dyn Objects>,
        policy: &RetryPolicy,
        key: Option<&Key>,
    ) -> Result<Option<ObjectStoreRoot>, StoreError> {
        let root = RootObjects { objects, policy };
        let Some(bytes) = root.get(names::STORE)? else {
            return root.refuse_incomplete_copy().map(|()| None);
        };
        let key = match key {
            Some(key) => *key,
            None => root.bucket_key()?.ok_or_else(no_key)?,
        };
        let file = verified(&bytes, &key)?;
        let map = root.map(file)?;
        Ok(Some(ObjectStoreRoot { key, file, map }))
    }

    /// Begins a copy of another store, into a prefix without any object. `writer` identifies the copy.
    pub fn begin_copy(
        objects: &Arc<dyn Objects>,
        policy: &RetryPolicy,
        writer: WriterId,
    ) -> Result<(), StoreError> {
        let root = RootObjects { objects, policy };
        root.refuse_objects()?;
        root.create_ours(names::COPYING, format!("{:032x}\n", writer.0).as_bytes())
    }

    /// Completes a copy: creates the key, unless it is kept outside, the map and last the parameters.
    pub fn finish_copy(
        &self,
        objects: &Arc<dyn Objects>,
        policy: &RetryPolicy,
        key_is_outside: bool,
    ) -> Result<(), StoreError> {
        let root = RootObjects { objects, policy };
        if !key_is_outside {
            root.create_ours(names::STORE_KEY, &self.key)?;
        }
        root.create_ours(&names::map(FIRST_MAP), &self.map.encode())?;
        root.create_ours(names::STORE, &store_file::encode(self.file, &self.key))?;
        let deleted = policy.retry(|| objects.delete(names::COPYING));
        deleted.map_err(|error| error.into_store_error("deleting an object", names::COPYING))
    }

    /// Fails if a copy of another store may not be begun here, because there are objects. Writes nothing.
    pub fn check_empty(objects: &Arc<dyn Objects>, policy: &RetryPolicy) -> Result<(), StoreError> {
        RootObjects { objects, policy }.refuse_objects()
    }
}

struct RootObjects<'a> {
    objects: &'a Arc<dyn Objects>,
    policy: &'a RetryPolicy,
}

impl RootObjects<'_> {
    /// The object; `None` if it does not exist.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match self.policy.retry(|| self.objects.get(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind == ObjectsErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into_store_error("reading an object", name)),
        }
    }

    /// Creates an object, and returns its contents: these, or those of another server that was first.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let created = self.policy.retry(|| self.objects.put_if_absent(name, bytes));
        match created {
            Err(error) if error.kind != ObjectsErrorKind::Taken => {
                Err(error.into_store_error("creating an object", name))
            }
            _ => self.get(name)?.ok_or_else(|| {
                let error =
                    ObjectsError::new(ObjectsErrorKind::NotFound, "it was created just now, and is missing");
                error.into_store_error("reading an object", name)
            }),
        }
    }

    /// Creates an object, which must not exist with other contents.
    fn create_ours(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        if self.create(name, bytes)? == bytes { Ok(()) } else { Err(concurrent_writer(name)) }
    }

    fn refuse_incomplete_copy(&self) -> Result<(), StoreError> {
        match self.get(names::COPYING)? {
            Some(_) => Err(incomplete_copy()),
            None => Ok(()),
        }
    }

    fn refuse_objects(&self) -> Result<(), StoreError> {
        let page = self.policy.retry(|| self.objects.list("", ""));
        let page = page.map_err(|error| error.into_store_error("listing objects", ""))?;
        let Some(first) = page.names.first() else { return Ok(()) };
        if self.get(names::STORE)?.is_none() {
            self.refuse_incomplete_copy()?;
        }
        let what = "there are objects below this prefix, and nothing is overwritten; a store is copied or restored into a \
                    new prefix: choose another one: object=";
        Err(StoreError::new(ErrorKind::Refused, format!("{what}{first}")))
    }

    /// Creates the map of slots, then the parameters; returns those that are in the bucket.
    fn create_store(&self, fresh: StoreFile, key: &Key) -> Result<Vec<u8>, StoreError> {
        self.refuse_incomplete_copy()?;
        let map = SlotMap::ranges(fresh.shards).ok_or_else(|| too_many_shards(fresh.shards))?;
        let map = self.create(&names::map(FIRST_MAP), &map.encode())?;
        // Another server may have created the map, with another number of shards.
        let shards = decode_map(&map, FIRST_MAP)?.shards();
        self.create(names::STORE, &store_file::encode(StoreFile { shards, ..fresh }, key))
    }

    fn bucket_key(&self) -> Result<Option<Key>, StoreError> {
        let Some(bytes) = self.get(names::STORE_KEY)? else { return Ok(None) };
        let key = bytes.as_slice().try_into();
        let what = "not a store key, which has 32 bytes";
        let damage = |_| Damage { file: names::STORE_KEY.into(), offset: 0, what };
        key.map(Some).map_err(|error| damage(error).into())
    }

    fn key(&self, source: KeySource<'_>, store_exists: bool) -> Result<Key, StoreError> {
        match source {
            KeySource::Outside(key) => Ok(*key),
            KeySource::Bucket(fresh) => match self.bucket_key()? {
                Some(key) => Ok(key),
                None if store_exists => Err(no_key()),
                None => {
                    self.create(names::STORE_KEY, fresh)?;
                    self.bucket_key()?.ok_or_else(no_key)
                }
            },
        }
    }

    fn map(&self, file: StoreFile) -> Result<SlotMap, StoreError> {
        let page = self.policy.retry(|| self.objects.list(names::MAPS, ""));
        let page = page.map_err(|error| error.into_store_error("listing objects", names::MAPS))?;
        let numbers = page.names.iter().filter_map(|name| names::number(names::MAPS, name));
        let Some(highest) = numbers.max() else {
            let what = "the store has no map of slots";
            return Err(Damage { file: names::MAPS.into(), offset: 0, what }.into());
        };
        let bytes = self.get(&names::map(highest.0))?;
        let bytes = bytes.ok_or_else(|| damaged_map(highest.0, "the map of slots is missing"))?;
        let map = decode_map(&bytes, highest.0)?;
        if map.shards() != file.shards {
            return Err(damaged_map(highest.0, "the map of slots is of another number of shards"));
        }
        Ok(map)
    }
}

fn decode_map(bytes: &[u8], number: u64) -> Result<SlotMap, StoreError> {
    SlotMap::decode(bytes).map_err(|what| damaged_map(number, what))
}

fn damaged_map(number: u64, what: &'static str) -> StoreError {
    Damage { file: names::map(number).into(), offset: 0, what }.into()
}

fn verified(bytes: &[u8], key: &Key) -> Result<StoreFile, StoreError> {
    match store_file::decode(bytes).map_err(|error| error.at(names::STORE.into()))? {
        StoredFile::Current(file, mac) if store_file::verifies(file, mac, key) => Ok(file),
        StoredFile::Current(..) => Err(wrong_key()),
        StoredFile::Legacy(_) => {
            let what = "an object store of format 1, which no version of lockd has written";
            Err(Damage { file: names::STORE.into(), offset: 8, what }.into())
        }
    }
}

fn wrong_key() -> StoreError {
    let what = "the store key is not the one that this store was created with, so it would refuse every credential; \
                name the right one with --store-key-file, or copy it from a backup, where it is store/store.key";
    StoreError::new(ErrorKind::Refused, what)
}

fn incomplete_copy() -> StoreError {
    let what = "a copy of a store into this prefix was begun and is not complete: it was interrupted, or still runs; wait \
                for it, or delete all objects below the prefix and copy again";
    StoreError::new(ErrorKind::Refused, what)
}

/// The name was in use with other contents.
pub(super) fn concurrent_writer(name: &str) -> StoreError {
    let what = "another process writes to this prefix; the copy is incomplete: delete all objects below the prefix and copy \
                again: object=";
    StoreError::new(ErrorKind::Refused, format!("{what}{name}"))
}

fn no_key() -> StoreError {
    let what = "the store exists, and its bucket has no store.key: the key is kept outside; name its file with \
                --store-key-file";
    StoreError::new(ErrorKind::Refused, what)
}

fn too_many_shards(shards: u32) -> StoreError {
    let what = format!("a store has 1 to {} shards: shards={shards}", SlotMap::SHARDS_MAX);
    StoreError::new(ErrorKind::Refused, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::MemoryObjects;

    const FRESH: StoreFile = StoreFile { store_id: 9, shards: 3 };

    fn open(
        objects: &MemoryObjects,
        store_id: u128,
        key: KeySource<'_>,
    ) -> Result<ObjectStoreRoot, StoreError> {
        let shared: Arc<dyn Objects> = Arc::new(objects.clone());
        let fresh = StoreFile { store_id, ..FRESH };
        ObjectStoreRoot::open(&shared, &RetryPolicy::without_pause(1), fresh, key)
    }

    #[test]
    fn the_server_that_comes_second_uses_what_the_first_has_created() {
        let objects = MemoryObjects::default();
        let first = open(&objects, 9, KeySource::Bucket(&[1; 32])).expect("a new store");
        let second = open(&objects, 10, KeySource::Bucket(&[2; 32])).expect("the same store");
        assert_eq!(first, second);
        assert_eq!((first.key, first.file.store_id, first.map.shards()), ([1; 32], 9, 3));
        let shared: Arc<dyn Objects> = Arc::new(objects.clone());
        let read = ObjectStoreRoot::read(&shared, &RetryPolicy::without_pause(1), None).expect("readable");
        assert_eq!(read, Some(first));
    }

    /// Two servers with other settings create a store at once: the map is of the one, the parameters are of the other.
    #[test]
    fn the_number_of_shards_is_that_of_the_map_that_was_first() {
        let objects = MemoryObjects::default();
        let map = SlotMap::ranges(2).expect("two shards").encode();
        objects.put_if_absent("map/0000000000000001", &map).expect("a free name");
        let root = open(&objects, 9, KeySource::Bucket(&[1; 32])).expect("a new store");
        assert_eq!((root.file.shards, root.map.shards()), (2, 2));
    }

    /// A crash between the key and the parameters leaves a key, which the next start uses.
    #[test]
    fn a_key_that_a_crash_left_is_used() {
        let objects = MemoryObjects::default();
        objects.put_if_absent("store.key", &[5; 32]).expect("a free name");
        assert_eq!(open(&objects, 9, KeySource::Bucket(&[1; 32])).expect("a new store").key, [5; 32]);
    }

    #[test]
    fn a_key_outside_of_the_bucket_never_gets_there_and_another_one_is_refused() {
        let objects = MemoryObjects::default();
        open(&objects, 9, KeySource::Outside(&[1; 32])).expect("a new store");
        assert_eq!(objects.get("store.key").expect_err("not there").kind, ObjectsErrorKind::NotFound);
        open(&objects, 10, KeySource::Outside(&[1; 32])).expect("the same key");
        let other = open(&objects, 10, KeySource::Outside(&[2; 32])).expect_err("another key");
        assert!(other.what.contains("not the one that this store was created with"), "{other}");
        let none = open(&objects, 10, KeySource::Bucket(&[2; 32])).expect_err("no key in the bucket");
        assert!(none.what.contains("--store-key-file"), "{none}");
        assert_eq!(objects.get("store.key").expect_err("still not there").kind, ObjectsErrorKind::NotFound);
    }

    #[test]
    fn damaged_parameters_and_maps_are_refused_by_name() {
        let objects = MemoryObjects::default();
        open(&objects, 9, KeySource::Bucket(&[1; 32])).expect("a new store");
        for name in ["store", "map/0000000000000001"] {
            let sound = objects.get(name).expect("there");
            let mut damaged = sound.clone();
            damaged[20] ^= 1;
            objects.put(name, &damaged).expect("replaced");
            let error = open(&objects, 9, KeySource::Bucket(&[1; 32])).expect_err("damaged");
            assert_eq!(error.kind, ErrorKind::Damaged);
            assert!(error.what.contains(&format!("file={name} ")), "{error}");
            objects.put(name, &sound).expect("replaced");
        }
        objects.delete("map/0000000000000001").expect("deleted");
        assert_eq!(
            open(&objects, 9, KeySource::Bucket(&[1; 32])).expect_err("no map").kind,
            ErrorKind::Damaged
        );
    }

    /// A copy was interrupted, and a server was started with its target: it created a store of its own there, beside the
    /// batches of the other.
    #[test]
    fn an_incomplete_copy_is_neither_opened_nor_read_nor_copied_over() {
        let objects = MemoryObjects::default();
        let shared: Arc<dyn Objects> = Arc::new(objects.clone());
        let policy = RetryPolicy::without_pause(1);
        ObjectStoreRoot::begin_copy(&shared, &policy, WriterId(1)).expect("an empty prefix");
        let opened = open(&objects, 9, KeySource::Bucket(&[1; 32])).expect_err("not complete");
        let read = ObjectStoreRoot::read(&shared, &policy, None).expect_err("not complete");
        let again = ObjectStoreRoot::begin_copy(&shared, &policy, WriterId(2)).expect_err("not complete");
        for refused in [opened, read, again] {
            assert!(refused.what.contains("delete all objects below the prefix"), "{refused}");
        }
        let map = SlotMap::ranges(3).expect("three shards");
        let root = ObjectStoreRoot { key: [1; 32], file: FRESH, map };
        root.finish_copy(&shared, &policy, false).expect("completed");
        assert_eq!(open(&objects, 10, KeySource::Bucket(&[2; 32])).expect("the copied store"), root);
        let again = ObjectStoreRoot::begin_copy(&shared, &policy, WriterId(2)).expect_err("not empty");
        assert!(again.what.contains("choose another one"), "{again}");
    }
}
