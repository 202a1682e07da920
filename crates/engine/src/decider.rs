//! Decides commands one after the other, and gathers those that changed something into a batch.
//!
//! **Invariant.** What a batch holds, replayed on the state before it, gives the state after it: every
//! command that was applied is in it, in order, and nothing else is. An answer reveals the state up to
//! some LSN, and may be given once that LSN is durable; so may a refusal.
//!
//! **What would break it.** To answer a refusal at once: "held by ada", while ada's grant is not on disk.
//! The power fails, ada never had it, and whoever was refused was told what never was.
//!
//! Whoever appends the batch must end the process if that fails: the state is ahead of the log then.
//!
//! Those who wait are served in the turn in which what they wait for becomes free.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kernel::{
    Action, Age, Command, Conflict, Event, Kernel, Limits, Lsn, Member, Namespace, Open, Outcome, Rejection,
    Span, Store, Time,
};
use store::{Lsns, Seq};

use crate::clock::{Clock, Stamps, WrongClock, opening_lsn};
use crate::record::Record;
use crate::waiters::{Ticket, Waiter, Waiters};

/// A kernel, the clock that stamps for it, and the batch under way.
pub struct Decider {
    kernel: Kernel,
    clock: Box<dyn Clock>,
    stamps: Stamps,
    next_lsn: Lsn,
    next_seq: Seq,
    batch: Vec<u8>,
    first: Option<Lsn>,
    waiters: Waiters,
    /// What became free and has not been offered to anybody yet.
    freed: VecDeque<(Namespace, Vec<Member>)>,
    /// Those whose turn has come, and what came of it; nothing for those that were gone.
    served: Vec<(Ticket, Option<Decided>)>,
}

/// What came of a request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Granted, or refused.
    Decided(Decided),
    /// It waits, behind so many who came before it and are in its way.
    Waiting {
        /// To be called off with.
        ticket: Ticket,
        /// 0: only holders are in its way.
        position: usize,
    },
}

/// Who opens a log, and by which limits.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The store it belongs to.
    pub store: Store,
    /// Who writes it from here on.
    pub writer: u128,
    /// In force until the next.
    pub limits: Limits,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The kernel's word.
    pub outcome: Outcome,
    /// The answer may be given once this is durable: it reveals the state up to here.
    pub reveals: Lsn,
}

/// A batch to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// At this number.
    pub seq: Seq,
    /// With these LSNs.
    pub lsns: Lsns,
    /// The records.
    pub payload: Vec<u8>,
}

impl Decider {
    /// Takes over a kernel that holds all of a log up to `next_seq`, and opens a tenure: the first record
    /// of the first batch. Nothing may be answered before that is durable.
    pub fn open(
        kernel: Kernel,
        next_seq: Seq,
        clock: Box<dyn Clock>,
        opening: &Opening,
    ) -> Result<Decider, WrongClock> {
        let stamps = Stamps::after(kernel.tenure(), kernel.now(), &*clock);
        let lsn = opening_lsn(kernel.last_lsn(), &*clock)?;
        let term = kernel.tenure().map_or(1, |tenure| tenure.open.term + 1);
        let open = Open {
            store: opening.store,
            writer: opening.writer,
            term,
            boot_id: clock.boot_id(),
            boot_clock: stamps.boot_clock(),
            kernel_version: kernel::KERNEL_VERSION,
            limits: opening.limits,
        };
        let mut decider = Decider {
            kernel,
            clock,
            stamps,
            next_lsn: lsn,
            next_seq,
            batch: Vec::new(),
            first: None,
            waiters: Waiters::default(),
            freed: VecDeque::new(),
            served: Vec::new(),
        };
        let command = Command::internal(Action::Open(open));
        let outcome = decider.apply(stamps.opened_at(), &command, 0, None);
        assert!(matches!(outcome, Outcome::Applied(..)), "the limits or the store are wrong: {outcome:?}");
        Ok(decider)
    }

    /// Decides one command now. What is due comes first, a step of it.
    ///
    /// `document` is the content that a commit or relocation carries, if it rides in the log.
    pub fn decide(&mut self, command: &Command, correlation: u128, document: Option<Vec<u8>>) -> Decided {
        let now = self.now();
        if self.kernel.next_due().is_some_and(|due| due <= now) {
            self.apply(now, &Command::internal(Action::Tick), 0, None);
        }
        let outcome = self.apply(now, command, correlation, document);
        let decided = Decided { outcome, reveals: self.kernel.last_lsn() };
        self.serve(now);
        decided
    }

