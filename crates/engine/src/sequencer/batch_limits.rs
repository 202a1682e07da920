//! How large a batch may become.
//!
//! **Invariant.** While several identities send commands, a batch has few of them: what one identity's commands cost to
//! decide, to append and to answer delays another's by no more than two small batches.
//!
//! **What would break it.** One limit for all times. A large batch is a gain where appends are slow and the clients belong
//! together; the same batch, of one client with hundreds of requests in flight, makes another wait for a thousand
//! decisions and a thousand responses.
//!
//! **What is absent.** Logs on other machines: their appends take so long that a batch does not matter beside them.

use kernel::{Identity, Span, Time};

use crate::decider::BATCH_BYTES;
use crate::record::RECORD_HEADER;

/// Replies and query results in a batch, without those of waiters that were served.
const COMMANDS: usize = 1024;
/// The same, while several identities send commands: as much as is decided and answered while a fast disk flushes.
const SHARED_COMMANDS: usize = 32;
/// What is added to it for each millisecond that an append takes, for the same reason. The first is free: the clock counts
/// whole ones.
const SHARED_COMMANDS_PER_MS: usize = 200;
/// Bytes of records, while several identities send commands.
const SHARED_BYTES: usize = 64 << 10;
/// The same as `COMMANDS`, for a log on another machine: its appends cost the same for any number of commands.
const REMOTE_COMMANDS: usize = 64 * 1024;
const _: () = assert!(
    REMOTE_COMMANDS * RECORD_HEADER >= BATCH_BYTES,
    "what such a log takes is bounded by bytes alone; the number is a bound for replies that log nothing"
);
/// For how long the limits stay small after the last change of the identity.
const SHARED: Span = Span(1000);

/// The limits of the batch under way.
#[derive(Debug)]
pub(super) struct BatchLimits {
    is_remote: bool,
    /// Of the last command.
    last: Option<Identity>,
    /// The batch under way has commands of several identities, or its first is of another one than the last before it.
    has_changed: bool,
    is_shared: bool,
    /// `is_shared` is reset by the first batch after this, unless the identity changes again.
    shared_until: Time,
    /// When the last append began.
    began: Time,
    /// How long it took.
    append: Span,
}

impl BatchLimits {
    /// Limits for a log on this machine, or on another.
    pub(super) fn new(is_remote: bool) -> BatchLimits {
        BatchLimits {
            is_remote,
            last: None,
            has_changed: false,
            is_shared: false,
            shared_until: Time(0),
            began: Time(0),
            append: Span(0),
        }
    }

    /// A command of this identity is decided. The engine's own commands do not count.
    pub(super) fn note(&mut self, identity: Option<&Identity>) {
        if identity.is_none() || self.last.as_ref() == identity || self.is_remote {
            return;
        }
        if self.last.is_some() {
            (self.has_changed, self.is_shared) = (true, true);
        }
        self.last = identity.cloned();
    }

    /// A batch leaves, and the next one begins.
    pub(super) fn begin_batch(&mut self, now: Time) {
        if std::mem::take(&mut self.has_changed) {
            self.shared_until = now.after(SHARED);
        }
        self.is_shared &= now < self.shared_until;
        self.began = now;
    }

    /// A batch is durable.
    pub(super) fn appended(&mut self, now: Time) {
        self.append = self.began.until(now);
    }

    /// The most replies and query results.
    pub(super) fn commands(&self) -> usize {
        match (self.is_remote, self.is_shared) {
            (true, _) => REMOTE_COMMANDS,
            (false, true) => self.shared_commands(),
            (false, false) => COMMANDS,
        }
    }

    fn shared_commands(&self) -> usize {
        let whole_ms = usize::try_from(self.append.0.saturating_sub(1)).unwrap_or(COMMANDS).min(COMMANDS);
        (SHARED_COMMANDS + SHARED_COMMANDS_PER_MS * whole_ms).min(COMMANDS)
    }

    /// The most bytes of records, after which nothing more is taken.
    pub(super) fn bytes(&self) -> usize {
        if self.is_shared { SHARED_BYTES } else { BATCH_BYTES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_small_while_several_identities_send_commands() {
        let [ada, bob] = ["ada", "bob"].map(|name| Identity::new(name).expect("a name"));
        let mut limits = BatchLimits::new(false);
        let sizes = |limits: &BatchLimits| (limits.commands(), limits.bytes());
        for identity in [None, Some(&ada), None, Some(&ada)] {
            limits.note(identity);
            assert_eq!(sizes(&limits), (COMMANDS, BATCH_BYTES), "one identity, and the engine itself");
        }
        limits.note(Some(&bob));
        assert_eq!(sizes(&limits), (SHARED_COMMANDS, SHARED_BYTES), "at once");
        for now in [10, 1009] {
            limits.begin_batch(Time(now));
            limits.note(Some(&bob));
            assert_eq!(sizes(&limits), (SHARED_COMMANDS, SHARED_BYTES));
        }
        limits.begin_batch(Time(1010));
        assert_eq!(sizes(&limits), (COMMANDS, BATCH_BYTES), "bob alone for a second");
        limits.note(Some(&ada));
        for (took, commands) in
            [(0, 32), (1, 32), (2, 232), (5, 832), (10, COMMANDS), (u64::MAX - 2000, COMMANDS)]
        {
            limits.begin_batch(Time(1020));
            limits.appended(Time(1020 + took));
            assert_eq!(limits.commands(), commands, "a slow disk pays for larger batches: {took} ms");
        }
        let mut remote = BatchLimits::new(true);
        for identity in [&ada, &bob] {
            remote.note(Some(identity));
        }
        assert_eq!(sizes(&remote), (REMOTE_COMMANDS, BATCH_BYTES));
    }
}
