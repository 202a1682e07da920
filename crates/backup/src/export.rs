//! `store export`: the documents of a store as lines of JSON, and its leases as information.
//!
//! The first line describes the export, the last line counts it, so that a truncated file is noticed. In between, in any
//! order: a line for each namespace with its version floor, for each document, and for each lease. A document is the last
//! field of its line, as it is stored: compact, on one line, and hashed by its etag.
//!
//! **Invariant.** The documents are those of one moment: the end of the log when it was read. A
//! [`BackupHold`] keeps their blobs until they are written.

use std::io::Write;
use std::path::Path;

use kernel::{Kernel, Lsn, Snapshot};
use serde::{Deserialize, Serialize};
use store::disk::{BackupHold, LogItem, StoreView};
use store::{BlobName, BlobStore, ErrorKind, StoreError};
use system::hex;

use crate::error::BackupError;
use crate::pace::{Pace, Progress};
use crate::recovered::{DocumentEntry, blobs, inline_document, inline_documents, recover_shard};

pub(crate) const FORMAT: u32 = 1;
const PART: usize = 1 << 20;
/// How often a shard is read again because a server was restarted meanwhile.
const ATTEMPTS: u32 = 5;

/// One line of an export. The `state` of a document follows its other fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Line {
    /// The first line.
    Export(ExportHeader),
    Namespace {
        name: String,
        version_floor: u64,
    },
    Document(DocumentLine),
    Lease(LeaseLine),
    /// The last line.
    End {
        namespaces: u64,
        documents: u64,
        leases: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExportHeader {
    pub(crate) format: u32,
    pub(crate) lockd_version: String,
    pub(crate) store_id: String,
    pub(crate) taken_at_unix_ms: u64,
    /// The highest LSN: fencing tokens of an import are above it.
    pub(crate) last_lsn: u64,
    /// At least the version floor of every deleted namespace.
    pub(crate) version_floor: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DocumentLine {
    pub(crate) namespace: String,
    pub(crate) key: String,
    pub(crate) version: u64,
    /// BLAKE3 of the state, in hexadecimal digits.
    pub(crate) etag: String,
    pub(crate) bytes: u64,
}

/// A lease, for information: an import ignores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseLine {
    pub(crate) public_id: String,
    pub(crate) namespace: String,
    pub(crate) identity: String,
    pub(crate) fencing_token: u64,
    pub(crate) ttl_ms: u64,
    pub(crate) resources: Vec<String>,
}

/// What an export or an import contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounts {
    /// Namespaces with their version floors.
    pub namespaces: u64,
    /// Documents with their versions.
    pub documents: u64,
    /// Leases, which are information only.
    pub leases: u64,
}

/// Writes the export of a store, which a server may have open.
pub fn export(
    store: &Path,
    now_unix_ms: u64,
    out: &mut dyn Write,
    progress: &dyn Progress,
) -> Result<ExportCounts, BackupError> {
    let _hold = BackupHold::take(store)?;
    let view = StoreView::open(store)?;
    let pace = Pace::unlimited(progress);
    let mut kernels = Vec::new();
    for shard in 0..view.file().shards {
        kernels.push(recover_again(&view, shard, &pace)?);
    }
    let mut writer = ExportWriter { view: &view, out, pace: &pace, counts: ExportCounts::default() };
    writer.line(&Line::Export(ExportHeader {
        format: FORMAT,
        lockd_version: env!("CARGO_PKG_VERSION").into(),
        store_id: format!("{:032x}", view.file().store_id),
        taken_at_unix_ms: now_unix_ms,
        last_lsn: kernels.iter().map(|kernel| kernel.last_lsn().0).max().unwrap_or_default(),
        version_floor: kernels.iter().map(|kernel| kernel.snapshot().floor.0).max().unwrap_or_default(),
    }))?;
    for (shard, kernel) in (0..).zip(&kernels) {
        writer.shard(shard, kernel)?;
    }
    let ExportCounts { namespaces, documents, leases } = writer.counts;
    writer.line(&Line::End { namespaces, documents, leases })?;
    writer.out.flush().map_err(|error| BackupError::io(&error, "writing the export", Path::new("-")))?;
    Ok(writer.counts)
}

fn recover_again(view: &StoreView, shard: u32, pace: &Pace<'_>) -> Result<Kernel, BackupError> {
    for _ in 1..ATTEMPTS {
        match recover_shard(view, shard, pace) {
            Err(BackupError::Store(error)) if error.kind == ErrorKind::Gone => {}
            done => return done.map(|recovered| recovered.kernel),
        }
    }
    recover_shard(view, shard, pace).map(|recovered| recovered.kernel)
}

struct ExportWriter<'a> {
    view: &'a StoreView,
    out: &'a mut dyn Write,
    pace: &'a Pace<'a>,
    counts: ExportCounts,
}

