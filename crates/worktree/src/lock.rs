//! The lock of an exclusive worktree: acquire, steal, renew, release, and commits under the token.
//!
//! # The invariant
//!
//! **At most one session believes that it may write, and every commit that is accepted was made by the
//! session that the sequence names at that point.** The second half needs no clock: acquire, steal,
//! release, publish and restore are entries of one sequence, and a number is given out once. The first
//! half needs clocks within the bounds of the policy.
//!
//! # What would break it
//!
//! 1. *Steal by rename* (as the specification has it). Two stealers read token 7, both write 8, both
//!    rename; rename never fails, so both have won. Here both try to create entry 8, and one gets `EEXIST`.
//! 2. *Check, then act.* A holder checks its token, pauses, is stolen from, wakes and publishes. Here the
//!    publish is the entry after the checked one: it meets `EEXIST`, reads again, and is fenced.
//! 3. *Renewal after the steal was decided.* A stealer reads the expired lease and pauses before its entry;
//!    the holder wakes and renews; the stealer goes on. A renewal therefore counts only if, after it is
//!    durable, no newer acquire or steal exists *and* the lease before it has not expired on the holder's
//!    boot clock. A stealer's read is later than that by `max_clock_skew_ms + steal_grace_ms`, or by a whole
//!    watched lease; so a renewal that counts was there to be seen.
//! 4. *A renewal that did not count, renewed.* In 3 the too-late renewal stands in `<n>.renew` with an
//!    expiry in the future. If the next renewal took that as the lease before it, it would count, and the
//!    paused stealer would still go on. So the holder judges by its session file, which only a renewal
//!    that counted may change.
//! 5. *Read the lock, then the clock.* A stealer sees a running lease, and pauses; the holder renews in time;
//!    the stealer wakes, reads the clock, and finds that the expiry it saw has long passed. Renewals take no
//!    number, so its entry would go through. So the lock is read again after the clock.
//!
//! When a lock may be stolen is in `steal`. Left out: payload writes. Nothing here can stop a process that
//! writes files; it can only refuse to publish them.

mod steal;

use crate::atomic;
use crate::clock::{BootId, BootMs, Millis};
use crate::commit;
pub use crate::commit::CommittedEntry;
use crate::env::Env;
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::{Durability, absent_is_none};
use crate::history;
use crate::holder::HolderId;
use crate::ids::{Digest, EntryNumber, FencingToken, LockId, Nonce, RepoId, SessionId, SnapshotId};
use crate::layout::Layout;
use crate::lease;
use crate::policy::LockPolicy;
use crate::probe::{self, ClockProbe};
use crate::record::{BootStamp, Entry, EntryEvent, LockRecord, RenewalRecord, with_rfc3339};
use crate::restore::SettledRestore;
use crate::sequence::Sequence;
use crate::session::{LockSession, RepoInstance};
use crate::traces::Traces;
use crate::view::View;
use crate::worktree::{Mode, Worktree};

/// How many entries back to search for the lock of a session whose file is gone.
const SEARCH_ENTRIES: u64 = 512;

/// The lock of one worktree.
pub struct Lock<'a> {
    env: &'a Env,
    layout: &'a Layout,
    repo_id: &'a RepoId,
    worktree: &'a Worktree,
}

/// Parameters of an acquire or a steal.
pub struct AcquireRequest<'a> {
    /// The process that will hold it.
    pub holder: HolderId,
    /// Durations that govern renewal and stealing.
    pub policy: LockPolicy,
    /// Refuse a free lock: for `steal`.
    pub only_steal: bool,
    /// Called before a watch, with its length.
    pub on_watch: &'a dyn Fn(Millis),
}

/// A lock that this call acquired.
#[derive(Clone, Debug)]
pub struct AcquiredLock {
    /// The lock.
    pub lock: LockRecord,
    /// The holder's session.
    pub session: LockSession,
    /// The token that was fenced, if it was stolen.
    pub stolen_from: Option<FencingToken>,
    /// Restores of earlier holders that were finished or undone.
    pub settled: Vec<SettledRestore>,
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The lock is free now.
    Released,
    /// This session had released it before.
    AlreadyReleased,
}

impl<'a> Lock<'a> {
    /// The lock of `worktree`.
    pub fn new(env: &'a Env, layout: &'a Layout, repo_id: &'a RepoId, worktree: &'a Worktree) -> Self {
        Self { env, layout, repo_id, worktree }
    }

