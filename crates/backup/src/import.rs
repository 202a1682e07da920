//! `store import`: a new store with the documents of an export.
//!
//! **What is imported.** Documents with their keys, versions and etags, and the version floors of their namespaces: so
//! conditional updates continue to work, and no version is used twice. Fencing tokens are above all of the exported store.
//! **What is absent.** Leases, their history, agents, sessions, quotas, pauses and idempotency entries: a holder of the
//! exported store holds nothing in the new one. A line that this build does not know is refused.
//!
//! **How.** The log of each shard begins with an `open`. A snapshot after it has all keys; the records that follow relocate
//! each short document to themselves, and carry it. So documents have the versions that they had, which no commit can
//! give them, and the store is like any other.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::path::Path;
use std::sync::Arc;

use engine::document::{DocumentLocation, INLINE_MAX};
use engine::internals::documents::{BlobId, Term};
use engine::internals::record::Record;
use engine::internals::recovery::snapshot_name;
use engine::internals::snapshot;
use kernel::{
    Action, ClockReading, Command, Document, Etag, Kernel, KeyData, Limits, Location, Lsn, Namespace,
    NamespaceData, Open, Relocation, ResourceName, Shard, Slot, Store, Time, Version,
};
use store::disk::{DiskBlobs, DiskDir, DiskLog, LogOptions, StoreFile, StoreView};
use store::fs::RealFs;
use store::{BATCH_MAX, BlobStore, LogStore, LsnRange, Seq};
use system::{file, hex, random};

use crate::error::BackupError;
use crate::export::{DocumentLine, ExportCounts, ExportHeader, FORMAT, Line, STATE};
use crate::pace::{Pace, Progress};
use crate::recovered::{check_documents, recover_shard};
use crate::staging::Staging;

/// How to import.
#[derive(Clone, Copy, Debug)]
pub struct ImportOptions {
    /// Reads the wall clock, in milliseconds since 1970. Read after the first line: an export that is piped into the import
    /// is taken after the import has started.
    pub now_unix_ms: fn() -> u64,
    /// The number of shards of the new store.
    pub shards: u32,
}

/// The longest line: a document of 1 GB, and its other fields.
const LINE_MAX: u64 = 1_000_100_000;
/// Bytes of documents in one batch.
const BATCH_BYTES: usize = BATCH_MAX / 2;
const TERM: Term = Term(1);

/// Creates a store of an export, in a directory that does not exist or is empty.
pub fn import(
    input: &mut dyn BufRead,
    target: &Path,
    options: &ImportOptions,
    progress: &dyn Progress,
) -> Result<ExportCounts, BackupError> {
    let staging = Staging::new(target, true)?;
    let mut lines = Lines { input, number: 0 };
    let header = lines.header()?;
    let now_unix_ms = (options.now_unix_ms)();
    if now_unix_ms < header.taken_at_unix_ms {
        return Err(lines.refused("the wall clock is behind the time of the export; set the clock first"));
    }
    let mut import = Import::create(&staging.path, &header, now_unix_ms, options.shards)?;
    let pace = Pace::unlimited(progress);
    pace.begin("importing", 0);
    let counts = loop {
        let (line, state) = lines.next()?;
        pace.advance(state.len() as u64)?;
        match line {
            Line::Export(_) => return Err(lines.refused("a second header")),
            Line::Namespace { name, version_floor } => import.namespace(&name, version_floor, &lines)?,
            Line::Document(document) => import.document(&document, &state, &lines)?,
            Line::Lease(_) => import.counts.leases += 1,
            Line::End { namespaces, documents, leases } => {
                break ExportCounts { namespaces, documents, leases };
            }
        }
    };
    if counts != import.counts {
        return Err(lines.refused("the export does not have as many lines as its end says"));
    }
    lines.check_end()?;
    import.finish(&header)?;
    verify(&staging.path, counts, &pace)?;
    staging.publish()?;
    Ok(counts)
}

/// The lines of an export, counted for messages.
struct Lines<'a> {
    input: &'a mut dyn BufRead,
    number: u64,
}

