//! What servers have said, compared with the log. The log consists of the first object of each number in the journal of the
//! store: no server knows it, and each response has to agree with it.
//!
//! **Checks.** Every state of a follower is the one after a beginning of the log. A granted lease is in the log when the
//! response goes out, and stays with its token; a release as well. What was refused is never in the log. A read reveals a
//! state that was current at a moment between its request and its response. Nothing above the highest floor is deleted. A
//! recovery at the end, from snapshots and what is left, has the state that all batches lead to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::Follower;
use kernel::{Granted, Kernel, LeaseId, Lsn, ResourceName, State, Token};
use sim::fixture::default_namespace;
use sim::objects::{ObjectChange, SimObjects};
use sim::rng::Rng;
use sim::servers::clock::{Machine, TrueTime};
use sim::servers::server::{Backend, Server, WorldSize};
use store::object::{MemoryObjects, Objects, WriterId};

const LOG: &str = "log/0/";
const FLOORS: &str = "floor/0/";

/// The history of all servers. Clones share it.
#[derive(Clone, Default)]
pub(super) struct History(Arc<Mutex<Responses>>);

#[derive(Default)]
struct Responses {
    counts: BTreeMap<&'static str, u64>,
    live: BTreeMap<u128, u128>,
    dead: Vec<u128>,
    /// The last record and the hash of states of followers.
    states: Vec<(Lsn, u64)>,
    /// With the number of changes when the response was sent.
    granted: Vec<(String, LeaseId, Token, usize)>,
    released: Vec<LeaseId>,
    /// Leases whose release was refused: there was no other.
    not_released: Vec<LeaseId>,
    /// Keys of refused requests.
    refused: Vec<String>,
    /// The last record that was read, and the number of changes when the request and the response were sent.
    reads: Vec<(Lsn, usize, usize)>,
}

/// The log, by the journal.
struct Truth {
    objects: MemoryObjects,
    follower: Follower,
    next: u64,
    floor: u64,
    /// The last record and the state after each batch, with the number of changes.
    batches: Vec<(usize, Lsn, u64)>,
}

impl History {
    fn lock(&self) -> MutexGuard<'_, Responses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.lock().counts.entry(what).or_default() += 1;
    }

    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.clone()
    }

    /// A machine has a new process.
    pub(super) fn lives(&self, machine: usize, process: u128) {
        let dead = self.lock().live.insert(machine as u128, process);
        self.lock().dead.extend(dead);
    }

    /// The server to which a log is handed over: any, one that lives, or one that does not.
    pub(super) fn hand_over_target(&self, rng: &mut Rng, from: u128) -> (Option<u128>, &'static str) {
        let responses = self.lock();
        let others: Vec<u128> = responses.live.values().copied().filter(|id| *id != from).collect();
        match rng.below(3) {
            0 if !others.is_empty() => (Some(*rng.pick(&others)), "handed over to a live server"),
            1 if !responses.dead.is_empty() => {
                (Some(*rng.pick(&responses.dead)), "handed over to a dead server")
            }
            _ => (None, "handed over to any"),
        }
    }

    pub(super) fn state(&self, kernel: &Kernel) {
        self.lock().states.push((kernel.last_lsn(), hash(kernel)));
    }

    pub(super) fn granted(&self, name: String, granted: &Granted, changes: usize) {
        self.lock().granted.push((name, granted.lease, granted.token, changes));
    }

    pub(super) fn released(&self, lease: LeaseId) {
        self.lock().released.push(lease);
    }

    pub(super) fn not_released(&self, lease: LeaseId) {
        self.lock().not_released.push(lease);
    }

    pub(super) fn refused(&self, name: String) {
        self.lock().refused.push(name);
    }

    pub(super) fn read(&self, found: Lsn, arrived: usize, responded: usize) {
        self.lock().reads.push((found, arrived, responded));
    }

    pub(super) fn check(&self, objects: &SimObjects) -> Result<(), String> {
        // What is still on its way lands.
        objects.heal();
        let mut truth = Truth::new();
        for (index, change) in objects.journal().iter().enumerate() {
            truth.apply(index + 1, change)?;
        }
        let responses = self.lock();
        responses.check_states(&truth)?;
        responses.check_outcomes(&truth)?;
        for (found, arrived, responded) in &responses.reads {
            let (oldest, newest) = (truth.last_at(*arrived), truth.last_at(*responded));
            ensure(oldest <= *found && *found <= newest, || {
                format!(
                    "a read has revealed {found:?}, which was current neither at {oldest:?} nor up to {newest:?}"
                )
            })?;
        }
        let found = follow(Arc::new(objects.handle()), 2);
        ensure(hash(found.kernel()) == hash(truth.follower.kernel()), || {
            format!("recovered {:?}, and the log ends with {:?}", found.kernel().last_lsn(), truth.last())
        })
    }
}

