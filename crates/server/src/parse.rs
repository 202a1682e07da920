//! Everything about a request that can be malformed. A value that leaves here is well formed.
//!
//! **What is absent.** The store's state: whether a lease exists, or belongs to the caller, is the kernel's to decide.

mod request;
pub(crate) mod query;
pub(crate) mod attempt;

pub(crate) use request::*;
