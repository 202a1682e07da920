//! Commands of several identities, in a fair order.
//!
//! **Invariant.** The commands of an identity leave in the order in which they arrived, and the identities take turns: in
//! front of an identity's next command are at most as many others as there are identities. In a full queue, the identity
//! with the most commands loses its last one to another's.
//!
//! **What would break it.** One queue for all, in the order of arrival: behind a client that keeps a thousand commands in
//! flight, another's single command waits for a thousand. Without mutual TLS all clients are one identity.

use std::collections::{BTreeMap, VecDeque};

use kernel::Identity;

use super::ReplyTo;
use super::inbox::is_lease_request;
use crate::shard::Submission;

/// Identities without commands whose lanes are kept, for their allocations.
const EMPTY_LANES_MAX: usize = 16;
/// A longer lane is freed when it is empty.
const EMPTY_LANE_LENGTH: usize = 512;

/// `None`: the engine itself.
type LaneOwner = Option<Identity>;

/// Commands that have arrived, by identity.
#[derive(Default)]
pub(super) struct FairQueue {
    lanes: BTreeMap<LaneOwner, Lane>,
    /// The identities with commands; the first has the next turn.
    turns: VecDeque<LaneOwner>,
    /// How many lanes are empty.
    empty_lanes: usize,
    length: usize,
    lease_requests: usize,
}

/// The commands of an identity.
#[derive(Default)]
struct Lane {
    submissions: VecDeque<Submission<ReplyTo>>,
    /// How many of them are requests for leases.
    lease_requests: usize,
}

impl Lane {
    fn count(&self, lease_requests: bool) -> usize {
        if lease_requests { self.lease_requests } else { self.submissions.len() - self.lease_requests }
    }
}

