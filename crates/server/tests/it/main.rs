//! The server as its clients see it: in memory, behind a socket, and on disk.

mod agents;
mod bad_input;
mod bulk;
mod conversion;
mod declared;
mod direct;
mod embedding;
mod events;
mod hostile;
mod http;
mod klis;
mod metrics;
mod namespaces;
mod openapi;
mod quotas;
mod reading;
mod support;
mod uploads;
