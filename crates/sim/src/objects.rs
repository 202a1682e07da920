//! An object store behind a bad network.
//!
//! **Invariant.** The store itself is strongly consistent, and a name is given once until it is deleted. What
//! the seed decides is what becomes of each request on its way: nothing, or everything and the answer is
//! lost, or it happens later, when others have long gone on. The journal says what happened, in order.
//! Same seed, same requests: same behaviour.
//!
//! **What would break it.** A request that is late and lands in front of one that was answered: then a put would
//! succeed on a name that somebody was told is in use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::object::{Answer, MemoryObjects, Objects, ObjectsError, Page};

use crate::rng::Rng;

/// How bad the network is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Of a hundred requests so many meet with trouble.
    pub trouble: u64,
    /// A late request lands after at most so many others.
    pub late_max: u64,
}

/// Something that has happened to the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// An object was made.
    Put {
        /// Its name.
        name: String,
        /// What is in it.
        bytes: Vec<u8>,
    },
    /// An object that was there is no more.
    Delete {
        /// Its name.
        name: String,
    },
}

/// A simulated object store. Clones are the same one.
#[derive(Clone)]
pub struct SimObjects(Arc<Mutex<World>>);

struct World {
    kept: MemoryObjects,
    rng: Rng,
    weather: Weather,
    requests: u64,
    /// On their way, with the number of the request before which they land.
    late: Vec<(u64, Deed)>,
    journal: Vec<Deed>,
}

/// What becomes of a request that would change something.
enum Fate {
    Fine,
    /// It does nothing.
    Before(Answer),
    /// It is done, and no answer comes.
    Unheard,
    /// No answer comes; it happens later.
    Late,
    /// No answer comes, and it never happens.
    Lost,
}

impl SimObjects {
    /// An empty store.
    pub fn new(seed: u64, weather: Weather) -> SimObjects {
        let (kept, rng) = (MemoryObjects::default(), Rng::new(seed));
        let world = World { kept, rng, weather, requests: 0, late: Vec::new(), journal: Vec::new() };
        SimObjects(Arc::new(Mutex::new(world)))
    }

    /// A way to the store: one for each that uses it.
    pub fn handle(&self) -> SimHandle {
        SimHandle { objects: self.clone(), asleep: Arc::new(AtomicBool::new(false)) }
    }

    /// From now on nothing goes wrong; what was late has landed.
    pub fn calm(&self) {
        let mut world = self.world();
        world.weather = Weather::default();
        world.land(u64::MAX);
    }

    /// What has happened, in order.
    pub fn journal(&self) -> Vec<Deed> {
        self.world().journal.clone()
    }

