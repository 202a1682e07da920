//! lockd from a program: leases that keep themselves alive, retries that apply once, failover.
//!
//! **Invariant.** A [`Lease`] never says that it is live past its deadline: that is counted on this machine's boot
//! clock, from before the request was sent that the deadline comes from. A mutation that may have happened is sent
//! again under the same idempotency key, or reported as [`Kind::Indeterminate`]: it is never applied twice.
//!
//! **What is absent.** Wall clocks, and the server's rules: what is refused is told as the server told it. TLS: the
//! place for it is `connect`.
//!
//! ```no_run
//! # async fn work() -> Result<(), client::Error> {
//! use std::time::Duration;
//! use client::{Client, Conditions, Options};
//!
//! let client = Client::builder().plain().endpoint("127.0.0.1:9341").build()?;
//! let options = Options { block: Duration::from_secs(60), ..Options::default() };
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
//! The modules in reading order: [`error`] says what to do when something fails; [`endpoint`] is where servers are, and
//! `connect` how they are reached; `call` sends a request until it is answered, and `progress` tells how far its body has
//! come; [`client`](mod@client) has one method for each call of the API; [`lease`] keeps a lease alive; [`agent`] is what agents
//! do, [`digest`] what they take through a restart, and [`events`] follows what happens. `clock` and `chance` are the machine's.
//! [`fence`] is a crate of
//! its own: what a lease protects checks its token there.

pub mod error;
pub mod endpoint;
mod connect;
mod call;
mod progress;
pub mod client;
pub mod lease;
pub mod agent;
pub mod digest;
pub mod events;
mod clock;
mod chance;

pub use agent::Declared;
pub use client::{Builder, Client, Conditions, Options, State};
pub use digest::Digest;
pub use error::{Error, Kind};
pub use events::{Events, News};
pub use fence;
pub use lease::{Lease, Lost};
pub use progress::Progress;

/// The examples of that page, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/fencing.md")]
struct Fencing;
