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

use kernel::{Action, Command, Kernel, Limits, Lsn, Open, Outcome, Span, Store, Time};
use store::{Lsns, Seq};

use crate::clock::{Clock, Stamps, WrongClock, opening_lsn};
use crate::record::Record;

/// A kernel, the clock that stamps for it, and the batch under way.
pub struct Decider {
    kernel: Kernel,
    clock: Box<dyn Clock>,
    stamps: Stamps,
    next_lsn: Lsn,
    next_seq: Seq,
    batch: Vec<u8>,
    first: Option<Lsn>,
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
        let (batch, first) = (Vec::new(), None);
        let mut decider = Decider { kernel, clock, stamps, next_lsn: lsn, next_seq, batch, first };
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
        Decided { outcome, reveals: self.kernel.last_lsn() }
    }

    /// Ends what is due, a step of it, and forgets what may be forgotten.
    pub fn tick(&mut self) {
        let now = self.now();
        self.apply(now, &Command::internal(Action::Tick), 0, None);
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

    fn now(&self) -> Time {
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
        if let Outcome::Applied(..) = outcome {
            Record { lsn, now, correlation, command: command.clone(), document }.encode(&mut self.batch);
            self.first.get_or_insert(lsn);
            self.next_lsn = Lsn(lsn.0 + 1);
        }
        outcome
    }
}
