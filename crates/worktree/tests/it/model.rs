//! A model of the sequence, checked in every interleaving: a holder that renews and publishes, and two
//! stealers, over one clock that advances at any moment.
//!
//! The model has the steps between which real processes can be paused: for a steal, read the clock, read the
//! lock, append; for a renewal, check, write, check again, count. Leases are judged by the real
//! `worktree::lease`. Each property is also shown to fail for a protocol without one of the safeguards.

use std::sync::LazyLock;

use stateright::{Checker, Model, Property};

use worktree::clock::{BootId, BootMs, UnixMs};
use worktree::holder::HolderId;
use worktree::ids::{Digest, FencingToken};
use worktree::lease::{LeaseState, LeaseTime, lease_state, may_act};
use worktree::policy::{LockPolicy, PolicyChanges};
use worktree::record::{BootStamp, LockRecord};

/// Which safeguard is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// None: the protocol of this crate.
    Ours,
    /// A steal replaces the record unconditionally.
    StealByRename,
    /// A publish is checked, and then appended without being bound to the check.
    CheckThenPublish,
    /// A renewal counts as soon as it is written.
    RenewalNotCheckedAgain,
    /// A renewal extends the last written one, even if that did not count.
    RenewalExtendsWhatIsWritten,
    /// A stealer reads the clock after the lock.
    ClockAfterLook,
}

/// A lease lasts four ticks and may be stolen two ticks after its expiry.
const LEASE: u64 = 4;
const LAST_TICK: i64 = 10;
const MOST_ENTRIES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Entry {
    AcquiredLock { to: u8 },
    Publish { token: usize },
}

/// The progress of the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holding {
    Idle,
    /// It has checked, and will write a renewal with this expiry.
    Renewing {
        until: i64,
    },
    /// It has written the renewal.
    Written {
        until: i64,
    },
    /// It has checked its token against this number of entries.
    Publishing {
        seen: usize,
    },
    /// It found that it lost the lock, or that its lease expired.
    Stopped,
}

/// The progress of a stealer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stealing {
    Idle,
    /// It has read the clock, and will read the lock.
    KnowsTime {
        now: i64,
    },
    /// It has read the lock, and will read the clock.
    KnowsLease {
        until: i64,
        seen: usize,
    },
    /// It has found the lease stealable after reading this number of entries.
    Decided {
        seen: usize,
    },
    /// It holds the lock by the entry of this number.
    Won {
        token: usize,
    },
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ModelState {
    now: i64,
    /// Entry `n` is at `n - 1`.
    entries: Vec<Entry>,
    /// The expiry of the first lease: in `<n>.renew`, and in the holder's session.
    written: i64,
    counted: i64,
    holder: Holding,
    stealers: [Stealing; 2],
    /// Whether the lock was ever granted while the holder could still act on it.
    overlapped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Tick,
    CheckRenewal,
    WriteRenewal,
    CountRenewal,
    CheckPublish,
    Publish,
    BeginSteal { stealer: usize },
    Decide { stealer: usize },
    Steal { stealer: usize },
}

struct Sequence(Protocol);

impl Model for Sequence {
    type State = ModelState;
    type Action = Action;

    fn init_states(&self) -> Vec<ModelState> {
        let until = i64::try_from(LEASE).expect("small");
        vec![ModelState {
            now: 0,
            entries: vec![Entry::AcquiredLock { to: 0 }],
            written: until,
            counted: until,
            holder: Holding::Idle,
            stealers: [Stealing::Idle; 2],
            overlapped: false,
        }]
    }

    fn actions(&self, state: &ModelState, actions: &mut Vec<Action>) {
        if state.now < LAST_TICK {
            actions.push(Action::Tick);
        }
        match state.holder {
            Holding::Idle => actions.extend([Action::CheckRenewal, Action::CheckPublish]),
            Holding::Renewing { .. } => actions.push(Action::WriteRenewal),
            Holding::Written { .. } => actions.push(Action::CountRenewal),
            Holding::Publishing { .. } => actions.push(Action::Publish),
            Holding::Stopped => {}
        }
        for (stealer, doing) in state.stealers.iter().enumerate() {
            match doing {
                Stealing::Idle => actions.push(Action::BeginSteal { stealer }),
                Stealing::KnowsTime { .. } | Stealing::KnowsLease { .. } => {
                    actions.push(Action::Decide { stealer });
                }
                Stealing::Decided { .. } => actions.push(Action::Steal { stealer }),
                Stealing::Won { .. } | Stealing::Lost => {}
            }
        }
    }

