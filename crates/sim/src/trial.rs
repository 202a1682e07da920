//! Runs the kernel and the model against each other, and checks the invariants after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use kernel::{
    Action, Conflict, Cursor, Event, Kernel, LeaseId, LeaseView, Member, Namespace, Outcome, Rejection,
    ResourceName, Response, State, Time, Token,
};

use crate::Step;
use crate::generator::CommandGenerator;
use crate::model::Model;
use crate::shrink::shrink;
use crate::transcript;

/// A failed trial: its steps, and the check that failed at the last one.
#[derive(Debug)]
pub struct Failure {
    /// All steps up to the failing one.
    pub steps: Vec<Step>,
    /// The check that failed.
    pub what: String,
}

/// Counters of one or more trials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrialStats {
    /// Commands tried.
    pub steps: u64,
    /// Commands that changed the state.
    pub applied: u64,
    /// Commands that were rejected.
    pub rejected: u64,
}

impl TrialStats {
    /// Adds another trial's counters.
    pub fn add(&mut self, other: &TrialStats) {
        self.steps += other.steps;
        self.applied += other.applied;
        self.rejected += other.rejected;
    }
}

impl fmt::Display for TrialStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TrialStats { steps, applied, rejected } = self;
        write!(
            f,
            "kernel: {steps} commands, {applied} applied, {rejected} rejected; kernel and model agree on all"
        )
    }
}

/// Tries `steps` random commands from a seed. A failure is shrunk, and its text names the seed.
pub fn run(seed: u64, steps: u64) -> Result<TrialStats, String> {
    random(seed, steps).map_err(|failure| report(seed, steps, &failure))
}

/// The shrunk failure as text: the failed check, the command that repeats it, and the steps.
fn report(seed: u64, steps: u64, failure: &Failure) -> String {
    let small = shrink(&failure.steps, |steps| replay(steps).is_err());
    let what = replay(&small).err().map_or_else(|| failure.what.clone(), |again| again.what);
    let mut text = format!("{what}\nto reproduce: cargo run -p lockd-sim -- --seed {seed} --steps {steps}\n");
    for step in &small {
        writeln!(text, "{}", transcript::write_step(step)).expect("writing to a string");
    }
    text
}

fn random(seed: u64, count: u64) -> Result<TrialStats, Box<Failure>> {
    let mut generator = CommandGenerator::new(seed);
    let mut trial = Trial::default();
    let mut steps = Vec::new();
    let mut stats = TrialStats::default();
    for _ in 0..count {
        let step = generator.step(&trial.kernel);
        steps.push(step.clone());
        match trial.step(&step) {
            Ok(outcome) => {
                stats.count(&outcome);
                generator.observe(&step, &outcome);
            }
            Err(what) => return Err(Box::new(Failure { steps, what })),
        }
    }
    match trial.replay_again() {
        Ok(()) => Ok(stats),
        Err(what) => Err(Box::new(Failure { steps, what })),
    }
}

/// Tries the given steps.
pub fn replay(steps: &[Step]) -> Result<(), Box<Failure>> {
    let mut trial = Trial::default();
    for (n, step) in steps.iter().enumerate() {
        trial.step(step).map_err(|what| Box::new(Failure { steps: steps[..=n].to_vec(), what }))?;
    }
    trial.replay_again().map_err(|what| Box::new(Failure { steps: steps.to_vec(), what }))
}

/// The kernel, a twin that is regularly restored from a snapshot, the model, and the model-free checks.
#[derive(Default)]
pub struct Trial {
    /// The kernel under test.
    pub kernel: Kernel,
    twin: Kernel,
    model: Model,
    log: Vec<Step>,
    history: HistoryChecks,
    steps: u64,
}

