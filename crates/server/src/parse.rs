//! Everything about a request that can be malformed. A value that leaves here is well formed.
//!
//! **What is absent.** The store's state: whether a lease exists, or belongs to the caller, is the kernel's to decide.

mod request;
mod headers;
pub(crate) mod query;
pub(crate) mod idempotency;
pub(crate) mod attempt;
pub(crate) mod lease_request;
pub(crate) mod manifest;
pub(crate) mod bulk;
pub(crate) mod operator;
pub(crate) mod paging;
pub(crate) mod range;

pub(crate) use headers::*;
pub(crate) use request::*;
