//! Copies between disks and buckets: with snapshots, a log that begins above a floor, and documents of both kinds.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use backup::{
    BackupError, BucketStore, CopyOptions, CopyReport, DownloadOptions, KeyLocation, Quiet, StoreLocation,
    copy_store, download, export, upload,
};
use store::LogStore as _;
use store::Seq;
use store::disk::StoreView;
use store::object::{
    MemoryObjects, ObjectLog, ObjectOptions, ObjectUpload, Objects, ObjectsError, ObjectsErrorKind, Page,
    RetryPolicy, UploadOptions, WriterId,
};

use crate::world::{BLOB, NOW, World, content, no_hook};

/// A stopped store whose log begins above batch 0, with two snapshots, documents in the log and in blobs, and leases.
fn world() -> World {
    let world = World::new();
    let lease = world.acquire("long");
    world.put_blob(&lease, "long", &text(1, BLOB));
    let lease = world.acquire("short");
    world.put(&lease, "short", b"{\"a\":1}");
    let lease = world.acquire("busy");
    world.write_until_checkpoints(&lease, "busy", 3);
    world.put(&lease, "busy", &text(9, 2000));
    world.stop();
    let floor = StoreView::open(&world.store()).expect("a store").log(0).expect("a log").floor();
    assert!(floor > Seq(0), "the log was truncated");
    world
}

/// A JSON string of this length.
fn text(n: usize, length: usize) -> Vec<u8> {
    let inner = content(n, length - 2).iter().map(|byte| b'a' + byte % 26).collect::<Vec<u8>>();
    [b"\"", &inner[..], b"\""].concat()
}

fn bucket(objects: impl Objects + 'static) -> BucketStore {
    let (policy, uploads) = (RetryPolicy::without_pause(2), UploadOptions::parts_of(20_000));
    BucketStore { objects: Arc::new(objects), policy, uploads, url: "s3://test/copy".into() }
}

fn copy(from: &StoreLocation, to: &StoreLocation, scratch: &Path) -> Result<CopyReport, BackupError> {
    let options = CopyOptions { key: None, key_location: KeyLocation::Store, scratch: scratch.to_path_buf() };
    copy_store(from, to, &options, &Quiet, &mut |what| panic!("{what}"))
}

fn exported(store: &Path) -> String {
    let mut out = Vec::new();
    export(store, NOW, &mut out, &Quiet).expect("an export");
    String::from_utf8(out).expect("text")
}

#[test]
fn a_store_is_copied_from_disk_through_two_buckets_and_back() {
    let world = world();
    let (first, second) = (bucket(MemoryObjects::default()), bucket(MemoryObjects::default()));
    let disk = StoreLocation::Disk(world.store());
    let (first, second) = (StoreLocation::Bucket(first), StoreLocation::Bucket(second));
    let back = world.dir.path().join("back");
    let one = copy(&disk, &first, world.dir.path()).expect("copied");
    let two = copy(&first, &second, world.dir.path()).expect("copied");
    let three = copy(&second, &StoreLocation::Disk(back.clone()), world.dir.path()).expect("copied");
    assert_eq!((&one.shards, &two.shards), (&two.shards, &three.shards));
    assert!(one.shards[0].floor > 0 && one.leases() == 3 && one.documents() == 3, "{one:?}");
    assert_eq!(exported(&world.store()), exported(&back));
    let beside = world.dir.path().join("beside");
    let four = copy(&disk, &StoreLocation::Disk(beside.clone()), world.dir.path()).expect("copied");
    assert_eq!((four.shards, exported(&beside)), (one.shards, exported(&back)));
    let left = std::fs::read_dir(world.dir.path()).expect("a directory").count();
    assert_eq!(left, 3, "the intermediate copy is removed");
}