impl Responses {
    fn check_states(&self, truth: &Truth) -> Result<(), String> {
        let known: BTreeMap<Lsn, u64> = truth.batches.iter().map(|(_, last, hash)| (*last, *hash)).collect();
        let new = Kernel::new();
        for (last, hash) in &self.states {
            let is_new = *last == new.last_lsn();
            ensure(is_new || known.get(last) == Some(hash), || {
                format!("a follower had a state up to {last:?} that is no beginning of the log")
            })?;
        }
        Ok(())
    }

    fn check_outcomes(&self, truth: &Truth) -> Result<(), String> {
        let (kernel, now) = (truth.follower.kernel(), truth.follower.kernel().now());
        for (name, lease, token, changes) in &self.granted {
            let found = kernel.lease(*lease, now).ok().map(|view| view.token);
            ensure(found == Some(*token), || {
                format!("{name} was granted as {lease:?}, and is not in the log")
            })?;
            let durable = truth.last_at(*changes);
            ensure(lease.lsn <= durable, || {
                format!("{name} was granted as {lease:?} when the log ended with {durable:?}")
            })?;
        }
        for (leases, expected) in [(&self.released, State::Released), (&self.not_released, State::Active)] {
            for lease in leases {
                let found = kernel.lease(*lease, now).ok().map(|view| view.state);
                ensure(found == Some(expected), || format!("{lease:?} is {found:?}, and not {expected:?}"))?;
            }
        }
        for name in &self.refused {
            let resource = ResourceName::parse(&format!("KEY:{name}"), None).expect("a valid name");
            let holders = kernel.holders(&default_namespace(), &resource, now);
            ensure(holders.is_empty(), || format!("{name} was refused, and is granted: {holders:?}"))?;
        }
        Ok(())
    }
}

impl Truth {
    fn new() -> Truth {
        let objects = MemoryObjects::default();
        let follower = follow(Arc::new(objects.clone()), 1);
        Truth { objects, follower, next: 0, floor: 0, batches: Vec::new() }
    }

    fn apply(&mut self, changes: usize, change: &ObjectChange) -> Result<(), String> {
        match change {
            ObjectChange::Put { name, bytes } => {
                if let Some(floor) = number(FLOORS, name) {
                    self.floor = self.floor.max(floor);
                }
                let Some(seq) = number(LOG, name) else { return Ok(()) };
                ensure(seq <= self.next, || format!("{seq} was created before {}", self.next))?;
                if seq < self.next {
                    // Below a floor, where nothing is read.
                    return ensure(seq < self.floor, || format!("{seq} was created twice above the floor"));
                }
                self.next += 1;
                self.objects.put(name, bytes).map_err(|error| error.to_string())?;
                let has_grown = self.follower.poll(false).map_err(|error| format!("batch {seq}: {error}"))?;
                ensure(has_grown, || format!("batch {seq} is not read"))?;
                let kernel = self.follower.kernel();
                self.batches.push((changes, kernel.last_lsn(), hash(kernel)));
                Ok(())
            }
            ObjectChange::Delete { name } => match number(LOG, name) {
                Some(seq) => {
                    ensure(seq < self.floor, || format!("{seq} was deleted above the floor {}", self.floor))
                }
                None => Ok(()),
            },
            ObjectChange::Replace { .. } => Ok(()),
        }
    }

    fn last(&self) -> Lsn {
        self.follower.kernel().last_lsn()
    }

    /// The last record when the store had seen this many changes.
    fn last_at(&self, changes: usize) -> Lsn {
        let known = self.batches.partition_point(|(at, ..)| *at <= changes);
        known.checked_sub(1).map_or(Lsn(0), |at| self.batches[at].1)
    }
}

fn follow(objects: Arc<dyn Objects>, writer: u128) -> Follower {
    let (backend, machine) = (Backend::Objects(objects, WriterId(writer)), Machine::new(TrueTime(0), 99, 0));
    Server::follow(&WorldSize::SMALL, &backend, &machine).expect("a sound log")
}

fn hash(kernel: &Kernel) -> u64 {
    kernel.state_hash()
}

fn number(prefix: &str, name: &str) -> Option<u64> {
    name.strip_prefix(prefix).and_then(|digits| u64::from_str_radix(digits, 16).ok())
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
