//! A fenced object in a store behind a bad network: answers are lost, and puts come late.

mod network;

use network::{Fate, Network, finish, run};

use super::memory::MemoryObjects;
use super::*;

fn version(token: u64, revision: u64, content: &str) -> Version {
    Version { token: Token(token), revision, content: Some(content.as_bytes().to_vec()) }
}

fn stale<T>(current: u64) -> Result<T, Error> {
    Err(Error::Stale { current: Some(Token(current)) })
}

#[test]
fn a_stale_writer_is_refused_and_leaves_no_trace() {
    let object = FencedObject::new(MemoryObjects::default(), "state");
    assert_eq!(finish(object.read()), Ok(None));
    finish(object.write(Token(5), b"five")).expect("the first");
    finish(object.write(Token(6), b"six")).expect("a newer one");
    assert_eq!(finish(object.write(Token(5), b"late")), stale(6));
    assert_eq!(finish(object.remove(Token(5))), stale(6));
    assert_eq!(finish(object.claim(Token(5))), stale(6));
    assert_eq!(finish(object.read()), Ok(Some(version(6, 2, "six"))));
    finish(object.write(Token(6), b"again")).expect("the same holder");
    finish(object.remove(Token(7))).expect("a newer one");
    assert_eq!(finish(object.write(Token(6), b"back")), stale(7));
    assert_eq!(finish(object.claim(Token(8))), Ok(None));
}

/// S3 calls a version by a hash of its bytes. A reads "x" under token 5, and its next put is held up. B takes over and
/// writes "x" as well: were the token kept beside the bytes, the hash would stay the same, and A's put come through. The
/// same may happen to A itself, when it comes back to "x".
#[test]
fn the_same_content_again_is_another_version() {
    let network = Network::default();
    let object = FencedObject::new(&network, "state");
    finish(object.write(Token(5), b"x")).expect("the first");
    network.next([Fate::Held]);
    finish(object.write(Token(5), b"y")).expect("the second try was answered");
    finish(object.write(Token(5), b"x")).expect("the same holder");
    network.deliver_all();
    assert_eq!(finish(object.read()), Ok(Some(version(5, 3, "x"))), "what was held up comes too late");
    network.next(vec![Fate::Held; TRIES]);
    let told = finish(object.write(Token(5), b"y"));
    assert!(matches!(told, Err(Error::Indeterminate(_))), "{told:?}");
    finish(object.write(Token(6), b"x")).expect("a newer one");
    network.deliver_all();
    assert_eq!(finish(object.read()), Ok(Some(version(6, 4, "x"))), "what was held up comes too late");
}

#[test]
fn a_late_put_of_a_stale_writer_is_refused_by_the_store() {
    let network = Network::default();
    let object = FencedObject::new(&network, "state");
    finish(object.write(Token(5), b"old")).expect("the first");
    network.next(vec![Fate::Held; TRIES]);
    let told = finish(object.write(Token(5), b"late"));
    assert!(matches!(told, Err(Error::Indeterminate(_))), "{told:?}");
    assert_eq!(finish(object.claim(Token(6))), Ok(Some(b"old".to_vec())));
    network.deliver_all();
    assert_eq!(finish(object.read()), Ok(Some(version(6, 2, "old"))), "what was claimed stays");
    assert_eq!(finish(object.write(Token(5), b"late")), stale(6));
}

#[test]
fn a_put_that_was_applied_and_not_answered_is_applied_once() {
    let network = Network::default();
    let object = FencedObject::new(&network, "state");
    for (fate, revision) in [(Fate::Unanswered, 1), (Fate::Unanswered, 2), (Fate::Held, 3)] {
        network.next([fate.clone()]);
        finish(object.write(Token(5), b"once")).expect("it is found, or put again");
        assert_eq!(finish(object.read()), Ok(Some(version(5, revision, "once"))), "{fate:?}");
    }
    network.deliver_all();
    assert_eq!(network.history().len(), 3);
}

/// A's put is applied, its answer lost; before A looks, B has written. To say "stale, nothing was applied" would be
/// wrong: it was, before B's.
#[test]
fn a_write_that_may_have_been_applied_before_a_newer_one_is_not_called_stale() {
    let network = Network::default();
    let object = FencedObject::new(&network, "state");
    network.next([Fate::UnansweredThen(version(6, 2, "B"))]);
    let told = finish(object.write(Token(5), b"A"));
    assert!(matches!(told, Err(Error::Indeterminate(_))), "{told:?}");
    assert_eq!(network.history(), [version(5, 1, "A"), version(6, 2, "B")]);
    assert_eq!(finish(object.write(Token(5), b"A")), stale(6), "the next try tells");
}

#[test]
fn tries_are_bounded() {
    let network = Network::default();
    let object = FencedObject::new(&network, "state");
    network.next(vec![Fate::Precondition; TRIES]);
    assert!(matches!(finish(object.write(Token(5), b"x")), Err(Error::Unavailable(_))));
    network.next(vec![Fate::Precondition; TRIES - 1]);
    finish(object.write(Token(5), b"x")).expect("the last try");
    network.next([Fate::Refused]);
    assert!(matches!(finish(object.write(Token(5), b"x")), Err(Error::Unavailable(_))));
    network.next([Fate::Held, Fate::Refused]);
    assert!(matches!(finish(object.write(Token(5), b"x")), Err(Error::Indeterminate(_))));
    assert_eq!(network.history().len(), 1);
}

#[test]
fn what_was_not_put_by_it_is_neither_read_nor_replaced() {
    let objects = MemoryObjects::default();
    let object = FencedObject::new(objects.clone(), "state");
    for bytes in [b"plain".to_vec(), vec![b'x'; VERSION_MAX + 1]] {
        let condition = finish(objects.get("state")).expect("no network");
        let condition = condition.map_or(Condition::Absent, |found| Condition::Matches(found.etag));
        finish(objects.put("state", &bytes, &condition)).expect("it is as it was");
        assert!(matches!(finish(object.read()), Err(Error::Invalid(_))));
        assert!(matches!(finish(object.write(Token(1), b"mine")), Err(Error::Invalid(_))));
    }
}

/// Takes whatever it gets.
struct Careless(MemoryObjects);

impl ObjectStore for Careless {
    async fn get(&self, name: &str) -> Result<Option<Found>, GetError> {
        self.0.get(name).await
    }

    async fn put(&self, name: &str, bytes: &[u8], _: &Condition) -> Result<(), PutError> {
        let there = self.0.get(name).await.expect("no network");
        let condition = there.map_or(Condition::Absent, |found| Condition::Matches(found.etag));
        self.0.put(name, bytes, &condition).await
    }
}

#[test]
fn a_store_that_ignores_conditions_is_found_out() {
    let careful = FencedObject::new(MemoryObjects::default(), "probe");
    assert_eq!((finish(careful.probe()), finish(careful.probe())), (Ok(()), Ok(())));
    let careless = FencedObject::new(Careless(MemoryObjects::default()), "probe");
    assert!(matches!(finish(careless.probe()), Err(Error::Invalid(_))));
}

/// Several writers, puts that are refused, unanswered, late and repeated, in every order that a seed can make up. What
/// each was told, against what the store has seen.
#[test]
fn whatever_the_network_does_tokens_never_decrease_and_nobody_is_told_a_lie() {
    let mut seen = [0; 4];
    for seed in 0..3_000 {
        for told in run(seed) {
            seen[told] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 300), "done, stale, unknown and failed all happen: {seen:?}");
}
