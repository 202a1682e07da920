//! A server's view of the others, while the store is slow or refuses reads.

use std::sync::atomic::AtomicUsize;

use store::object::{MemoryObjects, ObjectUpload, Page};

use super::*;

const SILENCE: Duration = Duration::from_secs(3);
const OWNER: ServerId = ServerId(7);
const SHARD: Shard = Shard(0);
const DEADLINE: Duration = Duration::from_secs(60);

/// A store whose reads fail or hang while a test wants that.
#[derive(Default)]
struct FlakyObjects {
    inner: MemoryObjects,
    fails_reads: AtomicBool,
    fails_lists: AtomicBool,
    /// Reads wait while this is held.
    hang: Mutex<()>,
    hanging: AtomicUsize,
}

impl FlakyObjects {
    fn fail<T>(
        fails: &AtomicBool,
        result: impl FnOnce() -> Result<T, ObjectsError>,
    ) -> Result<T, ObjectsError> {
        if fails.load(Ordering::Acquire) {
            return Err(ObjectsError::new(ObjectsErrorKind::Unavailable, "slow down"));
        }
        result()
    }
}

impl Objects for FlakyObjects {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        self.inner.put_if_absent(name, bytes)
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ObjectsError> {
        self.inner.get(name)
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError> {
        self.hanging.fetch_add(1, Ordering::AcqRel);
        drop(self.hang.lock());
        self.hanging.fetch_sub(1, Ordering::AcqRel);
        FlakyObjects::fail(&self.fails_reads, || self.inner.get_range(name, offset, length))
    }

    fn head(&self, name: &str) -> Result<u64, ObjectsError> {
        self.inner.head(name)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError> {
        FlakyObjects::fail(&self.fails_lists, || self.inner.list(prefix, after))
    }

    fn delete(&self, name: &str) -> Result<(), ObjectsError> {
        self.inner.delete(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        self.inner.put(name, bytes)
    }

    fn begin_upload(&self, name: &str) -> Result<Box<dyn ObjectUpload>, ObjectsError> {
        self.inner.begin_upload(name)
    }

    fn abort_old_uploads(&self, prefix: &str) -> Result<usize, ObjectsError> {
        self.inner.abort_old_uploads(prefix)
    }
}

fn registry(objects: &Arc<FlakyObjects>, silence: Duration) -> Registry {
    registry_of(objects, silence, 1)
}

fn registry_of(objects: &Arc<FlakyObjects>, silence: Duration, shards: usize) -> Registry {
    let slots = (0..shards).map(|_| Arc::new(ShardSlot::shared())).collect();
    Registry::new(ServerId(1), silence, Arc::<FlakyObjects>::clone(objects), slots)
}

/// The record of a server that owns the shard in term 4.
fn announce(objects: &FlakyObjects, server: ServerId, beat: u64) {
    let shards = vec![OwnedShard { shard: SHARD.0, term: 4 }];
    let record = ServerRecord { beat, shards, ..ServerRecord::default() };
    objects.inner.put(&server.object(), &record.encode()).expect("in memory");
}

fn look_at(registry: &Registry, ms: u64) {
    registry.look_with(&|| Duration::from_millis(ms));
}

/// The store refused reads for a few seconds: the follower had "watched" the owner's record all the time, and deposed an
/// idle owner that had beaten on.
#[test]
fn a_record_that_cannot_be_read_has_not_been_watched() {
    let objects = Arc::new(FlakyObjects::default());
    let registry = registry(&objects, SILENCE);
    announce(&objects, OWNER, 1);
    look_at(&registry, 0);
    objects.fails_reads.store(true, Ordering::Release);
    (1..40).for_each(|look| look_at(&registry, look * 750));
    assert!(!registry.is_silent(SHARD, 4), "half a minute without a read proves nothing");
    objects.fails_reads.store(false, Ordering::Release);
    announce(&objects, OWNER, 2);
    look_at(&registry, 30_000);
    (1..4).for_each(|look| look_at(&registry, 30_000 + look * 750));
    assert!(!registry.is_silent(SHARD, 4), "it has changed 2,250 ms ago");
    look_at(&registry, 33_000);
    assert!(registry.is_silent(SHARD, 4), "watched for the silence");
}

/// A server that has just taken over is not known yet, and the list that would show it fails: no server seemed to own the
/// shard.
#[test]
fn an_owner_that_was_never_read_is_not_silent() {
    let objects = Arc::new(FlakyObjects::default());
    let registry = registry(&objects, SILENCE);
    look_at(&registry, 0);
    announce(&objects, OWNER, 1);
    assert!(registry.is_silent(SHARD, 4), "it is not known");
    objects.fails_lists.store(true, Ordering::Release);
    assert!(!registry.knows_all_servers(), "without a list");
    objects.fails_lists.store(false, Ordering::Release);
    objects.fails_reads.store(true, Ordering::Release);
    assert!(!registry.knows_all_servers(), "without its record");
    objects.fails_reads.store(false, Ordering::Release);
    assert!(registry.knows_all_servers());
    assert!(!registry.is_silent(SHARD, 4), "what was not known counts as changed");
}

/// A record that was deleted says nothing any more, and its server is gone with the next list.
#[test]
fn a_server_without_a_record_is_silent() {
    let objects = Arc::new(FlakyObjects::default());
    let registry = registry(&objects, SILENCE);
    announce(&objects, OWNER, 1);
    look_at(&registry, 0);
    assert!(!registry.is_silent(SHARD, 4));
    objects.delete(&OWNER.object()).expect("in memory");
    (1..5).for_each(|look| look_at(&registry, look * 750));
    assert!(registry.is_silent(SHARD, 4));
}

/// One thread wrote the record and read those of the others. With many servers, or with one read that hung, an owner did not
/// beat within the silence, and others deposed it.
#[test]
fn a_read_that_hangs_stops_no_beats() {
    let objects = Arc::new(FlakyObjects::default());
    let registry = registry(&objects, Duration::from_millis(40));
    announce(&objects, OWNER, 1);
    let stopping = AtomicBool::new(false);
    let beat = || {
        let bytes = objects.inner.get(&registry.id.object()).ok()?;
        ServerRecord::decode(&bytes).map(|record| record.beat)
    };
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let began = boot_clock();
        while !holds() {
            assert!(boot_clock().saturating_sub(began) < DEADLINE, "{what}");
            std::thread::yield_now();
        }
    };
    let hung = objects.hang.lock().expect("not poisoned");
    std::thread::scope(|scope| {
        scope.spawn(|| registry.run_looks(&stopping));
        scope.spawn(|| registry.run_beats(&stopping));
        until("a read hangs", &|| objects.hanging.load(Ordering::Acquire) == 1);
        let before = beat().unwrap_or_default();
        until("it goes on to beat", &|| beat() >= Some(before + 3));
        stopping.store(true, Ordering::Release);
        registry.wake();
        drop(hung);
    });
}

/// A look reads the records of many servers at the same time.
#[test]
fn all_of_many_servers_are_read() {
    let objects = Arc::new(FlakyObjects::default());
    let registry = registry(&objects, SILENCE);
    (2..100).for_each(|server| announce(&objects, ServerId(server), 1));
    look_at(&registry, 0);
    assert_eq!(registry.lock().servers.len(), 98);
}

/// An hour of an owner that has no requests: its record is all that changes, sometimes late.
#[test]
fn an_idle_owner_that_lives_is_not_silent_in_an_hour() {
    let objects = Arc::new(FlakyObjects::default());
    let registry = registry(&objects, SILENCE);
    let (mut beat, mut next_beat_ms, mut random) = (0, 0, 88_172_645_463_325_252_u64);
    for now_ms in (0..3_600_000).step_by(750) {
        while next_beat_ms <= now_ms {
            beat += 1;
            announce(&objects, OWNER, beat);
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            next_beat_ms += 750 + random % 1500;
        }
        look_at(&registry, now_ms);
        assert!(!registry.is_silent(SHARD, 4), "after {now_ms} ms");
    }
    assert!(beat > 2000, "{beat}");
}

/// A server that runs, of a build that reads and writes logs of these versions.
fn announce_build(registry: &Registry, objects: &FlakyObjects, server: ServerId, versions: &[u32], ms: u64) {
    // Until it was listed, and seen to beat.
    for beat in 0..u64::from(2 * LOOKS) {
        let log_versions = versions.to_vec();
        let record = ServerRecord { beat: ms + beat, log_versions, ..ServerRecord::default() };
        objects.inner.put(&server.object(), &record.encode()).expect("in memory");
        look_at(registry, ms + beat);
    }
}

/// An upgraded server handed a shard to one that was not upgraded yet, to even out their shares. That one could not read its
/// log, so the shard had no owner for the silence; then it was handed over again.
#[test]
fn nothing_is_handed_over_to_a_server_that_could_not_read_it() {
    let objects = Arc::new(FlakyObjects::default());
    let registry = registry_of(&objects, SILENCE, 4);
    let shards = || (0..4).map(Shard);
    shards().for_each(|shard| registry.set_owned(shard, 4));
    let targets = || shards().filter_map(|shard| registry.hand_over_target(shard)).collect::<Vec<_>>();
    let mut older = LOG_VERSIONS;
    older[0] -= 1;
    for versions in [&[][..], &older] {
        announce_build(&registry, &objects, OWNER, versions, 10);
        assert_eq!(targets(), [], "{versions:?}");
        assert!(shards().all(|shard| registry.successor(shard).is_none()), "{versions:?}");
        assert!(!registry.request_hand_over(&[SHARD]), "{versions:?}");
    }
    announce_build(&registry, &objects, OWNER, &LOG_VERSIONS, 20);
    assert_eq!(targets(), [OWNER, OWNER], "its part");
    assert_eq!(registry.successor(SHARD), Some(OWNER));
}

/// A server follows the shards of an upgraded owner if it can read their logs, also after that owner was killed: others
/// that cannot do not count.
#[test]
fn servers_that_cannot_read_a_log_do_not_count_as_its_followers() {
    let objects = Arc::new(FlakyObjects::default());
    let registry = registry_of(&objects, SILENCE, 20);
    let shards: Vec<OwnedShard> = (0..20).map(|shard| OwnedShard { shard, term: 4 }).collect();
    for beat in 0..2 {
        let log_versions = LOG_VERSIONS.to_vec();
        let record = ServerRecord { beat, shards: shards.clone(), log_versions, ..ServerRecord::default() };
        objects.inner.put(&OWNER.object(), &record.encode()).expect("in memory");
        look_at(&registry, beat);
    }
    let followed = || (0..20).filter(|shard| registry.rank(Shard(*shard)).is_some()).count();
    (10..20).for_each(|server| announce_build(&registry, &objects, ServerId(server), &LOG_VERSIONS, 10));
    assert!(followed() < 20, "others follow some of them");
    (10..20).for_each(|server| announce_build(&registry, &objects, ServerId(server), &[1, 1, 1], 20));
    assert_eq!(followed(), 20);
    // The others go on, and the owner is silent.
    for ms in (1000..8000).step_by(750) {
        (10..20).for_each(|server| announce_build(&registry, &objects, ServerId(server), &[1, 1, 1], ms));
    }
    assert!(registry.is_silent(SHARD, 4));
    assert_eq!(followed(), 20, "their owner has ended");
}
