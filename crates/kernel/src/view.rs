//! Read-only queries. All judge by the deadline: an expired lease is shown as expired, whether or not a
//! command has ended it yet. Lists are in `pages.rs`.

use alloc::vec::Vec;

use crate::bundle::Member;
use crate::expiry::EffectivePhase;
use crate::history::{EndedLease, LeaseAttributes};
use crate::kernel::{Kernel, Tenure};
use crate::lease::{Lease, LeaseRef};
use crate::lease_index::IndexEntry;
use crate::node::{Document, MIN_CLAIM_KEY};
use crate::outcome::{Rejection, State};
use crate::pages::PAGE_ROWS;
use crate::party_rows::{Agent, Policy};
use crate::resource::ResourceName;
use crate::table::Row;
use crate::text::{AgentName, Identity, Namespace, SessionName};
use crate::units::{Age, Epoch, LeaseId, Lsn, Span, Time, Token, Version};

/// The public view of a lease. It contains no secret, because the kernel has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Its public id.
    pub id: LeaseId,
    /// Its namespace.
    pub namespace: Namespace,
    /// The identity to which it belongs.
    pub identity: Identity,
    /// Its state.
    pub state: State,
    /// The epoch.
    pub epoch: Epoch,
    /// The fencing token.
    pub token: Token,
    /// The members it covers or covered.
    pub members: Vec<Member>,
    /// Its TTL.
    pub ttl: Span,
    /// When it was granted.
    pub granted_at: Time,
    /// When authority ends, or ended at the latest.
    pub deadline: Time,
    /// While on hold after expiry: the end of the hold, which may be never.
    pub held_until: Option<Time>,
    /// Its age for wait-die.
    pub age: Age,
    /// Its optional attributes.
    pub details: LeaseAttributes,
    /// Set once it has ended.
    pub ended: Option<LeaseEnd>,
}

/// A position in a list. Not valid after a restart: begin again from the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor(pub u32);

/// The end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseEnd {
    /// When it ended.
    pub at: Time,
    /// The LSN of the record that ended it.
    pub lsn: Lsn,
    /// It stays readable at least until this time has passed, unless history is full.
    pub retire_after: Time,
}

/// A key and its document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyView {
    /// The key's version, whether or not it has a document.
    pub version: Version,
    /// The document.
    pub document: Option<Document>,
}

/// The state of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// Neither restarting nor paused.
    Alive,
    /// It announced a restart and has not returned.
    Restarting,
    /// An operator paused its grants.
    Paused,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentView {
    /// Its name.
    pub name: AgentName,
    /// The identity to which it belongs.
    pub identity: Identity,
    /// Its state.
    pub state: AgentState,
    /// The number of its leases that cover resources.
    pub leases: u32,
}

/// The number of rows in each table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leases that cover resources.
    pub leases: usize,
    /// Readable ended leases.
    pub history: usize,
    /// Namespaces.
    pub namespaces: usize,
    /// Names that are leased or have a document, and the directories above them.
    pub nodes: usize,
    /// Keys with a document.
    pub documents: usize,
    /// Identities in namespaces.
    pub accounts: usize,
    /// Agents.
    pub agents: usize,
    /// Sessions with leases.
    pub sessions: usize,
    /// Scopes with a quota or a pause.
    pub policies: usize,
    /// Idempotency entries.
    pub requests: usize,
}

impl Kernel {
    /// The LSN of the last applied record.
    pub fn last_lsn(&self) -> Lsn {
        self.last
    }

    /// The stamp of the last applied record.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The tenure in force; `None` before the first `open`.
    pub fn tenure(&self) -> Option<&Tenure> {
        self.tenure.as_ref()
    }

    /// A running hash over every state change: equal for equal logs.
    pub fn state_hash(&self) -> u64 {
        self.hash.0
    }

