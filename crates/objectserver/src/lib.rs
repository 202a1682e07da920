//! An object-store server in memory, for tests, trials and benchmarks.
//!
//! It speaks S3 (path style), the XML API of Google Cloud Storage, or Azure Blob Storage over plain HTTP/1.1 on
//! loopback. Any credentials are accepted. Conditional writes are exact: one map behind one lock decides them. Every
//! deviation from a faultless store is a [`Fault`] that a test adds on purpose.
//!
//! ```
//! use objectserver::{Dialect, Fault, ObjectServer, Operation, ServerOptions};
//!
//! # fn main() -> std::io::Result<()> {
//! let server = ObjectServer::start(ServerOptions::new(Dialect::S3, "bucket"))?;
//! // The next PUT below `log/` takes effect, and its response is lost.
//! server.add_fault(Fault::response_lost().on(&[Operation::Put]).on_keys("log/").times(1));
//! // … run a client against server.endpoint() …
//! assert!(server.double_wins().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! Absent: signatures, TLS, versions, durability, and every request that lockd's client does not send.

mod absence;
mod bucket;
mod call;
mod changes;
mod clock;
mod counters;
mod dialect;
mod faults;
mod history;
mod holds;
mod listen;
mod listing;
mod object;
mod options;
mod outcome;
mod plan;
mod random;
mod serve;
mod server;
mod store;
mod text;
mod uploads;
mod xml;

pub use call::Operation;
pub use counters::RequestCounts;
pub use faults::Fault;
pub use history::CreateAttempt;
pub use holds::{Hold, Moment};
pub use object::{Object, ObjectHead};
pub use options::{Dialect, ServerOptions};
pub use plan::FaultId;
pub use server::{ObjectServer, OpenUpload};