    /// Takes the lock if it is free, or steals it if its lease has been over for long enough. Callers outside
    /// this crate use `Repo::acquire`, which also settles the restores of earlier holders.
    pub(crate) fn acquire(&self, request: &AcquireRequest<'_>) -> Result<AcquiredLock> {
        self.require_exclusive()?;
        self.require_no_later_trace()?;
        let mut session = self.new_session()?;
        // Saved first: after a crash, a lock without its saved secret could not be released.
        self.save(&session)?;
        let mut granted = None;
        let committed = self.commit(None, |view| {
            let (event, lock, stolen_from) = self.grant_event(view, request, &session)?;
            granted = Some((lock, stolen_from));
            Ok(event)
        });
        if let Err(error) = committed {
            return Err(self.forget_unless_indeterminate(&session, error));
        }
        let (lock, stolen_from) = granted.expect("the accepted event was built from it");
        session.fencing_token = lock.fencing_token;
        session.counted = lock.boot.clone();
        // The lock is held, and the session saved first can still release it: name it.
        self.save(&session)
            .map_err(|error| error.with("indeterminate", true).with("session_id", &session.session_id))?;
        self.require_time_left(&session.counted)
            .map_err(|error| error.with("session_id", &session.session_id))?;
        self.copy_for_readers(&lock);
        Ok(AcquiredLock { lock, session, stolen_from, settled: Vec::new() })
    }

    /// Extends the lease by its duration, from now.
    pub fn renew(&self, session_id: &SessionId) -> Result<LockRecord> {
        let session = self.session(session_id)?;
        let _turn = self.env.sessions.lock_renewals(&session, &*self.env.clock)?;
        // Another command may have renewed while this one waited for the guard.
        let mut session = self.session(session_id)?;
        let lock = self.held_by(&session)?;
        let reading = self.read_clocks(lock.policy.max_clock_skew_ms())?;
        self.require_time_left(&session.counted)?;
        let (lease_expires_at, boot) = reading.now.stamp(lock.policy.lease_duration_ms());
        let renewal = RenewalRecord {
            fencing_token: lock.fencing_token,
            holder_nonce: lock.holder_nonce,
            last_renewed_at: reading.now.fs,
            lease_expires_at,
            boot: boot.clone(),
        };
        self.write_renewal(&renewal)?;
        self.held_by(&session)?;
        self.require_time_left(&session.counted)?;
        session.counted = boot;
        self.save(&session)?;
        let lock = lock.renewed(renewal);
        self.copy_for_readers(&lock);
        Ok(lock)
    }

    /// Releases the lock, even after the lease expired, unless it was stolen. Idempotent: an interrupted
    /// release can be retried, even if the lock has been acquired by other sessions since.
    pub fn release(&self, session_id: &SessionId) -> Result<ReleaseOutcome> {
        let released = self.session(session_id).and_then(|session| self.release_now(&session));
        match released {
            Err(error) if error.class() == ErrorClass::LockNotHeld => self.released_before(session_id, error),
            other => other,
        }
    }

    fn release_now(&self, session: &LockSession) -> Result<ReleaseOutcome> {
        let committed = self.commit(Some(session.fencing_token), |view| {
            let lock = self.require_held_by(view, session)?;
            Ok(EntryEvent::Release { fencing_token: lock.fencing_token })
        })?;
        self.remove_copies(session.fencing_token);
        self.env.sessions.remove(&session.session_id).map_err(|error| {
            error.and("the lock is released, but its session could not be removed").with("released", true)
        })?;
        self.fold(committed.n);
        Ok(ReleaseOutcome::Released)
    }

    /// Succeeds if this session released its lock before; a lost lock is refused with `refusal`.
    fn released_before(&self, session_id: &SessionId, refusal: Error) -> Result<ReleaseOutcome> {
        let Some(token) = self.granted_to(session_id)? else { return Err(refusal) };
        if !self.ended_by_release(token)? {
            return Err(refusal);
        }
        // The copy for readers stays: it may be the next holder's.
        let renewal = self.layout.renewal(&self.worktree.worktree_id, token);
        drop(absent_is_none(self.env.fs.remove_file(&renewal)));
        self.env.sessions.remove(session_id)?;
        Ok(ReleaseOutcome::AlreadyReleased)
    }

