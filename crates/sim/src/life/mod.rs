//! Whole lives of servers in a seeded world: the same decisions, records, snapshots and stores as in earnest, on
//! disks that forget and networks that lose, with clients that retry, vanish, come twice and come late.
//!
//! Everything follows from the seed. After each crash a server recovers what is there, and the [`ledger`] compares
//! that with what was told; [`rings`] looks at those who wait.

pub mod clock;
pub mod client;
pub mod server;
pub mod ledger;
pub mod rings;
mod world;
mod tally;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use tally::Tally;

use self::clock::True;
use self::world::World;

/// Lives through so many true milliseconds. On failure, a panic too: what happened. `trace` hears of everything.
pub fn run(seed: u64, ms: u64, trace: &mut dyn FnMut(String)) -> Result<Tally, String> {
    let mut world = World::new(seed, trace);
    let lived = catch_unwind(AssertUnwindSafe(|| world.live(True(ms)))).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a server panicked: {}", said.unwrap_or_default()))
    });
    match lived {
        Ok(()) => Ok(world.tally()),
        Err(what) => Err(format!("seed {seed}, after {:?}: {what}", world.now())),
    }
}
