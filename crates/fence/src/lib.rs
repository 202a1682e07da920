//! Fencing-token checks at the protected resource: a file, an object, a row of SQL.
//!
//! lockd gives every lease a token that only grows for each resource. A lease alone does not stop late writes: a process
//! that was paused past its deadline does not know it. A resource that remembers the newest token does stop them.
//!
//! **Invariant.** A write with token *t* is applied only if no write with a token above *t* was applied before. Check
//! and write are one atomic step of the resource. An equal token may write again: it belongs to the same holder.
//!
//! **What would break it.** A check, and then a write:
//!
//! ```text
//! A, token 5: reads the token of the resource: 5, fine   ... and is paused
//! B, token 6: reads the token, writes its content, stores 6
//! A:          wakes, and writes its content                  B's work is gone, and the token says 6 or 5
//! ```
//!
//! Asking lockd whether a token is current instead of reading it from the resource has the same race.
//!
//! **What a check on writes cannot do.** Between B's grant and B's first write the resource has not seen B's token, and
//! A may still write; if B has read before that, it works on outdated content. So a new holder starts with a *claim*: it
//! raises the token and reads in one atomic step. From then on A is refused.
//!
//! **What is absent.** Other crates of the workspace, networking, clocks, randomness, database drivers, async runtimes. A
//! program that gets its token from the environment (`LOCKD_CLIENT_FENCING_TOKEN`) needs this crate and no client.
//!
//! The modules in reading order: [`token`] and [`error`]; [`version`] encodes content and token as one byte string;
//! [`file`](mod@file) replaces a file, [`object`] an object in a store with conditional puts; [`sql`] has the statements
//! for a row.

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