    /// Commits `event` under the session's token: accepted only while that token is the current one.
    pub(crate) fn commit_under(
        &self,
        session: &LockSession,
        event: impl Fn(&View, FencingToken) -> EntryEvent,
    ) -> Result<CommittedEntry> {
        self.commit(Some(session.fencing_token), |view| {
            let lock = self.require_token(view, session)?;
            self.require_time_left(&session.counted)?;
            Ok(event(view, lock.fencing_token))
        })
    }

    /// Publishes a snapshot under the session's token, as the new head.
    pub fn publish_under(
        &self,
        session: &LockSession,
        snapshot_id: &SnapshotId,
        content_hash: Digest,
    ) -> Result<CommittedEntry> {
        self.commit_under(session, |view, token| EntryEvent::Publish {
            fencing_token: Some(token),
            snapshot_id: snapshot_id.clone(),
            content_hash,
            moves_head: true,
            previous: view.state().last_publish,
        })
    }

    /// Refuses unless the session's token is the current one and its lease runs.
    pub fn check(&self, session: &LockSession) -> Result<LockRecord> {
        let view = self.view()?;
        let lock = self.require_token(&view, session)?.clone();
        self.require_time_left(&session.counted)?;
        Ok(lock)
    }

    /// Appends the event that `decide` returns for the newest state. `own` is the token of the caller's own
    /// entry, which is known to be durable.
    pub(crate) fn commit(
        &self,
        own: Option<FencingToken>,
        decide: impl FnMut(&View) -> Result<EntryEvent>,
    ) -> Result<CommittedEntry> {
        commit::commit(self.env, self.layout, &self.worktree.worktree_id, own, decide)
    }

    /// The current state of the worktree's sequence; refused if the worktree was removed.
    pub fn view(&self) -> Result<View> {
        View::of_existing(self.env, self.layout, &self.worktree.worktree_id)
    }

    /// The session `id`, if it belongs to this worktree.
    pub fn session(&self, id: &SessionId) -> Result<LockSession> {
        let session = self.env.sessions.load(id)?;
        if session.repo_id == *self.repo_id && session.worktree_id == self.worktree.worktree_id {
            if session.is_of(&RepoInstance::of(&*self.env.fs, self.layout)?) {
                return Ok(session);
            }
            return Err(Error::new(
                ErrorClass::LockNotHeld,
                format!(
                    "this session belongs to another copy of the repository; use it there, or acquire this one: \
                     session_id={id}"
                ),
            ));
        }
        Err(Error::new(
            ErrorClass::LockNotHeld,
            format!(
                "this session belongs to another worktree; pass its --worktree, or acquire this one: \
                 session_worktree={} worktree={}",
                session.worktree_id, self.worktree.worktree_id
            ),
        ))
    }

    fn grant_event(
        &self,
        view: &View,
        request: &AcquireRequest<'_>,
        session: &LockSession,
    ) -> Result<(EntryEvent, LockRecord, Option<FencingToken>)> {
        let Some(held) = &view.lock else {
            if request.only_steal {
                return Err(Error::new(
                    ErrorClass::LockNotHeld,
                    "the lock is free, so there is nothing to steal; run `jvs lock acquire`",
                ));
            }
            let lock = self.new_lock(view, request, session)?;
            return Ok((EntryEvent::Acquire { lock: lock.clone() }, lock, None));
        };
        self.permit_steal(view, held, request)?;
        // The clocks are read again: a watch may have taken longer than a lease.
        let lock = self.new_lock(view, request, session)?;
        let event = EntryEvent::Steal {
            lock: lock.clone(),
            stolen_from: held.fencing_token,
            stolen_from_holder: held.holder_id.clone(),
        };
        Ok((event, lock, Some(held.fencing_token)))
    }

    fn new_lock(
        &self,
        view: &View,
        request: &AcquireRequest<'_>,
        session: &LockSession,
    ) -> Result<LockRecord> {
        let reading = self.read_clocks(request.policy.max_clock_skew_ms())?;
        let (lease_expires_at, boot) = reading.now.stamp(request.policy.lease_duration_ms());
        Ok(LockRecord {
            lock_id: LockId::random(&*self.env.entropy),
            worktree_id: self.worktree.worktree_id.clone(),
            holder_id: request.holder.clone(),
            holder_nonce: session.holder_nonce.digest(),
            session_id: session.session_id.clone(),
            acquire_seq: view.state().acquire_seq + 1,
            created_at: reading.now.fs,
            last_renewed_at: reading.now.fs,
            policy: request.policy,
            lease_expires_at,
            fencing_token: FencingToken(view.next().0),
            boot,
        })
    }

