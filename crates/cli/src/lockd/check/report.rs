//! The report of a check, as text and as JSON. Fields of the JSON document may be added, and are never renamed.

use std::fmt::Write;
use std::path::Path;

use ::backup::{BlobUse, DocumentDamage};
use cli::remote::quoted;
use cli::untrusted::{escape, escape_lines};
use serde::Serialize;
use store::disk::{CutPlace, TornTail};
use store::object::ObjectLogCheck;
use store::{Damage, LsnRange};

/// The result of a check.
#[derive(Serialize)]
pub(super) struct Report {
    store: String,
    /// False if there is damage. A torn tail is sound.
    pub(super) sound: bool,
    shards: Vec<ShardReport>,
    findings: Vec<Finding>,
    /// The objects of a store in a bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<BucketReport>,
}

/// The objects of a store in a bucket.
#[derive(Default, Serialize)]
pub(super) struct BucketReport {
    /// Batches at or above the floors, and their bytes.
    batches: u64,
    bytes: u64,
    index_objects: u64,
    /// Unknown if the state is damaged.
    blobs: Option<u64>,
    /// Blobs that are neither snapshots nor documents: a server deletes them, or is about to refer to them.
    unreferenced_blobs: Option<u64>,
    unreferenced_bytes: Option<u64>,
}

impl BucketReport {
    pub(super) fn count(&mut self, log: &ObjectLogCheck) {
        self.batches += log.batches;
        self.bytes += log.bytes;
        self.index_objects += log.index_objects;
    }

    pub(super) fn count_blobs(&mut self, found: BlobUse) {
        self.blobs = Some(found.blobs);
        self.unreferenced_blobs = Some(found.unreferenced);
        self.unreferenced_bytes = Some(found.unreferenced_bytes);
    }

    fn line(&self) -> String {
        let count = |count: Option<u64>| count.map_or("unknown".to_string(), |count| count.to_string());
        format!(
            "objects: batches={} bytes={} index_objects={} blobs={} unreferenced_blobs={} unreferenced_bytes={}\n",
            self.batches,
            self.bytes,
            self.index_objects,
            count(self.blobs),
            count(self.unreferenced_blobs),
            count(self.unreferenced_bytes)
        )
    }
}

