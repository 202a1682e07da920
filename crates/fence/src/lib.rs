//! Checks of fencing tokens, where the writes are: a file, an object, a row of SQL.
//!
//! lockd gives every lease a token that only grows for each resource. A lease alone keeps nobody from writing late:
//! whoever slept through its deadline does not know. What does is a resource that knows the newest token.
//!
//! **Invariant.** A write with token *t* is applied only if no write with a token above *t* was applied before. Check
//! and write are one atomic step of the resource. An equal token may write again: it is the same holder.
//!
//! **What would break it.** A check, and then a write:
//!
//! ```text
//! A, token 5: reads the token of the resource: 5, fine   ... and is paused
//! B, token 6: reads the token, writes its content, stores 6
//! A:          wakes, and writes its content                  B's work is gone, and the token says 6 or 5
//! ```
//!
//! It does not matter who is asked in the first line. To ask lockd whether a token is current is the same check.
//!
//! **What no check of a write can do.** Between B's grant and its first write the resource has not seen B's token, and
//! A may still write. If B has read before, it works on something that is no longer there. So whoever takes over and
//! reads begins with a *claim*: it raises the token and reads, in one step. From then on A is refused.
//!
//! **What is absent.** Any other crate of ours, networks, clocks, chance, drivers of databases, async runtimes. A
//! program that got its token from elsewhere (`LOCKD_CLIENT_FENCING_TOKEN`) needs this crate and no client.
//!
//! The modules in reading order: [`token`] is what is compared, [`error`] what comes of it; [`version`] is content and
//! token as one run of bytes; [`file`](mod@file) replaces a file, [`object`] an object in a store with conditional
//! puts; [`sql`] has the statements for a row.

pub mod token;
pub mod error;
pub mod version;
pub mod file;
pub mod object;
pub mod sql;

pub use error::Error;
pub use file::FencedFile;
pub use object::FencedObject;
pub use token::Token;
pub use version::Version;
