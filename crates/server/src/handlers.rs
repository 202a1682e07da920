//! One function for each call: parse the request, call the backend, present the result.
//!
//! **What is absent.** Imports from one handler to another: what two of them need is in `parse`, `backend` or `present`.

pub(crate) mod acquire;
pub(crate) mod holder;
pub(crate) mod bulk;
pub(crate) mod manifest;
pub(crate) mod agents;
pub(crate) mod contention;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod write;
pub(crate) mod read;
pub(crate) mod reload;
pub(crate) mod views;
pub(crate) mod operator;
pub(crate) mod hand_over;
pub(crate) mod health;