/// The copy is served like any other store: tokens grow, and its first checkpoints truncate the imported log.
#[test]
fn a_store_that_came_back_from_a_bucket_is_served_and_its_tokens_grow() {
    let world = world();
    let to = bucket(MemoryObjects::default());
    let copied = upload(&world.store(), None, &to, KeyLocation::Store, &Quiet).expect("copied");
    std::fs::remove_dir_all(world.store()).expect("there");
    let options = DownloadOptions { key: None, rate: None, keeps_damage: false };
    download(&to, &world.store(), &options, &Quiet, &mut |what| panic!("{what}")).expect("copied");
    world.start();
    let lease = world.acquire("other");
    assert!(lease.token.0 > copied.last_lsn(), "{lease:?}");
    world.write_until_checkpoints(&lease, "other", 2);
    let taken = world.backup(&world.dir.path().join("backup"), &no_hook).expect("a sound store");
    assert!(taken.shards[0].floor > copied.shards[0].floor && taken.leases() == 4, "{taken:?}");
}

/// Objects whose puts fail after the first few, as if the process had ended there; or that call a hook at each get.
struct Hooked<H> {
    objects: MemoryObjects,
    puts: AtomicUsize,
    puts_max: usize,
    on_get: H,
}

impl<H: Fn(&str) + Send + Sync> Hooked<H> {
    fn count_put(&self) -> Result<(), ObjectsError> {
        if self.puts.fetch_add(1, Ordering::Relaxed) < self.puts_max {
            return Ok(());
        }
        Err(ObjectsError::new(ObjectsErrorKind::Denied, "the process has ended"))
    }
}

