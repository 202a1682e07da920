//! The faulty network, and writers that are scheduled by a seed.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::*;

/// The fate of a put.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    Answered,
    /// Applied, if its condition holds; the response is lost.
    Unanswered,
    /// The same, and then another writer puts this version, before the next get.
    UnansweredThen(Version),
    /// Delayed until it is delivered; there is no response.
    Held,
    /// A spurious 412.
    Precondition,
    Refused,
}

#[derive(Default)]
pub(super) struct Network(Mutex<NetworkState>);

#[derive(Default)]
struct NetworkState {
    objects: MemoryObjects,
    applied: Vec<Version>,
    held: Vec<(Vec<u8>, Condition)>,
    fates: VecDeque<Fate>,
    /// Decides fates that are not scripted.
    random: Option<Rng>,
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).expect("it is below the end")
    }
}

impl Network {
    fn state(&self) -> MutexGuard<'_, NetworkState> {
        self.0.lock().expect("no test panics in here")
    }

    /// Scripts the fates of the next puts; later ones are answered.
    pub(super) fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        self.state().fates.extend(fates);
    }

    /// Delivers all delayed puts.
    pub(super) fn deliver_all(&self) {
        let mut state = self.state();
        for (bytes, condition) in std::mem::take(&mut state.held) {
            let _ = state.apply(&bytes, &condition);
        }
    }

    /// All applied versions, in order.
    pub(super) fn history(&self) -> Vec<Version> {
        self.state().applied.clone()
    }

    /// Lets other writers run first, as often as the seed decides.
    async fn travel(&self) {
        let mut hops = self.state().random.as_mut().map_or(0, |random| random.below(3));
        let arrived = std::future::poll_fn(|_| {
            let arrived = hops == 0;
            hops = hops.saturating_sub(1);
            if arrived { Poll::Ready(()) } else { Poll::Pending }
        });
        arrived.await;
        self.state().deliver_some();
    }
}

impl NetworkState {
    fn apply(&mut self, bytes: &[u8], condition: &Condition) -> Result<(), PutError> {
        finish(self.objects.put("state", bytes, condition))?;
        self.applied.push(Version::parse(bytes.to_vec()).expect("only versions are put"));
        Ok(())
    }

    /// May deliver any delayed put, possibly more than once.
    fn deliver_some(&mut self) {
        let (Some(random), false) = (&mut self.random, self.held.is_empty()) else { return };
        let (one, arrives, stays) =
            (random.below(self.held.len()), random.below(3) == 0, random.below(3) == 0);
        if arrives {
            let (bytes, condition) = self.held[one].clone();
            let _ = self.apply(&bytes, &condition);
        }
        if arrives && !stays {
            self.held.swap_remove(one);
        }
    }

    fn fate(&mut self) -> Fate {
        let Some(random) = &mut self.random else { return self.fates.pop_front().unwrap_or(Fate::Answered) };
        match random.below(16) {
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
    async fn get(&self, name: &str) -> Result<Option<StoredObject>, GetError> {
        self.travel().await;
        let objects = self.state().objects.clone();
        objects.get(name).await
    }

    async fn put(&self, _: &str, bytes: &[u8], condition: &Condition) -> Result<(), PutError> {
        self.travel().await;
        self.state().put(bytes, condition)
    }
}

/// Polls a future to completion; nothing here waits for external events.
pub(super) fn finish<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

type WriteResult = (Vec<u8>, Result<Version, Error>);

/// Writes and claims under a few tokens that overlap with those of other writers.
async fn writer(network: &Network, number: usize, tokens: [u64; 4]) -> Vec<WriteResult> {
    let object = FencedObject::new(network, "state");
    let mut results = Vec::new();
    for (round, token) in tokens.into_iter().enumerate() {
        let content = format!("{number}.{round}").into_bytes();
        let claims = (number + round).is_multiple_of(4);
        let change = if claims { Change::Claim } else { Change::Write(&content) };
        results.push((content.clone(), object.change(Token(token), change).await));
    }
    results
}

/// Runs one seed. Returns the outcome of each write: 0 applied, 1 stale, 2 indeterminate, 3 failed.
pub(super) fn run(seed: u64) -> Vec<usize> {
    let network = Network::default();
    let mut random = Rng(seed);
    let tokens: Vec<[u64; 4]> =
        (0..3).map(|_| std::array::from_fn(|round| (round * 2 + random.below(6)) as u64)).collect();
    network.state().random = Some(Rng(!seed));
    let writers = tokens.iter().enumerate().map(|(number, tokens)| writer(&network, number, *tokens));
    let mut writers: Vec<Pin<Box<_>>> = writers.map(Box::pin).collect();
    let mut results = Vec::new();
    while !writers.is_empty() {
        let one = random.below(writers.len());
        if let Poll::Ready(done) = writers[one].as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            results.extend(done);
            drop(writers.swap_remove(one));
        }
    }
    network.deliver_all();
    check(seed, &network.history(), &results)
}

fn check(seed: u64, history: &[Version], results: &[WriteResult]) -> Vec<usize> {
    for (index, version) in history.iter().enumerate() {
        assert_eq!(version.revision, index as u64 + 1, "seed {seed}: {history:?}");
        assert!(index == 0 || history[index - 1].token <= version.token, "seed {seed}: {history:?}");
    }
    let applied = |content: &Vec<u8>| history.iter().any(|version| version.content.as_ref() == Some(content));
    let outcomes = results.iter().map(|(content, result)| match result {
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
    outcomes.collect()
}
