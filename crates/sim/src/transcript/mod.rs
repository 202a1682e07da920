//! Transcripts: runs of the kernel as text that people can read and tests can check.
//!
//! Lines that begin with a letter, `-`, `@` or `#N` are given; lines that begin with `=`, `~`, `!`,
//! `+` or `>` are what comes of them, and are written by the run itself. Blank lines and lines that
//! begin with `//` are for the reader.
//!
//! ```text
//! @100 ada: acquire KEY:orders ttl=1000 as=a
//! = granted a epoch=1 token=2 deadline=1100
//! + granted a
//! ```
//!
//! `=` is an answer that changed something, `~` one that changed nothing, `!` a refusal, `+` an event,
//! `>` what a query shows. `@N` sets the time, which then stays. `#N` sets the LSN of that one line;
//! without it a line takes the next. `a` is the lease that was granted `as=a`, with the credential it
//! was issued last; `a.1` is the same lease with the credential of epoch 1; `L7.1` is the lease that
//! LSN 7 granted.

mod read;
mod say;
mod write;

use std::collections::BTreeMap;

use kernel::{Answer, Held, Kernel, LeaseId, Lsn, Outcome, Time};

pub use read::ReadError;
pub use write::write_step;

use read::{Line, Query, Reader};

/// A transcript with everything that comes of it written anew.
///
/// Equal to `text` exactly if the kernel still does what the transcript says.
pub fn rerun(text: &str) -> Result<String, ReadError> {
    let mut run = Run::default();
    let mut out = String::new();
    for (n, line) in text.lines().enumerate() {
        if line.starts_with(['=', '~', '!', '+', '>']) {
            continue;
        }
        out.push_str(line);
        out.push('\n');
        let said = run.line(line).map_err(|what| what.at_line(n + 1))?;
        for line in said {
            out.push_str(&line);
            out.push('\n');
        }
    }
    Ok(out)
}

/// A kernel, and the names that its leases go by.
#[derive(Default)]
struct Run {
    kernel: Kernel,
    now: Time,
    names: Names,
}

/// Leases by the names that a transcript gives them, with the credential issued last.
#[derive(Default)]
struct Names(BTreeMap<String, Held>);

impl Names {
    fn of(&self, lease: LeaseId) -> String {
        let known = self.0.iter().find(|(_, held)| held.lease == lease);
        known.map_or_else(|| format!("L{}", lease.lsn.0), |(name, _)| name.clone())
    }
}

impl Run {
    fn line(&mut self, line: &str) -> Result<Vec<String>, ReadError> {
        let reader = Reader { names: &self.names, shard: self.shard() };
        match reader.line(line)? {
            Line::Nothing => Ok(Vec::new()),
            Line::Time(now) => {
                self.now = now;
                Ok(Vec::new())
            }
            Line::Step { lsn, now, command, name } => {
                self.now = now.unwrap_or(self.now);
                let lsn = lsn.unwrap_or(Lsn(self.kernel.last_lsn().0 + 1));
                let outcome = self.kernel.apply(lsn, self.now, &command);
                self.learn(&outcome, name);
                Ok(say::outcome(&outcome, &self.names))
            }
            Line::Query(query) => Ok(self.query(&query)),
        }
    }

    /// Grants and rebinds issue credentials.
    fn learn(&mut self, outcome: &Outcome, name: Option<String>) {
        let Outcome::Applied(Answer::Granted(granted), _) = outcome else { return };
        let held = Held { lease: granted.lease, epoch: granted.epoch };
        let known = self.names.0.iter().find(|(_, known)| known.lease == held.lease);
        let name = name.or_else(|| known.map(|(name, _)| name.clone()));
        if let Some(name) = name {
            self.names.0.insert(name, held);
        }
    }

    fn query(&self, query: &Query) -> Vec<String> {
        let now = self.now;
        match query {
            Query::Lease(lease) => vec![say::lease(&self.kernel.lease(*lease, now), &self.names)],
            Query::Key(namespace, key) => vec![say::key(self.kernel.key(namespace, key).as_ref())],
            Query::Judge { namespace, attempt, bundle, waiters } => {
                let conflict = self.kernel.conflict(namespace, bundle, now);
                vec![say::verdict(*attempt, conflict.as_ref(), waiters, &self.names)]
            }
            Query::Due => vec![say::due(self.kernel.next_due())],
        }
    }

    fn shard(&self) -> kernel::Shard {
        self.kernel.tenure().map(|tenure| tenure.open.store.shard).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile::Hostile;
    use crate::trial::Trial;

    /// A shrunk failure is only worth something if the text means what was run.
    #[test]
    fn whatever_is_tried_can_be_written_down_and_read_back() {
        let (mut hostile, mut trial) = (Hostile::new(7), Trial::default());
        for _ in 0..3000 {
            let step = hostile.step(&trial.kernel);
            let text = write_step(&step);
            let reader = Reader { names: &Names::default(), shard: kernel::Shard(1) };
            match reader.line(&text) {
                Ok(Line::Step { lsn, now, command, .. }) => {
                    assert_eq!((lsn, now), (Some(step.lsn), Some(step.now)), "{text}");
                    assert_eq!(*command, step.command, "{text}");
                }
                other => panic!("{text} reads as {other:?}"),
            }
            let outcome = trial.step(&step).expect("the kernel and the model agree");
            hostile.heard(&step, &outcome);
        }
    }

    #[test]
    fn a_line_that_makes_no_sense_is_named() {
        let error = rerun("// fine\n@5 ada: frobnicate\n").expect_err("no such verb");
        assert_eq!(error.to_string(), "line 2: no such verb: frobnicate");
        for line in
            ["ada: acquire", "ada: acquire KEY:k ttl=x", "ada: release nobody", "ada acquire KEY:k", "@x"]
        {
            assert!(rerun(line).is_err(), "{line}");
        }
        assert!(rerun("ada: release L1.1 frob=1").is_err(), "an option that nobody knows");
    }
}
