//! How an object store is reached.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use store::object::UploadOptions;

use crate::static_credentials::StaticCredentials;

/// Encryption on the side of the store (S3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// As the bucket is configured.
    #[default]
    Bucket,
    /// `AES256`: keys of the store.
    Aes256,
    /// `aws:kms`: a key of the key management service, or its default key.
    Kms(Option<String>),
}

/// How an object store is reached. Credentials come from the provider's environment, unless they are given here:
/// variables, web identity, the metadata service of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketOptions {
    /// The region (S3).
    pub region: Option<String>,
    /// The URL of the service, for stores that are not the provider's own.
    pub endpoint: Option<String>,
    /// Encryption on the side of the store (S3).
    pub encryption: Encryption,
    /// The size of the parts of long blobs, in bytes.
    pub part_bytes: usize,
    /// Blobs up to this size are created by one request, in bytes.
    pub multipart_threshold: usize,
    /// The longest time that a request may take.
    pub timeout: Duration,
    /// A command that prints credentials, as in a profile of the AWS command line (S3).
    pub credential_process: Option<String>,
    /// Credentials in place of those of the environment, of the kind that the dialect has.
    pub credentials: Option<StaticCredentials>,
    /// Trusted CAs of the service in a PEM file, in place of those of the system.
    pub ca_file: Option<PathBuf>,
    /// Sends all requests for one host to one of its addresses: for a probe.
    pub address: Option<PinnedAddress>,
}

/// An address of the endpoint's host, in place of those that its name resolves to.
///
/// Requests for credentials go to other hosts (`sts.…`, `oauth2.googleapis.com`), which are not at this address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedAddress {
    /// The host, as in the URLs of requests.
    pub host: String,
    /// Its address.
    pub address: IpAddr,
}

impl BucketOptions {
    /// The smallest part that S3 accepts, except for the last.
    pub const PART_BYTES_MIN: usize = 5 << 20;

    /// How blobs are uploaded.
    pub fn uploads(&self) -> UploadOptions {
        UploadOptions { single_put_max: self.multipart_threshold, ..UploadOptions::parts_of(self.part_bytes) }
    }
}

impl Default for BucketOptions {
    fn default() -> BucketOptions {
        BucketOptions {
            region: None,
            endpoint: None,
            encryption: Encryption::default(),
            part_bytes: BucketOptions::PART_BYTES_MIN,
            multipart_threshold: BucketOptions::PART_BYTES_MIN,
            timeout: Duration::from_secs(30),
            credential_process: None,
            credentials: None,
            ca_file: None,
            address: None,
        }
    }
}