impl Trial {
    /// Applies one step, and runs all checks.
    pub fn step(&mut self, step: &Step) -> Result<Outcome, String> {
        let hash = self.kernel.state_hash();
        let outcome = apply_catching(&mut self.kernel, step)?;
        let twin = self.twin.apply(step.lsn, step.now, &step.command);
        ensure(twin == outcome, || format!("a restored kernel decides {twin:?}, the kernel {outcome:?}"))?;
        let expected = self.model.apply(step.lsn, step.now, &step.command);
        ensure(agree(&outcome, &expected), || {
            format!("the model decides {expected:?}, the kernel {outcome:?}")
        })?;
        if let Outcome::Applied(..) = outcome {
            self.log.push(step.clone());
        } else {
            ensure(hash == self.kernel.state_hash(), || "a rejection changed the state hash".into())?;
        }
        let snapshot = self.kernel.snapshot();
        let wanted = self.model.snapshot(snapshot.state_hash);
        ensure(snapshot == wanted, || {
            format!("the kernel's state is\n{snapshot:#?}\nthe model's is\n{wanted:#?}")
        })?;
        ensure(self.twin.state_hash() == snapshot.state_hash, || {
            "a restored kernel has a different state hash".into()
        })?;
        self.steps += 1;
        if self.steps.is_multiple_of(16) {
            self.twin = Kernel::restore(&snapshot).map_err(|error| error.to_string())?;
            ensure(self.twin.snapshot() == snapshot, || "a restored kernel has a different snapshot".into())?;
            ensure(self.twin.content_digest() == self.kernel.content_digest(), || {
                "a restored kernel has a different content digest".into()
            })?;
        }
        kernel::invariants::check(&self.kernel)?;
        self.history.check(step, &outcome, &self.kernel)?;
        Ok(outcome)
    }

    /// Replaying the log gives the same state, also with another hash seed: nothing depends on hash order.
    fn replay_again(&self) -> Result<(), String> {
        for seed_change in [0, 0x0dd_5eed] {
            let mut again = Kernel::new();
            for step in &self.log {
                let mut command = step.command.clone();
                if let Action::Open(open) = &mut command.action {
                    open.store.hash_seed ^= seed_change;
                }
                let outcome = again.apply(step.lsn, step.now, &command);
                let applied = matches!(outcome, Outcome::Applied(..));
                ensure(applied, || format!("a logged command is rejected at replay: {outcome:?}"))?;
            }
            let (mut snapshot, mut wanted) = (again.snapshot(), self.kernel.snapshot());
            for tenure in [&mut snapshot.tenure, &mut wanted.tenure].into_iter().flatten() {
                tenure.open.store.hash_seed = 0;
            }
            ensure(snapshot == wanted, || "replay gives a different state".into())?;
        }
        Ok(())
    }
}

impl TrialStats {
    fn count(&mut self, outcome: &Outcome) {
        self.steps += 1;
        self.applied += u64::from(matches!(outcome, Outcome::Applied(..)));
        self.rejected += u64::from(matches!(outcome, Outcome::Rejected(_)));
    }
}

/// Checks on observable behaviour, without the model: any lease service has to pass them.
#[derive(Default)]
struct HistoryChecks {
    /// The highest token granted so far, by resource.
    tokens: BTreeMap<(Namespace, ResourceName), Token>,
    /// Leases that have ended.
    ended: BTreeSet<LeaseId>,
    /// Deadlines before the step.
    deadlines: BTreeMap<LeaseId, Time>,
    /// The highest version so far, by key.
    versions: BTreeMap<(Namespace, ResourceName), kernel::Version>,
}

impl HistoryChecks {
    fn check(&mut self, step: &Step, outcome: &Outcome, kernel: &Kernel) -> Result<(), String> {
        if let Outcome::Applied(answer, events) = outcome {
            // Expiries come before the events of the command itself.
            events.iter().try_for_each(|event| self.event(event, step, kernel))?;
            self.answer(answer, step.now)?;
        }
        let now = step.now.max(kernel.now());
        self.deadlines = leases(kernel, now).map(|view| (view.id, view.deadline)).collect();
        no_two_holders(kernel, now)
    }

