//! Connections: listen, authenticate, time out, route, observe. The calls are one table, which makes both the router
//! and the OpenAPI document.

pub mod first_start;
pub(crate) mod certificate_expiry;
mod refused_serial;
pub mod identities;
mod response_watch;
mod stream_budget;
pub(crate) mod connections;
mod handshakes;
pub(crate) mod descriptors;
pub(crate) mod reload;
mod refusal_log;
mod refusal_pace;
pub mod listener;
mod timeouts;
mod request_set;
mod browser_guard;
mod forwarded_peer;
mod forwarded_clients;
mod gather;
mod event_streams;
pub(crate) mod forward;
mod inline_task;
mod lone_caller;
mod short_response;
mod direct;
mod stream;
pub mod connection;
mod observer;
mod response_budget;
mod body_budget;
pub mod router;
mod calls;
mod ui;
mod openapi;
