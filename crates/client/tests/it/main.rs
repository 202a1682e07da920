//! Integration tests of `client`, against a real server.

mod agents;
mod common;
mod fencing;
mod leases;
