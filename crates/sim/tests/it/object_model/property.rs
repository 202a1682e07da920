//! The promises, and the situations that the search must have seen.

use stateright::Property;

use super::ObjectModel;
use super::state::{Event, Record, Role, SERVERS, State};

/// The names of the promises, for the table of broken variants.
pub(super) const ONE_BATCH: &str = "an acknowledged batch is the one batch of its number";
pub(super) const NOTHING_LOST: &str = "a later owner has every acknowledged batch";
pub(super) const CURRENT_READS: &str =
    "a response that logs nothing reveals a state that was current after its request";
pub(super) const FLOOR_FIRST: &str = "a batch is deleted or replaced only below a floor";
pub(super) const RECOVERED_PREFIX: &str = "a recovered state is the beginning of the log";
pub(super) const REFUSED_NOT_LOGGED: &str = "a command that did not happen is never in the log";
pub(super) const BLOBS_KEPT: &str = "the blob of the current document exists";
pub(super) const CLOSE_IS_LAST: &str = "nothing but an open follows a close";

pub(super) fn properties() -> Vec<Property<ObjectModel>> {
    let mut all = always();
    all.extend(sometimes());
    all
}

pub(super) fn always() -> Vec<Property<ObjectModel>> {
    vec![
        Property::always(ONE_BATCH, |_, state: &State| state.phantom.is_none()),
        Property::always(NOTHING_LOST, |_, state: &State| state.later_owners_know_acknowledged()),
        Property::always(CURRENT_READS, |_, state: &State| !state.is_stale_read),
        Property::always(FLOOR_FIRST, |_, state: &State| state.deletions_are_below_floor()),
        Property::always(RECOVERED_PREFIX, |_, state: &State| state.recovered_states_are_prefixes()),
        Property::always(REFUSED_NOT_LOGGED, |_, state: &State| {
            (0..state.commands)
                .all(|command| state.refused & (1 << command) == 0 || !state.log.contains_command(command))
        }),
        Property::always(BLOBS_KEPT, |_, state: &State| {
            state.log.document().is_none_or(|command| state.blobs & (1 << command) != 0)
        }),
        Property::always(CLOSE_IS_LAST, |_, state: &State| state.opens_follow_closes()),
    ]
}

fn sometimes() -> Vec<Property<ObjectModel>> {
    vec![
        Property::sometimes("takeover", |_, state: &State| state.has_owner_since(1)),
        Property::sometimes("second takeover", |_, state: &State| state.has_owner_since(2)),
        Property::sometimes("two candidates for one number", |_, state: &State| {
            let same = |one: usize, other: usize| {
                let (one, other) = (&state.servers[one], &state.servers[other]);
                let both = one.role == Role::Candidate && other.role == Role::Candidate;
                both && one.log.len == other.log.len
            };
            (0..SERVERS).any(|one| (0..one).any(|other| same(one, other)))
        }),
        Property::sometimes("truncation past a candidate with a put in flight", |_, state: &State| {
            let is_past = |server: &super::state::Server| state.floor > server.log.len;
            state.servers.iter().any(|server| server.role == Role::Candidate && is_past(server))
        }),
        Property::sometimes(
            "truncation past an owner that does not know its successor",
            |_, state: &State| {
                state.servers.iter().any(|server| server.role == Role::Owner && state.floor > server.log.len)
            },
        ),
        Property::sometimes("a late put becomes the next batch", |_, state: &State| {
            state.event == Event::LatePutLanded
        }),
        Property::sometimes("a put lands below the floor", |_, state: &State| {
            state.event == Event::LandedBelowFloor
        }),
        Property::sometimes("a writer recognises its own put", |_, state: &State| {
            state.event == Event::OwnPutRecognised
        }),
        Property::sometimes("a writer cannot tell whether its batch was in the log", |_, state: &State| {
            state.event == Event::Abandoned
        }),
        Property::sometimes("a candidate stands down because of a floor", |_, state: &State| {
            state.event == Event::CandidateStoodDown
        }),
        Property::sometimes("a follower recovers because of a floor", |_, state: &State| {
            state.event == Event::FollowerStoodDown
        }),
        Property::sometimes("a read is served after a HEAD", |_, state: &State| {
            state.event == Event::ReadByHead
        }),
        Property::sometimes("a read is served after an append", |_, state: &State| {
            state.event == Event::ReadByAppend
        }),
        Property::sometimes("a woken owner finds its successor by a HEAD", |_, state: &State| {
            state.event == Event::WokenOwnerDeposed
        }),
        Property::sometimes("a command did not happen", |_, state: &State| state.refused != 0),
        Property::sometimes("a blob is collected", |_, state: &State| {
            (0..state.commands).any(|command| state.blobs & (1 << command) == 0)
        }),
        Property::sometimes("hand-over to the server that it names", |_, state: &State| {
            state.has_successor_after_close(|state, to, owner| {
                owner == to && state.server(to).role == Role::Owner
            })
        }),
        Property::sometimes("hand-over to a dead server, and another opens", |_, state: &State| {
            state.has_successor_after_close(|state, to, owner| {
                owner != to && state.server(to).role == Role::Down
            })
        }),
        Property::sometimes("hand-over, and the old owner opens again", |_, state: &State| {
            state.log.iter().zip(state.log.iter().skip(1)).any(|(close, open)| {
                matches!(close.record, Record::Close { .. }) && close.writer.server == open.writer.server
            })
        }),
    ]
}

impl State {
    fn later_owners_know_acknowledged(&self) -> bool {
        self.servers.iter().filter(|server| server.role == Role::Owner).all(|owner| {
            (0..owner.tenure).all(|seq| {
                let is_logs = self.acknowledged & (1 << seq) == 0 || owner.log.get(seq) == self.log.get(seq);
                let is_phantom =
                    self.phantom.is_some_and(|(at, batch)| at == seq && owner.log.get(at) != Some(batch));
                is_logs && !is_phantom
            })
        })
    }

    fn deletions_are_below_floor(&self) -> bool {
        (self.floor..self.log.len).all(|seq| self.object(seq) == self.log.get(seq))
    }

    fn recovered_states_are_prefixes(&self) -> bool {
        self.servers.iter().all(|server| self.log.starts_with(&server.recovered()))
    }

    fn opens_follow_closes(&self) -> bool {
        self.log
            .iter()
            .zip(self.log.iter().skip(1))
            .all(|(batch, next)| !matches!(batch.record, Record::Close { .. }) || next.begins_tenure())
    }

    /// A server owns the log, the last tenure is its own, and this many tenures came before it.
    fn has_owner_since(&self, tenures: usize) -> bool {
        let opens: Vec<_> = self.log.iter().filter(|batch| batch.begins_tenure()).collect();
        let Some(last) = opens.last() else { return false };
        opens.len() > tenures && self.server(last.writer.server).role == Role::Owner
    }

    /// An `open` follows a `close`, and the condition holds for the server that the close names and the one that opened.
    fn has_successor_after_close(&self, condition: impl Fn(&State, u8, u8) -> bool) -> bool {
        self.log.iter().zip(self.log.iter().skip(1)).any(|(close, open)| match close.record {
            Record::Close { to } => condition(self, to, open.writer.server),
            _ => false,
        })
    }
}
