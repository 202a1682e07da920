//! Integration tests of `client`, against a real server.

mod agents;
mod calls;
mod common;
mod documents;
mod fencing;
mod leases;
mod memory;
mod mtls;
mod scripted;
mod stream;
mod waiting;