    fn next_state(&self, state: &ModelState, action: Action) -> Option<ModelState> {
        let mut next = state.clone();
        match action {
            Action::Tick => next.now += 1,
            Action::CheckRenewal => self.check_renewal(&mut next),
            Action::WriteRenewal => next.write_renewal(),
            Action::CountRenewal => self.count_renewal(&mut next),
            Action::CheckPublish => next.check_publish(),
            Action::Publish => self.publish(&mut next),
            Action::BeginSteal { stealer } => self.begin_steal(&mut next, stealer),
            Action::Decide { stealer } => next.decide(stealer),
            Action::Steal { stealer } => self.steal(&mut next, stealer),
        }
        (next.entries.len() <= MOST_ENTRIES).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("of two stealers of one lock at most one wins", |_, state: &ModelState| {
                let tokens: Vec<_> = state.stealers.iter().filter_map(|stealer| stealer.token()).collect();
                tokens.len() < 2 || tokens[0] != tokens[1]
            }),
            Property::always(
                "nobody is granted the lock while the holder may act",
                |_, state: &ModelState| !state.overlapped,
            ),
            Property::always("a publish carries the token that is current there", |_, state: &ModelState| {
                state.publishes_are_current()
            }),
            Property::sometimes("a steal succeeds", |_, state: &ModelState| state.token() > 1),
            Property::sometimes("a publish succeeds", |_, state: &ModelState| {
                state.entries.iter().any(|entry| matches!(entry, Entry::Publish { .. }))
            }),
            Property::sometimes("a renewal counts", |_, state: &ModelState| {
                state.counted > i64::try_from(LEASE).expect("small")
            }),
        ]
    }
}

impl Sequence {
    /// The lease that a renewal extends: the holder's own record, or the public one.
    fn basis(&self, state: &ModelState) -> i64 {
        match self.0 {
            Protocol::RenewalExtendsWhatIsWritten => state.written,
            _ => state.counted,
        }
    }

    fn check_renewal(&self, state: &mut ModelState) {
        let may = state.token() == 1 && state.acts_until(self.basis(state));
        let until = state.now + i64::try_from(LEASE).expect("small");
        state.holder = if may { Holding::Renewing { until } } else { Holding::Stopped };
    }

    fn count_renewal(&self, state: &mut ModelState) {
        let Holding::Written { until } = state.holder else { return };
        let in_time = state.acts_until(state.counted);
        let held = state.token() == 1;
        match self.0 {
            Protocol::RenewalNotCheckedAgain => state.count(until),
            // The holder sees the failure, and retries from the written renewal.
            Protocol::RenewalExtendsWhatIsWritten if held && !in_time => {
                let again = state.acts_until(state.written);
                if again { state.count(until) } else { state.holder = Holding::Stopped }
            }
            _ if held && in_time => state.count(until),
            _ => state.holder = Holding::Stopped,
        }
    }

    fn begin_steal(&self, state: &mut ModelState, stealer: usize) {
        state.stealers[stealer] = match self.0 {
            Protocol::ClockAfterLook => {
                Stealing::KnowsLease { until: state.written, seen: state.entries.len() }
            }
            _ => Stealing::KnowsTime { now: state.now },
        };
    }

    fn publish(&self, state: &mut ModelState) {
        let Holding::Publishing { seen } = state.holder else { return };
        let free = state.entries.len() == seen || self.0 == Protocol::CheckThenPublish;
        if free {
            state.entries.push(Entry::Publish { token: 1 });
            state.holder = Holding::Idle;
        } else if state.token() == 1 {
            state.holder = Holding::Idle;
        } else {
            state.holder = Holding::Stopped;
        }
    }

    fn steal(&self, state: &mut ModelState, stealer: usize) {
        let Stealing::Decided { seen } = state.stealers[stealer] else { return };
        if state.entries.len() == seen {
            state.overlapped |= state.holder != Holding::Stopped && state.acts_until(state.counted);
            state.entries.push(Entry::AcquiredLock { to: u8::try_from(stealer + 1).expect("two") });
            state.stealers[stealer] = Stealing::Won { token: state.entries.len() };
        } else if self.0 == Protocol::StealByRename {
            // The rename succeeds, with the token computed from the entries read.
            state.stealers[stealer] = Stealing::Won { token: seen + 1 };
        } else if state.token() == 1 {
            state.stealers[stealer] = Stealing::Idle;
        } else {
            state.stealers[stealer] = Stealing::Lost;
        }
    }
}

impl ModelState {
    /// The current token: the number of the newest acquire or steal.
    fn token(&self) -> usize {
        let grant = self.entries.iter().rposition(|entry| matches!(entry, Entry::AcquiredLock { .. }));
        grant.expect("the first entry is one") + 1
    }

    fn acts_until(&self, until: i64) -> bool {
        may_act(&stamp(until), &boot(), BootMs(self.now))
    }

