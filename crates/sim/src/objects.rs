//! A simulated object store behind an unreliable network.
//!
//! **Invariant.** The store itself is strongly consistent, and a name is created at most once until it is deleted. The
//! seed decides the fate of each request: it is lost, or it is executed and its response is lost, or it is executed
//! later, after other requests. The journal lists all changes in the order of execution. Same seed and same requests:
//! same behaviour.
//!
//! **What would break it.** A delayed request that is executed before a request that already has its response: a put
//! would then succeed on a name that a response called taken.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::object::{MemoryObjects, ObjectUpload, Objects, ObjectsError, ObjectsErrorKind, Page, Part};

use crate::rng::Rng;

/// How unreliable the network is.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkFaults {
    /// The percentage of requests with a fault.
    pub fault_percent: u64,
    /// A delayed request is executed after at most this many other requests.
    pub delay_max: u64,
    /// The percentage of changes that the network repeats: executed at once, and again later.
    pub repeated_percent: u64,
    /// The percentage of requests that are denied (403): without any effect, also reads of names that do not exist.
    pub denied_percent: u64,
}

/// A change to the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectChange {
    /// An object was created.
    Put {
        /// Its name.
        name: String,
        /// Its contents.
        bytes: Vec<u8>,
    },
    /// An object was created or replaced: an upload in parts was completed.
    Replace {
        /// Its name.
        name: String,
        /// Its contents.
        bytes: Vec<u8>,
    },
    /// An existing object was deleted.
    Delete {
        /// Its name.
        name: String,
    },
}

/// A simulated object store. Clones share the objects.
#[derive(Clone)]
pub struct SimObjects(Arc<Mutex<Inner>>);

struct Inner {
    objects: MemoryObjects,
    rng: Rng,
    faults: NetworkFaults,
    requests: u64,
    /// Delayed changes, with the number of the request before which they are executed.
    delayed: Vec<(u64, ObjectChange)>,
    journal: Vec<ObjectChange>,
}

/// The fate of a request that changes objects.
enum RequestFate {
    Normal,
    /// It has no effect and fails with this response.
    Rejected(ObjectsErrorKind),
    /// It is executed; the response is lost.
    ResponseLost,
    /// It is executed later; the response is lost.
    Delayed,
    /// It is never executed; there is no response.
    Lost,
}

impl SimObjects {
    /// An empty store.
    pub fn new(seed: u64, faults: NetworkFaults) -> SimObjects {
        let (objects, rng) = (MemoryObjects::default(), Rng::new(seed));
        let inner = Inner { objects, rng, faults, requests: 0, delayed: Vec::new(), journal: Vec::new() };
        SimObjects(Arc::new(Mutex::new(inner)))
    }

    /// A connection to the store, one for each client.
    pub fn handle(&self) -> SimHandle {
        SimHandle { objects: self.clone(), partitioned: Arc::new(AtomicBool::new(false)) }
    }

    /// Executes all delayed requests, and ends all faults.
    pub fn heal(&self) {
        let mut inner = self.inner();
        inner.faults = NetworkFaults::default();
        inner.execute_delayed(u64::MAX);
    }

    /// A copy of the store without faults, and without the objects whose names begin with `prefix`.
    #[must_use]
    pub fn without(&self, prefix: &str) -> SimObjects {
        let copy = SimObjects::new(0, NetworkFaults::default());
        let (mut after, objects) = (String::new(), self.inner().objects.clone());
        while let Some(page) = objects.list("", &after).ok().filter(|page| !page.names.is_empty()) {
            for name in page.names.iter().filter(|name| !name.starts_with(prefix)) {
                let bytes = objects.get(name).expect("it was listed");
                copy.inner().objects.put(name, &bytes).expect("objects in memory");
            }
            after.clone_from(page.names.last().expect("not empty"));
        }
        copy
    }

    /// All changes, in the order of execution.
    pub fn journal(&self) -> Vec<ObjectChange> {
        self.inner().journal.clone()
    }

