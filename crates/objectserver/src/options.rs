//! How a server is started.

use std::time::Duration;

/// The protocol that a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Amazon S3, path style.
    S3,
    /// The XML API of Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage: `/container/blob` or `/account/container/blob`.
    Azure,
}

/// Settings of a server. Faults are set later, while it runs.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The protocol.
    pub dialect: Dialect,
    /// The buckets (Azure: containers) that exist. Requests to others are refused with 404.
    pub buckets: Vec<String>,
    /// Added to every request before it has an effect.
    pub latency: Duration,
    /// The port on both loopback addresses; 0 takes a free one.
    pub port: u16,
    /// Seeds the random choices of faults.
    pub seed: u64,
    /// The most keys in one page of a list. S3 and GCS use 1,000.
    pub page_size: usize,
    /// The smallest part of a multipart upload but the last, in bytes. S3 and GCS demand 5 MiB; Azure has no such limit.
    pub smallest_part: usize,
}

impl ServerOptions {
    /// A server on a free port, with one bucket and no latency.
    pub fn new(dialect: Dialect, bucket: &str) -> Self {
        let smallest_part = if dialect == Dialect::Azure { 0 } else { 5 << 20 };
        Self {
            dialect,
            buckets: vec![bucket.to_owned()],
            latency: Duration::ZERO,
            port: 0,
            seed: 0,
            page_size: 1_000,
            smallest_part,
        }
    }
}
