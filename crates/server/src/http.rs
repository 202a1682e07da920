//! Connections: listen, authenticate, time out, route, observe. The calls are one table, which makes both the router
//! and the OpenAPI document.

pub mod first_start;
pub(crate) mod certificate_expiry;
pub mod identities;
pub mod listener;
mod timeouts;
mod browser_guard;
pub mod connection;
mod observer;
mod response_budget;
pub mod router;
mod calls;
mod openapi;