/// One shard: its log, and its snapshots.
#[derive(Default, Serialize)]
pub(super) struct ShardReport {
    pub(super) shard: u32,
    pub(super) floor: u64,
    /// The batches that could be read.
    pub(super) first_batch: Option<u64>,
    pub(super) last_batch: Option<u64>,
    pub(super) last_lsn: Option<u64>,
    /// Absent in a bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) segments: Option<usize>,
    /// The length of all segments, with the part of the last one that is preallocated.
    pub(super) bytes: u64,
    /// Whether the last batch is the one that a clean stop left.
    pub(super) clean_stop: bool,
    /// Oldest first.
    pub(super) snapshots: Vec<SnapshotReport>,
    /// Leases that cover resources, and keys with a document; unknown if the log cannot be replayed.
    pub(super) leases: Option<u64>,
    pub(super) documents: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct SnapshotReport {
    pub(super) name: String,
    /// The first batch that is not in it.
    pub(super) next_batch: u64,
    pub(super) bytes: u64,
    pub(super) readable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum FindingKind {
    TornTail,
    Damage,
}

/// One finding. A field is absent if it is unknown.
#[derive(Serialize)]
pub(super) struct Finding {
    kind: FindingKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_lsn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_lsn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    what: String,
    /// What follows from it, or what to do.
    advice: String,
    /// The command that ends the log before the damage, and loses what follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut_command: Option<String>,
    /// The log can be replayed all the same.
    #[serde(skip)]
    is_survivable: bool,
}

/// Unless a finding says otherwise.
const RESTORE: &str = "the server does not start; restore the store from a backup with `lockd restore`, which loses everything \
                       since it was taken";

impl Report {
    pub(super) fn new(store: &Path, shards: Vec<ShardReport>, findings: Vec<Finding>) -> Report {
        let sound = !findings.iter().any(Finding::is_damage);
        Report { store: store.display().to_string(), sound, shards, findings, bucket: None }
    }

    pub(super) fn of_bucket(self, bucket: BucketReport) -> Report {
        Report { bucket: Some(bucket), ..self }
    }

    /// The shards and the findings of a copy, with the names of the objects that it was made of.
    pub(super) fn relocated(self, copy: &Path, url: &str) -> (Vec<ShardReport>, Vec<Finding>) {
        let copy = copy.display().to_string();
        let object = |file: String| match file.strip_prefix(&copy) {
            Some(path) => format!("{url}{}", path.replacen("/blob/by-name/", "/blob/", 1)),
            None => file,
        };
        let relocate = |finding: Finding| Finding {
            file: finding.file.map(object),
            what: finding.what.replace(&copy, url),
            cut_command: None,
            ..finding
        };
        let shards = self.shards.into_iter().map(|shard| ShardReport { segments: None, ..shard });
        (shards.collect(), self.findings.into_iter().map(relocate).collect())
    }

    pub(super) fn json(&self) -> String {
        escape_lines(&serde_json::to_string_pretty(self).expect("plain data")) + "\n"
    }

    pub(super) fn text(&self) -> String {
        let lines =
            self.shards.iter().map(ShardReport::line).chain(self.bucket.iter().map(BucketReport::line));
        let lines = lines.chain(self.findings.iter().map(Finding::lines));
        let verdict = if self.sound { "sound" } else { "damaged" };
        format!("{}{verdict}: store={}\n", lines.collect::<String>(), escape(&self.store))
    }
}

impl ShardReport {
    fn line(&self) -> String {
        let number = |number: Option<u64>| number.map_or("none".to_string(), |number| number.to_string());
        let count = |count: Option<u64>| count.map_or("unknown".to_string(), |count| count.to_string());
        let snapshot = |snapshot: &SnapshotReport| {
            let state = if snapshot.readable { "readable" } else { "damaged" };
            format!("{}:{state}", snapshot.next_batch)
        };
        let snapshots: Vec<String> = self.snapshots.iter().map(snapshot).collect();
        let segments = self.segments.map(|segments| format!(" segments={segments}")).unwrap_or_default();
        let clean_stop = match (self.segments, self.clean_stop) {
            (None, _) => "",
            (Some(_), true) => " clean_stop=yes",
            (Some(_), false) => " clean_stop=no",
        };
        let snapshots = if snapshots.is_empty() { "none".to_string() } else { snapshots.join(",") };
        format!(
            "shard={} floor={} first_batch={} last_batch={} last_lsn={}{segments} bytes={}{clean_stop} \
             snapshots={snapshots} leases={} documents={}\n",
            self.shard,
            self.floor,
            number(self.first_batch),
            number(self.last_batch),
            number(self.last_lsn),
            self.bytes,
            count(self.leases),
            count(self.documents),
        )
    }
}

impl Finding {
    fn new(kind: FindingKind, shard: Option<u32>, what: impl Into<String>) -> Finding {
        Finding {
            kind,
            shard,
            file: None,
            offset: None,
            batch: None,
            first_lsn: None,
            last_lsn: None,
            namespace: None,
            key: None,
            version: None,
            what: what.into(),
            advice: RESTORE.to_string(),
            cut_command: None,
            is_survivable: false,
        }
    }

    pub(super) fn torn_tail(shard: u32, torn: &TornTail) -> Finding {
        let what = "the last batch is incomplete: its append was interrupted, and it was never acknowledged";
        Finding {
            advice: "it will be cut at the next start, unless a running server is still writing it".into(),
            batch: Some(torn.seq.0),
            ..Finding::new(FindingKind::TornTail, Some(shard), what)
        }
        .at(&torn.file, Some(torn.offset))
        .with_lsns(torn.lsns)
    }

    /// Damage in a file. `shard` is `None` for files of the whole store.
    pub(super) fn damage(shard: Option<u32>, damage: &Damage) -> Finding {
        Finding::new(FindingKind::Damage, shard, damage.what).at(&damage.file, Some(damage.offset))
    }

    /// Damage of the whole store.
    pub(super) fn of_store(what: impl Into<String>) -> Finding {
        Finding::new(FindingKind::Damage, None, what)
    }

    /// Damage that has no place in a file.
    pub(super) fn defect(shard: u32, what: impl Into<String>) -> Finding {
        Finding::new(FindingKind::Damage, Some(shard), what)
    }

    pub(super) fn is_damage(&self) -> bool {
        self.kind == FindingKind::Damage
    }

    /// Whether the log can be replayed in spite of it.
    pub(super) fn is_survivable(&self) -> bool {
        self.is_survivable
    }

    pub(super) fn survivable(self) -> Finding {
        Finding { is_survivable: true, ..self }
    }

    pub(super) fn of_document(self, damage: &DocumentDamage) -> Finding {
        let lsn = damage.lsn.map(|lsn| lsn.0);
        Finding {
            namespace: Some(damage.namespace.to_string()),
            key: Some(damage.key.name().to_string()),
            version: Some(damage.version.0),
            first_lsn: lsn,
            last_lsn: lsn,
            ..self
        }
    }

    pub(super) fn at(mut self, file: &Path, offset: Option<u64>) -> Finding {
        (self.file, self.offset) = (Some(file.display().to_string()), offset);
        self
    }

    pub(super) fn in_batch(self, batch: u64) -> Finding {
        Finding { batch: Some(batch), ..self }
    }

    fn with_lsns(mut self, lsns: Option<LsnRange>) -> Finding {
        (self.first_lsn, self.last_lsn) = lsns.map(|lsns| (lsns.first.0, lsns.last.0)).unzip();
        self
    }

    pub(super) fn advise(mut self, advice: impl Into<String>) -> Finding {
        self.advice = advice.into();
        self
    }

    /// The log can be ended at this place.
    pub(super) fn cut_at(self, store: &Path, place: &CutPlace) -> Finding {
        let advice = "the server does not start; restore the store from a backup with `lockd restore`; without one, end the log \
                      there, which loses this batch and all later ones of the shard";
        let (store, file) = (store.display().to_string(), place.file.display().to_string());
        let command = format!("lockd store cut --store {} {} {}", word(&store), word(&file), place.offset);
        let found = self.advise(advice).at(&place.file, Some(place.offset)).in_batch(place.seq.0);
        Finding { cut_command: Some(command), ..found }
    }

    fn lines(&self) -> String {
        let kind = match self.kind {
            FindingKind::TornTail => "torn tail",
            FindingKind::Damage => "damage",
        };
        let mut line = format!("{kind}: {}; {}:", escape(&self.what), self.advice);
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                write!(line, " {name}={}", escape(&value)).expect("memory");
            }
        };
        add("namespace", self.namespace.clone());
        add("key", self.key.clone());
        add("version", self.version.map(|version| version.to_string()));
        add("shard", self.shard.map(|shard| shard.to_string()));
        add("batch", self.batch.map(|batch| batch.to_string()));
        add("lsns", self.first_lsn.zip(self.last_lsn).map(|(first, last)| format!("{first}-{last}")));
        add("file", self.file.clone());
        add("offset", self.offset.map(|offset| offset.to_string()));
        let command = self.cut_command.as_ref().map(|command| format!("  {}\n", escape(command)));
        format!("{}\n{}", line.trim_end_matches(':'), command.unwrap_or_default())
    }
}

/// A path as one word of a shell, quoted only if it has to be.
fn word(path: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,@".contains(c);
    if !path.is_empty() && path.chars().all(is_plain) { path.to_string() } else { quoted(path) }
}