    /// How much has happened.
    pub fn deeds(&self) -> usize {
        self.world().journal.len()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// Counts a request, and lets land what is due.
    fn begin(&mut self) {
        self.requests += 1;
        self.land(self.requests);
    }

    fn land(&mut self, now: u64) {
        let (mut due, late): (Vec<_>, Vec<_>) = self.late.drain(..).partition(|(at, _)| *at <= now);
        self.late = late;
        due.sort_by_key(|(at, _)| *at);
        for (_, deed) in due {
            // Nobody hears what comes of it.
            let _ = self.happen(deed);
        }
    }

    fn happen(&mut self, deed: Deed) -> Result<(), ObjectsError> {
        match &deed {
            Deed::Put { name, bytes } => self.kept.put_if_absent(name, bytes)?,
            Deed::Delete { name } if self.kept.head(name).is_ok() => self.kept.delete(name)?,
            Deed::Delete { .. } => return Ok(()),
        }
        self.journal.push(deed);
        Ok(())
    }

    fn troubled(&mut self) -> bool {
        let trouble = self.weather.trouble;
        self.rng.below(100) < trouble
    }

    fn fate(&mut self, asleep: bool) -> Fate {
        if asleep {
            return Fate::Late;
        }
        if !self.troubled() {
            return Fate::Fine;
        }
        match self.rng.below(8) {
            0 => Fate::Before(Answer::Conflict),
            1 => Fate::Before(Answer::Unavailable),
            2 | 3 => Fate::Unheard,
            4..=6 => Fate::Late,
            _ => Fate::Lost,
        }
    }

    fn change(&mut self, deed: Deed, asleep: bool) -> Result<(), ObjectsError> {
        self.begin();
        match self.fate(asleep) {
            Fate::Fine => return self.happen(deed),
            Fate::Before(answer) => return Err(ObjectsError::new(answer, "so the seed has it")),
            Fate::Unheard => drop(self.happen(deed)),
            Fate::Late => {
                let at = self.requests + 1 + self.rng.below(self.weather.late_max.max(1));
                self.late.push((at, deed));
            }
            Fate::Lost => {}
        }
        Err(timed_out())
    }

    /// May a request that changes nothing be answered?
    fn look(&mut self, asleep: bool) -> Result<&MemoryObjects, ObjectsError> {
        self.begin();
        if asleep {
            return Err(timed_out());
        }
        if self.troubled() {
            let answers = [Answer::Unavailable, Answer::TimedOut];
            return Err(ObjectsError::new(*self.rng.pick(&answers), "so the seed has it"));
        }
        Ok(&self.kept)
    }
}

fn timed_out() -> ObjectsError {
    ObjectsError::new(Answer::TimedOut, "no answer came")
}

/// One user's way to a simulated object store. Clones are the same way.
#[derive(Clone)]
pub struct SimHandle {
    objects: SimObjects,
    asleep: Arc<AtomicBool>,
}

impl SimHandle {
    /// While it is asleep, no answer reaches it, and what it asks for happens later.
    pub fn sleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::Relaxed);
    }

    fn look<T>(
        &self,
        request: impl FnOnce(&MemoryObjects) -> Result<T, ObjectsError>,
    ) -> Result<T, ObjectsError> {
        request(self.objects.world().look(self.asleep.load(Ordering::Relaxed))?)
    }

    fn change(&self, deed: Deed) -> Result<(), ObjectsError> {
        self.objects.world().change(deed, self.asleep.load(Ordering::Relaxed))
    }
}

impl Objects for SimHandle {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        self.change(Deed::Put { name: name.to_string(), bytes: bytes.to_vec() })
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ObjectsError> {
        self.look(|kept| kept.get(name))
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError> {
        self.look(|kept| kept.get_range(name, offset, length))
    }

    fn head(&self, name: &str) -> Result<u64, ObjectsError> {
        self.look(|kept| kept.head(name))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError> {
        self.look(|kept| kept.list(prefix, after))
    }

    fn delete(&self, name: &str) -> Result<(), ObjectsError> {
        self.change(Deed::Delete { name: name.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts and deletes of a few names, and what each was told.
    fn run(seed: u64) -> (Vec<Deed>, Vec<Result<(), Answer>>) {
        let objects = SimObjects::new(seed, Weather { trouble: 60, late_max: 20 });
        let handle = objects.handle();
        let told = (0..200).map(|n| {
            let name = format!("a/{}", n % 7);
            let told = if n % 3 == 0 { handle.delete(&name) } else { handle.put_if_absent(&name, &[n]) };
            told.map_err(|error| error.answer)
        });
        let told = told.collect();
        objects.calm();
        (objects.journal(), told)
    }

    #[test]
    fn the_same_seed_gives_the_same_behaviour() {
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn every_kind_of_answer_occurs() {
        let (_, told) = run(1);
        for answer in [Answer::Taken, Answer::Conflict, Answer::Unavailable, Answer::TimedOut] {
            assert!(told.contains(&Err(answer)), "{answer:?}");
        }
        assert!(told.contains(&Ok(())));
    }

    #[test]
    fn what_a_sleeper_asks_for_happens_when_others_have_gone_on() {
        let objects = SimObjects::new(0, Weather { trouble: 0, late_max: 3 });
        let (sleeper, other) = (objects.handle(), objects.handle());
        sleeper.sleep(true);
        assert_eq!(sleeper.put_if_absent("a", b"late").map_err(|error| error.answer), Err(Answer::TimedOut));
        assert_eq!(other.get("a").map_err(|error| error.answer), Err(Answer::NotFound));
        for _ in 0..3 {
            let _ = other.head("b");
        }
        assert_eq!(other.get("a"), Ok(b"late".to_vec()));
    }
}
