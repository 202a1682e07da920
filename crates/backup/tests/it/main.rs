//! Backups of real stores, with a running engine.

mod damage;
mod exported;
mod online;
mod restored;
mod world;
