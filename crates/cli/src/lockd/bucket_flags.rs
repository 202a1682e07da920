//! The flags of commands that read or write a store in a bucket: those of `lockd serve`, from the same table.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::backup::{BucketStore, KeyLocation};
use bucket::{Bucket, BucketOptions, BucketUrl, Encryption};
use clap::error::ErrorKind;
use clap::{ArgMatches, Command, FromArgMatches};
use cli::failure::Failure;
use lockd_server::Config;
use lockd_server::settings::{BucketEncryption, Setting};
use store::Key;

use crate::serve::flag;

const HEADING: &str = "Stores in a bucket";
const KEY_FILE: &str = "store-key-file";

/// How a bucket is reached, and the file of a store key that is not in the store.
pub(crate) struct BucketFlags {
    config: Config,
}

/// The settings of `lockd serve` that are about a bucket.
fn settings() -> impl Iterator<Item = &'static Setting<Config>> {
    Config::SETTINGS.iter().filter(|setting| setting.name.starts_with("s3-") || setting.name == KEY_FILE)
}

impl clap::Args for BucketFlags {
    /// The flags are added when the command is the one that runs, as those of `serve` are.
    fn augment_args(command: Command) -> Command {
        command.defer(|command| command.args(settings().map(|setting| flag(setting).help_heading(HEADING))))
    }

    fn augment_args_for_update(command: Command) -> Command {
        BucketFlags::augment_args(command)
    }
}

impl FromArgMatches for BucketFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<BucketFlags, clap::Error> {
        let mut config = Config::in_memory();
        for setting in settings() {
            let Some(value) = matches.get_raw(setting.name).and_then(|mut values| values.next_back()) else {
                continue;
            };
            setting.set(&mut config, value).map_err(|what| invalid(setting.name, &what))?;
        }
        if config.s3_kms_key_id.is_some() && config.s3_sse != BucketEncryption::Kms {
            return Err(invalid("s3-kms-key-id", "a key is used with --s3-sse aws:kms only"));
        }
        Ok(BucketFlags { config })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = BucketFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

fn invalid(name: &str, what: &str) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, format!("--{name}: {what}\n"))
}

impl BucketFlags {
    /// How the bucket is reached.
    pub(crate) fn options(&self) -> BucketOptions {
        let config = &self.config;
        BucketOptions {
            region: config.s3_region.clone(),
            endpoint: config.s3_endpoint.clone(),
            encryption: match config.s3_sse {
                BucketEncryption::Bucket => Encryption::Bucket,
                BucketEncryption::Aes256 => Encryption::Aes256,
                BucketEncryption::Kms => Encryption::Kms(config.s3_kms_key_id.clone()),
            },
            part_bytes: usize::try_from(config.s3_max_part_size).unwrap_or(usize::MAX),
            multipart_threshold: usize::try_from(config.s3_multipart_threshold).unwrap_or(usize::MAX),
            timeout: config.s3_timeout,
            credential_process: config.s3_credential_process.clone(),
            ca_file: config.s3_ca_file.clone(),
            ..BucketOptions::default()
        }
    }

    /// A client of the bucket. Sends no request.
    pub(crate) fn bucket(&self, url: &BucketUrl) -> Result<Bucket, Failure> {
        Bucket::new(url, &self.options()).map_err(|what| Failure::new(2, what))
    }

    /// The store in the bucket. Sends no request.
    pub(crate) fn store(&self, url: &BucketUrl) -> Result<BucketStore, Failure> {
        let bucket = self.bucket(url)?;
        let (policy, uploads) = (bucket.retry_policy(), self.options().uploads());
        Ok(BucketStore { objects: Arc::new(bucket), policy, uploads, url: url.to_string() })
    }

    /// The file of a key that is not in the store.
    pub(crate) fn key_file(&self) -> Option<&PathBuf> {
        self.config.store_key_file.as_ref()
    }

    /// The key in that file.
    pub(crate) fn key(&self) -> Result<Option<Key>, Failure> {
        self.key_file().map(|path| read_key(path)).transpose()
    }

    /// The key in that file, if it exists yet.
    pub(crate) fn existing_key(&self) -> Result<Option<Key>, Failure> {
        self.key_file().filter(|path| path.exists()).map(|path| read_key(path)).transpose()
    }

    /// Where the key of a new store is kept.
    pub(crate) fn key_location(&self) -> KeyLocation {
        if self.key_file().is_some() { KeyLocation::Outside } else { KeyLocation::Store }
    }
}

/// Reads a store key.
pub(crate) fn read_key(path: &Path) -> Result<Key, Failure> {
    let place = path.display();
    let bytes = std::fs::read(path)
        .map_err(|error| Failure::new(2, format!("the store key cannot be read: {error}: file={place}")))?;
    bytes
        .try_into()
        .map_err(|_| Failure::new(2, format!("not a store key, which has 32 bytes: file={place}")))
}

/// Creates the file of a key outside of its store, durably and with mode 0600.
pub(crate) fn create_key(path: &Path, key: &Key) -> Result<(), Failure> {
    use std::io::Write as _;
    let created = store::private::create_file(path).and_then(|mut file| {
        file.write_all(key)?;
        file.sync_all()?;
        system::file::sync_parent(path)
    });
    created.map_err(|error| {
        Failure::new(
            1,
            format!("the file of the store key cannot be created: {error}: file={}", path.display()),
        )
    })
}