    /// The number of changes so far.
    pub fn changes_count(&self) -> usize {
        self.inner().journal.len()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Counts a request, and executes the delayed ones that are due.
    fn begin(&mut self) {
        self.requests += 1;
        self.execute_delayed(self.requests);
    }

    fn execute_delayed(&mut self, now: u64) {
        let (mut due, delayed): (Vec<_>, Vec<_>) = self.delayed.drain(..).partition(|(at, _)| *at <= now);
        self.delayed = delayed;
        due.sort_by_key(|(at, _)| *at);
        for (_, change) in due {
            // Its response is lost.
            let _ = self.execute(change);
        }
    }

    fn execute(&mut self, change: ObjectChange) -> Result<(), ObjectsError> {
        match &change {
            ObjectChange::Put { name, bytes } => self.objects.put_if_absent(name, bytes)?,
            ObjectChange::Replace { name, bytes } => self.objects.put(name, bytes)?,
            ObjectChange::Delete { name } if self.objects.head(name).is_ok() => self.objects.delete(name)?,
            ObjectChange::Delete { .. } => return Ok(()),
        }
        self.journal.push(change);
        Ok(())
    }

    fn has_fault(&mut self) -> bool {
        let fault_percent = self.faults.fault_percent;
        self.rng.below(100) < fault_percent
    }

    fn check_access(&mut self) -> Result<(), ObjectsError> {
        let denied_percent = self.faults.denied_percent;
        if denied_percent > 0 && self.rng.below(100) < denied_percent {
            return Err(ObjectsError::new(ObjectsErrorKind::Denied, "injected fault"));
        }
        Ok(())
    }

    fn fate(&mut self, partitioned: bool) -> RequestFate {
        if partitioned {
            return RequestFate::Delayed;
        }
        if !self.has_fault() {
            return RequestFate::Normal;
        }
        match self.rng.below(8) {
            0 => RequestFate::Rejected(ObjectsErrorKind::Conflict),
            1 => RequestFate::Rejected(ObjectsErrorKind::Unavailable),
            2 | 3 => RequestFate::ResponseLost,
            4..=6 => RequestFate::Delayed,
            _ => RequestFate::Lost,
        }
    }

    fn change(&mut self, change: ObjectChange, partitioned: bool) -> Result<(), ObjectsError> {
        self.begin();
        self.check_access()?;
        match self.fate(partitioned) {
            RequestFate::Normal => {
                if self.faults.repeated_percent > 0 && self.rng.below(100) < self.faults.repeated_percent {
                    self.delay(change.clone());
                }
                return self.execute(change);
            }
            RequestFate::Rejected(kind) => return Err(ObjectsError::new(kind, "injected fault")),
            RequestFate::ResponseLost => drop(self.execute(change)),
            RequestFate::Delayed => self.delay(change),
            RequestFate::Lost => {}
        }
        Err(timed_out())
    }

    fn delay(&mut self, change: ObjectChange) {
        let at = self.requests + 1 + self.rng.below(self.faults.delay_max.max(1));
        self.delayed.push((at, change));
    }

    /// The objects for a read, unless the request has a fault.
    fn read(&mut self, partitioned: bool) -> Result<&MemoryObjects, ObjectsError> {
        self.begin();
        if partitioned {
            return Err(timed_out());
        }
        self.check_access()?;
        if self.has_fault() {
            let kinds = [ObjectsErrorKind::Unavailable, ObjectsErrorKind::TimedOut];
            return Err(ObjectsError::new(*self.rng.pick(&kinds), "injected fault"));
        }
        Ok(&self.objects)
    }
}

fn timed_out() -> ObjectsError {
    ObjectsError::new(ObjectsErrorKind::TimedOut, "no response")
}

/// One client's connection to a simulated object store. Clones share the connection.
#[derive(Clone)]
pub struct SimHandle {
    objects: SimObjects,
    partitioned: Arc<AtomicBool>,
}

impl SimHandle {
    /// While partitioned, the client gets no responses, and its changes are executed later.
    pub fn set_partitioned(&self, partitioned: bool) {
        self.partitioned.store(partitioned, Ordering::Relaxed);
    }

    fn read<T>(
        &self,
        request: impl FnOnce(&MemoryObjects) -> Result<T, ObjectsError>,
    ) -> Result<T, ObjectsError> {
        request(self.objects.inner().read(self.partitioned.load(Ordering::Relaxed))?)
    }

