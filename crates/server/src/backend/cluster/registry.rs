//! The servers of a bucket, as this server sees them: writes its own record, and watches those of the others.
//!
//! One thread overwrites this server's record, four times within the silence. Another reads the records of the others as
//! often, and lists them once: a list costs more than a read, and a new server can wait. What it has seen is used by the
//! threads of the shards and by requests that have to be forwarded.
//!
//! **Invariant.** The record is overwritten in time, however long reads take. Only what was read has been watched: while the
//! record of a server cannot be read, that server is not silent.
//!
//! **What would break it.** One thread for both: with many servers, or a read that hangs, a healthy owner would look silent
//! to others. To count a failed read as one that has seen no change: a store that refuses reads for a moment would depose
//! every idle owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::LOG_VERSIONS;
use kernel::Shard;
use store::object::{Objects, ObjectsError, ObjectsErrorKind};

use super::placement;
use super::server_record::{HandedOverShard, OwnedShard, PREFIX, RECORD_BYTES_MAX, ServerId, ServerRecord};
use super::shard_slot::ShardSlot;
use super::watched_time::{WatchedTime, boot_clock};

/// The number of looks within the silence.
pub(super) const LOOKS: u32 = 4;
/// The most servers whose records are read.
const SERVERS_MAX: usize = 1000;
/// The most records that one thread reads one after the other, and the most threads, if that is possible.
const READS_PER_THREAD: usize = 4;
const THREADS_MAX: usize = 16;
/// A record that has not changed for this many silences is deleted.
const FORGOTTEN_SILENCES: u32 = 100;

/// The servers of a bucket.
pub(crate) struct Registry {
    id: ServerId,
    silence: Duration,
    objects: Arc<dyn Objects>,
    slots: Vec<Arc<ShardSlot>>,
    state: Mutex<RegistryState>,
    beat: AtomicU64,
    looks: AtomicU64,
    woken: Condvar,
    /// Notified when the owner of a shard may have changed.
    changed: Condvar,
}

#[derive(Default)]
struct RegistryState {
    /// Where clients and other servers reach this one.
    address: String,
    is_stopping: bool,
    servers: BTreeMap<ServerId, WatchedServer>,
    /// The tenures in which this server owns shards.
    owned: BTreeMap<Shard, u64>,
    /// Shards that were handed over, by whom they were handed over to, until that server says so itself.
    handed_over: BTreeMap<Shard, (u64, ServerId)>,
    /// Shards that an operator wants to be handed over.
    hand_overs: BTreeSet<Shard>,
    is_woken: bool,
}

impl RegistryState {
    /// Notes what a read of the server's record has returned, which began and ended at these times. A change may be as late
    /// as the end; without one, the record was watched until the beginning.
    fn note(
        &mut self,
        server: ServerId,
        read: RecordRead,
        (began, ended): (Duration, Duration),
        silence: Duration,
    ) {
        match (self.servers.get_mut(&server), read) {
            // Nothing was watched since the last look.
            (_, RecordRead::Failed) | (None, RecordRead::NoRecord) => {}
            (Some(known), RecordRead::Record(record)) if record != known.record => {
                known.unchanged.look(ended, true);
                (known.has_beaten, known.record) = (true, record);
            }
            (Some(known), RecordRead::Record(_) | RecordRead::NoRecord) => {
                known.unchanged.look(began, false);
            }
            (None, RecordRead::Record(record)) => {
                let mut unchanged = WatchedTime::new(silence);
                unchanged.look(ended, true);
                self.servers.insert(server, WatchedServer { record, unchanged, has_beaten: false });
            }
        }
    }

