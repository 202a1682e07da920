//! The store that an offline command names: a directory, or a bucket, of which the command gets a copy in a directory.
//!
//! **Invariant.** The copy is in a private directory, and is removed when the command ends, unless the process is killed.

use std::path::{Path, PathBuf};

use ::backup::{BackupError, CopyReport, DownloadOptions, download};
use bucket::{BucketUrl, Provider};
use cli::failure::Failure;
use cli::output::Output;
use system::{hex, random};

use crate::args::{disk_path, named_or_default_store};
use crate::backup::{PhaseProgress, failure};
use crate::bucket_flags::BucketFlags;
use crate::notice;

/// A store by its URL or path.
#[derive(Clone, Debug)]
pub(crate) enum StoreArg {
    /// A directory.
    Disk(PathBuf),
    /// A prefix of a bucket.
    Bucket(BucketUrl),
}

impl StoreArg {
    /// Parses a store URL, or the path of a store or of a server's data directory.
    pub(crate) fn parse(text: &str) -> Result<StoreArg, String> {
        if let Some(url) = BucketUrl::parse(text) {
            return Ok(StoreArg::Bucket(url));
        }
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        match Provider::ALL.iter().find(|provider| Some(provider.scheme()) == scheme) {
            Some(provider) => Err(format!(
                "not the URL of a store in a bucket; write {}://bucket/prefix, of letters, digits, -, _ and .",
                provider.scheme()
            )),
            None => disk_path(text).map(StoreArg::Disk),
        }
    }
}

/// A store in a directory, which a command can read.
pub(crate) struct LocalStore {
    pub(crate) path: PathBuf,
    /// The copy, if the store is in a bucket.
    pub(crate) copied: Option<CopyReport>,
    _dir: Option<PrivateDir>,
}

impl LocalStore {
    /// The named store, by default that of a server without settings; a bucket is copied to the directory for temporary
    /// files.
    pub(crate) fn open(
        named: Option<&StoreArg>,
        flags: &BucketFlags,
        output: Output,
    ) -> Result<LocalStore, Failure> {
        LocalStore::open_in(named, flags, output, &std::env::temp_dir(), None)
    }

    /// Like [`LocalStore::open`]; a bucket is copied to `dir`, at most at this rate in bytes per second.
    pub(crate) fn open_in(
        named: Option<&StoreArg>,
        flags: &BucketFlags,
        output: Output,
        dir: &Path,
        rate: Option<u64>,
    ) -> Result<LocalStore, Failure> {
        match named {
            Some(StoreArg::Bucket(url)) => {
                let options = DownloadOptions { key: None, rate, keeps_damage: false };
                LocalStore::copy(url, flags, output, dir, &options)?.map_err(failure)
            }
            Some(StoreArg::Disk(path)) => Ok(LocalStore::of(path.clone())),
            None => named_or_default_store(None).map(LocalStore::of).map_err(|what| Failure::new(2, what)),
        }
    }

    fn of(path: PathBuf) -> LocalStore {
        LocalStore { path, copied: None, _dir: None }
    }

    /// Copies a store from a bucket. The key is that of the flags. The inner error is about the store, or the copy.
    pub(crate) fn copy(
        url: &BucketUrl,
        flags: &BucketFlags,
        output: Output,
        dir: &Path,
        options: &DownloadOptions<'_>,
    ) -> Result<Result<LocalStore, BackupError>, Failure> {
        let (bucket, key) = (flags.store(url)?, flags.key()?);
        let dir = PrivateDir::create(dir)?;
        notice(&format!(
            "the store is copied from the bucket to a temporary directory, which is removed afterwards: store={url} dir={}",
            dir.0.display()
        ));
        let path = dir.0.join("store");
        let options = DownloadOptions { key: key.as_ref(), ..*options };
        let progress = PhaseProgress::new(output);
        let copied = download(&bucket, &path, &options, &progress, &mut |what| notice(&what));
        Ok(copied.map(|copied| LocalStore { path, copied: Some(copied), _dir: Some(dir) }))
    }
}

/// A directory with mode 0700 that is removed when this is dropped.
pub(crate) struct PrivateDir(pub(crate) PathBuf);

impl PrivateDir {
    pub(crate) fn create(parent: &Path) -> Result<PrivateDir, Failure> {
        let path = parent.join(format!("lockd-store-{}", hex::encode(&random::bytes::<8>())));
        store::private::create_dir(&path).map_err(|error| {
            Failure::new(1, format!("creating a directory: {error}: path={}", path.display()))
        })?;
        Ok(PrivateDir(path))
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
