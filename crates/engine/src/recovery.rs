//! From a log back to a kernel: the same calls in the same order.
//!
//! A record that is not applied at replay was not written by these rules: log and build do not belong
//! together, and nothing may be built on the result.

use std::fmt;

use kernel::{Kernel, Lsn, Outcome};
use store::{LogReader, Seq, StoreError};

use crate::record::{DecodeError, Record};

/// Why a log cannot be replayed.
#[derive(Debug)]
pub enum RecoveryError {
    /// The store cannot read it.
    Store(StoreError),
    /// A batch does not hold records.
    Decode(Seq, DecodeError),
    /// A record is not applied, though it was when it was written.
    Diverged {
        /// Which one.
        lsn: Lsn,
        /// What came of it this time.
        outcome: Box<Outcome>,
    },
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryError::Store(error) => error.fmt(f),
            RecoveryError::Decode(seq, error) => write!(f, "batch {} of the log: {error}", seq.0),
            RecoveryError::Diverged { lsn, outcome } => write!(
                f,
                "a logged command is not applied at replay; the log was written by other rules, start the build \
                 that wrote it: lsn={} outcome={outcome:?}",
                lsn.0
            ),
        }
    }
}

impl std::error::Error for RecoveryError {}

/// Applies the batches from `from` up to, not including, `to`.
pub fn replay(kernel: &mut Kernel, log: &mut dyn LogReader, from: Seq, to: Seq) -> Result<(), RecoveryError> {
    let mut seq = from;
    while seq < to {
        let batch = log.read(seq).map_err(RecoveryError::Store)?;
        let records =
            Record::decode_all(&batch.payload).map_err(|error| RecoveryError::Decode(seq, error))?;
        for record in &records {
            let outcome = kernel.apply(record.lsn, record.now, &record.command);
            if !matches!(outcome, Outcome::Applied(..)) {
                return Err(RecoveryError::Diverged { lsn: record.lsn, outcome: Box::new(outcome) });
            }
        }
        seq = seq.next();
    }
    Ok(())
}
