//! The states of the model: a bucket, requests in flight, three servers, and what the clients were told.
//!
//! **Invariant.** Two states that differ only in the names of their servers have the same hash, so the search visits one
//! of them. `event` describes the last step, and is not part of the state.
//!
//! **What would break it.** A rule or a property that treats one server differently from another.

use std::hash::{Hash, Hasher};

pub(super) const SERVERS: usize = 3;
/// Maximum number of batches in a log.
pub(super) const LOG_MAX: usize = 6;
/// Maximum number of commands in a run.
pub(super) const COMMANDS_MAX: usize = 4;
/// Maximum number of puts in flight.
pub(super) const PUTS_MAX: usize = 6;

/// One opening of the log by one server. A process that restarts or discards its state is a new writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Writer {
    pub(super) server: u8,
    pub(super) opening: u8,
}

/// The contents of a batch. Every command writes the same document, and has uploaded a blob of its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Record {
    Open,
    /// Only in a broken variant: `open` and a command in one batch.
    OpenWith(u8),
    Write(u8),
    Close {
        to: u8,
    },
}

/// A batch. Two batches with the same bytes are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Batch {
    pub(super) writer: Writer,
    pub(super) record: Record,
}

impl Batch {
    pub(super) fn begins_tenure(self) -> bool {
        matches!(self.record, Record::Open | Record::OpenWith(_))
    }

    pub(super) fn command(self) -> Option<u8> {
        match self.record {
            Record::Write(command) | Record::OpenWith(command) => Some(command),
            Record::Open | Record::Close { .. } => None,
        }
    }
}

/// The first batches of a log: the state of a kernel, of a snapshot, or the log itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Prefix {
    batches: [Option<Batch>; LOG_MAX],
    pub(super) len: u8,
}

impl Prefix {
    pub(super) fn push(&mut self, batch: Batch) {
        self.batches[usize::from(self.len)] = Some(batch);
        self.len += 1;
    }

    pub(super) fn get(&self, seq: u8) -> Option<Batch> {
        self.batches.get(usize::from(seq)).copied().flatten()
    }

    pub(super) fn first(&self, len: u8) -> Prefix {
        let mut first = Prefix::default();
        self.iter().take(usize::from(len)).for_each(|batch| first.push(batch));
        first
    }

    pub(super) fn starts_with(&self, other: &Prefix) -> bool {
        other.len <= self.len && other.iter().eq(self.iter().take(usize::from(other.len)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Batch> + '_ {
        self.batches.iter().map_while(|batch| *batch)
    }

    /// The command whose blob is the document.
    pub(super) fn document(&self) -> Option<u8> {
        self.iter().filter_map(Batch::command).last()
    }

    pub(super) fn contains_command(&self, command: u8) -> bool {
        self.iter().any(|batch| batch.command() == Some(command))
    }
}

/// A put of a batch on its way to the object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Put {
    pub(super) seq: u8,
    pub(super) batch: Batch,
    /// Its sender has not timed out.
    pub(super) is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Role {
    /// Not running, or about to recover from the store.
    Down,
    /// Reads the log from this floor, which it has listed.
    Opening { floor: u8 },
    /// Reads what the owner appends.
    Follower,
    /// Its `open` is undecided.
    Candidate,
    /// Its `open` is its own; it has not listed the floors yet.
    Listing,
    /// It owned the log when it last looked.
    Owner,
}

/// The progress of an undecided append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Attempt {
    Sent,
    /// The response, not processed yet: the object was created.
    Created,
    /// The response, not processed yet: the name is in use.
    Exists,
    /// No response.
    TimedOut,
}

/// An append whose outcome is unknown. Its number is the length of the server's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Pending {
    pub(super) batch: Batch,
    pub(super) attempt: Attempt,
}

/// A request whose response logs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Read {
    /// The length of the log when the request arrived.
    pub(super) arrived_at: u8,
    /// A confirmation has begun since.
    pub(super) is_covered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub(super) role: Role,
    pub(super) opening: u8,
    /// The batches that it has read or written.
    pub(super) log: Prefix,
    /// The number of batches after whose reading it has listed the floors.
    pub(super) checked: u8,
    /// The number of the batch that began its tenure.
    pub(super) tenure: u8,
    pub(super) pending: Option<Pending>,
    /// A command that is decided in memory, behind the pending batch or a HEAD.
    pub(super) queued: Option<u8>,
    pub(super) read: Option<Read>,
    /// The result of a HEAD, not processed yet: whether the object exists.
    pub(super) head: Option<bool>,
    /// Batches from `.0` up to `.1` are to be deleted.
    pub(super) to_delete: (u8, u8),
    /// Only in broken variants: a floor that is still to be created.
    pub(super) floor_due: u8,
}

