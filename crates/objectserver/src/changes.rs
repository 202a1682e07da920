//! The recent changes of a bucket, so that a list can show an earlier state (a fault).
//!
//! **Invariant.** Undoing the changes younger than an age, newest first, gives the state of that time: each change
//! holds the metadata that was there before it.
//! **What would break it.** More than [`CAPACITY`] changes within the age: then the state shown is younger.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::object::ObjectHead;

/// The most changes that are remembered for a bucket.
const CAPACITY: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Changes(VecDeque<Change>);

#[derive(Debug)]
struct Change {
    at: Instant,
    key: String,
    before: Option<ObjectHead>,
}

impl Changes {
    pub(crate) fn record(&mut self, at: Instant, key: &str, before: Option<ObjectHead>) {
        if self.0.len() == CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back(Change { at, key: key.to_owned(), before });
    }

    /// Turns the present state into the state `age` before `now`.
    pub(crate) fn undo(&self, now: Instant, age: Duration, state: &mut BTreeMap<String, ObjectHead>) {
        for change in self.0.iter().rev().take_while(|change| now.duration_since(change.at) < age) {
            match &change.before {
                Some(head) => state.insert(change.key.clone(), head.clone()),
                None => state.remove(&change.key),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::body::Bytes;

    use super::*;
    use crate::object::Object;

    #[test]
    fn undoing_gives_the_state_of_each_moment() {
        let begin = crate::clock::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let head = |generation| Object::new(Bytes::new(), None, generation, Duration::ZERO).head;
        let mut changes = Changes::default();
        changes.record(at(10), "a", None);
        changes.record(at(20), "a", Some(head(1)));
        changes.record(at(30), "a", Some(head(2)));
        let generation_at = |age| {
            let mut state = BTreeMap::new();
            changes.undo(at(40), Duration::from_millis(age), &mut state);
            state.get("a").map(|head| head.generation)
        };
        assert_eq!(generation_at(5), None);
        assert_eq!(generation_at(15), Some(2));
        assert_eq!(generation_at(25), Some(1));
        assert_eq!(generation_at(35), None);
    }
}
