//! Backups of real stores, with a running engine.

mod buckets;
mod damage;
mod exported;
mod online;
mod restored;
mod world;