    /// Refuses if a trace outside the sequence names an entry that the sequence does not have.
    fn require_no_later_trace(&self) -> Result<()> {
        let traces = Traces {
            env: self.env,
            layout: self.layout,
            repo_id: self.repo_id,
            worktree: &self.worktree.worktree_id,
        };
        let in_sessions = traces.of_sessions()?;
        let last = self.view()?.newest;
        let snapshots = traces.of_recent_snapshots(last.at)?;
        let newest = self.view()?.newest.n;
        let sequence = Sequence::new(self.env, self.layout, &self.worktree.worktree_id);
        let token = in_sessions.max(snapshots.token);
        if let Some(token) = token.filter(|token| token.entry() > newest) {
            return Err(sequence.tail_lost(newest, token));
        }
        for snapshot in &snapshots.published {
            let id = &snapshot.snapshot_id;
            if !history::is_published(self.env, self.layout, &self.worktree.worktree_id, id)? {
                let path = self.layout.snapshot(id);
                return Err(Error::damaged(
                    &path,
                    "the sequence has lost its end: it does not list a snapshot that was published",
                ));
            }
        }
        Ok(())
    }

    fn new_session(&self) -> Result<LockSession> {
        let not_granted =
            BootStamp { boot_id: BootId::unknown(), renewed_boot_ms: BootMs(0), expires_boot_ms: BootMs(0) };
        Ok(LockSession {
            session_id: SessionId::random(&*self.env.entropy),
            repo_id: self.repo_id.clone(),
            worktree_id: self.worktree.worktree_id.clone(),
            holder_nonce: Nonce::random(&*self.env.entropy),
            fencing_token: FencingToken(0),
            counted: not_granted,
            maker: self.env.maker.to_string(),
            repo: Some(RepoInstance::of(&*self.env.fs, self.layout)?),
        })
    }

    fn held_by(&self, session: &LockSession) -> Result<LockRecord> {
        let view = self.view()?;
        self.require_held_by(&view, session).cloned()
    }

