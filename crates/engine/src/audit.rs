//! Audit entries: every change of a lease or document, and every act of an operator, with its client and the lease.
//!
//! **Invariant.** An entry is published with the batch of its record, after that is durable, and in the order of the
//! log. The lease of an entry is read right after its record was applied: an ended lease may be gone one command later.
//!
//! **What is absent.** Files and formats: the server has those. Renewals, which change nothing but a deadline; refusals,
//! which change nothing. Credentials and the content of documents: the kernel has neither.

use kernel::{Action, Command, Event, Identity, Kernel, LeaseView, Lsn, Response};

use crate::origin::Origin;

/// The bytes of an entry besides its names.
const ENTRY_BYTES: usize = size_of::<AuditEntry>() + size_of::<LeaseView>();

/// One entry of the audit trail.
#[derive(Clone, Debug)]
pub struct AuditEntry {
    /// The record.
    pub lsn: Lsn,
    /// The wall clock when the record was decided, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The client's identity; `None` for the engine's own commands.
    pub identity: Option<Identity>,
    /// Where the command came from.
    pub origin: Origin,
    /// The name of the command.
    pub action: &'static str,
    /// The act or the change.
    pub fact: AuditedFact,
}

/// What an entry reports.
#[derive(Clone, Debug)]
pub enum AuditedFact {
    /// An act of an operator, with its response. The changes that it caused follow as entries of their own.
    Act(Box<Action>, Response),
    /// A change of a lease or of a document.
    Change(Box<AuditedChange>),
}

/// A change of a lease or of a document.
#[derive(Clone, Debug)]
pub struct AuditedChange {
    /// The change.
    pub event: Event,
    /// The lease after it; `None` if the change has none.
    pub lease: Option<LeaseView>,
    /// The wall clock at the lease's deadline, in milliseconds since 1970.
    pub deadline_unix_ms: Option<u64>,
    /// The length of a document that was committed.
    pub document_bytes: Option<u64>,
}

impl AuditEntry {
    /// An estimate of the memory that it occupies, in bytes.
    pub fn bytes(&self) -> usize {
        let lease = match &self.fact {
            AuditedFact::Act(..) => 0,
            AuditedFact::Change(change) => change.lease.as_ref().map_or(0, lease_bytes),
        };
        ENTRY_BYTES + self.origin.bytes() + lease
    }
}

fn lease_bytes(lease: &LeaseView) -> usize {
    let member = |member: &kernel::Member| size_of::<kernel::Member>() + member.resource.as_str().len();
    let metadata = lease.details.metadata.as_ref().map_or(0, |metadata| metadata.as_bytes().len());
    lease.members.iter().map(member).sum::<usize>() + metadata
}

/// The entries of a record that was just applied: the act, then the changes in order.
pub(crate) fn entries_of(
    kernel: &Kernel,
    unix_ms: u64,
    command: &Command,
    origin: &Origin,
    (response, events): (&Response, &[Event]),
) -> Vec<AuditEntry> {
    let act = is_operator_act(&command.action)
        .then(|| AuditedFact::Act(Box::new(command.action.clone()), response.clone()));
    let change =
        |event: &Event| AuditedFact::Change(Box::new(change_of(kernel, unix_ms, &command.action, event)));
    let entry = |fact| AuditEntry {
        lsn: kernel.last_lsn(),
        unix_ms,
        identity: command.identity.clone(),
        origin: origin.clone(),
        action: command.action.name(),
        fact,
    };
    act.into_iter().chain(events.iter().map(change)).map(entry).collect()
}

fn change_of(kernel: &Kernel, unix_ms: u64, action: &Action, event: &Event) -> AuditedChange {
    let now = kernel.now();
    let lease = event.lease().and_then(|lease| kernel.lease(lease, now).ok());
    let deadline_unix_ms = lease.as_ref().map(|lease| {
        let past = unix_ms.saturating_sub(lease.deadline.until(now).0);
        past.saturating_add(now.until(lease.deadline).0)
    });
    let document_bytes = match (action, event) {
        (Action::Commit(commit), Event::Committed { .. }) => Some(commit.bytes),
        _ => None,
    };
    AuditedChange { event: event.clone(), lease, deadline_unix_ms, document_bytes }
}

fn is_operator_act(action: &Action) -> bool {
    match action {
        Action::Revoke(_)
        | Action::RevokeAll(_)
        | Action::Reclaim(_)
        | Action::Pause(_)
        | Action::SetQuota(_)
        | Action::DropNamespace(_) => true,
        Action::Agent(announcement) => announcement.operator,
        _ => false,
    }
}
