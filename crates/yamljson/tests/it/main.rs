//! Integration tests of `yamljson`: edge cases, and round trips of random documents.

mod edges;
mod round_trip;