    /// One lease, live or ended. The errors distinguish leases that never existed from retired ones.
    pub fn lease(&self, id: LeaseId, now: Time) -> Result<LeaseView, Rejection> {
        Ok(self.view(self.lookup(id)?, now))
    }

    /// The namespace of a lease, live or ended. It never changes.
    pub fn lease_namespace(&self, id: LeaseId) -> Result<Namespace, Rejection> {
        let account = self.account_of(self.lookup(id)?);
        Ok(self.namespace_of(self.accounts[account].parent))
    }

    /// Every lease that covers resources, from a cursor on, in no particular order. Visits any number of rows: under
    /// the lock of a live shard, use [`Kernel::leases_page`].
    ///
    /// Each comes with the cursor from which to continue, so that a long list can be read in pages. A lease
    /// that lives throughout is listed exactly once; if it is granted or ends in between, at most once.
    pub fn leases_from(&self, cursor: Cursor, now: Time) -> impl Iterator<Item = (Cursor, LeaseView)> {
        let rows = self.leases.iter_from(cursor.0);
        rows.map(move |(id, row)| (Cursor(id.number().get()), self.live_view(row, now)))
    }

    /// Readable ended leases, in the order of their ends.
    pub fn history(&self) -> impl Iterator<Item = LeaseView> {
        self.history.iter().map(|ended| self.ended_view(ended))
    }

    /// The leases of a session, in the order of their grants. Visits at most [`PAGE_ROWS`] claims: of more leases, some
    /// are returned. If all claims visited are those of expired leases and there are more, one of them is returned as
    /// well, so that an empty list means for certain that the session holds nothing.
    pub fn leases_of_session(
        &self,
        namespace: &Namespace,
        identity: &Identity,
        session: &SessionName,
        now: Time,
    ) -> Vec<LeaseView> {
        let ns = self.find_namespace(namespace);
        let account = ns.and_then(|ns| self.accounts.find(ns.as_parent(), identity.as_str()));
        let session = account.and_then(|account| self.sessions.find(account.as_parent(), session.as_str()));
        let Some(session) = session else { return Vec::new() };
        let claims = self.session_claims.range((session.number(), MIN_CLAIM_KEY, Lsn(0))..);
        let own = claims.take_while(|(number, ..)| *number == session.number());
        let mut lsns: Vec<Lsn> = own.map(|(.., lsn)| *lsn).take(PAGE_ROWS).collect();
        self.visits.add(lsns.len());
        let is_cut = lsns.len() == PAGE_ROWS;
        lsns.sort_unstable();
        lsns.dedup();
        let live: Vec<LeaseRef> = lsns.into_iter().filter_map(|lsn| self.live(lsn)).collect();
        let is_current =
            |lease: &&LeaseRef| self.effective_phase(&self.leases[**lease], now) != EffectivePhase::Expired;
        let current: Vec<&LeaseRef> = live.iter().filter(is_current).collect();
        let shown = if current.is_empty() && is_cut { live.iter().take(1).collect() } else { current };
        shown.into_iter().map(|lease| self.live_view(&self.leases[*lease], now)).collect()
    }

    /// Every document, from a cursor on, in no particular order; see [`Kernel::leases_from`]. Visits any number of
    /// rows: under the lock of a live shard, use [`Kernel::documents_page`].
    pub fn documents_from(
        &self,
        cursor: Cursor,
    ) -> impl Iterator<Item = (Cursor, Namespace, ResourceName, KeyView)> {
        self.nodes.iter_from(cursor.0).filter_map(|(id, row)| {
            let document = row.value.document.as_deref().copied()?;
            let view = KeyView { version: row.value.version, document: Some(document) };
            let (namespace, key) = (self.namespace_of(row.parent), ResourceName::from_shared(&row.text));
            Some((Cursor(id.number().get()), namespace, key, view))
        })
    }