impl Lines<'_> {
    fn refused(&self, what: &str) -> BackupError {
        BackupError::Refused(format!(
            "the export cannot be imported, and nothing was created: {what}: line={}",
            self.number
        ))
    }

    fn header(&mut self) -> Result<ExportHeader, BackupError> {
        let Line::Export(header) = self.next()?.0 else {
            return Err(
                self.refused("it does not begin with its header; pass the output of `lockd store export`")
            );
        };
        if header.format != FORMAT {
            let what =
                "a format that this lockd does not read; use the lockd version that wrote it, or a newer one";
            return Err(self.refused(&format!("{what}: format={} supported={FORMAT}", header.format)));
        }
        Ok(header)
    }

    /// The next line, and the content of a document.
    fn next(&mut self) -> Result<(Line, Vec<u8>), BackupError> {
        self.number += 1;
        let mut text = Vec::new();
        let read = self.input.take(LINE_MAX).read_until(b'\n', &mut text);
        read.map_err(|error| BackupError::io(&error, "reading the export", Path::new("-")))?;
        if text.pop() != Some(b'\n') {
            return Err(self.refused("it ends early, or a line is longer than 1 GB"));
        }
        let at = text.windows(STATE.len()).position(|window| window == STATE);
        let state = match at {
            Some(at) if text.ends_with(b"}") => {
                text.pop();
                let state = text.split_off(at).split_off(STATE.len());
                text.push(b'}');
                state
            }
            _ => Vec::new(),
        };
        let line = serde_json::from_slice(&text)
            .map_err(|error| self.refused(&format!("not a line of an export: {error}")))?;
        if matches!(line, Line::Document(_)) != at.is_some() {
            return Err(self.refused("only a document has a state, as its last field"));
        }
        Ok((line, state))
    }

    fn check_end(&mut self) -> Result<(), BackupError> {
        match self.input.fill_buf() {
            Ok([]) => Ok(()),
            _ => Err(self.refused("it goes on after its end")),
        }
    }
}

/// A store being filled.
struct Import {
    dir: DiskDir,
    blobs: Arc<DiskBlobs<RealFs>>,
    shards: Vec<ShardImport>,
    counts: ExportCounts,
}

/// One shard being filled.
struct ShardImport {
    shard: Shard,
    log: DiskLog<RealFs>,
    open: Open,
    /// The LSN of the `open`.
    first: Lsn,
    /// The LSN of the next record.
    lsn: Lsn,
    /// Records that are not appended yet, and the size of their documents.
    records: Vec<Record>,
    bytes: usize,
    next_blob: u64,
    namespaces: BTreeMap<Namespace, Version>,
    keys: BTreeMap<(Namespace, ResourceName), (Version, Document)>,
}

impl Import {
    fn create(
        path: &Path,
        header: &ExportHeader,
        now_unix_ms: u64,
        shards: u32,
    ) -> Result<Import, BackupError> {
        let key_path = path.join("store.key");
        let key = random::bytes::<32>();
        let written =
            store::private::create_dir(path).and_then(|()| file::replace(&key_path, &key, file::OWNER_ONLY));
        written.map_err(|error| BackupError::io(&error, "writing a file", &key_path))?;
        let store_id = u128::from_le_bytes(random::bytes());
        let dir = DiskDir::open(path, StoreFile { store_id, shards }, &key, true)?;
        let blobs = Arc::new(dir.blobs()?);
        let first = Lsn(now_unix_ms.saturating_mul(1000).max(header.last_lsn + 1));
        let shards = (0..shards).map(|shard| ShardImport::create(&dir, Shard(shard), first));
        let shards = shards.collect::<Result<_, _>>()?;
        Ok(Import { dir, blobs, shards, counts: ExportCounts::default() })
    }

    fn shard_of(&mut self, namespace: &Namespace) -> &mut ShardImport {
        let shard = self.dir.map().shard(Slot::of(namespace).number());
        &mut self.shards[shard as usize]
    }

    fn namespace(&mut self, name: &str, floor: u64, lines: &Lines<'_>) -> Result<(), BackupError> {
        let name = Namespace::new(name).map_err(|_| lines.refused("an invalid namespace"))?;
        self.counts.namespaces += 1;
        self.shard_of(&name).namespaces.insert(name, Version(floor));
        Ok(())
    }

    fn document(&mut self, line: &DocumentLine, state: &[u8], lines: &Lines<'_>) -> Result<(), BackupError> {
        let namespace = Namespace::new(&line.namespace).map_err(|_| lines.refused("an invalid namespace"))?;
        let key = ResourceName::key(&line.key).map_err(|_| lines.refused("an invalid key"))?;
        let etag = *blake3::hash(state).as_bytes();
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(state).is_ok();
        if line.etag != hex::encode(&etag) || line.bytes != state.len() as u64 || !is_json {
            return Err(lines.refused(
                "a document does not match its etag; an export cannot be edited: import it, and then write the document",
            ));
        }
        let blobs = Arc::clone(&self.blobs);
        self.counts.documents += 1;
        let shard = self.shard_of(&namespace);
        let location =
            if state.len() > INLINE_MAX { shard.put_blob(&*blobs, state)? } else { Location::default() };
        let bytes = state.len() as u64;
        let document = Document { etag: Etag(etag), bytes, location, committed_at: Time(0) };
        let version = Version(line.version);
        let known = shard.keys.insert((namespace.clone(), key.clone()), (version, document));
        if known.is_some() {
            return Err(lines.refused("a key occurs twice"));
        }
        if state.len() > INLINE_MAX { Ok(()) } else { shard.put_inline(namespace, key, version, state) }
    }

    fn finish(mut self, header: &ExportHeader) -> Result<(), BackupError> {
        let floor = Version(header.version_floor);
        for shard in &mut self.shards {
            shard.finish(&*self.blobs, floor)?;
        }
        Ok(())
    }
}

