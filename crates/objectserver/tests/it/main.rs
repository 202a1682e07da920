//! The server as its clients see it: `object_store` in each dialect, faults, introspection.

mod clients;
mod dialects;
mod faults;
