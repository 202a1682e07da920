//! A store with records, and the binary to dump it with.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use engine::internals::record::Record;
use engine::internals::recovery::{apply_batch, snapshot_name};
use engine::internals::snapshot;
use kernel::{Action, Identity, Lsn, Time};
use serde_json::Value;
use store::disk::{DiskDir, DiskLog, LogItem, LogOptions, StoreFile, StoreView};
use store::fs::RealFs;
use store::{BlobStore, LogStore, LsnRange, Seq};

/// The exit code and output of a finished process.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The output lines parsed as JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    pub(crate) fn lsns(&self) -> Vec<u64> {
        self.lines().iter().map(|line| line["lsn"].as_u64().expect("an LSN")).collect()
    }
}

pub(crate) fn lockd(args: &[&str]) -> Ran {
    let Output { status, stdout, stderr } =
        Command::new(assert_cmd::cargo::cargo_bin!("lockd")).args(args).output().expect("the binary runs");
    Ran {
        code: status.code().expect("it was not killed"),
        stdout: String::from_utf8(stdout).expect("text"),
        stderr: String::from_utf8(stderr).expect("text"),
    }
}

/// A store of two shards in a temporary directory, open as in a running server.
pub(crate) struct TestStore {
    dir: tempfile::TempDir,
    store: DiskDir,
}

impl TestStore {
    pub(crate) fn new() -> TestStore {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("store.key"), [7; 32]).expect("writable");
        let made = StoreFile { store_id: 5, shards: 2 };
        let store = DiskDir::open(dir.path(), made, &[7; 32], true).expect("a store");
        TestStore { dir, store }
    }

    pub(crate) fn path(&self) -> &str {
        self.dir.path().to_str().expect("a plain path")
    }

    pub(crate) fn log(&self, shard: u32) -> DiskLog<RealFs> {
        self.store.log(shard, LogOptions::SEGMENT_BYTES_MIN * 4).expect("a sound log").0
    }

    /// Appends the records as one batch.
    pub(crate) fn append(&self, shard: u32, records: &[Record]) {
        let mut log = self.log(shard);
        let payload = Record::encode_batch(kernel::ClockReading::default(), records);
        let lsns = LsnRange::new(records[0].lsn.0, records[records.len() - 1].lsn.0);
        log.append(log.bounds().next, lsns, &payload).expect("room");
    }

    /// Writes a snapshot of all batches of a shard before `next`.
    pub(crate) fn snapshot(&self, shard: u32, next: u64) -> PathBuf {
        let blobs = self.store.blobs().expect("a directory");
        let name = snapshot_name(kernel::Shard(shard), Seq(next));
        let mut writer = blobs.create(&name).expect("a new name");
        let state = self.state(shard, next).snapshot();
        snapshot::write(&state, Seq(next), &mut |bytes| writer.write(bytes)).expect("space");
        writer.finish().expect("space");
        self.dir.path().join("blob/by-name").join(name.as_str())
    }

    /// The state after all batches of a shard before `next`.
    fn state(&self, shard: u32, next: u64) -> kernel::Kernel {
        let mut kernel = kernel::Kernel::new();
        let view = StoreView::open(self.dir.path()).expect("a store");
        let mut log = view.log(shard).expect("a log");
        while let Ok(LogItem::Batch(batch)) = log.read_next() {
            if batch.seq.0 < next {
                apply_batch(&mut kernel, &batch).expect("it begins with an open");
            }
        }
        kernel
    }

    /// The first segment of the first shard.
    pub(crate) fn segment(&self) -> PathBuf {
        self.dir.path().join("log/0").join(format!("{:016x}.seg", 0))
    }

    /// The last segment of the first shard.
    pub(crate) fn last_segment(&self) -> PathBuf {
        let entries = std::fs::read_dir(self.dir.path().join("log/0")).expect("there");
        let paths = entries.map(|entry| entry.expect("readable").path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "seg")).max().expect("a segment")
    }

    /// Closes the store, so that another process can open it.
    pub(crate) fn close(self) -> tempfile::TempDir {
        self.dir
    }

    pub(crate) fn dump(&self, args: &[&str]) -> Ran {
        lockd(&[&["store", "dump", "--store", self.path()], args].concat())
    }
}

/// A record of the engine, or of a client with this identity.
pub(crate) fn record(lsn: u64, identity: Option<&str>, action: Action) -> Record {
    let identity = identity.map(|name| Identity::new(name).expect("valid"));
    let command = kernel::Command { identity, request: None, action };
    Record { lsn: Lsn(lsn), now: Time(lsn * 10), correlation: 0, command, document: None }
}

/// The first record of a log.
fn opening(lsn: u64) -> Record {
    let open = kernel::Open {
        store: kernel::Store { shards: 2, ..kernel::Store::default() },
        writer: 1,
        term: 1,
        clocks: kernel::ClockReading::default(),
        kernel_version: kernel::KERNEL_VERSION,
        limits: kernel::Limits::default(),
        slots: kernel::Slots::ALL,
    };
    record(lsn, None, Action::Open(open))
}

/// A record that a replay applies: the `open` at LSN 1, and then grants.
pub(crate) fn applied(lsn: u64) -> Record {
    if lsn == 1 {
        return opening(lsn);
    }
    let request = sim::fixture::grant(sim::fixture::key(&format!("k{lsn}")), kernel::Span(300_000));
    record(lsn, Some("ada"), Action::Acquire(request))
}

/// Three batches of two records, an `open` and five grants: LSNs 1 to 6.
pub(crate) fn ticking() -> TestStore {
    let store = TestStore::new();
    for first in [1, 3, 5] {
        store.append(0, &[applied(first), applied(first + 1)]);
    }
    store
}

/// The offsets of the frames in a segment.
pub(crate) fn frames(segment: &Path) -> Vec<usize> {
    let bytes = std::fs::read(segment).expect("readable");
    let mut offsets = vec![store::frame::SEGMENT_HEADER];
    while let Some((header, _)) = store::frame::decode_frame(&bytes[offsets[offsets.len() - 1]..]) {
        offsets.push(offsets[offsets.len() - 1] + store::frame::frame_len(header.length));
    }
    offsets.pop();
    offsets
}

pub(crate) fn flip(file: &Path, offset: usize) {
    let byte = std::fs::read(file).expect("readable")[offset];
    let file = OpenOptions::new().write(true).open(file).expect("there");
    file.write_all_at(&[byte ^ 1], offset as u64).expect("writable");
}

/// Zeroes a sector of 512 bytes.
pub(crate) fn erase(file: &Path, offset: usize) {
    let file = OpenOptions::new().write(true).open(file).expect("there");
    file.write_all_at(&[0; 512], offset as u64).expect("writable");
}