impl Server {
    pub(super) const DOWN: Server = Server {
        role: Role::Down,
        opening: 0,
        log: Prefix { batches: [None; LOG_MAX], len: 0 },
        checked: 0,
        tenure: 0,
        pending: None,
        queued: None,
        read: None,
        head: None,
        to_delete: (0, 0),
        floor_due: 0,
    };

    /// What has been decided with the help of the store alone: the state that a recovery led to.
    pub(super) fn recovered(&self) -> Prefix {
        match self.role {
            Role::Owner => self.log.first(self.tenure),
            _ => self.log.first(self.checked),
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.pending.is_some_and(|pending| matches!(pending.batch.record, Record::Close { .. }))
    }
}

/// What is left to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// Maximum length of the log.
    pub(super) log: u8,
    pub(super) commands: u8,
    pub(super) reads: u8,
    pub(super) timeouts: u8,
    pub(super) duplicates: u8,
    pub(super) crashes: u8,
    pub(super) floors: u8,
    pub(super) closes: u8,
    pub(super) collections: u8,
}

/// What the last step did, for properties about steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Nothing,
    /// A put whose sender no longer waits created its object, which is the next of the log.
    LatePutLanded,
    /// A put created an object below the floor.
    LandedBelowFloor,
    OwnPutRecognised,
    ReadByHead,
    ReadByAppend,
    /// A HEAD found the object of another writer.
    WokenOwnerDeposed,
    CandidateStoodDown,
    /// A writer found another's object below a floor, where its own batch may have been.
    Abandoned,
    FollowerStoodDown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The objects `log/<shard>/<seq>`.
    pub(super) objects: [Option<Batch>; LOG_MAX],
    /// The highest object `floor/<shard>/<seq>`, and the snapshot that reaches up to it.
    pub(super) floor: u8,
    pub(super) snapshot: Prefix,
    /// The blobs that exist, as bits, and the term in which each was uploaded.
    pub(super) blobs: u8,
    pub(super) blob_terms: [u8; COMMANDS_MAX],
    pub(super) puts: [Option<Put>; PUTS_MAX],
    pub(super) servers: [Server; SERVERS],
    pub(super) budget: Budget,
    pub(super) commands: u8,
    /// The log: of each number, the batch that was created first. No server knows it.
    pub(super) log: Prefix,
    /// The numbers whose batch was acknowledged, as bits.
    pub(super) acknowledged: u8,
    /// A batch that was acknowledged and is not the log's.
    pub(super) phantom: Option<(u8, Batch)>,
    /// The commands of which clients were told that they did not happen, as bits.
    pub(super) refused: u8,
    /// A response revealed a state that was not current after its request had arrived.
    pub(super) is_stale_read: bool,
    pub(super) event: Event,
}

impl State {
    /// Server 0 owns the log, and the others follow it.
    pub(super) fn first(budget: Budget) -> State {
        let open = Batch { writer: Writer { server: 0, opening: 0 }, record: Record::Open };
        let mut log = Prefix::default();
        log.push(open);
        let follower = Server { role: Role::Follower, log, checked: 1, ..Server::DOWN };
        let mut objects = [None; LOG_MAX];
        objects[0] = Some(open);
        State {
            objects,
            floor: 0,
            snapshot: Prefix::default(),
            blobs: 0,
            blob_terms: [0; COMMANDS_MAX],
            puts: [None; PUTS_MAX],
            servers: [Server { role: Role::Owner, ..follower }, follower, follower],
            budget,
            commands: 0,
            log,
            acknowledged: 1,
            phantom: None,
            refused: 0,
            is_stale_read: false,
            event: Event::Nothing,
        }
    }

    pub(super) fn object(&self, seq: u8) -> Option<Batch> {
        self.objects.get(usize::from(seq)).copied().flatten()
    }

    pub(super) fn server(&self, server: u8) -> &Server {
        &self.servers[usize::from(server)]
    }

    pub(super) fn server_mut(&mut self, server: u8) -> &mut Server {
        &mut self.servers[usize::from(server)]
    }

    pub(super) fn writer(&self, server: u8) -> Writer {
        Writer { server, opening: self.server(server).opening }
    }

