//! What must be in the store, as far as the lines tell.
//!
//! **Invariant.** What a client was told is in it for good. A call that was asked and not answered may have happened
//! or not, whole or not at all; nothing else may have.
//!
//! A client asks one thing at a time, about keys of its own. So there are at most two states that a
//! recovered store may show of it: the one before the call under way, and the one after.

use std::collections::{BTreeMap, VecDeque};

use kernel::State;

use crate::line::{Ask, Client, Content, Key, Lease, Line, Told};

/// So many ended leases of each client are looked at.
const ENDED_MAX: usize = 16;

/// What one client has in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) leases: BTreeMap<Lease, Terms>,
    pub(crate) documents: BTreeMap<Key, (u64, Content)>,
}

/// What a lease gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) keys: Vec<Key>,
    pub(crate) deadline: u64,
    pub(crate) revoked: bool,
}

/// What is known of one client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) holds: Holdings,
    /// How its last leases ended.
    pub(crate) ended: VecDeque<(Lease, State)>,
    /// The last token of each key.
    tokens: BTreeMap<Key, Lease>,
    under_way: Option<Ask>,
}

/// What is known of all.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) clients: BTreeMap<Client, Account>,
    /// The last term that was told.
    pub(crate) term: u64,
    pub(crate) tally: Tally,
}

/// How much of what has been seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) answers: u64,
    pub(crate) snapshots: u64,
    pub(crate) moved: usize,
    pub(crate) swept: usize,
    /// Calls under way that turned out to have happened, and not.
    pub(crate) happened: u64,
    pub(crate) vanished: u64,
    pub(crate) torn: u64,
    pub(crate) documents_read: u64,
}

impl Ledger {
    /// Notes a line. Once the power is `off`, the store may be in trouble.
    pub(crate) fn note(&mut self, line: Line, off: bool) -> Result<(), String> {
        match line {
            Line::Opened { term } if term > self.term => self.term = term,
            Line::Opened { term } => {
                return Err(format!("a term that is not new: {term} after {}", self.term));
            }
            Line::Asks(client, ask) => self.clients.entry(client).or_default().under_way = Some(ask),
            Line::Told(client, told) => {
                self.tally.answers += 1;
                let account = self.clients.entry(client).or_default();
                let ask = account.under_way.take().ok_or("an answer to nothing")?;
                account.apply(&ask, told).map_err(|why| format!("client {}: {why}", client.0))?;
            }
            Line::Snapshot { moved } => {
                self.tally.snapshots += 1;
                self.tally.moved += moved;
            }
            Line::Swept(blobs) => self.tally.swept += blobs,
            Line::Trouble(what) if !off => return Err(format!("the store failed: {what}")),
            Line::Trouble(_) => {}
            Line::Wrong(what) => return Err(what),
        }
        Ok(())
    }

    /// Compares with what was found after the end, and takes that for what is so from now on.
    pub(crate) fn settle(&mut self, client: Client, found: &Holdings) -> Result<(), String> {
        let account = self.clients.entry(client).or_default();
        let ask = account.under_way.take();
        if account.holds == *found {
            self.tally.vanished += u64::from(ask.is_some());
            return Ok(());
        }
        let mut after = account.clone();
        let happened = ask.as_ref().and_then(|ask| {
            let told = account.told_by(ask, found)?;
            after.apply(ask, told).ok()?;
            (after.holds == *found).then_some(())
        });
        if happened.is_none() {
            let what = difference(&account.holds, found);
            return Err(format!("client {}: {what}; the call under way was {ask:?}", client.0));
        }
        *account = after;
        self.tally.happened += 1;
        Ok(())
    }
}

impl Account {
    /// The answer that this call would have got, if it is what led to `found`.
    fn told_by(&self, ask: &Ask, found: &Holdings) -> Option<Told> {
        Some(match ask {
            Ask::Acquire(_) => {
                let (lease, terms) =
                    found.leases.iter().find(|(lease, _)| !self.holds.leases.contains_key(lease))?;
                Told::Granted { lease: *lease, deadline: terms.deadline }
            }
            Ask::Renew(lease) => Told::Renewed { deadline: found.leases.get(lease)?.deadline },
            Ask::Commit { key, .. } => Told::Committed { version: found.documents.get(key)?.0 },
            Ask::Release(_) | Ask::Revoke(_) | Ask::Reclaim(_) => Told::Done,
        })
    }

    fn apply(&mut self, ask: &Ask, told: Told) -> Result<(), String> {
        match (ask, told) {
            (Ask::Acquire(keys), Told::Granted { lease, deadline }) => self.grant(keys, lease, deadline),
            (Ask::Renew(lease), Told::Renewed { deadline }) => {
                let terms = self.terms(*lease)?;
                let before = std::mem::replace(&mut terms.deadline, deadline);
                ensure(deadline >= before, || format!("a renewal to {deadline}, which was {before}"))
            }
            (Ask::Release(lease), Told::Done) => self.end(*lease, State::Released),
            (Ask::Reclaim(lease), Told::Done) => self.end(*lease, State::Revoked),
            (Ask::Revoke(lease), Told::Done) => {
                self.terms(*lease)?.revoked = true;
                Ok(())
            }
            (Ask::Commit { lease, key, content, release }, Told::Committed { version }) => {
                let before =
                    self.holds.documents.insert(*key, (version, *content)).map_or(0, |(version, _)| version);
                ensure(version == before + 1, || format!("version {version} after {before} of {key:?}"))?;
                if *release { self.end(*lease, State::Released) } else { Ok(()) }
            }
            (ask, told) => Err(format!("{told:?} in answer to {ask:?}")),
        }
    }

