//! Recovers the store as a server would, and compares it with the expected state.

use std::collections::BTreeMap;
use std::path::Path;

use engine::document::DocumentLocation;
use engine::internals::documents::read_inline;
use engine::internals::recovery::recover;
use kernel::{Cursor, Kernel, LeaseView, Rejection, ResourceName, Shard, State};
use store::disk::{DiskBlobs, DiskLog};
use store::fs::RealFs;
use store::{BlobStore, LogReader, LogStore, StoreError};

use crate::expected::{ClientState, ExpectedState, LeaseTerms};
use crate::message::{ClientId, Content, KeyIndex, LeaseLsn};
use crate::store_in;
use crate::worker::LOG;

const SHARD: Shard = Shard(0);

/// Fails unless the store has the expected contents, and every document is readable.
pub(crate) fn check(
    dir: &Path,
    expected: &mut ExpectedState,
    clients: u32,
    workers: u64,
) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let (log, blob) = store_in(dir);
    let (log, torn) = DiskLog::open(RealFs, &log, LOG).map_err(text)?;
    expected.stats.torn += u64::from(torn.is_some());
    let blobs = DiskBlobs::open(RealFs, &blob).map_err(text)?;
    let mut damaged = Vec::new();
    let recovered = recover(&log, &blobs, SHARD, &mut |snapshot| damaged.push(snapshot.to_string()));
    let kernel = recovered.map_err(|error| error.to_string())?;
    damaged.into_iter().try_for_each(|snapshot| Err(format!("a damaged snapshot: {snapshot}")))?;
    kernel::invariants::check(&kernel)?;
    check_term(&kernel, expected, workers)?;
    for (client, found) in &found(&kernel, clients)? {
        expected.check_recovered(*client, found)?;
        check_ended(&kernel, &expected.clients[client].ended)?;
    }
    expected.stats.documents_read += read_all(&kernel, &mut *log.reader(), &blobs)?;
    Ok(())
}

/// Every started worker may have begun a term, and no acknowledged term may be lost.
fn check_term(kernel: &Kernel, expected: &mut ExpectedState, workers: u64) -> Result<(), String> {
    let term = kernel.tenure().map_or(0, |tenure| tenure.open.term);
    if term < expected.term || term > workers {
        return Err(format!("unexpected term: term={term} acknowledged={} workers={workers}", expected.term));
    }
    expected.term = term;
    Ok(())
}

/// The state of each client in the store. Fails on leases or documents of no client.
fn found(kernel: &Kernel, clients: u32) -> Result<BTreeMap<ClientId, ClientState>, String> {
    let names: BTreeMap<ResourceName, (ClientId, KeyIndex)> = (0..clients)
        .map(ClientId)
        .flat_map(|client| KeyIndex::all().map(move |key| (key.name(client), (client, key))))
        .collect();
    let mut all: BTreeMap<ClientId, ClientState> =
        (0..clients).map(|number| (ClientId(number), ClientState::default())).collect();
    let owner =
        |name: &ResourceName| names.get(name).copied().ok_or(format!("a resource of no client: {name}"));
    for (_, view) in kernel.leases_from(Cursor::default(), kernel.now()) {
        let (client, lease, terms) = terms(&view, owner)?;
        all.entry(client).or_default().leases.insert(lease, terms);
    }
    for (_, _, name, view) in kernel.documents_from(Cursor::default()) {
        let (client, key) = owner(&name)?;
        let document = view.document.ok_or("a document row without a document")?;
        let content = Content::from_etag(document.etag);
        all.entry(client).or_default().documents.insert(key, (view.version.0, content));
    }
    Ok(all)
}

fn terms(
    view: &LeaseView,
    owner: impl Fn(&ResourceName) -> Result<(ClientId, KeyIndex), String>,
) -> Result<(ClientId, LeaseLsn, LeaseTerms), String> {
    let members = view.members.iter().map(|member| owner(&member.resource));
    let members = members.collect::<Result<Vec<(ClientId, KeyIndex)>, String>>()?;
    let client = members.first().ok_or("a lease without members")?.0;
    let lease = LeaseLsn::from(view.id);
    let revoked = match view.state {
        State::Active => false,
        State::Revoking => true,
        other => return Err(format!("unexpected state of a live lease: {lease:?} is {other:?}")),
    };
    let whole = members.iter().all(|(other, _)| *other == client) && view.identity == client.identity();
    if !whole || view.token.0 != lease.0 || view.epoch.is_authority() == revoked {
        return Err(format!("the lease differs from its grant: {view:?}"));
    }
    let mut keys: Vec<KeyIndex> = members.into_iter().map(|(_, key)| key).collect();
    keys.sort_unstable();
    let deadline = if revoked { 0 } else { view.deadline.0 };
    Ok((client, lease, LeaseTerms { keys, deadline, revoked }))
}

fn check_ended<'a>(
    kernel: &Kernel,
    ended: impl IntoIterator<Item = &'a (LeaseLsn, State)>,
) -> Result<(), String> {
    for (lease, how) in ended {
        match kernel.lease(lease.id(), kernel.now()) {
            Ok(view) if view.state == *how => {}
            Err(Rejection::Retired) => {}
            other => {
                return Err(format!(
                    "an ended lease has another state: {lease:?} was {how:?}, and is {other:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Compares the bytes of all documents with their generated contents. Returns the number of documents.
fn read_all(kernel: &Kernel, reader: &mut dyn LogReader, blobs: &dyn BlobStore) -> Result<u64, String> {
    let mut read = 0;
    for (_, _, name, view) in kernel.documents_from(Cursor::default()) {
        let document = view.document.ok_or("a document row without a document")?;
        let content = Content::from_etag(document.etag);
        let bytes = match DocumentLocation::of(document.location) {
            DocumentLocation::Inline { lsn, .. } => read_inline(reader, lsn),
            DocumentLocation::Blob(blob) => blobs.read(&blob.name(), 0, content.bytes + 1),
        };
        let bytes = bytes.map_err(|error| format!("the document of {name} cannot be read: {error}"))?;
        if bytes != content.make() {
            return Err(format!("the document of {name} has other contents than committed: {document:?}"));
        }
        read += 1;
    }
    Ok(read)
}
