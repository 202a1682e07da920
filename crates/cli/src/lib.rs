//! What the programs of this package share.

pub mod child;
pub mod pages;