    fn grant(&mut self, keys: &[Key], lease: Lease, deadline: u64) -> Result<(), String> {
        for key in keys {
            let before = self.tokens.insert(*key, lease);
            ensure(before.is_none_or(|before| before < lease), || {
                format!("a token that does not grow: {lease:?} after {before:?} for {key:?}")
            })?;
        }
        self.holds.leases.insert(lease, Terms { keys: keys.to_vec(), deadline, revoked: false });
        Ok(())
    }

    fn end(&mut self, lease: Lease, how: State) -> Result<(), String> {
        self.terms(lease)?;
        self.holds.leases.remove(&lease);
        self.ended.push_back((lease, how));
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
        Ok(())
    }

    fn terms(&mut self, lease: Lease) -> Result<&mut Terms, String> {
        self.holds.leases.get_mut(&lease).ok_or_else(|| format!("a lease that was never granted: {lease:?}"))
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// What was lost, or is there without having been asked for.
fn difference(known: &Holdings, found: &Holdings) -> String {
    let leases = known.leases.iter().filter(|(lease, terms)| found.leases.get(lease) != Some(terms));
    let lost = leases.map(|(lease, terms)| {
        format!("{lease:?} was acknowledged as {terms:?} and is {:?}", found.leases.get(lease))
    });
    let documents =
        known.documents.iter().filter(|(key, document)| found.documents.get(key) != Some(document));
    let stale = documents.map(|(key, document)| {
        format!("{key:?} was acknowledged as {document:?} and is {:?}", found.documents.get(key))
    });
    let unknown = found.leases.keys().filter(|lease| !known.leases.contains_key(lease));
    let risen = unknown.map(|lease| format!("{lease:?} is live"));
    let all: Vec<String> = lost.chain(stale).chain(risen).collect();
    if all.is_empty() { "there are documents that nobody committed".into() } else { all.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: Client = Client(0);
    const DOCUMENT: Content = Content { id: 1, bytes: 10 };

    fn ledger(lines: Vec<Line>) -> Ledger {
        let mut ledger = Ledger::default();
        for line in lines {
            ledger.note(line, false).expect("it is in order");
        }
        ledger
    }

    fn granted() -> Vec<Line> {
        let told = Told::Granted { lease: Lease(7), deadline: 100 };
        vec![Line::Asks(ADA, Ask::Acquire(vec![Key(0)])), Line::Told(ADA, told)]
    }

    fn held(lease: u64) -> Holdings {
        let terms = Terms { keys: vec![Key(0)], deadline: 100, revoked: false };
        Holdings { leases: [(Lease(lease), terms)].into(), documents: BTreeMap::new() }
    }

    fn asks(mut lines: Vec<Line>, ask: Ask) -> Vec<Line> {
        lines.push(Line::Asks(ADA, ask));
        lines
    }

    #[test]
    fn what_was_acknowledged_must_be_there() {
        ledger(granted()).settle(ADA, &held(7)).expect("it is there");
        ledger(granted()).settle(ADA, &Holdings::default()).expect_err("a grant is lost");
        ledger(granted()).settle(ADA, &held(8)).expect_err("another lease");
        ledger(vec![]).settle(ADA, &held(7)).expect_err("nobody asked for it");
    }

    #[test]
    fn what_was_under_way_may_have_happened_or_not() {
        let releases = || ledger(asks(granted(), Ask::Release(Lease(7))));
        releases().settle(ADA, &held(7)).expect("not yet");
        releases().settle(ADA, &Holdings::default()).expect("it did");
        let mut changed = held(7);
        changed.leases.get_mut(&Lease(7)).expect("held").revoked = true;
        releases().settle(ADA, &changed).expect_err("something else did");
    }

    #[test]
    fn a_document_is_the_one_that_was_committed() {
        let commit = Ask::Commit { lease: Lease(7), key: Key(0), content: DOCUMENT, release: false };
        let commits = || ledger(asks(granted(), commit.clone()));
        let with =
            |version, content| Holdings { documents: [(Key(0), (version, content))].into(), ..held(7) };
        commits().settle(ADA, &held(7)).expect("not yet");
        commits().settle(ADA, &with(1, DOCUMENT)).expect("it did");
        commits().settle(ADA, &with(2, DOCUMENT)).expect_err("a version is missing");
        commits().settle(ADA, &with(1, Content { id: 2, bytes: 10 })).expect_err("another document");
    }

    #[test]
    fn tokens_versions_and_terms_only_grow() {
        let mut known = ledger(granted());
        known.note(Line::Opened { term: 2 }, false).expect("new");
        known.note(Line::Opened { term: 2 }, false).expect_err("not new");
        let lines = asks(granted(), Ask::Release(Lease(7)));
        let mut known = ledger(lines);
        known.note(Line::Told(ADA, Told::Done), false).expect("released");
        known.note(Line::Asks(ADA, Ask::Acquire(vec![Key(0)])), false).expect("asked");
        let back = Told::Granted { lease: Lease(6), deadline: 100 };
        known.note(Line::Told(ADA, back), false).expect_err("a token that goes back");
    }
}