impl<H: Fn(&str) + Send + Sync> Objects for Hooked<H> {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        self.count_put()?;
        self.objects.put_if_absent(name, bytes)
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ObjectsError> {
        (self.on_get)(name);
        self.objects.get(name)
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError> {
        (self.on_get)(name);
        self.objects.get_range(name, offset, length)
    }

    fn head(&self, name: &str) -> Result<u64, ObjectsError> {
        self.objects.head(name)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError> {
        self.objects.list(prefix, after)
    }

    fn delete(&self, name: &str) -> Result<(), ObjectsError> {
        self.count_put()?;
        self.objects.delete(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        self.count_put()?;
        self.objects.put(name, bytes)
    }

    fn begin_upload(&self, name: &str) -> Result<Box<dyn ObjectUpload>, ObjectsError> {
        self.count_put()?;
        self.objects.begin_upload(name)
    }

    fn abort_old_uploads(&self, _: &str) -> Result<usize, ObjectsError> {
        Ok(0)
    }
}

/// A copy that ends after any put is no store, and the next one says what to do, unless it was the last put.
#[test]
fn a_copy_that_is_interrupted_anywhere_is_recognised() {
    let world = World::new();
    let lease = world.acquire("long");
    world.put_blob(&lease, "long", &text(1, BLOB));
    world.stop();
    let mut puts_max = 0;
    loop {
        let objects = MemoryObjects::default();
        let hooked =
            Hooked { objects: objects.clone(), puts: AtomicUsize::new(0), puts_max, on_get: |_: &str| {} };
        let interrupted = upload(&world.store(), None, &bucket(hooked), KeyLocation::Store, &Quiet);
        let target = bucket(objects.clone());
        let again = || upload(&world.store(), None, &target, KeyLocation::Store, &Quiet);
        match (puts_max, interrupted) {
            (_, Ok(_)) => break,
            (0, Err(_)) => drop(again().expect("nothing was written")),
            // The parameters exist: only the mark was left.
            (_, Err(_)) if objects.get("store").is_ok() => drop(target.root(None).expect("complete")),
            (_, Err(_)) => {
                for refused in [again().expect_err("incomplete"), target.root(None).expect_err("incomplete")]
                {
                    assert!(refused.to_string().contains("delete all objects below the prefix"), "{refused}");
                }
            }
        }
        puts_max += 1;
    }
    assert!(puts_max >= 6, "mark, batches, blob, key, map, parameters: {puts_max}");
}

#[test]
fn a_damaged_source_and_a_target_with_objects_are_refused() {
    let world = world();
    let blobs = world.store().join("blob/by-name/document");
    let blob = crate::damage::files(&blobs).into_keys().next().expect("a document");
    let mut bytes = std::fs::read(&blob).expect("readable");
    bytes[1000] ^= 1;
    std::fs::write(&blob, &bytes).expect("writable");
    let objects = MemoryObjects::default();
    let refused = upload(&world.store(), None, &bucket(objects.clone()), KeyLocation::Store, &Quiet);
    let refused = refused.expect_err("damaged").to_string();
    assert!(refused.contains("does not match its hash") && refused.contains("key=KEY:long"), "{refused}");
    assert!(objects.get("store").is_err(), "no server opens it");
    bytes[1000] ^= 1;
    std::fs::write(&blob, &bytes).expect("writable");
    let objects = MemoryObjects::default();
    objects.put("other", b"").expect("space");
    let refused = upload(&world.store(), None, &bucket(objects.clone()), KeyLocation::Store, &Quiet);
    let refused = refused.expect_err("not empty").to_string();
    assert!(refused.contains("choose another one") && refused.contains("object=other"), "{refused}");
    world.start();
    let refused = upload(&world.store(), None, &bucket(MemoryObjects::default()), KeyLocation::Store, &Quiet);
    assert!(refused.expect_err("in use").to_string().contains("another process has the store open"));
}

/// A damaged object of the bucket: a batch, a document, the parameters.
#[test]
fn a_damaged_bucket_is_refused_and_nothing_appears() {
    let world = world();
    let objects = MemoryObjects::default();
    upload(&world.store(), None, &bucket(objects.clone()), KeyLocation::Store, &Quiet).expect("copied");
    let to = world.dir.path().join("to");
    let documents = objects.list("blob/document/", "").expect("a page").names;
    let batches = objects.list("log/0/", "").expect("a page").names;
    let last = batches.last().expect("batches").clone();
    for name in [&documents[0], &last, &"store".to_string()] {
        let sound = objects.get(name).expect("there");
        let mut damaged = sound.clone();
        let at = damaged.len() - 9;
        damaged[at] ^= 1;
        objects.put(name, &damaged).expect("replaced");
        let refused = copy(
            &StoreLocation::Bucket(bucket(objects.clone())),
            &StoreLocation::Disk(to.clone()),
            world.dir.path(),
        );
        refused.expect_err(name);
        objects.delete(name).expect("there");
        let refused = copy(
            &StoreLocation::Bucket(bucket(objects.clone())),
            &StoreLocation::Disk(to.clone()),
            world.dir.path(),
        );
        if *name == documents[0] {
            let what = refused.as_ref().expect_err("a document is missing").to_string();
            assert!(what.contains("its blob is missing"), "no server has deleted it: {what}");
        }
        let is_end = *name == last;
        assert!(refused.is_err() || is_end, "{name}: the end of a log that nothing refers to may be lost");
        objects.put(name, &sound).expect("replaced");
        if to.exists() {
            std::fs::remove_dir_all(&to).expect("there");
        }
    }
}

/// A server truncated the log while it was copied: the copy began again, with the new floor.
#[test]
fn a_bucket_that_is_truncated_while_it_is_copied_is_copied_again() {
    let world = world();
    let objects = MemoryObjects::default();
    let copied = upload(&world.store(), None, &bucket(objects.clone()), KeyLocation::Store, &Quiet);
    let floor = copied.expect("copied").shards[0].floor;
    let (server, done) = (objects.clone(), AtomicUsize::new(0));
    let on_get = move |name: &str| {
        if !name.starts_with("blob/snapshot/") || done.fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        let options = ObjectOptions::new(0, 5, WriterId(9));
        let mut log = ObjectLog::open(Arc::new(server.clone()), options, RetryPolicy::without_pause(1))
            .expect("the log");
        log.raise_floor(Seq(floor + 1)).expect("within the log");
        server.delete(&format!("log/0/{floor:016x}")).expect("deleted");
    };
    let hooked = Hooked { objects, puts: AtomicUsize::new(0), puts_max: 0, on_get };
    let to = world.dir.path().join("to");
    let from = StoreLocation::Bucket(bucket(hooked));
    let report = copy(&from, &StoreLocation::Disk(to.clone()), world.dir.path()).expect("copied");
    assert_eq!(report.shards[0].floor, floor + 1);
    assert_eq!(exported(&to), exported(&world.store()));
}
