//! Which faults befall one request. All random choices for a request are made at once, when it arrives.
//!
//! **Invariant.** Each fault has its own random sequence, made of the server's seed and the fault's number, so that
//! adding one fault does not change the choices of another.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::StatusCode;

use crate::call::Call;
use crate::clock;
use crate::faults::{Fault, FaultKind};
use crate::holds::{Gate, Moment};
use crate::random::Random;

/// Names a fault that was added, so that it can be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(u64);

/// The faults of a server, and its holds.
#[derive(Debug)]
pub(crate) struct FaultTable {
    seed: u64,
    latency: Duration,
    active: Mutex<Active>,
}

#[derive(Debug, Default)]
struct Active {
    next: u64,
    faults: Vec<(FaultId, Fault, Random)>,
    gates: Vec<Arc<Gate>>,
}

/// What happens to one request.
#[expect(clippy::struct_excessive_bools, reason = "each is a fault of its own, and they combine")]
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) delay: Duration,
    pub(crate) gates: Vec<Arc<Gate>>,
    pub(crate) denied: bool,
    pub(crate) error_before: Option<StatusCode>,
    pub(crate) error_after: Option<StatusCode>,
    pub(crate) response_lost: bool,
    pub(crate) late: Option<Duration>,
    pub(crate) unconditional: bool,
    pub(crate) raced: Option<Duration>,
    pub(crate) existing_is_conflict: bool,
    pub(crate) spurious_conflict: bool,
    pub(crate) list_age: Duration,
    pub(crate) absence_cached: Option<Duration>,
    pub(crate) absent_is_denied: bool,
}

impl FaultTable {
    pub(crate) fn new(seed: u64, latency: Duration) -> Self {
        Self { seed, latency, active: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Active> {
        self.active.lock().expect("nothing panics while it holds the lock")
    }

    pub(crate) fn add(&self, fault: Fault) -> FaultId {
        let mut active = self.lock();
        active.next += 1;
        let id = FaultId(active.next);
        let random = Random::new(self.seed ^ id.0.wrapping_mul(0xd134_2543_de82_ef95));
        active.faults.push((id, fault, random));
        id
    }

    pub(crate) fn remove(&self, id: FaultId) {
        self.lock().faults.retain(|fault| fault.0 != id);
    }

    pub(crate) fn clear(&self) {
        self.lock().faults.clear();
    }

    pub(crate) fn add_gate(&self, gate: Arc<Gate>) {
        let mut active = self.lock();
        active.gates.retain(|gate| !gate.is_open());
        active.gates.push(gate);
    }

    /// Decides what happens to a request that arrived at address `at`.
    pub(crate) fn plan(&self, call: &Call, at: SocketAddr) -> Plan {
        let mut plan = Plan { delay: self.latency, ..Plan::default() };
        let mut active = self.lock();
        for (_, fault, random) in &mut active.faults {
            if fault.matches(call, at) && random.happens(fault.probability()) {
                fault.remaining = fault.remaining.map(|count| count - 1);
                match fault.kind {
                    FaultKind::RateLimited(interval) => plan.delay += fault.wait(clock::now(), interval),
                    kind => plan.add(kind),
                }
            }
        }
        plan.gates = active.gates.iter().filter(|gate| gate.concerns(call)).cloned().collect();
        plan
    }
}

impl Plan {
    fn add(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::ConditionsIgnored => self.unconditional = true,
            FaultKind::ConditionsRaced(delay) => self.raced = Some(delay),
            FaultKind::ExistingIsConflict => self.existing_is_conflict = true,
            FaultKind::SpuriousConflict => self.spurious_conflict = true,
            FaultKind::StaleLists(age) => self.list_age = age,
            FaultKind::AbsenceCached(duration) => self.absence_cached = Some(duration),
            FaultKind::AbsentIsDenied => self.absent_is_denied = true,
            FaultKind::ResponseLost => self.response_lost = true,
            FaultKind::ErrorAfter(status) => self.error_after = Some(status),
            FaultKind::ErrorBefore(status) => self.error_before = Some(status),
            FaultKind::Denied => self.denied = true,
            FaultKind::Delay(delay) => self.delay += delay,
            // Depends on the requests before.
            FaultKind::RateLimited(_) => {}
            FaultKind::Late(delay) => self.late = Some(delay),
        }
    }

    /// Whether the request will be suspended, so that the client may be gone before it takes effect.
    pub(crate) fn suspends(&self) -> bool {
        !self.delay.is_zero() || !self.gates.is_empty() || self.raced.is_some()
    }

    pub(crate) async fn pass_gates(&self, moment: Moment) {
        for gate in self.gates.iter().filter(|gate| gate.moment() == moment) {
            gate.pass().await;
        }
    }
}
