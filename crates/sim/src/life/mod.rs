//! Whole lives of servers in a seeded world: the same decisions, records, snapshots and stores as in earnest, on
//! disks that forget and networks that lose, with clients that retry, vanish, come twice and come late.
//!
//! Everything follows from the seed. After each crash a server recovers what is there, and the [`ledger`] compares
//! that with what was told; [`rings`] looks for sessions that wait for each other.

pub mod clock;
pub mod client;
pub mod server;
pub mod ledger;
pub mod rings;
mod world;
mod tally;

pub use tally::Tally;

use self::clock::True;
use self::world::World;

/// Lives through so many true milliseconds. On failure: what happened. `trace` hears of everything.
pub fn run(seed: u64, ms: u64, trace: &mut dyn FnMut(String)) -> Result<Tally, String> {
    let mut world = World::new(seed, trace);
    match world.live(True(ms)) {
        Ok(()) => Ok(world.tally()),
        Err(what) => Err(format!("seed {seed}, after {:?}: {what}", world.now())),
    }
}
