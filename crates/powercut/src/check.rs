//! Recovers the store as a start would, and compares it with the ledger.

use std::collections::BTreeMap;
use std::path::Path;

use engine::documents::{Place, read_inline};
use engine::recovery::recover;
use kernel::{Cursor, Kernel, LeaseView, Rejection, ResourceName, Shard, State};
use store::disk::{DiskBlobs, DiskLog};
use store::fs::RealFs;
use store::{BlobStore, LogReader, LogStore, StoreError};

use crate::ledger::{Holdings, Ledger, Terms};
use crate::line::{Client, Content, Key, Lease};
use crate::store_in;
use crate::worker::LOG;

const SHARD: Shard = Shard(0);

/// What is in the store must be what the ledger says, and every document must be readable.
pub(crate) fn check(dir: &Path, ledger: &mut Ledger, clients: u32, lives: u64) -> Result<(), String> {
    let said = |error: StoreError| error.to_string();
    let (log, blob) = store_in(dir);
    let (log, torn) = DiskLog::open(RealFs, &log, LOG).map_err(said)?;
    ledger.tally.torn += u64::from(torn.is_some());
    let blobs = DiskBlobs::open(RealFs, &blob).map_err(said)?;
    let kernel = recover(&log, &blobs, SHARD).map_err(|error| error.to_string())?;
    kernel::invariants::check(&kernel)?;
    check_term(&kernel, ledger, lives)?;
    for (client, found) in &found(&kernel, clients)? {
        ledger.settle(*client, found)?;
        check_ended(&kernel, &ledger.clients[client].ended)?;
    }
    ledger.tally.documents_read += read_all(&kernel, &mut *log.reader(), &blobs)?;
    Ok(())
}

/// Every life may have begun one, and none may have been forgotten.
fn check_term(kernel: &Kernel, ledger: &mut Ledger, lives: u64) -> Result<(), String> {
    let term = kernel.tenure().map_or(0, |tenure| tenure.open.term);
    if term < ledger.term || term > lives {
        return Err(format!("the term is {term}; {} was acknowledged, in {lives} lives", ledger.term));
    }
    ledger.term = term;
    Ok(())
}

/// What each client has in the store. Anything else in it is nobody's.
fn found(kernel: &Kernel, clients: u32) -> Result<BTreeMap<Client, Holdings>, String> {
    let names: BTreeMap<ResourceName, (Client, Key)> = (0..clients)
        .map(Client)
        .flat_map(|client| Key::all().map(move |key| (key.name(client), (client, key))))
        .collect();
    let mut all: BTreeMap<Client, Holdings> =
        (0..clients).map(|number| (Client(number), Holdings::default())).collect();
    let owner = |name: &ResourceName| names.get(name).copied().ok_or(format!("{name} is nobody's"));
    for (_, view) in kernel.leases_from(Cursor::default(), kernel.now()) {
        let (client, lease, terms) = terms(&view, owner)?;
        all.entry(client).or_default().leases.insert(lease, terms);
    }
    for (_, _, name, view) in kernel.documents_from(Cursor::default()) {
        let (client, key) = owner(&name)?;
        let document = view.document.ok_or("a document that is none")?;
        let content = Content::from_etag(document.etag);
        all.entry(client).or_default().documents.insert(key, (view.version.0, content));
    }
    Ok(all)
}

fn terms(
    view: &LeaseView,
    owner: impl Fn(&ResourceName) -> Result<(Client, Key), String>,
) -> Result<(Client, Lease, Terms), String> {
    let members = view.members.iter().map(|member| owner(&member.resource));
    let members = members.collect::<Result<Vec<(Client, Key)>, String>>()?;
    let client = members.first().ok_or("a lease without members")?.0;
    let lease = Lease::from(view.id);
    let revoked = match view.state {
        State::Active => false,
        State::Revoking => true,
        other => return Err(format!("{lease:?} is live and {other:?}")),
    };
    let whole = members.iter().all(|(other, _)| *other == client) && view.identity == client.identity();
    if !whole || view.token.0 != lease.0 || view.epoch.is_authority() == revoked {
        return Err(format!("not as it was granted: {view:?}"));
    }
    let mut keys: Vec<Key> = members.into_iter().map(|(_, key)| key).collect();
    keys.sort_unstable();
    Ok((client, lease, Terms { keys, deadline: view.deadline.0, revoked }))
}

fn check_ended<'a>(
    kernel: &Kernel,
    ended: impl IntoIterator<Item = &'a (Lease, State)>,
) -> Result<(), String> {
    for (lease, how) in ended {
        match kernel.lease(lease.id(), kernel.now()) {
            Ok(view) if view.state == *how => {}
            Err(Rejection::Retired) => {}
            other => return Err(format!("{lease:?} was {how:?}, and is {other:?}")),
        }
    }
    Ok(())
}

/// The bytes of all documents, against what they were made up from.
fn read_all(kernel: &Kernel, reader: &mut dyn LogReader, blobs: &dyn BlobStore) -> Result<u64, String> {
    let mut read = 0;
    for (_, _, name, view) in kernel.documents_from(Cursor::default()) {
        let document = view.document.ok_or("a document that is none")?;
        let content = Content::from_etag(document.etag);
        let bytes = match Place::of(document.location) {
            Place::Inline(lsn) => read_inline(reader, lsn),
            Place::Blob(blob) => blobs.read(&blob.name(SHARD), 0, content.bytes + 1),
        };
        let bytes = bytes.map_err(|error| format!("the document of {name} cannot be read: {error}"))?;
        if bytes != content.make() {
            return Err(format!("the document of {name} is not what was committed: {document:?}"));
        }
        read += 1;
    }
    Ok(read)
}