    fn change(&self, change: ObjectChange) -> Result<(), ObjectsError> {
        self.objects.inner().change(change, self.partitioned.load(Ordering::Relaxed))
    }
}

impl Objects for SimHandle {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        self.change(ObjectChange::Put { name: name.to_string(), bytes: bytes.to_vec() })
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ObjectsError> {
        self.read(|objects| objects.get(name))
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError> {
        self.read(|objects| objects.get_range(name, offset, length))
    }

    fn head(&self, name: &str) -> Result<u64, ObjectsError> {
        self.read(|objects| objects.head(name))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError> {
        self.read(|objects| objects.list(prefix, after))
    }

    fn delete(&self, name: &str) -> Result<(), ObjectsError> {
        self.change(ObjectChange::Delete { name: name.to_string() })
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        self.change(ObjectChange::Replace { name: name.to_string(), bytes: bytes.to_vec() })
    }

    fn begin_upload(&self, name: &str) -> Result<Box<dyn ObjectUpload>, ObjectsError> {
        self.read(|_| Ok(()))?;
        Ok(Box::new(SimUpload { handle: self.clone(), name: name.to_string(), parts: BTreeMap::new() }))
    }

    fn abort_old_uploads(&self, _: &str) -> Result<usize, ObjectsError> {
        Ok(0)
    }
}

/// An upload in parts. A part whose response is lost may have arrived; its retry replaces it.
struct SimUpload {
    handle: SimHandle,
    name: String,
    parts: BTreeMap<usize, Vec<u8>>,
}

impl ObjectUpload for SimUpload {
    fn put_part(&mut self, number: usize, part: &Part) -> Result<(), ObjectsError> {
        self.handle.read(|_| Ok(()))?;
        self.parts.insert(number, part.bytes()?);
        Ok(())
    }

    fn complete(&mut self) -> Result<(), ObjectsError> {
        let bytes: Vec<u8> = self.parts.values().flatten().copied().collect();
        self.handle.put(&self.name, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts and deletes of a few names, and the result of each.
    fn run(seed: u64) -> (Vec<ObjectChange>, Vec<Result<(), ObjectsErrorKind>>) {
        let objects = SimObjects::new(
            seed,
            NetworkFaults {
                fault_percent: 60,
                delay_max: 20,
                denied_percent: 10,
                ..NetworkFaults::default()
            },
        );
        let handle = objects.handle();
        let results = (0..200).map(|n| {
            let name = format!("a/{}", n % 7);
            let result = if n % 3 == 0 { handle.delete(&name) } else { handle.put_if_absent(&name, &[n]) };
            result.map_err(|error| error.kind)
        });
        let results = results.collect();
        objects.heal();
        (objects.journal(), results)
    }

    #[test]
    fn the_same_seed_gives_the_same_behaviour() {
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn every_kind_of_response_occurs() {
        let (_, results) = run(1);
        for kind in [
            ObjectsErrorKind::Taken,
            ObjectsErrorKind::Conflict,
            ObjectsErrorKind::Unavailable,
            ObjectsErrorKind::TimedOut,
            ObjectsErrorKind::Denied,
        ] {
            assert!(results.contains(&Err(kind)), "{kind:?}");
        }
        assert!(results.contains(&Ok(())));
    }

    #[test]
    fn a_partitioned_clients_put_is_executed_after_later_requests() {
        let objects =
            SimObjects::new(0, NetworkFaults { fault_percent: 0, delay_max: 3, ..NetworkFaults::default() });
        let (partitioned, other) = (objects.handle(), objects.handle());
        partitioned.set_partitioned(true);
        assert_eq!(
            partitioned.put_if_absent("a", b"delayed").map_err(|error| error.kind),
            Err(ObjectsErrorKind::TimedOut)
        );
        assert_eq!(other.get("a").map_err(|error| error.kind), Err(ObjectsErrorKind::NotFound));
        for _ in 0..3 {
            let _ = other.head("b");
        }
        assert_eq!(other.get("a"), Ok(b"delayed".to_vec()));
    }
}
