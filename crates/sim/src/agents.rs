//! Liveness of wait-die: agents that declare manifests, die, and retry with the same attempt, against a whole server.
//!
//! Everything follows from the seed. A run is a number of rounds, each of two periods. In the **faulty** period requests
//! and responses are lost, servers crash and recover, agents crash, pause, restart and rebind, request more while they
//! hold a lease, and wait for too short a time. In the **fault-free** period nothing is lost, holders release their
//! leases or let them expire, and an agent whose attempt dies releases the leases that the server names and retries.
//!
//! Checks each time the server has run all of its jobs:
//! - **No deadlock cycle.** The wait-for graph is acyclic, and every waiting attempt is older than everything that
//!   blocks it ([`cycles`](crate::servers::cycles), by brute force).
//! - **No unbounded wait.** Every waiter belongs to a pending request, is not past its timeout, and the server is due to
//!   wake up by then.
//!
//! Checks in the fault-free period, with `n` the number of agents, `H` the maximum hold ([`HOLD`]), `B` the maximum
//! backoff with the network delay ([`BACKOFF_MAX`]), and after `S` ([`SETTLE`]), when no effect of the faulty period is left:
//! - **The oldest attempt needs one try.** A try made when nothing older holds, waits or may return, in a session without leases,
//!   is granted. Why: everything that blocks it is younger, so it may wait; later conflicting requests queue behind it. At
//!   most `n - 1` waiters are before it; they are served in order and hold for `H` each. So a wait of `n * H` is enough,
//!   and [`WAIT`] is longer.
//! - **No starvation while new attempts keep coming.** An attempt is granted within `n * ((n + 1) * H + B)`. Why: later
//!   attempts are younger. At most `n - 1` others are older. The oldest of all dies only because of holders that are
//!   older still; those are gone after `H`, it retries after another `B`, and that last try takes at most `n * H`. Then
//!   the next attempt is the oldest.
//! - **Termination without new attempts.** All attempts are granted within `(n + 1) * H + n * B`. Why: while any lease is
//!   held, one of at most `n` leases, or of those from before, runs down. While none is held, none is waited for, and
//!   the first try, after at most `B`, is granted.
//!
//! **What is absent.** Attempts that wait for less than `n * H`, or not at all, have no bound: they occur in faulty
//! periods only.

mod agent;
mod simulation;
mod stats;

use kernel::{Kernel, Span};

use self::simulation::AgentSimulation;
use crate::servers::clock::TrueTime;

pub use stats::AgentStats;

/// The TTL of every lease, and the maximum hold without renewals, in milliseconds.
pub const HOLD: u64 = 2000;
/// The maximum backoff of an attempt, with the network delay of the retry, in milliseconds.
pub const BACKOFF_MAX: u64 = 5000 + DELAY;
/// The maximum network delay in fault-free periods, in milliseconds.
const DELAY: u64 = 20;
/// The maximum wait in faulty periods, in milliseconds.
const FAULTY_WAIT: u64 = 8000;
/// The maximum network delay in faulty periods, in milliseconds.
const FAULTY_DELAY: u64 = 3000;
/// The time after which a fault-free period is free of effects of the faulty one, in milliseconds: a request was
/// delayed, waited, was granted a lease whose response was lost, and the lease was held for a restart.
pub const SETTLE: u64 = FAULTY_WAIT + FAULTY_DELAY + HOLD + GRACE.0;
const GRACE: Span = Kernel::RESTART_GRACE;
/// The maximum number of agents.
pub const AGENTS_MAX: u64 = 5;
/// The wait of attempts in fault-free periods, in milliseconds.
pub const WAIT: u64 = SETTLE + AGENTS_MAX * HOLD;

/// The current period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Faulty,
    /// Fault-free since then, and new attempts keep coming.
    Busy(TrueTime),
    /// Fault-free since then, and no new attempts begin.
    Draining(TrueTime),
}

impl Period {
    fn is_fault_free(self) -> bool {
        self != Period::Faulty
    }
}

/// Simulates a number of rounds. Fails with the violated check. `trace` receives a line for every event.
pub fn run(seed: u64, rounds: u64, trace: &mut dyn FnMut(String)) -> Result<AgentStats, String> {
    let mut simulation = AgentSimulation::new(seed, trace);
    let result = (0..rounds).try_for_each(|_| simulation.round());
    match result {
        Ok(()) => Ok(simulation.stats()),
        Err(what) => Err(format!("seed {seed}, agents, after {:?}: {what}", simulation.now())),
    }
}

/// The bound for one attempt while new attempts keep coming, in milliseconds.
fn bound_with_newcomers(agents: u64) -> u64 {
    agents * ((agents + 1) * HOLD + BACKOFF_MAX)
}

/// The bound for all attempts when no new ones come, in milliseconds.
fn bound_without_newcomers(agents: u64) -> u64 {
    (agents + 1) * HOLD + agents * BACKOFF_MAX
}

/// `ms` milliseconds later.
fn after(at: TrueTime, ms: u64) -> TrueTime {
    TrueTime(at.0 + ms)
}