    /// The servers that cannot read the log of a shard, as its last owner has written it: all builds are the same, except during
    /// an upgrade. Records of servers that have ended count too.
    fn unable(&self) -> BTreeSet<(ServerId, Shard)> {
        let own = self.owned.iter().map(|(shard, term)| (*shard, *term, &LOG_VERSIONS[..]));
        let named = self.servers.values().flat_map(|known| {
            let versions = &known.record.log_versions[..];
            known.record.shards.iter().map(move |owned| (Shard(owned.shard), owned.term, versions))
        });
        let mut written: BTreeMap<Shard, (u64, &[u32])> = BTreeMap::new();
        for (shard, term, versions) in named.chain(own) {
            let newest = written.entry(shard).or_insert((term, versions));
            if term > newest.0 {
                *newest = (term, versions);
            }
        }
        let unable_to = |(shard, (_, versions)): (Shard, (u64, &[u32]))| {
            let unable = self.servers.iter().filter(move |(_, known)| !known.record.reads(versions));
            unable.map(move |(server, _)| (*server, shard)).collect::<Vec<_>>()
        };
        written.into_iter().flat_map(unable_to).collect()
    }
}

/// The result of reading a server's record.
enum RecordRead {
    Record(ServerRecord),
    /// It was deleted, or is malformed.
    NoRecord,
    /// The store did not say.
    Failed,
}

impl RecordRead {
    fn of(bytes: Result<&[u8], &ObjectsError>) -> RecordRead {
        match bytes {
            Ok(bytes) => ServerRecord::decode(bytes).map_or(RecordRead::NoRecord, RecordRead::Record),
            Err(error) if error.kind == ObjectsErrorKind::NotFound => RecordRead::NoRecord,
            Err(_) => RecordRead::Failed,
        }
    }
}

/// Another server.
struct WatchedServer {
    record: ServerRecord,
    unchanged: WatchedTime,
    /// Its record was seen to change. One that never did may be left by a server that has ended.
    has_beaten: bool,
}

impl WatchedServer {
    /// Whether it certainly runs, and takes shards.
    fn is_running(&self) -> bool {
        self.has_beaten && !self.unchanged.is_silent() && !self.record.stopping
    }
}

/// The server that owns a shard, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardOwner {
    pub(crate) server: ServerId,
    /// Empty if it is not known.
    pub(crate) address: String,
    pub(crate) term: u64,
    /// It has not been silent.
    pub(crate) is_live: bool,
}

impl Registry {
    pub(super) fn new(
        id: ServerId,
        silence: Duration,
        objects: Arc<dyn Objects>,
        slots: Vec<Arc<ShardSlot>>,
    ) -> Registry {
        let (state, woken, changed) = (Mutex::default(), Condvar::new(), Condvar::new());
        Registry {
            id,
            silence,
            objects,
            slots,
            state,
            beat: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            woken,
            changed,
        }
    }

    pub(crate) fn id(&self) -> ServerId {
        self.id
    }

    /// The time between two looks.
    pub(super) fn interval(&self) -> Duration {
        self.silence / LOOKS
    }

