//! Client library of lockd: leases that renew themselves, idempotent retries, failover.
//!
//! **Invariant.** A [`Lease`] is never live past its deadline, which is counted on this machine's boot clock from before
//! the confirming request was sent. A mutation that may have been applied is retried under the same idempotency key,
//! or reported as [`Kind::Indeterminate`]: it is never applied twice.
//!
//! **What is absent.** Wall clocks, and the server's rules: refusals are passed on as the server sent them.
//!
//! ```no_run
//! # async fn work() -> Result<(), lockd_client::Error> {
//! use std::time::Duration;
//! use lockd_client::{AcquireOptions, Client, Conditions};
//!
//! let client = Client::builder().identity_file("client.pem").endpoint("localhost:9341").build()?;
//! let options = AcquireOptions { block: Duration::from_secs(60), ..AcquireOptions::default() };
//! client
//!     .with_lease("orders", &options, async |lease| {
//!         let _checkpoint = lease.get_state().await?;
//!         lease.update_state(r#"{"step":"done"}"#, &Conditions::default()).await
//!     })
//!     .await??;
//! # Ok(())
//! # }
//! ```
//!
//! The modules in reading order: [`error`] classifies failures; [`endpoint`] parses server addresses; `identity_files` reads
//! the client's identity, and `certificate_error` explains refused certificates; `connect` opens connections; `call` sends requests with retries, and `progress` reports large bodies; [`client`](mod@client) has one
//! method for each call of the API; [`lease`] renews a lease; [`agent`] has the calls for agents, [`digest`] their state
//! across restarts, and [`events`] the event stream. `clock` is the boot clock, `random` the source of keys and jitter.
//! [`fence`] is a crate of its own: protected resources check fencing tokens with it.

pub mod error;
pub mod endpoint;
mod identity_files;
mod certificate_error;
mod connect;
mod call;
mod progress;
pub mod client;
pub mod lease;
pub mod agent;
pub mod digest;
pub mod events;
mod clock;
mod random;

pub use agent::DeclareOutcome;
pub use client::{AcquireOptions, Builder, Client, Conditions, DocumentState};
pub use digest::StateDigest;
pub use error::{Error, Kind};
pub use events::{Events, StreamItem};
pub use identity::{ClientTls, IdentityLocation, SeparateFiles};
pub use lease::{Lease, LossReason};
pub use lockd_fence as fence;
pub use progress::TransferProgress;

/// Runs the examples of the page as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/fencing.md")]
struct Fencing;
