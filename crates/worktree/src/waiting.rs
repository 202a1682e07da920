//! Waiting for a lock: in order of arrival among the waiters of one host, with jitter between hosts.
//!
//! A waiter is an empty file in `waiters/<worktree_id>`, named after its process and a ticket number. A waiter
//! tries to acquire the lock only while no live process of the same host (strictly: of the same pid space) has
//! a smaller ticket. So each host has one process that polls the lock, however many wait. A lock that stays free
//! shows that the process in front does not run (stopped, frozen): after `OVERTAKE_MS` the next one tries.
//!
//! **Invariant.** Tickets only order the attempts; the sequence alone grants. A lost, forged or repeated ticket
//! can change the order, never the number of holders. A ticket outlives its process at most until the next
//! waiter of that host looks: it removes the tickets of processes that have ended, and of other hosts after a
//! day. A waiter whose ticket was removed takes a new one.
//!
//! Left out: order between hosts, whose clocks and caches do not allow one, and acquires that do not wait, which
//! may overtake.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use crate::atomic::{DIR_MODE, FILE_MODE};
use crate::clock::{Millis, MonoMs};
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::{Durability, absent_is_none, ensure_dir};
use crate::holder::Maker;
use crate::ids::{Entropy, EntryNumber};
use crate::lock::{AcquireRequest, AcquiredLock};
use crate::probe;
use crate::repo::Repo;
use crate::status::{LockState, Status};
use crate::worktree::Worktree;

/// Parameters of a wait.
pub struct WaitRequest<'a> {
    /// Maximum wait; unlimited if none. A watch of a holder on another boot that began in time is finished.
    pub limit_ms: Option<Millis>,
    /// Called with the current status before each pause.
    pub on_wait: &'a dyn Fn(&WaitStatus),
}

/// The state of a wait.
#[derive(Clone, Debug)]
pub struct WaitStatus {
    /// The status of the lock.
    pub lock: Status,
    /// The position in this host's queue, from 1.
    pub position: usize,
    /// The time waited so far.
    pub waited_ms: Millis,
}

impl Repo {
    /// Acquires the lock of `worktree`, and waits for it while another session holds it.
    pub fn acquire_waiting(
        &self,
        worktree: &Worktree,
        request: &AcquireRequest<'_>,
        wait: &WaitRequest<'_>,
    ) -> Result<AcquiredLock> {
        let began = self.env.clock.monotonic();
        let mut ticket = Ticket::take(self, worktree)?;
        let mut idle = IdleLock::default();
        loop {
            let position = ticket.position()?;
            let lock = self.status(worktree)?;
            let idle_ms = idle.observe(&lock, self.env.clock.monotonic());
            if idle_ms.is_some_and(|idle_ms| idle_ms >= (position as u64 - 1) * OVERTAKE_MS) {
                match self.acquire(worktree, request) {
                    Err(error) if error.class() == ErrorClass::LockConflict => {}
                    other => return other,
                }
            }
            let waited_ms = self.env.clock.monotonic().since(began);
            let status = WaitStatus { lock, position, waited_ms };
            if wait.limit_ms.is_some_and(|limit_ms| waited_ms >= limit_ms) {
                return Err(still_locked(&status));
            }
            (wait.on_wait)(&status);
            self.pause(began, &status, wait.limit_ms);
        }
    }

    fn pause(&self, began: MonoMs, status: &WaitStatus, limit_ms: Option<Millis>) {
        let pause_ms = pause_ms(status.waited_ms, status.position, &*self.env.entropy);
        let waited_ms = self.env.clock.monotonic().since(began);
        let left_ms = limit_ms.map_or(Millis::MAX, |limit_ms| limit_ms.saturating_sub(waited_ms));
        self.env.clock.wait(pause_ms.min(left_ms.max(1)));
    }
}

/// The pause between two polls. It grows with the wait, so that a long wait costs little and a short one ends
/// soon; and it is random, so that hosts that saw the same release do not poll in step.
fn pause_ms(waited_ms: Millis, position: usize, entropy: &dyn Entropy) -> Millis {
    let mut byte = [0];
    entropy.fill(&mut byte);
    let step_ms = (waited_ms / 20).clamp(SHORTEST_PAUSE_MS, LONGEST_PAUSE_MS);
    let behind_ms = (position.saturating_sub(1) as u64 * SHORTEST_PAUSE_MS).min(LONGEST_PAUSE_MS);
    step_ms + behind_ms + step_ms * u64::from(byte[0]) / 256
}

/// How long the lock has been there to take, while no entry was appended.
#[derive(Debug, Default)]
struct IdleLock {
    since: Option<(EntryNumber, MonoMs)>,
}

impl IdleLock {
    /// None while the lock is held.
    fn observe(&mut self, lock: &Status, now: MonoMs) -> Option<Millis> {
        let is_held = matches!(lock.state, LockState::Live | LockState::Expired);
        let same = self.since.filter(|(newest, _)| *newest == lock.newest_entry);
        self.since = (!is_held).then(|| same.unwrap_or((lock.newest_entry, now)));
        self.since.map(|(_, since)| now.since(since))
    }
}

/// How long a waiter gives each one before it to take a free lock: longer than any pause.
const OVERTAKE_MS: Millis = 5_000;
const SHORTEST_PAUSE_MS: Millis = 20;
const LONGEST_PAUSE_MS: Millis = 500;
/// How long a ticket of another host is left alone.
const DAY_MS: Millis = 24 * 3600 * 1000;