    /// Keeps the puts sorted, so that their order is no part of the state.
    pub(super) fn add_put(&mut self, put: Put) {
        let free = self.puts.iter_mut().find(|slot| slot.is_none()).expect("the number of puts is bounded");
        *free = Some(put);
        self.sort_puts();
    }

    pub(super) fn sort_puts(&mut self) {
        self.puts.sort_unstable_by_key(|put| (put.is_none(), *put));
    }

    pub(super) fn has_free_put(&self) -> bool {
        self.puts.iter().any(Option::is_none)
    }

    /// The batches that are written anywhere: an opening that appears in none of them can be used again.
    fn batches(&self) -> impl Iterator<Item = Batch> + '_ {
        let puts = self.puts.iter().flatten().map(|put| put.batch);
        let objects = self.objects.iter().flatten().copied();
        let logs = self.servers.iter().flat_map(|server| server.log.iter());
        puts.chain(objects).chain(logs).chain(self.log.iter()).chain(self.snapshot.iter())
    }

    /// An opening that this server has not used, as far as anything shows.
    pub(super) fn fresh_opening(&self, server: u8) -> u8 {
        let used = |opening| self.batches().any(|batch| batch.writer == Writer { server, opening });
        (0..u8::MAX).find(|opening| !used(*opening)).expect("few are used")
    }
}

/// Hashes a state with its servers in an order that does not depend on their names.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let renaming = Renaming::canonical(self);
        let batch = |batch: Option<Batch>| batch.map(|batch| renaming.batch(batch));
        let prefix = |prefix: &Prefix, hasher: &mut H| {
            prefix.len.hash(hasher);
            prefix.iter().for_each(|one| renaming.batch(one).hash(hasher));
        };
        self.objects.iter().for_each(|object| batch(*object).hash(hasher));
        prefix(&self.log, hasher);
        prefix(&self.snapshot, hasher);
        let mut puts = self.puts.map(|put| put.map(|put| Put { batch: renaming.batch(put.batch), ..put }));
        puts.sort_unstable_by_key(|put| (put.is_none(), *put));
        puts.hash(hasher);
        for server in renaming.order.map(|server| &self.servers[usize::from(server)]) {
            (server.role, server.opening, server.checked, server.tenure).hash(hasher);
            prefix(&server.log, hasher);
            let pending = server.pending.map(|at| Pending { batch: renaming.batch(at.batch), ..at });
            (pending, server.queued, server.read, server.head).hash(hasher);
            (server.to_delete, server.floor_due).hash(hasher);
        }
        (self.floor, self.blobs, self.blob_terms, self.budget, self.commands).hash(hasher);
        (self.acknowledged, self.refused, self.is_stale_read).hash(hasher);
        self.phantom.map(|(seq, one)| (seq, renaming.batch(one))).hash(hasher);
    }
}

/// New names of the servers.
struct Renaming {
    names: [u8; SERVERS],
    /// The old names, in the order of the new ones.
    order: [u8; SERVERS],
}

impl Renaming {
    /// Sorts the servers by what distinguishes them. Servers that are not distinguished keep their order: two states
    /// that differ only in names may then both be visited, which costs time and nothing else.
    fn canonical(state: &State) -> Renaming {
        let key = |server: &u8| {
            let wrote = |batch: Option<Batch>| batch.is_some_and(|batch| batch.writer.server == *server);
            let bits = |bits: u16, wrote: bool| bits << 1 | u16::from(wrote);
            let in_log = state.log.iter().fold(0, |all, batch| bits(all, wrote(Some(batch))));
            let in_bucket = state.objects.iter().fold(0, |all, batch| bits(all, wrote(*batch)));
            let in_flight = state.puts.iter().fold(0, |all, put| bits(all, wrote(put.map(|put| put.batch))));
            let at = state.server(*server);
            let progress = at.pending.map(|pending| pending.attempt);
            let rest = (at.queued, at.read, at.head, at.to_delete, at.opening);
            (in_log, at.role, at.log.len, at.checked, in_bucket, in_flight, progress, rest)
        };
        let mut order = [0, 1, 2];
        order.sort_by_key(key);
        let mut names = [0; SERVERS];
        order.iter().zip(0..).for_each(|(server, name)| names[usize::from(*server)] = name);
        Renaming { names, order }
    }

    fn batch(&self, batch: Batch) -> Batch {
        let name = |server: u8| self.names[usize::from(server)];
        let writer = Writer { server: name(batch.writer.server), ..batch.writer };
        let record = match batch.record {
            Record::Close { to } => Record::Close { to: name(to) },
            record => record,
        };
        Batch { writer, record }
    }
}