    fn write_renewal(&mut self) {
        if let Holding::Renewing { until } = self.holder {
            self.written = until;
            self.holder = Holding::Written { until };
        }
    }

    fn count(&mut self, until: i64) {
        self.counted = until;
        self.holder = Holding::Idle;
    }

    fn check_publish(&mut self) {
        let may = self.token() == 1 && self.acts_until(self.counted);
        self.holder = if may { Holding::Publishing { seen: self.entries.len() } } else { Holding::Stopped };
    }

    /// The second half of a stealer's decision: reads the clock or the lock, the one not read yet.
    fn decide(&mut self, stealer: usize) {
        let (now, until, seen) = match self.stealers[stealer] {
            Stealing::KnowsTime { now } => (now, self.written, self.entries.len()),
            Stealing::KnowsLease { until, seen } => (self.now, until, seen),
            _ => return,
        };
        let now = LeaseTime { fs: UnixMs(now), boot: BootMs(now), boot_id: boot() };
        self.stealers[stealer] = if self.token() != 1 {
            Stealing::Lost
        } else if lease_state(&lock(until), &now) == LeaseState::Stealable {
            Stealing::Decided { seen }
        } else {
            Stealing::Idle
        };
    }

    fn publishes_are_current(&self) -> bool {
        let mut current = 0;
        self.entries.iter().enumerate().all(|(index, entry)| match entry {
            Entry::AcquiredLock { .. } => {
                current = index + 1;
                true
            }
            Entry::Publish { token } => *token == current,
        })
    }
}

impl Stealing {
    fn token(self) -> Option<usize> {
        match self {
            Self::Won { token } => Some(token),
            _ => None,
        }
    }
}

fn boot() -> BootId {
    BootId("one boot".into())
}

fn stamp(until: i64) -> BootStamp {
    BootStamp { boot_id: boot(), renewed_boot_ms: BootMs(0), expires_boot_ms: BootMs(until) }
}

fn lock(until: i64) -> LockRecord {
    let mut lock = GRANTED.clone();
    lock.lease_expires_at = UnixMs(until);
    lock.boot = stamp(until);
    lock
}

/// Built once: reading the identity of this process takes longer than a step of the model.
static GRANTED: LazyLock<LockRecord> = LazyLock::new(|| {
    let changes = PolicyChanges {
        lease_duration_ms: Some(LEASE),
        renew_interval_ms: Some(1),
        max_clock_skew_ms: Some(1),
        steal_grace_ms: Some(1),
    };
    LockRecord {
        lock_id: "l-1".parse().expect("valid"),
        worktree_id: "main".parse().expect("valid"),
        holder_id: HolderId::this_process(),
        holder_nonce: Digest::NONE,
        session_id: "s-1".parse().expect("valid"),
        acquire_seq: 1,
        created_at: UnixMs(0),
        last_renewed_at: UnixMs(0),
        policy: LockPolicy::DEFAULT.with(&changes).expect("valid"),
        lease_expires_at: UnixMs(0),
        fencing_token: FencingToken(1),
        boot: stamp(0),
    }
});

fn broken(protocol: Protocol) -> Vec<&'static str> {
    let checker = Sequence(protocol).checker().spawn_bfs().join();
    let found = checker.discoveries();
    let always = Sequence(protocol).properties().into_iter().take(3);
    always.map(|property| property.name).filter(|name| found.contains_key(name)).collect()
}

#[test]
fn every_interleaving_keeps_the_invariants() {
    let checker = Sequence(Protocol::Ours).checker().spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 1_000, "only {} states", checker.unique_state_count());
}

#[test]
fn without_exclusive_creation_two_stealers_win() {
    assert_eq!(broken(Protocol::StealByRename), ["of two stealers of one lock at most one wins"]);
}

#[test]
fn without_a_publish_that_names_its_number_a_stale_token_gets_in() {
    assert_eq!(broken(Protocol::CheckThenPublish), ["a publish carries the token that is current there"]);
}

#[test]
fn without_the_second_check_a_late_renewal_overlaps_with_a_steal() {
    assert_eq!(
        broken(Protocol::RenewalNotCheckedAgain),
        ["nobody is granted the lock while the holder may act"]
    );
}

#[test]
fn without_the_holders_own_count_a_renewal_that_did_not_count_revives_the_lease() {
    assert_eq!(
        broken(Protocol::RenewalExtendsWhatIsWritten),
        ["nobody is granted the lock while the holder may act"]
    );
}

/// The first version of the protocol did this, and its model read lock and clock in one step.
#[test]
fn with_the_clock_read_after_the_lock_a_running_lease_is_stolen() {
    assert_eq!(broken(Protocol::ClockAfterLook), ["nobody is granted the lock while the holder may act"]);
}