fn still_locked(status: &WaitStatus) -> Error {
    let WaitStatus { lock, position, waited_ms } = status;
    let Some(held) = &lock.lock else {
        return Error::new(
            ErrorClass::LockConflict,
            format!(
                "other processes of this host wait for the lock and are first; retry with a longer --wait: \
                 position={position} waited_ms={waited_ms}"
            ),
        )
        .with("waited_ms", waited_ms);
    };
    let stealable_at = crate::lease::stealable_at(held);
    Error::new(
        ErrorClass::LockConflict,
        format!(
            "the worktree is still locked after the wait; retry with a longer --wait: waited_ms={waited_ms} \
             position={position} holder={} lease_expires_at={} stealable_at={}",
            held.holder_id,
            held.lease_expires_at.rfc3339(),
            stealable_at.rfc3339()
        ),
    )
    .with("holder_id", held.holder_id.as_str())
    .with("session_id", &held.session_id)
    .with("fencing_token", held.fencing_token)
    .with("lease_expires_at", held.lease_expires_at)
    .with("stealable_at", stealable_at)
    .with("waited_ms", waited_ms)
}

/// This process's place in the queue of its host; dropping it leaves the queue.
struct Ticket<'a> {
    repo: &'a Repo,
    dir: PathBuf,
    number: u64,
}

impl<'a> Ticket<'a> {
    fn take(repo: &'a Repo, worktree: &Worktree) -> Result<Self> {
        let dir = repo.layout.waiters(&worktree.worktree_id);
        for dir in [&repo.layout.all_waiters(), &dir] {
            ensure_dir(&*repo.env.fs, dir, DIR_MODE).doing("create", dir)?;
        }
        let mut ticket = Self { repo, dir, number: 0 };
        ticket.renumber()?;
        Ok(ticket)
    }

    /// Enters the queue behind everything that waits now.
    fn renumber(&mut self) -> Result<()> {
        let last = self.queue()?.into_iter().max().map_or(0, |(number, _)| number);
        for number in last + 1.. {
            self.number = number;
            let path = self.dir.join(self.name());
            match self.repo.env.fs.write_new(&path, b"", FILE_MODE, Durability::Lazy) {
                // Another thread of this process.
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
                other => return other.map(drop).doing("enter the queue of waiters with", &path),
            }
        }
        unreachable!("no host has 2^64 waiters")
    }

    /// The position in the queue, from 1.
    fn position(&mut self) -> Result<usize> {
        let ours = (self.number, OsString::from(self.name()));
        let queue = self.queue()?;
        if queue.contains(&ours) {
            return Ok(1 + queue.iter().filter(|other| **other < ours).count());
        }
        self.renumber()?;
        Ok(queue.len() + 1)
    }

    /// The tickets of this host's live processes. Tickets that have lost their process are removed.
    fn queue(&self) -> Result<Vec<(u64, OsString)>> {
        let env = &self.repo.env;
        let mut queue = Vec::new();
        for name in env.fs.list(&self.dir).doing("list", &self.dir)? {
            let Some((maker, number)) = parse(&name) else { continue };
            match maker.is_gone(&env.maker) {
                Some(false) => queue.push((number, name)),
                Some(true) => self.remove(&name),
                None => self.remove_if_ancient(&name),
            }
        }
        Ok(queue)
    }

    fn remove_if_ancient(&self, name: &OsString) {
        let Ok(meta) = self.repo.env.fs.meta(&self.dir.join(name)) else { return };
        // The local clock may run ahead by less than a day; then a ticket is taken again, at worst.
        if self.repo.env.clock.wall().since(meta.modified) > DAY_MS
            && probe::read(&self.repo.env, &self.repo.layout)
                .is_ok_and(|probe| probe.now.fs.since(meta.modified) > DAY_MS)
        {
            self.remove(name);
        }
    }

    /// A ticket that stays behind does no harm, so a failure is ignored.
    fn remove(&self, name: &OsString) {
        drop(absent_is_none(self.repo.env.fs.remove_file(&self.dir.join(name))));
    }

    fn name(&self) -> String {
        format!("{}.{}", self.repo.env.maker, self.number)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.remove(&self.name().into());
    }
}

/// `<maker>.<number>`; other names are not tickets.
fn parse(name: &OsString) -> Option<(Maker, u64)> {
    let text = name.to_str()?;
    let number = text.rsplit('.').next()?.parse().ok()?;
    let maker = Maker::from_name(text)?;
    (format!("{maker}.{number}") == text).then_some((maker, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(u8);

    impl Entropy for Fixed {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(self.0);
        }
    }

    #[test]
    fn pauses_are_random_grow_with_the_wait_and_stay_short() {
        assert_eq!(pause_ms(0, 1, &Fixed(0)), 20);
        assert!(pause_ms(0, 1, &Fixed(255)) > pause_ms(0, 1, &Fixed(0)), "hosts poll out of step");
        assert_eq!(pause_ms(4_000, 1, &Fixed(0)), 200);
        assert!(pause_ms(u64::MAX, 10_000, &Fixed(255)) <= 1_500, "a release is noticed within two seconds");
        assert!(pause_ms(0, 5, &Fixed(0)) > pause_ms(0, 1, &Fixed(0)), "those behind poll less");
    }

    #[test]
    fn only_names_that_a_waiter_writes_are_tickets() {
        for name in ["", "x", "1.2", "a.1.2", "a.1.2.x", "a.1.2.3.4", "a.1.2.03"] {
            assert!(parse(&name.into()).is_none(), "accepted {name:?}");
        }
        assert_eq!(parse(&"a.1.2.3".into()).expect("a ticket").1, 3);
    }
}
