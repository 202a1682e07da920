//! Integration tests of `fence`.

mod sql;