impl FairQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The number of requests for leases, or of other commands.
    pub(super) fn count(&self, lease_requests: bool) -> usize {
        if lease_requests { self.lease_requests } else { self.length - self.lease_requests }
    }

    pub(super) fn push(&mut self, submission: Submission<ReplyTo>) {
        let is_request = usize::from(is_lease_request(&submission));
        self.length += 1;
        self.lease_requests += is_request;
        let lane = if let Some(lane) = self.lanes.get_mut(&submission.command.identity) {
            lane
        } else {
            self.empty_lanes += 1;
            self.lanes.entry(submission.command.identity.clone()).or_default()
        };
        if lane.submissions.is_empty() {
            self.empty_lanes -= 1;
            self.turns.push_back(submission.command.identity.clone());
        }
        lane.lease_requests += is_request;
        lane.submissions.push_back(submission);
    }

    /// The next command of the identity whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Submission<ReplyTo>> {
        let owner = self.turns.pop_front()?;
        let lane = self.lanes.get_mut(&owner)?;
        let submission = lane.submissions.pop_front()?;
        let is_request = usize::from(is_lease_request(&submission));
        self.length -= 1;
        self.lease_requests -= is_request;
        lane.lease_requests -= is_request;
        if lane.submissions.is_empty() {
            self.emptied(&owner);
        } else {
            self.turns.push_back(owner);
        }
        Some(submission)
    }

    /// Adds what has arrived later.
    pub(super) fn append(&mut self, later: &mut FairQueue) {
        while let Some(owner) = later.turns.pop_front() {
            let Some(from) = later.lanes.get_mut(&owner) else { continue };
            let lease_requests = std::mem::take(&mut from.lease_requests);
            self.length += from.submissions.len();
            self.lease_requests += lease_requests;
            let lane = self.lanes.entry(owner.clone()).or_insert_with(|| {
                self.empty_lanes += 1;
                Lane::default()
            });
            if lane.submissions.is_empty() {
                self.empty_lanes -= 1;
                self.turns.push_back(owner.clone());
            }
            lane.lease_requests += lease_requests;
            lane.submissions.append(&mut from.submissions);
            later.emptied(&owner);
        }
        (later.length, later.lease_requests) = (0, 0);
    }

    /// Removes a command, so that this one of another identity may be added: the last one of the same kind of the identity that
    /// has the most. `None` if that is this command's identity, or would be with it.
    pub(super) fn evict_for(&mut self, submission: &Submission<ReplyTo>) -> Option<Submission<ReplyTo>> {
        let kind = is_lease_request(submission);
        let own = self.lanes.get(&submission.command.identity).map_or(0, |lane| lane.count(kind));
        let (owner, lane) = self.lanes.iter_mut().max_by_key(|(_, lane)| lane.count(kind))?;
        if lane.count(kind) <= own + 1 {
            return None;
        }
        let last = lane.submissions.iter().rposition(|other| is_lease_request(other) == kind)?;
        let evicted = lane.submissions.remove(last)?;
        self.length -= 1;
        self.lease_requests -= usize::from(kind);
        lane.lease_requests -= usize::from(kind);
        if lane.submissions.is_empty() {
            let owner = owner.clone();
            self.turns.retain(|turn| *turn != owner);
            self.emptied(&owner);
        }
        Some(evicted)
    }

    /// Nothing in it will be decided.
    pub(super) fn into_replies(self) -> impl Iterator<Item = ReplyTo> {
        self.lanes.into_values().flat_map(|lane| lane.submissions).map(|submission| submission.to)
    }

    /// Keeps the lane, if few are empty and it is short.
    fn emptied(&mut self, owner: &LaneOwner) {
        let capacity = self.lanes.get(owner).map_or(0, |lane| lane.submissions.capacity());
        if self.empty_lanes < EMPTY_LANES_MAX && capacity <= EMPTY_LANE_LENGTH {
            self.empty_lanes += 1;
        } else {
            self.lanes.remove(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use kernel::{Action, Command};

    use super::*;

    fn submission(name: &str, number: u128) -> Submission<ReplyTo> {
        let identity = Identity::new(name).expect("a name");
        let mut submission = Submission::new(
            Command::by(&identity, Action::Renew(Vec::new())),
            Box::new(|_, _| ()) as ReplyTo,
        );
        submission.origin = number.into();
        submission
    }

    fn queue(arrivals: &[(&str, u128)]) -> FairQueue {
        let mut queue = FairQueue::default();
        for (name, number) in arrivals {
            queue.push(submission(name, *number));
        }
        queue
    }

    fn name(submission: &Submission<ReplyTo>) -> (String, u128) {
        let identity = submission.command.identity.as_ref().expect("of a client");
        (identity.to_string(), submission.origin.correlation)
    }

    fn drain(queue: &mut FairQueue) -> Vec<(String, u128)> {
        std::iter::from_fn(|| queue.pop()).map(|submission| name(&submission)).collect()
    }

    fn named(expected: &[(&str, u128)]) -> Vec<(String, u128)> {
        expected.iter().map(|(name, number)| ((*name).to_string(), *number)).collect()
    }

    /// A client with 800 commands in flight delayed the single command of another by all of them.
    #[test]
    fn identities_take_turns_and_each_keeps_its_order() {
        let mut queue =
            queue(&[("ada", 1), ("ada", 2), ("ada", 3), ("bob", 4), ("ada", 5), ("bob", 6), ("cid", 7)]);
        assert_eq!(queue.count(false), 7);
        let expected = [("ada", 1), ("bob", 4), ("cid", 7), ("ada", 2), ("bob", 6), ("ada", 3), ("ada", 5)];
        assert_eq!(drain(&mut queue), named(&expected));
        assert!(queue.is_empty() && queue.count(false) == 0);
    }

    #[test]
    fn what_arrived_later_comes_behind_what_its_identity_had() {
        let mut left = queue(&[("ada", 1), ("ada", 2)]);
        let mut later = queue(&[("bob", 3), ("ada", 4)]);
        left.append(&mut later);
        assert!(later.is_empty() && later.pop().is_none());
        assert_eq!(drain(&mut left), named(&[("ada", 1), ("bob", 3), ("ada", 2), ("ada", 4)]));
        later.push(submission("cid", 5));
        left.append(&mut later);
        assert_eq!(drain(&mut left), named(&[("cid", 5)]), "both can be used again");
    }

    /// One client filled the inbox, and every other was refused.
    #[test]
    fn the_identity_with_the_most_commands_loses_its_last() {
        let mut queue = queue(&[("ada", 1), ("ada", 2), ("ada", 3), ("bob", 4)]);
        let evicted = queue.evict_for(&submission("cid", 5)).expect("ada has three");
        assert_eq!(name(&evicted), ("ada".to_string(), 3), "her last");
        queue.push(submission("cid", 5));
        assert!(queue.evict_for(&submission("bob", 6)).is_none(), "each would have two");
        assert!(queue.evict_for(&submission("ada", 7)).is_none(), "she has the most");
        assert_eq!(drain(&mut queue), named(&[("ada", 1), ("bob", 4), ("cid", 5), ("ada", 2)]));
    }

    #[test]
    fn identities_without_commands_are_forgotten() {
        let mut queue = FairQueue::default();
        for round in 0..3 {
            (0..100).for_each(|number| queue.push(submission(&format!("client-{round}-{number}"), number)));
            assert_eq!(drain(&mut queue).len(), 100);
        }
        assert_eq!((queue.lanes.len(), queue.empty_lanes), (EMPTY_LANES_MAX, EMPTY_LANES_MAX));
        let mut queue = FairQueue::default();
        for identity in 0..EMPTY_LANES_MAX {
            (0..4096).for_each(|number| queue.push(submission(&format!("client-{identity}"), number)));
            assert_eq!(drain(&mut queue).len(), 4096);
        }
        assert_eq!((queue.lanes.len(), queue.empty_lanes), (0, 0), "nobody's thousands of places are kept");
    }
}
