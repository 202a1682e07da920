//! One function for each call: parse the request, make one call to the backend, present the result.

pub(crate) mod acquire;
pub(crate) mod holder;
pub(crate) mod bulk;
pub(crate) mod manifest;
pub(crate) mod agents;
pub(crate) mod contention;
pub(crate) mod events;
pub(crate) mod write;
pub(crate) mod read;
pub(crate) mod views;
pub(crate) mod operator;
pub(crate) mod health;