    pub(super) fn silence(&self) -> Duration {
        self.silence
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Other servers reach this one here: `https://host:port`.
    pub(crate) fn advertise(&self, address: String) {
        self.lock().address = address;
        self.wake();
    }

    /// Ends the wait before the next beat.
    pub(super) fn wake(&self) {
        self.lock().is_woken = true;
        self.woken.notify_all();
    }

    /// Beats until the server stops.
    pub(super) fn run_beats(&self, stopping: &AtomicBool) {
        while !stopping.load(Ordering::Acquire) {
            self.publish();
            let state = self.lock();
            let timeout = self.woken.wait_timeout_while(state, self.interval(), |state| !state.is_woken);
            timeout.unwrap_or_else(PoisonError::into_inner).0.is_woken = false;
        }
        // Others may take the shards that are handed over, and send nothing more here.
        self.lock().is_stopping = true;
        self.publish();
    }

    /// Looks until the server stops.
    pub(super) fn run_looks(&self, stopping: &AtomicBool) {
        while !stopping.load(Ordering::Acquire) {
            self.look();
            let is_running = |_: &mut RegistryState| !stopping.load(Ordering::Acquire);
            let waited = self.woken.wait_timeout_while(self.lock(), self.interval(), is_running);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Overwrites this server's record. A failure is retried with the next beat: a record that is not overwritten only
    /// invites others to take over.
    fn publish(&self) {
        let record = self.own_record();
        if let Err(error) = self.objects.put(&self.id.object(), &record.encode()) {
            tracing::warn!(%error, "the record of this server cannot be written; it is retried");
        }
    }

    /// A shard whose log has not taken an append for half the silence is left out, so that another server may try.
    fn own_record(&self) -> ServerRecord {
        let state = self.lock();
        let is_working = |shard: &Shard| {
            let engine = self.slots[shard.0 as usize].engine();
            engine.is_some_and(|engine| {
                engine.sequencer().busy_for().is_none_or(|busy| busy < self.silence / 2)
            })
        };
        let owned = state.owned.iter().filter(|(shard, _)| is_working(shard));
        let shards = owned.map(|(shard, term)| OwnedShard { shard: shard.0, term: *term }).collect();
        let beat = self.beat.fetch_add(1, Ordering::Relaxed);
        let handed = |(shard, (term, to)): (&Shard, &(u64, ServerId))| HandedOverShard {
            shard: shard.0,
            term: *term,
            to: to.to_string(),
        };
        let handed_over = state.handed_over.iter().map(handed).collect();
        let (address, stopping) = (state.address.clone(), state.is_stopping);
        ServerRecord { address, beat, stopping, log_versions: LOG_VERSIONS.to_vec(), shards, handed_over }
    }

    /// Deletes this server's record: it has stopped.
    pub(super) fn withdraw(&self) {
        if let Err(error) = self.objects.delete(&self.id.object()) {
            tracing::debug!(%error, "the record of this server cannot be deleted; others do it later");
        }
    }

    /// Reads the records of all other servers.
    pub(super) fn look(&self) {
        self.look_with(&boot_clock);
    }

    fn look_with(&self, clock: &dyn Fn() -> Duration) {
        let began = clock();
        let is_listed = self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(u64::from(LOOKS));
        let servers: Vec<ServerId> = if is_listed {
            match self.list() {
                Ok(servers) => servers,
                Err(error) => {
                    tracing::debug!(%error, "the records of other servers cannot be listed");
                    return;
                }
            }
        } else {
            self.lock().servers.keys().copied().collect()
        };
        let seen = self.read(&servers);
        let forgotten = self.note(seen, (began, clock()));
        self.changed.notify_all();
        for server in forgotten {
            let _ = self.objects.delete(&server.object());
        }
    }

    /// Whether every server that has a record is known: a list of all records that begins now says so. A record that was not
    /// known is one that has just changed.
    pub(super) fn knows_all_servers(&self) -> bool {
        let (began, Ok(mut servers)) = (boot_clock(), self.list()) else { return false };
        servers.retain(|server| !self.lock().servers.contains_key(server));
        let seen = self.read(&servers);
        let is_complete = !seen.values().any(|read| matches!(read, RecordRead::Failed));
        let (mut state, reading) = (self.lock(), (began, boot_clock()));
        for (server, read) in seen {
            state.note(server, read, reading, self.silence);
        }
        is_complete
    }

    /// Reads records, several at a time.
    fn read(&self, servers: &[ServerId]) -> BTreeMap<ServerId, RecordRead> {
        let read_one = |server: &ServerId| {
            let bytes = self.objects.get_range(&server.object(), 0, RECORD_BYTES_MAX);
            (*server, RecordRead::of(bytes.as_deref()))
        };
        if servers.len() <= READS_PER_THREAD {
            return servers.iter().map(read_one).collect();
        }
        let per_thread = servers.len().div_ceil(THREADS_MAX).max(READS_PER_THREAD);
        std::thread::scope(|scope| {
            let parts = servers.chunks(per_thread);
            let readers: Vec<_> = parts
                .map(|part| scope.spawn(move || part.iter().map(read_one).collect::<Vec<_>>()))
                .collect();
            // A reader that panics has read nothing.
            readers.into_iter().flat_map(|reader| reader.join().unwrap_or_default()).collect()
        })
    }

    /// All other servers that have a record.
    fn list(&self) -> Result<Vec<ServerId>, ObjectsError> {
        let (mut names, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.objects.list(PREFIX, &after)?;
            names.extend(page.names);
            match names.last().filter(|_| page.more && names.len() < SERVERS_MAX) {
                Some(last) => after.clone_from(last),
                None => break,
            }
        }
        let servers = names.iter().filter_map(|name| ServerId::of_object(name));
        Ok(servers.filter(|server| *server != self.id).collect())
    }

    /// Notes what a look has seen. Returns the servers that have not been heard of for very long.
    fn note(&self, seen: BTreeMap<ServerId, RecordRead>, reading: (Duration, Duration)) -> Vec<ServerId> {
        let mut state = self.lock();
        state.servers.retain(|server, _| seen.contains_key(server));
        for (server, read) in seen {
            state.note(server, read, reading, self.silence);
        }
        // A new owner that says so itself needs no hint any more.
        let RegistryState { handed_over, servers, .. } = &mut *state;
        handed_over.retain(|shard, (term, _)| {
            !servers.values().any(|server| server.record.term_of(*shard).is_some_and(|named| named > *term))
        });
        let is_forgotten =
            |server: &WatchedServer| server.unchanged.watched() > self.silence * FORGOTTEN_SILENCES;
        state.servers.iter().filter(|(_, server)| is_forgotten(server)).map(|(id, _)| *id).collect()
    }

    /// Waits until every shard has an owner, or the timeout is over. Whether every shard has one.
    pub(super) fn wait_for_owners(&self, timeout: Duration) -> bool {
        let has_owner = |state: &RegistryState, shard: Shard| {
            // The record of a server that has ended still names its shards.
            let named = state
                .servers
                .values()
                .any(|server| server.has_beaten && server.record.term_of(shard).is_some());
            state.owned.contains_key(&shard) || named
        };
        let is_missing =
            |state: &mut RegistryState| !(0..self.shard_count()).all(|shard| has_owner(state, Shard(shard)));
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, is_missing);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The server that owns the shard, by the record with the highest term; this server is not considered.
    pub(crate) fn owner(&self, shard: Shard) -> Option<ShardOwner> {
        let state = self.lock();
        let named = state.servers.iter().filter_map(|(id, server)| {
            let term = server.record.term_of(shard)?;
            let (address, is_live) = (server.record.address.clone(), !server.unchanged.is_silent());
            Some(ShardOwner { server: *id, address, term, is_live })
        });
        let named = named.max_by_key(|owner| owner.term);
        let Some((term, to)) = state.handed_over.get(&shard) else { return named };
        if named.as_ref().is_some_and(|named| named.term > *term) {
            return named;
        }
        let address = state.servers.get(to).map(|server| server.record.address.clone()).unwrap_or_default();
        Some(ShardOwner { server: *to, address, term: *term, is_live: true })
    }

    /// Whether no live server says that it owns the shard in this term or a later one.
    pub(super) fn is_silent(&self, shard: Shard, term: u64) -> bool {
        let state = self.lock();
        state.servers.values().all(|server| {
            let names_shard = server.record.term_of(shard).is_some_and(|named| named >= term);
            !names_shard || server.unchanged.is_silent()
        })
    }

    /// Whether a live server says that it owns the shard in a later term than this: this server's ownership is past.
    pub(super) fn is_superseded(&self, shard: Shard, term: u64) -> bool {
        let state = self.lock();
        let later = |server: &WatchedServer| server.record.term_of(shard).is_some_and(|named| named > term);
        state.servers.values().any(|server| later(server) && !server.unchanged.is_silent())
    }

    /// This server owns the shard from now on. Its record says so at once: others forward requests by it.
    pub(super) fn set_owned(&self, shard: Shard, term: u64) {
        let mut state = self.lock();
        state.owned.insert(shard, term);
        state.handed_over.remove(&shard);
        drop(state);
        self.changed.notify_all();
        self.wake();
    }

    /// This server has lost the shard.
    pub(super) fn set_lost(&self, shard: Shard) {
        self.end_ownership(shard, None);
        self.wake();
    }

    /// This server has handed the shard over. The next owner's record says so; this server's own can wait for the next beat,
    /// which saves a put.
    pub(super) fn set_handed_over(&self, shard: Shard, term: u64, to: Option<ServerId>) {
        self.end_ownership(shard, to.map(|to| (term, to)));
    }

    fn end_ownership(&self, shard: Shard, handed_over: Option<(u64, ServerId)>) {
        let mut state = self.lock();
        state.owned.remove(&shard);
        state.hand_overs.remove(&shard);
        state.handed_over.extend(handed_over.map(|to| (shard, to)));
        drop(state);
        self.changed.notify_all();
    }

    /// Notes that an operator wants shards to be handed over. False if no other server is known that could have them.
    pub(super) fn request_hand_over(&self, shards: &[Shard]) -> bool {
        if !shards.iter().all(|shard| self.successor(*shard).is_some()) {
            return false;
        }
        self.lock().hand_overs.extend(shards);
        true
    }

    fn is_hand_over_requested(&self, shard: Shard) -> bool {
        self.lock().hand_overs.contains(&shard)
    }

    /// This server's place among those that should follow the shard; `None` if others do.
    pub(super) fn rank(&self, shard: Shard) -> Option<usize> {
        if self.is_handed_to_this(shard) {
            return Some(0);
        }
        let (servers, owners) = self.members();
        // This server is none of them: it finds out by itself, and says so in its log.
        let unable = self.lock().unable();
        placement::follower_rank(self.id, shard, &servers, &owners, self.shard_count(), &unable)
    }

    /// Whether a server has handed the shard over to this one, and no server owns it since.
    pub(super) fn is_handed_to_this(&self, shard: Shard) -> bool {
        let state = self.lock();
        let terms = state.servers.values().filter_map(|server| server.record.handed_to(self.id, shard));
        let Some(handed) = terms.max() else { return false };
        !state.servers.values().any(|server| server.record.term_of(shard).is_some_and(|term| term > handed))
    }

    /// The server to hand the shard over to, if an operator wants that, or if this one owns more than its part.
    pub(super) fn hand_over_target(&self, shard: Shard) -> Option<ServerId> {
        if self.is_hand_over_requested(shard) {
            return self.successor(shard);
        }
        let (mut servers, owners) = self.members();
        self.retain_readers(&mut servers);
        let moves = placement::surplus(self.id, &servers, &owners, self.shard_count());
        moves.into_iter().find(|(moved, _)| *moved == shard).map(|(_, to)| to)
    }

    /// The server that should have the shard when this one stops.
    pub(super) fn successor(&self, shard: Shard) -> Option<ServerId> {
        let (mut others, owners) = self.members();
        self.retain_readers(&mut others);
        others.retain(|server| *server != self.id);
        let owners: BTreeMap<_, _> = owners.into_iter().filter(|(_, owner)| *owner != self.id).collect();
        let unable = self.lock().unable();
        others.iter().copied().find(|server| {
            let rank =
                placement::follower_rank(*server, shard, &others, &owners, self.shard_count(), &unable);
            rank == Some(0)
        })
    }

    /// Leaves the servers that can read the logs that this one writes. An older one, during an upgrade, could not serve a shard
    /// that it was given, nor give it back.
    fn retain_readers(&self, servers: &mut Vec<ServerId>) {
        let state = self.lock();
        let reads = |known: &WatchedServer| known.record.reads(&LOG_VERSIONS);
        servers.retain(|server| *server == self.id || state.servers.get(server).is_some_and(reads));
    }

    /// The running servers, this one included, and the owners of shards.
    fn members(&self) -> (Vec<ServerId>, BTreeMap<Shard, ServerId>) {
        let state = self.lock();
        let running = state.servers.iter().filter(|(_, server)| server.is_running());
        let mut owners: BTreeMap<Shard, ServerId> =
            state.handed_over.iter().map(|(shard, (_, to))| (*shard, *to)).collect();
        for (id, server) in running.clone() {
            owners.extend(server.record.shards.iter().map(|owned| (Shard(owned.shard), *id)));
        }
        owners.extend(state.owned.keys().map(|shard| (*shard, self.id)));
        let mut servers: Vec<_> = running.map(|(id, _)| *id).chain([self.id]).collect();
        servers.sort_unstable();
        (servers, owners)
    }

    fn shard_count(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("a store numbers its shards with 32 bits")
    }
}

#[cfg(test)]
mod tests;