    fn answer(&self, answer: &Response, now: Time) -> Result<(), String> {
        let Response::Renewed(results) = answer else { return Ok(()) };
        for live in results.iter().flatten() {
            let before = self.deadlines.get(&live.lease).copied();
            ensure(before >= Some(now), || {
                format!("lease renewed after its deadline: lease={}", live.lease)
            })?;
            ensure(before <= Some(live.deadline), || {
                format!("a renewal shortened a lease: lease={}", live.lease)
            })?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event, step: &Step, kernel: &Kernel) -> Result<(), String> {
        match event {
            Event::Granted(lease, token) | Event::Rebound(lease, token) => {
                ensure(!self.ended.contains(lease), || {
                    format!("an ended lease was granted again: lease={lease}")
                })?;
                let Ok(view) = kernel.lease(*lease, step.now) else { return Ok(()) };
                for member in &view.members {
                    let resource = (view.namespace.clone(), member.resource.clone());
                    let before = self.tokens.insert(resource, *token);
                    ensure(before < Some(*token), || {
                        format!("tokens do not grow: resource={}", member.resource)
                    })?;
                }
            }
            Event::Expired { lease, held_until } => {
                let deadline = self.deadlines.get(lease).copied();
                ensure(deadline < Some(step.now), || {
                    format!("lease expired before its deadline: lease={lease}")
                })?;
                if held_until.is_none() {
                    self.end(*lease)?;
                }
            }
            Event::Released(lease) | Event::Reclaimed(lease) => self.end(*lease)?,
            Event::Committed { lease, key, version, .. } | Event::Removed { lease, key, version, .. } => {
                let Ok(view) = kernel.lease(*lease, step.now) else { return Ok(()) };
                let before = self.versions.insert((view.namespace, key.clone()), *version);
                ensure(before < Some(*version), || format!("versions do not grow: key={key}"))?;
            }
            Event::Dropped { namespace, .. } => {
                let in_use = leases(kernel, step.now).any(|lease| lease.namespace == *namespace);
                ensure(!in_use, || format!("namespace deleted under a live lease: namespace={namespace}"))?;
            }
            Event::Activated(_) | Event::Revoked(_) => {}
        }
        Ok(())
    }

    fn end(&mut self, lease: LeaseId) -> Result<(), String> {
        ensure(self.ended.insert(lease), || format!("lease ended twice: lease={lease}"))
    }
}

fn leases(kernel: &Kernel, now: Time) -> impl Iterator<Item = LeaseView> {
    kernel.leases_from(Cursor::default(), now).map(|(_, view)| view)
}

/// Mutual exclusion, by brute force: no two live leases have conflicting members.
fn no_two_holders(kernel: &Kernel, now: Time) -> Result<(), String> {
    let is_live = |state| matches!(state, State::Reserved | State::Active | State::Revoking);
    let views: Vec<_> = leases(kernel, now).filter(|view| is_live(view.state)).collect();
    for (n, one) in views.iter().enumerate() {
        for other in views[n + 1..].iter().filter(|other| other.namespace == one.namespace) {
            let conflicts = |a: &Member| other.members.iter().any(|b| a.conflicts_with(b));
            ensure(!one.members.iter().any(conflicts), || {
                format!("two conflicting leases are live: {} and {}", one.id, other.id)
            })?;
        }
    }
    Ok(())
}

/// Equal, except that the kernel lists only some of the conflicting leases, and the model all of them.
fn agree(kernel: &Outcome, model: &Outcome) -> bool {
    match (kernel, model) {
        (Outcome::Rejected(Rejection::Conflict(some)), Outcome::Rejected(Rejection::Conflict(all))) => {
            let shown = some.holders.len() == all.holders.len().min(Conflict::SHOWN_MAX);
            let distinct = some.holders.iter().collect::<BTreeSet<_>>().len() == some.holders.len();
            let right = some.holders.iter().all(|holder| all.holders.contains(holder));
            some.oldest == all.oldest && shown && distinct && right
        }
        _ => kernel == model,
    }
}

/// A panic is a failure like any other, and can be shrunk.
fn apply_catching(kernel: &mut Kernel, step: &Step) -> Result<Outcome, String> {
    let apply = AssertUnwindSafe(|| kernel.apply(step.lsn, step.now, &step.command));
    catch_unwind(apply).map_err(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        format!("apply panicked: {}", message.unwrap_or_default())
    })
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
