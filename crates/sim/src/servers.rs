//! Simulation of whole servers: the production sequencer, decisions, records, snapshots and stores, on disks that lose
//! unsynced writes and behind networks that lose messages, with clients that retry, disconnect, send twice and send late.
//!
//! Everything follows from the seed, also the schedule of the sequencer's jobs: [`executor`] runs them on one thread.
//! [`outbox`] has what a server publishes. After each crash a server recovers its store, and the [`ledger`] compares the
//! result with all responses so far; [`cycles`] checks the wait queues.

pub mod clock;
pub mod client;
pub mod executor;
pub mod outbox;
pub mod server;
pub mod ledger;
pub mod cycles;
mod simulation;
mod large;
mod stats;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use stats::{BoundsReached, ServerStats};

use self::clock::TrueTime;
use self::large::LargeWorld;
use self::simulation::ServerSimulation;

/// Simulates `ms` milliseconds of true time; with one seed in ten a world of real size instead, which is as long as its
/// script. Fails with the violated check, or the message of a panic. `trace` receives a line for every response and
/// every start or end of a server.
pub fn run(seed: u64, ms: u64, trace: &mut dyn FnMut(String)) -> Result<ServerStats, String> {
    if ms > 0 && seed % 10 == 7 {
        let mut world = LargeWorld::new(seed, trace);
        let result = caught(|| world.run());
        return result.map_err(|what| format!("seed {seed}, after {:?}: {what}", world.now()));
    }
    let mut simulation = ServerSimulation::new(seed, trace);
    let result = caught(|| simulation.run(TrueTime(ms)));
    match result {
        Ok(()) => Ok(simulation.stats()),
        Err(what) => Err(format!("seed {seed}, after {:?}: {what}", simulation.now())),
    }
}

fn caught<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a server panicked: {}", message.unwrap_or_default()))
    })
}
