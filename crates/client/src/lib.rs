//! Client library of lockd: leases that renew themselves, idempotent retries, failover.
//!
//! ```no_run
//! # async fn work() -> Result<(), lockd_client::Error> {
//! use lockd_client::{AcquireOptions, Client, Conditions};
//!
//! let client = Client::connect("https://localhost:9341", "client.pem").await?;
//! let lease = client.acquire("orders", &AcquireOptions::default()).await?;
//! let committed = lease.update_state(r#"{"cursor": 41}"#, &Conditions::default()).await?;
//! println!("version {} under token {}", committed.new_version, lease.fencing_token());
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The lease renews itself until it is released or dropped. [`Client::with_lease`] releases it when the work is done, and
//! stops the work if the lease is lost:
//!
//! ```no_run
//! # async fn work(client: lockd_client::Client) -> Result<(), lockd_client::Error> {
//! use std::time::Duration;
//! use lockd_client::{AcquireOptions, Conditions};
//!
//! let options = AcquireOptions { block: Duration::from_secs(60), ..AcquireOptions::default() };
//! client
//!     .with_lease("orders", &options, async |lease| {
//!         let _checkpoint = lease.read_state().await?;
//!         lease.update_state(r#"{"step": "done"}"#, &Conditions::default()).await
//!     })
//!     .await??;
//! # Ok(())
//! # }
//! ```
//!
//! **Invariant.** A [`Lease`] is never live past its deadline, which is counted on this machine's boot clock from before
//! the confirming request was sent. A mutation that may have been applied is retried under the same idempotency key,
//! or reported as [`Kind::Indeterminate`]: it is never applied twice. Refusals are passed on as the server sent them.
//!
//! The modules in reading order: [`error`] classifies failures; [`endpoint`] parses server addresses; `identity_files` reads
//! the client's identity, and `certificate_error` explains refused certificates; `connect` opens connections; [`document_body`]
//! is a document to send, and `progress` reports large ones; `stream` is the stream protocol; `exchange` sends a request to one
//! server, and `call` to one after the other; `request` builds requests and reads responses;
//! [`builder`] configures a client. [`Client`] has one method for each call of the API: [`client`](mod@client) the calls of a lease's
//! holder, [`documents`] those for documents, which [`document_reader`] reads, `views` the reads, `operators` those for operators, [`agent`] those for agents, and
//! [`events`] the event stream. [`waiting`] waits for a lease, across
//! restarts of the server; [`lease`] renews a lease; [`digest`] is the state of an agent across restarts. `clock` is the boot clock, `random` the source of keys and jitter.
//! [`fence`] is a crate of its own: protected resources check fencing tokens with it.

pub mod error;
pub mod endpoint;
mod identity_files;
mod certificate_error;
mod connect;
mod progress;
pub mod document_body;
mod stream;
mod exchange;
mod call;
mod request;
pub mod builder;
pub mod client;
pub mod documents;
pub mod document_reader;
mod views;
mod tunnel;
mod operators;
pub mod waiting;
pub mod agent;
pub mod events;
pub mod lease;
pub mod digest;
mod clock;
mod random;

pub use agent::DeclareOutcome;
pub use api;
pub use api::requests::{OnExpiry, Resource};
pub use api::{Code, Refusal};
pub use builder::Builder;
pub use client::{AcquireOptions, Client};
pub use connect::HttpVersion;
pub use digest::StateDigest;
pub use document_body::DocumentBody;
pub use document_reader::DocumentReader;
pub use documents::{Conditions, DocumentState};
pub use error::{Error, Kind};
pub use events::{Events, StreamItem};
pub use identity::{ClientTls, IdentityLocation, SeparateFiles};
pub use lease::{Lease, LossReason};
pub use lockd_fence as fence;
pub use progress::TransferProgress;
pub use stream::StreamProtocol;
pub use tunnel::Tunnel;
pub use waiting::{Wait, WaitObserver, WaitStatus};

/// Runs the examples of the page as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/fencing.md")]
struct Fencing;

/// Runs the examples of the page as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/sdk.md")]
struct Guide;