    /// A key, if it is leased or has a document.
    pub fn key(&self, namespace: &Namespace, key: &ResourceName) -> Option<KeyView> {
        let ns = self.find_namespace(namespace)?;
        let node = &self.nodes[self.nodes.find(ns.as_parent(), key.as_str())?].value;
        Some(KeyView { version: node.version, document: node.document.as_deref().copied() })
    }

    /// An agent that is remembered.
    pub fn agent(&self, namespace: &Namespace, name: &AgentName, now: Time) -> Option<AgentView> {
        let agent = self.find_agent(now, namespace, name).ok()?;
        Some(self.agent_view(&self.agents[agent]))
    }

    /// What an identity may use in a namespace, and whether it is paused.
    pub fn resolved_policy(&self, namespace: &Namespace, identity: &Identity) -> Policy {
        self.policies.resolve(namespace, identity)
    }

    /// The number of rows in each table.
    pub fn counts(&self) -> Counts {
        Counts {
            leases: self.leases.len(),
            history: self.history.len(),
            namespaces: self.namespaces.len(),
            nodes: self.nodes.len(),
            documents: self.documents as usize,
            accounts: self.accounts.len(),
            agents: self.agents.len(),
            sessions: self.sessions.len(),
            policies: self.policies.0.len(),
            requests: self.requests.len(),
        }
    }

    fn view(&self, found: IndexEntry, now: Time) -> LeaseView {
        match found {
            IndexEntry::Live(lease) => self.live_view(&self.leases[lease], now),
            IndexEntry::Ended(ended) => self.ended_view(self.history.get(ended)),
        }
    }

    pub(crate) fn live_view(&self, row: &Lease, now: Time) -> LeaseView {
        let account = &self.accounts[row.account];
        let phase = self.effective_phase(row, now);
        let has_authority = matches!(phase, EffectivePhase::Reserved | EffectivePhase::Active);
        let unsettled = row.epoch.is_authority() && !has_authority;
        let held_until = match phase {
            EffectivePhase::OnHold { until, .. } => Some(until),
            _ => None,
        };
        LeaseView {
            id: self.lease_id(row.lsn),
            namespace: self.namespace_of(account.parent),
            identity: self.identity_of(row.account),
            state: phase.state(),
            epoch: if unsettled { row.epoch.next() } else { row.epoch },
            token: row.token,
            members: row.members.as_slice().iter().map(|member| self.member(*member)).collect(),
            ttl: row.ttl,
            granted_at: row.granted_at,
            deadline: row.deadline,
            held_until,
            age: self.wait_age_at(row, now),
            details: row.optional.as_ref().map(|optional| optional.details.clone()).unwrap_or_default(),
            ended: None,
        }
    }

    fn ended_view(&self, ended: &EndedLease) -> LeaseView {
        let details = ended.details.as_deref().cloned().unwrap_or_default();
        let retire_after = ended.ended_at.after(self.limits().history_window);
        LeaseView {
            id: self.lease_id(ended.lsn),
            namespace: self.namespace_of(self.accounts[ended.account].parent),
            identity: self.identity_of(ended.account),
            state: ended.end.into(),
            epoch: ended.epoch,
            token: ended.token,
            members: ended.members.as_slice().to_vec(),
            ttl: ended.ttl,
            granted_at: ended.granted_at,
            deadline: ended.deadline,
            held_until: None,
            age: details.age.unwrap_or(Age { at: ended.granted_at, tie: ended.lsn.0 }),
            details,
            ended: Some(LeaseEnd { at: ended.ended_at, lsn: ended.ended_lsn, retire_after }),
        }
    }

    pub(crate) fn agent_view(&self, row: &Row<Agent>) -> AgentView {
        let state = match &row.value {
            agent if agent.paused => AgentState::Paused,
            agent if agent.is_restarting() => AgentState::Restarting,
            _ => AgentState::Alive,
        };
        AgentView {
            name: AgentName::from_shared(&row.text),
            identity: self.identity_of(row.value.account),
            state,
            leases: row.value.leases,
        }
    }
}