impl ExportWriter<'_> {
    fn line(&mut self, line: &Line) -> Result<(), BackupError> {
        let mut text = serde_json::to_vec(line).expect("plain data");
        text.push(b'\n');
        self.bytes(&text)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        let written = self.out.write_all(bytes);
        written.map_err(|error| BackupError::io(&error, "writing the export", Path::new("-")))
    }

    fn shard(&mut self, shard: u32, kernel: &Kernel) -> Result<(), BackupError> {
        let state = kernel.snapshot();
        for (name, version_floor) in version_floors(&state) {
            self.counts.namespaces += 1;
            self.line(&Line::Namespace { name, version_floor })?;
        }
        self.leases(&state, shard)?;
        drop(state);
        for (blob, entry) in blobs(kernel) {
            self.blob(&blob.name(), &entry)?;
        }
        self.inline(shard, kernel)
    }

    fn leases(&mut self, state: &Snapshot, shard: u32) -> Result<(), BackupError> {
        for lease in &state.leases {
            self.counts.leases += 1;
            let id = u128::from(shard) << 64 | u128::from(lease.lsn.0);
            self.line(&Line::Lease(LeaseLine {
                public_id: format!("L-{id:032x}"),
                namespace: lease.namespace.to_string(),
                identity: lease.identity.to_string(),
                fencing_token: lease.token.0,
                ttl_ms: lease.ttl.0,
                resources: lease.members.iter().map(|member| member.resource.to_string()).collect(),
            }))?;
        }
        Ok(())
    }

    /// Documents in the log, in the order of their records.
    fn inline(&mut self, shard: u32, kernel: &Kernel) -> Result<(), BackupError> {
        let mut wanted = inline_documents(kernel);
        if wanted.is_empty() {
            return Ok(());
        }
        let mut log = self.view.log(shard)?;
        while let LogItem::Batch(batch) = log.read_next()? {
            let range = Lsn(batch.lsns.first.0)..=Lsn(batch.lsns.last.0);
            let lsns: Vec<Lsn> = wanted.range(range).map(|(lsn, _)| *lsn).collect();
            for lsn in lsns {
                let Some(document) = inline_document(&batch, lsn)? else { continue };
                let entry = wanted.remove(&lsn).expect("it was just listed");
                self.begin(&entry)?;
                self.bytes(&document)?;
                self.finish(&entry, document.len() as u64, *blake3::hash(&document).as_bytes())?;
            }
        }
        wanted.values().next().map_or(Ok(()), |entry| Err(damaged(entry, "the log has no such record")))
    }

    fn blob(&mut self, name: &BlobName, entry: &DocumentEntry) -> Result<(), BackupError> {
        let (store, mut hasher, mut offset) = (self.view.blobs(), blake3::Hasher::new(), 0);
        self.begin(entry)?;
        loop {
            let part = match store.read(name, offset, PART) {
                Err(error) if error.kind == ErrorKind::Gone => {
                    return Err(damaged(entry, "its blob is missing"));
                }
                read => read?,
            };
            self.bytes(&part)?;
            self.pace.advance(part.len() as u64)?;
            hasher.update(&part);
            offset += part.len() as u64;
            if part.len() < PART {
                return self.finish(entry, offset, *hasher.finalize().as_bytes());
            }
        }
    }

    /// Everything before the content.
    fn begin(&mut self, entry: &DocumentEntry) -> Result<(), BackupError> {
        let line = Line::Document(DocumentLine {
            namespace: entry.namespace.to_string(),
            key: entry.key.name().to_string(),
            version: entry.version.0,
            etag: hex::encode(&entry.document.etag.0),
            bytes: entry.document.bytes,
        });
        let mut text = serde_json::to_vec(&line).expect("plain data");
        assert_eq!(text.pop(), Some(b'}'), "an object");
        text.extend_from_slice(STATE);
        self.bytes(&text)
    }

    /// The end of the line. A document that does not match its hash ends the export.
    fn finish(&mut self, entry: &DocumentEntry, bytes: u64, hash: [u8; 32]) -> Result<(), BackupError> {
        if let Some(damage) = entry.check(bytes, hash) {
            return Err(damaged(entry, &damage.what));
        }
        self.counts.documents += 1;
        self.bytes(b"}\n")
    }
}

/// Begins the content of a document. Not part of any other field: quotes in those are escaped.
pub(crate) const STATE: &[u8] = b",\"state\":";

fn damaged(entry: &DocumentEntry, what: &str) -> BackupError {
    BackupError::Store(StoreError::new(
        ErrorKind::Damaged,
        format!(
            "a document cannot be read: {what}; `lockd store check` lists all of them: key={} namespace={}",
            entry.key, entry.namespace
        ),
    ))
}

/// The version floor of each namespace: new keys start above it, and above the version of keys without a document.
fn version_floors(state: &Snapshot) -> std::collections::BTreeMap<String, u64> {
    let named = state.namespaces.iter().map(|namespace| (namespace.name.to_string(), namespace.floor.0));
    let empty = state.keys.iter().filter(|key| key.document.is_none());
    let mut floors = std::collections::BTreeMap::new();
    for (name, floor) in named.chain(empty.map(|key| (key.namespace.to_string(), key.version.0))) {
        let known = floors.entry(name).or_default();
        *known = floor.max(*known);
    }
    floors
}
