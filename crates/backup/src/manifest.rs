//! The file `backup.json`: what a backup contains, and the state that it leads to.
//!
//! **Invariant.** Every byte of a backup is under a hash: those of its files are in the manifest, and the manifest's own is
//! its last field. A file that is missing, added or changed is found before anything is restored.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use store::disk::FileDigest;
use system::hex;

use crate::error::BackupError;
use crate::recovered::RecoveredShard;

/// The name of the manifest in a backup.
pub(crate) const NAME: &str = "backup.json";
/// The directory of the store in a backup.
pub(crate) const STORE: &str = "store";
/// The format that this build writes and reads.
const FORMAT: u32 = 1;
/// A manifest of a million files has about 200 MB.
const BYTES_MAX: u64 = 1 << 30;

/// The content of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this file's format.
    pub format: u32,
    /// The lockd that took the backup.
    pub lockd_version: String,
    /// When it was taken, in milliseconds since 1970.
    pub created_at_unix_ms: u64,
    /// The store's id, in hexadecimal digits.
    pub store_id: String,
    /// The state of each shard, in order.
    pub shards: Vec<ShardEntry>,
    /// Every other file, by path.
    pub files: Vec<FileEntry>,
    /// BLAKE3 of this document with an empty text here, in hexadecimal digits.
    pub manifest_hash: String,
}

/// The state of one shard at the end of its copied log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry {
    /// The shard's number.
    pub shard: u32,
    /// The first batch of its log.
    pub floor: u64,
    /// The batch after its last.
    pub next_batch: u64,
    /// The LSN of the last record: the highest fencing token is at most this.
    pub last_lsn: u64,
    /// The kernel's running hash, in hexadecimal digits.
    pub state_hash: String,
    /// A digest of all rows, in hexadecimal digits. Compared only by the version that took the backup.
    pub content_digest: String,
    /// Leases that cover resources.
    pub leases: u64,
    /// Keys with a document.
    pub documents: u64,
}

/// A file of the backup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its path in the backup, with `/`.
    pub path: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its content hash, in hexadecimal digits.
    pub blake3: String,
}

impl ShardEntry {
    pub(crate) fn of(shard: u32, recovered: &RecoveredShard) -> ShardEntry {
        let kernel = &recovered.kernel;
        let counts = kernel.counts();
        ShardEntry {
            shard,
            floor: recovered.floor.0,
            next_batch: recovered.next.0,
            last_lsn: kernel.last_lsn().0,
            state_hash: format!("{:016x}", kernel.state_hash()),
            content_digest: format!("{:016x}", kernel.content_digest()),
            leases: counts.leases as u64,
            documents: counts.documents as u64,
        }
    }
}

impl FileEntry {
    /// A file below `root`.
    pub(crate) fn of(digest: &FileDigest, root: &Path) -> FileEntry {
        let path = digest.path.strip_prefix(root).expect("a file of the backup");
        let path = path.to_str().expect("names of a store are ASCII").to_string();
        FileEntry { path, bytes: digest.bytes, blake3: hex::encode(&digest.hash) }
    }

    /// The path below a directory. `None` if it would lead out of it.
    pub(crate) fn below(&self, root: &Path) -> Option<PathBuf> {
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
        let is_of_store = self.path.strip_prefix(STORE).is_some_and(|rest| rest.starts_with('/'));
        (is_of_store && self.path.split('/').all(is_plain)).then(|| root.join(&self.path))
    }
}

impl Manifest {
    pub(crate) fn new(store_id: u128, created_at_unix_ms: u64) -> Manifest {
        Manifest {
            format: FORMAT,
            lockd_version: env!("CARGO_PKG_VERSION").to_string(),
            created_at_unix_ms,
            store_id: format!("{store_id:032x}"),
            shards: Vec::new(),
            files: Vec::new(),
            manifest_hash: String::new(),
        }
    }

    /// The size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Leases in all shards.
    pub fn leases(&self) -> u64 {
        self.shards.iter().map(|shard| shard.leases).sum()
    }

    /// Documents in all shards.
    pub fn documents(&self) -> u64 {
        self.shards.iter().map(|shard| shard.documents).sum()
    }

    /// The highest LSN of all shards.
    pub fn last_lsn(&self) -> u64 {
        self.shards.iter().map(|shard| shard.last_lsn).max().unwrap_or_default()
    }