    /// Asks for a lease. Nobody barges: whoever came earlier and is in the way goes first, even if what is
    /// wanted is free just now. With `wait`, which is set once nobody listens any more, it waits for it.
    pub fn ask(&mut self, command: &Command, correlation: u128, wait: Option<&Arc<AtomicBool>>) -> Asked {
        let (Action::Acquire(grant) | Action::Reserve(grant)) = &command.action else {
            return Asked::Decided(self.decide(command, correlation, None));
        };
        let now = self.now();
        let ahead = self.waiters.oldest_ahead(&grant.namespace, &grant.bundle);
        let ahead = ahead.filter(|_| !self.kernel.is_retry(now, command));
        let decided = match ahead {
            Some(oldest) => self.behind(oldest),
            None => self.decide(command, correlation, None),
        };
        let in_the_way = matches!(decided.outcome, Outcome::Rejected(Rejection::Conflict(_)));
        let Some(gone) = wait.filter(|_| in_the_way).cloned() else { return Asked::Decided(decided) };
        let age = grant.attempt.filter(|age| age.counts_at(now));
        let age = age.unwrap_or(Age { at: now, tie: self.next_lsn.0 });
        let (namespace, bundle) = (grant.namespace.clone(), grant.bundle.clone());
        // Deciding may have served some of those who were ahead.
        let position = self.waiters.count_ahead(&namespace, &bundle);
        let command = command.clone();
        let ticket = self.waiters.push(Waiter { namespace, bundle, age, command, correlation, gone });
        Asked::Waiting { ticket, position }
    }

    /// Calls a waiter off: it timed out, or is gone. Those whom it kept waiting may be served by that.
    pub fn call_off(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waiters.remove(ticket) {
            self.freed.push_back((waiter.namespace, waiter.bundle.members().to_vec()));
            self.serve(self.now());
        }
    }

    /// Those whose turn has come since this was last called, granted or refused; with nothing, those that
    /// were gone by then.
    pub fn take_served(&mut self) -> Vec<(Ticket, Option<Decided>)> {
        std::mem::take(&mut self.served)
    }

    /// Those who wait.
    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Refused, because others wait for it already.
    fn behind(&self, oldest: Age) -> Decided {
        let conflict = Conflict { holders: Vec::new(), oldest };
        let outcome = Outcome::Rejected(Rejection::Conflict(Box::new(conflict)));
        Decided { outcome, reveals: self.kernel.last_lsn() }
    }

    /// Offers what became free to those who wait for it. A grant may end others that were due, and so free
    /// more: that comes next.
    fn serve(&mut self, now: Time) {
        while let Some((namespace, members)) = self.freed.pop_front() {
            let mut waiters = std::mem::take(&mut self.waiters);
            let served = waiters.wake(&namespace, &members, |waiter| self.try_serve(now, waiter));
            self.waiters = waiters;
            for (ticket, waiter, decided) in served {
                if decided.is_none() {
                    // Those whom it kept waiting elsewhere may be served by its going.
                    self.freed.push_back((waiter.namespace, waiter.bundle.members().to_vec()));
                }
                self.served.push((ticket, decided));
            }
        }
    }

    /// Whatever comes of it is the waiter's answer, but that somebody is still in the way: only then will
    /// something that becomes free wake it again.
    fn try_serve(&mut self, now: Time, waiter: &Waiter) -> Option<Decided> {
        let outcome = self.apply(now, &waiter.command, waiter.correlation, None);
        let waits_on = matches!(outcome, Outcome::Rejected(Rejection::Conflict(_)));
        (!waits_on).then(|| Decided { outcome, reveals: self.kernel.last_lsn() })
    }

    /// Ends what is due, a step of it, and forgets what may be forgotten.
    pub fn tick(&mut self) {
        let now = self.now();
        self.apply(now, &Command::internal(Action::Tick), 0, None);
        self.serve(now);
    }

    /// How long until something is due; `None` if nothing ever is.
    pub fn until_due(&self) -> Option<Span> {
        Some(self.now().until(self.kernel.next_due()?))
    }

    /// The batch so far, to be appended; `None` if nothing changed since the last.
    pub fn seal(&mut self) -> Option<Sealed> {
        let first = self.first.take()?;
        let payload = std::mem::take(&mut self.batch);
        let seq = self.next_seq;
        self.next_seq = seq.next();
        Some(Sealed { seq, lsns: Lsns { first: first.0, last: self.kernel.last_lsn().0 }, payload })
    }

    /// How large the batch is so far.
    pub fn batch_bytes(&self) -> usize {
        self.batch.len()
    }

    /// The kernel, to look at. What it shows is revealed up to its last LSN.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Kernel time now.
    pub fn now(&self) -> Time {
        self.stamps.now(&*self.clock).max(self.kernel.now())
    }

    fn apply(
        &mut self,
        now: Time,
        command: &Command,
        correlation: u128,
        document: Option<Vec<u8>>,
    ) -> Outcome {
        let lsn = self.next_lsn;
        let outcome = self.kernel.apply(lsn, now, command);
        if let Outcome::Applied(_, events) = &outcome {
            for lease in events.iter().filter_map(Event::freed) {
                // Ended leases can be read until the next command is applied.
                if let Ok(view) = self.kernel.lease(lease, now) {
                    self.freed.push_back((view.namespace, view.members));
                }
            }
            Record { lsn, now, correlation, command: command.clone(), document }.encode(&mut self.batch);
            self.first.get_or_insert(lsn);
            self.next_lsn = Lsn(lsn.0 + 1);
        }
        outcome
    }
}
