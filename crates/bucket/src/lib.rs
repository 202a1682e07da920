//! A client of object stores: implements the port [`store::object::Objects`] for S3, GCS and Azure.
//!
//! **Invariant.** A conditional create is reported as done, as taken or as undecided, and never as one in place of
//! another. The status of the response decides; a request without a response is undecided.
//!
//! **What would break it.** The retries of the client library: they turn a created object whose response was lost into
//! "exists". So they are off, and retries are the caller's. Its errors: it reports a 409 of S3, which decides nothing, as
//! "exists". So the HTTP service below it records each status, and the library's error is only text.
//!
//! **What is absent.** Any knowledge of what the bytes mean; rules of ownership, which are those of the log
//! ([`store::object::ObjectLog`]); retries of conditional creates.
//!
//! In reading order: `url` is the location of a store, `options` how it is reached; `exchange` is the status of a request,
//! and `outcome` what it means; `http` sends requests, and `part_body` is the body of those
//! whose bytes are in a file; `credentials` runs a credential process; `provider` builds the
//! library's client; `bucket` is the client, `download` its long reads, `upload` its uploads in parts; `upload_list` sends the requests that the library
//! does not have; [`probe`] tests whether a store can be trusted, and [`cost`] estimates what it charges.

mod url;
mod static_credentials;
mod options;
mod exchange;
mod outcome;
mod counts;
mod part_body;
mod http;
mod credentials;
mod provider;
mod runtime;
mod bucket;
mod download;
mod upload;
mod upload_list;
pub mod probe;
pub mod cost;

pub use bucket::Bucket;
pub use counts::{Operation, RequestCounts};
pub use options::{BucketOptions, Encryption, PinnedAddress};
pub use static_credentials::StaticCredentials;
pub use url::{BucketUrl, Provider};
