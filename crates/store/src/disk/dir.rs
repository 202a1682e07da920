//! The store directory: opened by one process at a time, and never on a network filesystem by accident.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{DiskBlobs, DiskLog, LogOptions};
use crate::disk::TornTail;
use crate::fs::{Fs, RealFs};
use crate::port::{Damage, ErrorKind, StoreError};
use crate::private;

/// The parameters that are fixed when a store is created: the contents of the file `store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFile {
    /// Unique to this store.
    pub store_id: u128,
    /// The number of shards; each has one log.
    pub shards: u32,
}

/// An open store. Locked against other processes until dropped.
pub struct DiskDir {
    path: PathBuf,
    file: StoreFile,
    _lock: File,
}

impl DiskDir {
    /// Opens the store in a directory, or creates it with the parameters in `fresh`.
    ///
    /// Refuses a directory that another process has open, and a network filesystem unless `allow_network` is
    /// set: those may not honour syncs or locks.
    pub fn open(path: &Path, fresh: StoreFile, allow_network: bool) -> Result<DiskDir, StoreError> {
        DiskDir::open_on(path, fresh, allow_network, filesystem_type)
    }

    /// Like [`DiskDir::open`]; `type_of` returns the type of the filesystem of a path.
    fn open_on(
        path: &Path,
        fresh: StoreFile,
        allow_network: bool,
        type_of: fn(&Path) -> io::Result<u64>,
    ) -> Result<DiskDir, StoreError> {
        let doing = |error: &io::Error| {
            StoreError::io(error, "opening the store").with(format_args!("path={}", path.display()))
        };
        RealFs.create_dir_durably(path).map_err(|error| doing(&error))?;
        if !allow_network && NETWORK_TYPES.contains(&type_of(path).map_err(|error| doing(&error))?) {
            let what = "the store directory is on a network filesystem; use a local disk, or allow it: path=";
            return Err(StoreError::new(ErrorKind::Refused, format!("{what}{}", path.display())));
        }
        let lock = private::file_options().write(true).create(true).truncate(false).open(path.join("lock"));
        let lock = lock.map_err(|error| doing(&error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let what = "another process has the store open; stop it first: path=";
                return Err(StoreError::new(ErrorKind::Refused, format!("{what}{}", path.display())));
            }
            Err(TryLockError::Error(error)) => return Err(doing(&error)),
        }
        let file = read_or_create(path, fresh)?;
        Ok(DiskDir { path: path.to_path_buf(), file, _lock: lock })
    }

    /// The parameters fixed at creation.
    pub fn file(&self) -> StoreFile {
        self.file
    }

    /// Opens the log of one shard, and reports a torn tail if it had to cut one off.
    pub fn log(
        &self,
        shard: u32,
        segment_bytes: u64,
    ) -> Result<(DiskLog<RealFs>, Option<TornTail>), StoreError> {
        assert!(shard < self.file.shards, "a store has as many logs as shards");
        let options = LogOptions { shard, store_id: self.file.store_id, segment_bytes };
        DiskLog::open(RealFs, &self.path.join("log").join(shard.to_string()), options)
    }

    /// Opens the blobs.
    pub fn blobs(&self) -> Result<DiskBlobs<RealFs>, StoreError> {
        DiskBlobs::open(RealFs, &self.path.join("blob"))
    }
}

const STORE_BYTES: usize = 36;
const STORE_MAGIC: &[u8; 8] = b"lockdsto";
const STORE_VERSION: u32 = 1;

/// Magic, version, number of shards, store id, CRC32C of all these.
fn encode(file: StoreFile) -> [u8; STORE_BYTES] {
    let mut bytes = [0; STORE_BYTES];
    bytes[..8].copy_from_slice(STORE_MAGIC);
    bytes[8..12].copy_from_slice(&STORE_VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&file.shards.to_le_bytes());
    bytes[16..32].copy_from_slice(&file.store_id.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..32]);
    bytes[32..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

pub(super) fn decode_store(bytes: &[u8]) -> Option<StoreFile> {
    let bytes: &[u8; STORE_BYTES] = bytes.try_into().ok()?;
    let file = StoreFile {
        shards: u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")),
        store_id: u128::from_le_bytes(bytes[16..32].try_into().expect("sixteen bytes")),
    };
    (*bytes == encode(file)).then_some(file)
}

fn read_or_create(dir: &Path, fresh: StoreFile) -> Result<StoreFile, StoreError> {
    let path = dir.join("store");
    match std::fs::read(&path) {
        Ok(bytes) => {
            let what = "not a store file of a format that this build supports";
            decode_store(&bytes).ok_or_else(|| Damage { file: path, offset: 0, what }.into())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create(dir, fresh).map_err(|error| StoreError::io(&error, "creating the store"))?;
            Ok(fresh)
        }
        Err(error) => {
            Err(StoreError::io(&error, "reading a file").with(format_args!("file={}", path.display())))
        }
    }
}

fn create(dir: &Path, fresh: StoreFile) -> io::Result<()> {
    let tmp = dir.join("store.tmp");
    // Left over by a crash.
    let _ = std::fs::remove_file(&tmp);
    let mut file = private::create_file(&tmp)?;
    file.write_all(&encode(fresh))?;
    file.sync_all()?;
    std::fs::rename(&tmp, dir.join("store"))?;
    sync_dir(dir)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The types of network filesystems, as `statfs` reports them.
const NETWORK_TYPES: [u64; 8] = [
    0x6969,      // NFS
    0x517b,      // SMB
    0xfe53_4d42, // SMB2
    0xff53_4d42, // CIFS
    0x6573_5546, // FUSE
    0x00c3_6400, // Ceph
    0x5346_414f, // AFS
    0x0102_1997, // 9P
];

/// The type that `statfs` reports, which has 32 bits.
fn filesystem_type(path: &Path) -> io::Result<u64> {
    let kind = rustix::fs::statfs(path)?.f_type;
    Ok(u64::try_from(kind).unwrap_or_default() & u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock or a sync on a network filesystem may not do what it says: no test noticed when the refusal was gone.
    #[test]
    fn a_network_filesystem_is_refused_unless_it_is_allowed() {
        let fresh = StoreFile { store_id: 1, shards: 1 };
        let dir = tempfile::tempdir().expect("a directory");
        let (nfs, tmpfs) = (|_: &Path| Ok(0x6969), |_: &Path| Ok(0x0102_1994));
        let refused = DiskDir::open_on(dir.path(), fresh, false, nfs).err().expect("a network filesystem");
        assert_eq!(refused.kind, ErrorKind::Refused);
        assert!(refused.what.contains("network filesystem"), "{}", refused.what);
        assert!(!dir.path().join("store").exists(), "nothing is created");
        assert!(DiskDir::open_on(dir.path(), fresh, false, tmpfs).is_ok());
        assert!(DiskDir::open_on(dir.path(), fresh, true, nfs).is_ok());
    }

    #[test]
    fn the_type_of_a_filesystem_is_read() {
        assert_eq!(filesystem_type(Path::new("/proc")).expect("Linux"), 0x9fa0);
    }

    /// These bytes are on users' disks. If this fails, the format has changed: introduce a new version.
    #[test]
    fn golden_bytes_of_the_store_file() {
        let file = StoreFile { store_id: 0x0102, shards: 3 };
        let bytes = encode(file);
        let hex = bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        assert_eq!(hex, "6c6f636b6473746f010000000300000002010000000000000000000000000000170378d4");
        assert_eq!(decode_store(&bytes), Some(file));
    }
}
