//! The server as its clients see it: in memory, behind a socket, and on disk.

mod agents;
mod all_settings;
mod bad_input;
mod bulk;
mod conversion;
mod declared;
mod direct;
mod dropped_requests;
mod effects;
mod embedding;
mod events;
mod holds;
mod hostile;
mod http;
mod klis;
mod metrics;
mod module_graph;
mod namespaces;
mod openapi;
mod quotas;
mod readiness;
mod reading;
mod reported_times;
mod resets;
mod support;
mod uploads;
