//! The bad network, and writers that take turns by a seed.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::*;

/// What becomes of a put.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    Answered,
    /// Applied, if its condition holds; the answer is lost.
    Unanswered,
    /// The same, and then another puts this, before anybody looks.
    UnansweredThen(Version),
    /// It is under way until it is delivered; nobody answers.
    Held,
    /// A refusal for nothing.
    Precondition,
    Refused,
}

#[derive(Default)]
pub(super) struct Network(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    objects: MemoryObjects,
    applied: Vec<Version>,
    held: Vec<(Vec<u8>, Condition)>,
    fates: VecDeque<Fate>,
    /// Where fates come from when they are not told.
    chance: Option<Chance>,
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).expect("it is below the end")
    }
}

impl Network {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().expect("no test panics in here")
    }

    /// What becomes of the next puts; those after them are answered.
    pub(super) fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        self.inside().fates.extend(fates);
    }

    /// What is under way arrives.
    pub(super) fn deliver_all(&self) {
        let mut inside = self.inside();
        for (bytes, condition) in std::mem::take(&mut inside.held) {
            let _ = inside.apply(&bytes, &condition);
        }
    }

    /// All that was applied, in order.
    pub(super) fn history(&self) -> Vec<Version> {
        self.inside().applied.clone()
    }

    /// Others may come first; how often is the seed's to say.
    async fn travel(&self) {
        let mut hops = self.inside().chance.as_mut().map_or(0, |chance| chance.below(3));
        let arrived = std::future::poll_fn(|_| {
            let arrived = hops == 0;
            hops = hops.saturating_sub(1);
            if arrived { Poll::Ready(()) } else { Poll::Pending }
        });
        arrived.await;
        self.inside().deliver_some();
    }
}

impl Inside {
    fn apply(&mut self, bytes: &[u8], condition: &Condition) -> Result<(), PutError> {
        finish(self.objects.put("state", bytes, condition))?;
        self.applied.push(Version::parse(bytes.to_vec()).expect("only versions are put"));
        Ok(())
    }

    /// Any of what is under way may arrive, also more than once.
    fn deliver_some(&mut self) {
        let (Some(chance), false) = (&mut self.chance, self.held.is_empty()) else { return };
        let (one, arrives, stays) =
            (chance.below(self.held.len()), chance.below(3) == 0, chance.below(3) == 0);
        if arrives {
            let (bytes, condition) = self.held[one].clone();
            let _ = self.apply(&bytes, &condition);
        }
        if arrives && !stays {
            self.held.swap_remove(one);
        }
    }

    fn fate(&mut self) -> Fate {
        let Some(chance) = &mut self.chance else { return self.fates.pop_front().unwrap_or(Fate::Answered) };
        match chance.below(16) {
            0..=2 => Fate::Unanswered,
            3..=5 => Fate::Held,
            6 => Fate::Precondition,
            7 => Fate::Refused,
            _ => Fate::Answered,
        }
    }

    fn put(&mut self, bytes: &[u8], condition: &Condition) -> Result<(), PutError> {
        let lost = Err(PutError::Unknown("no answer".to_string()));
        match self.fate() {
            Fate::Answered => return self.apply(bytes, condition),
            Fate::Precondition => return Err(PutError::Precondition),
            Fate::Refused => return Err(PutError::Refused("no right".to_string())),
            Fate::Unanswered => drop(self.apply(bytes, condition)),
            Fate::UnansweredThen(version) => {
                self.apply(bytes, condition)?;
                let there = finish(self.objects.get("state")).expect("no network").expect("it was applied");
                self.apply(&version.to_bytes(), &Condition::Matches(there.etag))?;
            }
            Fate::Held => self.held.push((bytes.to_vec(), condition.clone())),
        }
        lost
    }
}

impl ObjectStore for &Network {
    async fn get(&self, name: &str) -> Result<Option<Found>, GetError> {
        self.travel().await;
        let objects = self.inside().objects.clone();
        objects.get(name).await
    }

    async fn put(&self, _: &str, bytes: &[u8], condition: &Condition) -> Result<(), PutError> {
        self.travel().await;
        self.inside().put(bytes, condition)
    }
}

/// Polls until it is done: nothing here waits for anything but its turn.
pub(super) fn finish<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

type Told = (Vec<u8>, Result<Version, Error>);

/// Writes and claims under a few tokens that overlap with those of others.
async fn writer(network: &Network, number: usize, tokens: [u64; 4]) -> Vec<Told> {
    let object = FencedObject::new(network, "state");
    let mut told = Vec::new();
    for (turn, token) in tokens.into_iter().enumerate() {
        let content = format!("{number}.{turn}").into_bytes();
        let claims = (number + turn).is_multiple_of(4);
        let change = if claims { Change::Claim } else { Change::Write(&content) };
        told.push((content.clone(), object.change(Token(token), change).await));
    }
    told
}

/// One seed. What came of each write: 0 done, 1 stale, 2 unknown, 3 failed.
pub(super) fn run(seed: u64) -> Vec<usize> {
    let network = Network::default();
    let mut chance = Chance(seed);
    let tokens: Vec<[u64; 4]> =
        (0..3).map(|_| std::array::from_fn(|turn| (turn * 2 + chance.below(6)) as u64)).collect();
    network.inside().chance = Some(Chance(!seed));
    let writers = tokens.iter().enumerate().map(|(number, tokens)| writer(&network, number, *tokens));
    let mut writers: Vec<Pin<Box<_>>> = writers.map(Box::pin).collect();
    let mut told = Vec::new();
    while !writers.is_empty() {
        let one = chance.below(writers.len());
        if let Poll::Ready(done) = writers[one].as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            told.extend(done);
            drop(writers.swap_remove(one));
        }
    }
    network.deliver_all();
    judge(seed, &network.history(), &told)
}

fn judge(seed: u64, history: &[Version], told: &[Told]) -> Vec<usize> {
    for (index, version) in history.iter().enumerate() {
        assert_eq!(version.revision, index as u64 + 1, "seed {seed}: {history:?}");
        assert!(index == 0 || history[index - 1].token <= version.token, "seed {seed}: {history:?}");
    }
    let applied = |content: &Vec<u8>| history.iter().any(|version| version.content.as_ref() == Some(content));
    let judged = told.iter().map(|(content, told)| match told {
        Ok(version) => {
            assert!(history.contains(version), "seed {seed}: {version:?} was never applied");
            0
        }
        Err(Error::Indeterminate(_)) => 2,
        Err(error) => {
            assert!(!applied(content), "seed {seed}: {content:?} was applied: {error}");
            if matches!(error, Error::Stale { .. }) { 1 } else { 3 }
        }
    });
    judged.collect()
}