    /// Sorts the files, and fills in the hash.
    pub(crate) fn seal(mut self) -> Manifest {
        self.files.sort_unstable();
        self.manifest_hash = self.hash();
        self
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("plain data");
        bytes.push(b'\n');
        bytes
    }

    fn hash(&self) -> String {
        let unsealed = Manifest { manifest_hash: String::new(), ..self.clone() };
        hex::encode(blake3::hash(&unsealed.encode()).as_bytes())
    }

    /// Decodes the bytes of the file.
    pub(crate) fn decode(bytes: &[u8], path: &Path) -> Result<Manifest, BackupError> {
        /// Readable in every format.
        #[derive(Deserialize)]
        struct Header {
            format: u32,
        }
        let place = path.display();
        let damaged = |what: &str| {
            BackupError::Damaged(format!("{what}; use another backup, or take a new one: file={place}"))
        };
        let header: Header =
            serde_json::from_slice(bytes).map_err(|_| damaged("not the manifest of a backup"))?;
        if header.format != FORMAT {
            return Err(BackupError::Refused(format!(
                "a backup of a format that this lockd does not read; use the lockd version that took it, or a newer one: \
                 format={} supported={FORMAT} file={place}",
                header.format
            )));
        }
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|_| damaged("the manifest of the backup is damaged"))?;
        if manifest.hash() != manifest.manifest_hash || manifest.encode() != bytes {
            return Err(damaged("the manifest of the backup does not match its hash"));
        }
        Ok(manifest)
    }

    /// Reads the manifest of a backup directory.
    pub(crate) fn read(dir: &Path) -> Result<Manifest, BackupError> {
        let path = dir.join(NAME);
        let length = std::fs::metadata(&path).map(|metadata| metadata.len());
        let bytes = length.and_then(|length| {
            if length > BYTES_MAX {
                Err(std::io::ErrorKind::FileTooLarge.into())
            } else {
                std::fs::read(&path)
            }
        });
        match bytes {
            Ok(bytes) => Manifest::decode(&bytes, &path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(BackupError::Refused(format!(
                "not a backup: it has no {NAME}; pass the directory or the file that `lockd backup --to` has written: \
                 path={}",
                dir.display()
            ))),
            Err(error) => Err(BackupError::io(&error, "reading a file", &path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let shard = ShardEntry {
            shard: 0,
            floor: 1,
            next_batch: 9,
            last_lsn: 77,
            state_hash: "00000000000000aa".into(),
            content_digest: "00000000000000bb".into(),
            leases: 3,
            documents: 2,
        };
        let file = |path: &str| FileEntry { path: path.into(), bytes: 5, blake3: "ab".repeat(32) };
        let files = vec![file("store/store"), file("store/map/1")];
        let new = Manifest { lockd_version: "0.1.0".into(), ..Manifest::new(7, 1_790_000_000_000) };
        Manifest { shards: vec![shard], files, ..new }.seal()
    }

    /// These bytes are on users' disks. If this fails, the format has changed: introduce a new version.
    #[test]
    fn golden_manifest_of_format_1() {
        let golden = include_str!("manifest_v1.json");
        assert_eq!(String::from_utf8(manifest().encode()).expect("text"), golden);
        assert_eq!(Manifest::decode(golden.as_bytes(), Path::new("m")).expect("whole"), manifest());
    }

    #[test]
    fn every_byte_of_the_manifest_matters() {
        let bytes = manifest().encode();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Manifest::decode(&damaged, Path::new("m")).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_newer_format_is_refused_with_the_version_to_use() {
        let newer = br#"{"format": 2, "anything": []}"#;
        let refused = Manifest::decode(newer, Path::new("m")).expect_err("newer").to_string();
        assert!(refused.contains("format=2 supported=1"), "{refused}");
    }

    #[test]
    fn no_path_leads_out_of_the_store() {
        let below = |path: &str| {
            FileEntry { path: path.into(), bytes: 0, blake3: String::new() }.below(Path::new("/t"))
        };
        assert_eq!(below("store/log/0/floor"), Some(PathBuf::from("/t/store/log/0/floor")));
        for bad in
            ["store", "store/", "/store/x", "store/../x", "store//x", "x/store", "storex/y", "", "store/./x"]
        {
            assert_eq!(below(bad), None, "{bad}");
        }
    }
}
