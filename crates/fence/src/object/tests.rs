//! A fenced object in a store behind a faulty network: responses are lost, and puts arrive late.

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

/// S3 identifies a version by a hash of its bytes. A reads "x" under token 5, and its next put is delayed. B takes over
/// and writes "x" too: if the token were stored separately, the hash would stay the same, and A's put would succeed. The
/// same may happen to A itself, when it writes "x" again.
#[test]
fn the_same_content_again_is_another_version() {
    let network = Network::default();
    let object = FencedObject::new(&network, "state");
    finish(object.write(Token(5), b"x")).expect("the first");
    network.next([Fate::Held]);
    finish(object.write(Token(5), b"y")).expect("the second attempt got a response");
    finish(object.write(Token(5), b"x")).expect("the same holder");
    network.deliver_all();
    assert_eq!(finish(object.read()), Ok(Some(version(5, 3, "x"))), "the delayed put is refused");
    network.next(vec![Fate::Held; ATTEMPTS_MAX]);
    let result = finish(object.write(Token(5), b"y"));
    assert!(matches!(result, Err(Error::Indeterminate(_))), "{result:?}");
    finish(object.write(Token(6), b"x")).expect("a newer one");
    network.deliver_all();
    assert_eq!(finish(object.read()), Ok(Some(version(6, 4, "x"))), "the delayed put is refused");
}

#[test]
fn a_late_put_of_a_stale_writer_is_refused_by_the_store() {
    let network = Network::default();
    let object = FencedObject::new(&network, "state");
    finish(object.write(Token(5), b"old")).expect("the first");
    network.next(vec![Fate::Held; ATTEMPTS_MAX]);
    let result = finish(object.write(Token(5), b"late"));
    assert!(matches!(result, Err(Error::Indeterminate(_))), "{result:?}");
    assert_eq!(finish(object.claim(Token(6))), Ok(Some(b"old".to_vec())));
    network.deliver_all();
    assert_eq!(finish(object.read()), Ok(Some(version(6, 2, "old"))), "claimed content stays");
    assert_eq!(finish(object.write(Token(5), b"late")), stale(6));
}

#[test]
fn a_put_whose_response_is_lost_is_applied_once() {
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

/// A's put is applied and its response lost; before A reads again, B has written. Reporting "stale, not applied" would be
/// wrong: A's write was applied, before B's.
#[test]
fn a_write_that_may_have_been_applied_before_a_newer_one_is_not_called_stale() {
    let network = Network::default();
    let object = FencedObject::new(&network, "state");
    network.next([Fate::UnansweredThen(version(6, 2, "B"))]);
    let result = finish(object.write(Token(5), b"A"));
    assert!(matches!(result, Err(Error::Indeterminate(_))), "{result:?}");
    assert_eq!(network.history(), [version(5, 1, "A"), version(6, 2, "B")]);
    assert_eq!(finish(object.write(Token(5), b"A")), stale(6), "a retry is stale");
}

#[test]
fn attempts_are_bounded() {
    let network = Network::default();
    let object = FencedObject::new(&network, "state");
    network.next(vec![Fate::Precondition; ATTEMPTS_MAX]);
    assert!(matches!(finish(object.write(Token(5), b"x")), Err(Error::Unavailable(_))));
    network.next(vec![Fate::Precondition; ATTEMPTS_MAX - 1]);
    finish(object.write(Token(5), b"x")).expect("the last attempt");
    network.next([Fate::Refused]);
    assert!(matches!(finish(object.write(Token(5), b"x")), Err(Error::Unavailable(_))));
    network.next([Fate::Held, Fate::Refused]);
    assert!(matches!(finish(object.write(Token(5), b"x")), Err(Error::Indeterminate(_))));
    assert_eq!(network.history().len(), 1);
}

#[test]
fn foreign_content_is_neither_read_nor_replaced() {
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

/// A store that ignores conditions.
struct UnconditionalStore(MemoryObjects);

impl ObjectStore for UnconditionalStore {
    async fn get(&self, name: &str) -> Result<Option<StoredObject>, GetError> {
        self.0.get(name).await
    }

    async fn put(&self, name: &str, bytes: &[u8], _: &Condition) -> Result<(), PutError> {
        let there = self.0.get(name).await.expect("no network");
        let condition = there.map_or(Condition::Absent, |found| Condition::Matches(found.etag));
        self.0.put(name, bytes, &condition).await
    }
}

#[test]
fn a_store_that_ignores_conditions_fails_the_probe() {
    let conditional = FencedObject::new(MemoryObjects::default(), "probe");
    assert_eq!((finish(conditional.probe()), finish(conditional.probe())), (Ok(()), Ok(())));
    let unconditional = FencedObject::new(UnconditionalStore(MemoryObjects::default()), "probe");
    assert!(matches!(finish(unconditional.probe()), Err(Error::Invalid(_))));
}

/// Several writers, with puts that are refused, delayed, repeated or lose their responses, in an order that the seed
/// decides. Checks each writer's results against the store's history.
#[test]
fn tokens_never_decrease_and_results_are_true_on_a_faulty_network() {
    let mut seen = [0; 4];
    for seed in 0..3_000 {
        for outcome in run(seed) {
            seen[outcome] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 300), "done, stale, unknown and failed all happen: {seen:?}");
}