    fn require_held_by<'v>(&self, view: &'v View, session: &LockSession) -> Result<&'v LockRecord> {
        view.lock.as_ref().filter(|lock| is_holder(lock, session)).ok_or_else(|| {
            Error::new(
                ErrorClass::LockNotHeld,
                format!(
                    "this session no longer holds the lock; stop writing and acquire it again: session_id={} \
                     worktree={}",
                    session.session_id, self.worktree.worktree_id
                ),
            )
        })
    }

    fn require_token<'v>(&self, view: &'v View, session: &LockSession) -> Result<&'v LockRecord> {
        self.require_held_by(view, session).map_err(|_| {
            Error::new(
                ErrorClass::FencingMismatch,
                format!(
                    "the lock passed to another tenure, so nothing was committed; acquire it again and start \
                     from the current head: token={} current={}",
                    session.fencing_token,
                    view.lock.as_ref().map_or("none".to_owned(), |lock| lock.fencing_token.to_string()),
                ),
            )
            .with("fencing_token", session.fencing_token)
            .with("current_fencing_token", view.lock.as_ref().map(|lock| lock.fencing_token))
        })
    }

    fn require_time_left(&self, counted: &BootStamp) -> Result<()> {
        if lease::may_act(counted, &self.env.clock.boot_id(), self.env.clock.boot()) {
            return Ok(());
        }
        Err(Error::new(
            ErrorClass::LockExpired,
            "the lease expired before it was renewed, or this machine restarted; stop writing, then release \
             and acquire the lock",
        ))
    }

    fn require_exclusive(&self) -> Result<()> {
        match self.worktree.mode {
            Mode::Exclusive => Ok(()),
            Mode::Shared => Err(Error::invalid(format!(
                "a shared worktree has no lock, any process may write to it: worktree={}",
                self.worktree.worktree_id
            ))),
        }
    }

    /// The token granted to `session_id`: from its file, else from the latest entries.
    fn granted_to(&self, session_id: &SessionId) -> Result<Option<FencingToken>> {
        if let Ok(session) = self.session(session_id)
            && session.fencing_token != FencingToken(0)
        {
            return Ok(Some(session.fencing_token));
        }
        let newest = self.view()?.newest;
        for event in self.events_between(newest.n.0.saturating_sub(SEARCH_ENTRIES), &newest)?.rev() {
            match event? {
                EntryEvent::Acquire { lock } | EntryEvent::Steal { lock, .. }
                    if lock.session_id == *session_id =>
                {
                    return Ok(Some(lock.fencing_token));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Whether the tenure of `token` ended by its own release, and not by a steal.
    fn ended_by_release(&self, token: FencingToken) -> Result<bool> {
        let newest = self.view()?.newest;
        for event in self.events_between(token.entry().0 + 1, &newest)? {
            match event? {
                EntryEvent::Release { fencing_token } => return Ok(fencing_token == token),
                EntryEvent::Steal { .. } | EntryEvent::Acquire { .. } => return Ok(false),
                _ => {}
            }
        }
        Ok(false)
    }

    /// The events from number `first` to `newest`, without the lost entries.
    fn events_between(
        &self,
        first: u64,
        newest: &Entry,
    ) -> Result<impl DoubleEndedIterator<Item = Result<EntryEvent>>> {
        let sequence = Sequence::new(self.env, self.layout, &self.worktree.worktree_id);
        let is_lost = |n: &u64| newest.state.lost.iter().any(|range| range.has(*n));
        let mut numbers = sequence.survey()?.numbers;
        numbers.retain(|n| (first..=newest.n.0).contains(n) && !is_lost(n));
        Ok(numbers.into_iter().map(move |n| Ok(sequence.read(EntryNumber(n))?.entry.event)))
    }

    fn read_clocks(&self, max_skew_ms: Millis) -> Result<ClockProbe> {
        probe::read(self.env, self.layout)?.within(max_skew_ms)
    }

    fn write_renewal(&self, renewal: &RenewalRecord) -> Result<()> {
        let path = self.layout.renewal(&self.worktree.worktree_id, renewal.fencing_token);
        let bytes = serde_json::to_vec(renewal).expect("a renewal is plain data");
        atomic::replace(self.env, &self.layout.tmp(), &path, &bytes, Durability::Synced).doing("renew", &path)
    }

    fn save(&self, session: &LockSession) -> Result<()> {
        self.env.sessions.save(session, &*self.env.entropy)
    }

    /// After a failed `link` the entry may still exist; then only its secret can release the lock.
    fn forget_unless_indeterminate(&self, session: &LockSession, error: Error) -> Error {
        if error.facts().contains_key("indeterminate") {
            return error.with("session_id", &session.session_id);
        }
        drop(self.env.sessions.remove(&session.session_id));
        error
    }

    /// The copy decides nothing, so a failure to write it is ignored; `doctor` compares it. A holder that paused
    /// here does not replace the copy of a later one, which is a trace of that one's entry.
    fn copy_for_readers(&self, lock: &LockRecord) {
        let path = self.layout.lock_copy(&self.worktree.worktree_id);
        let copy = self.env.fs.read(&path).ok().and_then(|it| serde_json::from_slice::<LockRecord>(&it).ok());
        if copy.is_some_and(|copy| copy.fencing_token > lock.fencing_token) {
            return;
        }
        drop(atomic::replace(self.env, &self.layout.tmp(), &path, &copy_of(lock), Durability::Lazy));
    }

    fn remove_copies(&self, token: FencingToken) {
        let renewal = self.layout.renewal(&self.worktree.worktree_id, token);
        for path in [self.layout.lock_copy(&self.worktree.worktree_id), renewal] {
            drop(absent_is_none(self.env.fs.remove_file(&path)));
        }
    }

    /// Folding saves disk space and decides nothing, so it may fail.
    pub(crate) fn fold(&self, newest: EntryNumber) {
        let sequence = Sequence::new(self.env, self.layout, &self.worktree.worktree_id);
        drop(sequence.fold_below(newest));
    }
}

/// The content of `<worktree_id>.lock`.
pub(crate) fn copy_of(lock: &LockRecord) -> Vec<u8> {
    let value = serde_json::to_value(lock).expect("a lock is plain data");
    let mut bytes = serde_json::to_vec_pretty(&with_rfc3339(value)).expect("JSON prints");
    bytes.push(b'\n');
    bytes
}

fn is_holder(lock: &LockRecord, session: &LockSession) -> bool {
    lock.session_id == session.session_id && lock.holder_nonce == session.holder_nonce.digest()
}
