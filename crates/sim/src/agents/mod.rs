//! Agents that declare what they will touch, die, and come back with the same attempt, before a whole server.
//!
//! Everything follows from the seed. A run is rounds of two times each. In the **wild** one everything happens:
//! requests and answers are lost, servers crash and recover, agents crash, sleep, restart and take back, ask for more
//! while they hold something, wait for too short a time. In the **good** one nothing is lost, holders give back what
//! they hold or let it run out, and whoever is told to die gives back what it is told to and comes again.
//!
//! What is checked, at each turn of the server:
//! - **No ring.** Nobody waits for itself over any number of others, and every attempt that waits is older than all
//!   that are in its way ([`rings`](crate::life::rings), by brute force).
//! - **No wait without an end.** Everyone who waits is somebody's request, its time is not over, and the server means
//!   to wake up when it is.
//!
//! And in a good time, `n` being the number of agents, `H` the longest that one holds ([`HOLD`]), `B` the longest that
//! one stays away, with the way there ([`AWAY`]), and after `S` ([`SETTLE`]), when all that a wild time has left is over:
//! - **The oldest asks once.** An attempt that asks when nothing older holds or waits, in a session that holds nothing,
//!   is granted by that try. Why: whatever is in its way is younger, so it may wait; whoever comes later and would be in
//!   its way stands behind it. Before it stand at most `n - 1` others, who are served in order and hold for `H` each. So a
//!   wait of `n * H` is enough, and [`WAIT`] is longer.
//! - **Nobody starves, though others keep coming.** An attempt is granted within `n * ((n + 1) * H + B)`. Why: who comes
//!   later is younger. At most `n - 1` others are older. The oldest of all dies only by holders that are older still;
//!   those are gone after `H`, it is back after another `B`, and its next try, the last, takes at most `n * H`. Then the
//!   next one is the oldest.
//! - **When nobody new comes, it ends.** All attempts are granted within `(n + 1) * H + n * B`. Why: while anybody holds
//!   something, one of at most `n` leases, or those from before, runs down. While nobody does, nobody waits either, and
//!   whoever comes first, after `B` at the latest, is granted.
//!
//! **What is absent.** Attempts that wait for less than `n * H`, or not at all, are promised no end, and these checks
//! leave them to the wild times. Nor are those who go on with an attempt that was granted: they stay old, for an hour.

mod agent;
mod tally;
mod world;

use kernel::{Kernel, Span};

use self::world::World;
use crate::life::clock::True;

pub use tally::Tally;

/// The TTL of every lease, and the longest that one is kept without renewals.
pub const HOLD: u64 = 2000;
/// The longest that an attempt stays away after a verdict, and its way to the server.
pub const AWAY: u64 = 5000 + WAY;
/// The longest that a request is on its way in good times.
const WAY: u64 = 20;
/// The longest that one waits in wild times, and the latest that a request arrives in them.
const WILD: (u64, u64) = (8000, 3000);
/// After so long in a good time nothing is left of the wild one: a request was late, waited, was granted a lease that
/// nobody heard of, and that was held for a restart.
pub const SETTLE: u64 = WILD.0 + WILD.1 + HOLD + GRACE.0;
const GRACE: Span = Kernel::RESTART_GRACE;
/// The most agents that there are.
pub const AGENTS_MAX: u64 = 5;
/// How long attempts wait in good times.
pub const WAIT: u64 = SETTLE + AGENTS_MAX * HOLD;

/// Lives through so many rounds. On failure: what happened. `trace` hears of everything.
pub fn run(seed: u64, rounds: u64, trace: &mut dyn FnMut(String)) -> Result<Tally, String> {
    let mut world = World::new(seed, trace);
    let lived = (0..rounds).try_for_each(|_| world.round());
    match lived {
        Ok(()) => Ok(world.tally()),
        Err(what) => Err(format!("seed {seed}, agents, after {:?}: {what}", world.now())),
    }
}

/// Within this, while others keep coming, an attempt is granted.
fn while_others_come(agents: u64) -> u64 {
    agents * ((agents + 1) * HOLD + AWAY)
}

/// Within this, when nobody new comes, all attempts are granted.
fn when_nobody_comes(agents: u64) -> u64 {
    (agents + 1) * HOLD + agents * AWAY
}

/// After a moment.
fn after(at: True, ms: u64) -> True {
    True(at.0 + ms)
}