impl ShardImport {
    /// Begins the log with an `open`.
    fn create(dir: &DiskDir, shard: Shard, first: Lsn) -> Result<ShardImport, BackupError> {
        let slots = Slot::all().filter(|slot| dir.map().shard(slot.number()) == shard.0).collect();
        let open = Open {
            store: Store { shard, shards: dir.file().shards, hash_seed: random::number() },
            writer: u128::from_le_bytes(random::bytes()),
            term: TERM.0,
            clocks: ClockReading::default(),
            kernel_version: kernel::KERNEL_VERSION,
            limits: Limits::default(),
            slots,
        };
        let (log, _) = dir.log(shard.0, LogOptions::SEGMENT_BYTES)?;
        let mut created = ShardImport {
            shard,
            log,
            open: open.clone(),
            first,
            lsn: first,
            records: Vec::new(),
            bytes: 0,
            next_blob: 0,
            namespaces: BTreeMap::new(),
            keys: BTreeMap::new(),
        };
        created.record(Action::Open(open), None);
        created.append()?;
        Ok(created)
    }

    fn record(&mut self, action: Action, document: Option<Vec<u8>>) {
        self.bytes += document.as_ref().map_or(0, Vec::len) + 1024;
        let (lsn, command) = (self.lsn, Command::internal(action));
        self.records.push(Record { lsn, now: Time(0), correlation: 0, command, document });
        self.lsn = Lsn(lsn.0 + 1);
    }

    fn append(&mut self) -> Result<(), BackupError> {
        let records = std::mem::take(&mut self.records);
        self.bytes = 0;
        if let (Some(first), Some(last)) = (records.first(), records.last()) {
            let payload = Record::encode_batch(ClockReading::default(), &records);
            self.log.reserve()?;
            let next = self.log.bounds().next;
            self.log.append(next, LsnRange::new(first.lsn.0, last.lsn.0), &payload)?;
        }
        Ok(())
    }

    fn put_inline(
        &mut self,
        namespace: Namespace,
        key: ResourceName,
        version: Version,
        state: &[u8],
    ) -> Result<(), BackupError> {
        let location = DocumentLocation::Inline { shard: self.shard, lsn: self.lsn }.location();
        let relocation = Relocation { namespace, key, version, location };
        self.record(Action::Relocate(relocation), Some(state.to_vec()));
        if self.bytes >= BATCH_BYTES { self.append() } else { Ok(()) }
    }

    fn put_blob(&mut self, blobs: &dyn BlobStore, state: &[u8]) -> Result<Location, BackupError> {
        let random = random::number().max(1);
        let blob = BlobId { shard: self.shard, term: TERM, number: self.next_blob, random };
        self.next_blob += 1;
        let mut writer = blobs.create(&blob.name())?;
        writer.write(state)?;
        writer.finish()?;
        Ok(DocumentLocation::Blob(blob).location())
    }

    /// Writes the snapshot that the appended records continue: all keys, as of the `open`.
    fn finish(&mut self, blobs: &dyn BlobStore, floor: Version) -> Result<(), BackupError> {
        self.append()?;
        let mut kernel = Kernel::new();
        kernel.apply(self.first, Time(0), &Command::internal(Action::Open(self.open.clone())));
        let mut state = kernel.snapshot();
        state.floor = floor;
        for ((namespace, key), (version, document)) in std::mem::take(&mut self.keys) {
            if state.namespaces.last().is_none_or(|last| last.name != namespace) {
                let floor = self.namespaces.get(&namespace).copied().unwrap_or_default();
                state.namespaces.push(NamespaceData { name: namespace.clone(), floor });
            }
            state.keys.push(KeyData { namespace, key, version, document: Some(document) });
        }
        // Without a key a namespace is not stored: its floor goes to that of deleted namespaces.
        state.floor = self.namespaces.values().copied().fold(state.floor, Version::max);
        let mut writer = blobs.create(&snapshot_name(self.shard, Seq(1)))?;
        snapshot::write(&state, Seq(1), &mut |bytes| writer.write(bytes))?;
        writer.finish()?;
        Ok(self.log.mark_clean_stop()?)
    }
}

/// Recovers the new store, and reads every document.
fn verify(path: &Path, counts: ExportCounts, pace: &Pace<'_>) -> Result<(), BackupError> {
    let view = StoreView::open(path)?;
    let mut documents = 0;
    for shard in 0..view.file().shards {
        let recovered = recover_shard(&view, shard, pace)?;
        documents += recovered.kernel.counts().documents as u64;
        if let Some(damage) = check_documents(&view, shard, &recovered.kernel, pace)?.first() {
            return Err(BackupError::Damaged(format!(
                "an imported document cannot be read: {}: key={}",
                damage.what, damage.key
            )));
        }
    }
    if documents == counts.documents {
        return Ok(());
    }
    let what = "the imported store does not have all documents; report this";
    Err(BackupError::Damaged(format!("{what}: documents={documents} expected={}", counts.documents)))
}
