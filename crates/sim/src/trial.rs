//! Runs the kernel and the model against each other, and checks what must hold after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use kernel::{
    Action, Answer, Conflict, Cursor, Event, Kernel, LeaseId, LeaseView, Member, Namespace, Outcome,
    Rejection, ResourceName, State, Time, Token,
};

use crate::Step;
use crate::hostile::Hostile;
use crate::model::Model;
use crate::shrink::shrink;
use crate::transcript;

/// What a trial found: the steps that lead to it, and what went wrong at the last.
#[derive(Debug)]
pub struct Failure {
    /// All steps up to the one that failed.
    pub steps: Vec<Step>,
    /// What does not hold.
    pub what: String,
}

/// How much a trial did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Steps tried.
    pub steps: u64,
    /// Those that changed something.
    pub applied: u64,
    /// Those that were refused.
    pub rejected: u64,
}

impl Tally {
    /// Counts another trial in.
    pub fn add(&mut self, other: &Tally) {
        self.steps += other.steps;
        self.applied += other.applied;
        self.rejected += other.rejected;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { steps, applied, rejected } = self;
        write!(f, "kernel: {steps} commands, {applied} applied, {rejected} refused; the model agrees on all")
    }
}

/// Tries so many random steps from a seed. A failure comes back small, as a text that names the seed.
pub fn run(seed: u64, steps: u64) -> Result<Tally, String> {
    random(seed, steps).map_err(|failure| report(seed, steps, &failure))
}

/// One after the other, what it takes to go wrong left out piece by piece.
fn report(seed: u64, steps: u64, failure: &Failure) -> String {
    let small = shrink(&failure.steps, |steps| replay(steps).is_err());
    let what = replay(&small).err().map_or_else(|| failure.what.clone(), |again| again.what);
    let mut text = format!("{what}\nrepeat with: cargo run -p sim -- --seed {seed} --steps {steps}\n");
    for step in &small {
        writeln!(text, "{}", transcript::write_step(step)).expect("writing to a string");
    }
    text
}

fn random(seed: u64, count: u64) -> Result<Tally, Box<Failure>> {
    let mut hostile = Hostile::new(seed);
    let mut trial = Trial::default();
    let mut steps = Vec::new();
    let mut tally = Tally::default();
    for _ in 0..count {
        let step = hostile.step(&trial.kernel);
        steps.push(step.clone());
        match trial.step(&step) {
            Ok(outcome) => {
                tally.count(&outcome);
                hostile.heard(&step, &outcome);
            }
            Err(what) => return Err(Box::new(Failure { steps, what })),
        }
    }
    match trial.replay_again() {
        Ok(()) => Ok(tally),
        Err(what) => Err(Box::new(Failure { steps, what })),
    }
}

/// Tries the steps of a list.
pub fn replay(steps: &[Step]) -> Result<(), Box<Failure>> {
    let mut trial = Trial::default();
    for (n, step) in steps.iter().enumerate() {
        trial.step(step).map_err(|what| Box::new(Failure { steps: steps[..=n].to_vec(), what }))?;
    }
    trial.replay_again().map_err(|what| Box::new(Failure { steps: steps.to_vec(), what }))
}

/// The kernel, a twin that is written down and restored again and again, the model, and what was seen.
#[derive(Default)]
pub struct Trial {
    /// The kernel on trial.
    pub kernel: Kernel,
    twin: Kernel,
    model: Model,
    log: Vec<Step>,
    seen: Seen,
    steps: u64,
}

impl Trial {
    /// One step, and everything that must hold after it.
    pub fn step(&mut self, step: &Step) -> Result<Outcome, String> {
        let hash = self.kernel.state_hash();
        let outcome = apply_catching(&mut self.kernel, step)?;
        let twin = self.twin.apply(step.lsn, step.now, &step.command);
        ensure(twin == outcome, || {
            format!("a restored kernel answers otherwise: {twin:?}, not {outcome:?}")
        })?;
        let expected = self.model.apply(step.lsn, step.now, &step.command);
        ensure(agree(&outcome, &expected), || {
            format!("the model says {expected:?}, the kernel {outcome:?}")
        })?;
        if let Outcome::Applied(..) = outcome {
            self.log.push(step.clone());
        } else {
            ensure(hash == self.kernel.state_hash(), || "a refusal left a trace in the hash".into())?;
        }
        let snapshot = self.kernel.snapshot();
        let wanted = self.model.snapshot(snapshot.state_hash);
        ensure(snapshot == wanted, || format!("the state is\n{snapshot:#?}\nand the model's\n{wanted:#?}"))?;
        ensure(self.twin.state_hash() == snapshot.state_hash, || {
            "a restored kernel has another hash".into()
        })?;
        self.steps += 1;
        if self.steps.is_multiple_of(16) {
            self.twin = Kernel::restore(&snapshot).map_err(|error| error.to_string())?;
            ensure(self.twin.snapshot() == snapshot, || "a snapshot does not survive its restore".into())?;
        }
        kernel::invariants::check(&self.kernel)?;
        self.seen.look(step, &outcome, &self.kernel)?;
        Ok(outcome)
    }

    /// The log alone gives the same state, also under another hash seed: nothing depends on hash order.
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
                ensure(applied, || format!("a logged command is refused at replay: {outcome:?}"))?;
            }
            let (mut snapshot, mut wanted) = (again.snapshot(), self.kernel.snapshot());
            for tenure in [&mut snapshot.tenure, &mut wanted.tenure].into_iter().flatten() {
                tenure.open.store.hash_seed = 0;
            }
            ensure(snapshot == wanted, || "replay gives another state".into())?;
        }
        Ok(())
    }
}

impl Tally {
    fn count(&mut self, outcome: &Outcome) {
        self.steps += 1;
        self.applied += u64::from(matches!(outcome, Outcome::Applied(..)));
        self.rejected += u64::from(matches!(outcome, Outcome::Rejected(_)));
    }
}

/// What was seen from outside, checked without the model's help: these hold of any lease service.
#[derive(Default)]
struct Seen {
    /// The highest token that was ever given for a resource.
    tokens: BTreeMap<(Namespace, ResourceName), Token>,
    /// Leases that are over for good.
    ended: BTreeSet<LeaseId>,
    /// The deadlines that leases had before the step.
    deadlines: BTreeMap<LeaseId, Time>,
    /// The highest version that was ever seen of a key.
    versions: BTreeMap<(Namespace, ResourceName), kernel::Version>,
}

impl Seen {
    fn look(&mut self, step: &Step, outcome: &Outcome, kernel: &Kernel) -> Result<(), String> {
        if let Outcome::Applied(answer, events) = outcome {
            // What was due comes before the command's own doing.
            events.iter().try_for_each(|event| self.event(event, step, kernel))?;
            self.answer(answer, step.now)?;
        }
        let now = step.now.max(kernel.now());
        self.deadlines = leases(kernel, now).map(|view| (view.id, view.deadline)).collect();
        no_two_holders(kernel, now)
    }

    fn answer(&self, answer: &Answer, now: Time) -> Result<(), String> {
        let Answer::Renewed(results) = answer else { return Ok(()) };
        for live in results.iter().flatten() {
            let before = self.deadlines.get(&live.lease).copied();
            ensure(before >= Some(now), || format!("renewed after its deadline: {}", live.lease))?;
            ensure(before <= Some(live.deadline), || format!("a renewal shortened {}", live.lease))?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event, step: &Step, kernel: &Kernel) -> Result<(), String> {
        match event {
            Event::Granted(lease, token) | Event::Rebound(lease, token) => {
                ensure(!self.ended.contains(lease), || format!("an ended lease came back: {lease}"))?;
                let Ok(view) = kernel.lease(*lease, step.now) else { return Ok(()) };
                for member in &view.members {
                    let place = (view.namespace.clone(), member.resource.clone());
                    let before = self.tokens.insert(place, *token);
                    ensure(before < Some(*token), || format!("tokens do not grow: {}", member.resource))?;
                }
            }
            Event::Expired { lease, held_until } => {
                let deadline = self.deadlines.get(lease).copied();
                ensure(deadline < Some(step.now), || format!("expired early: {lease}"))?;
                if held_until.is_none() {
                    self.end(*lease)?;
                }
            }
            Event::Released(lease) | Event::Reclaimed(lease) => self.end(*lease)?,
            Event::Committed { lease, key, version, .. } | Event::Removed { lease, key, version, .. } => {
                let Ok(view) = kernel.lease(*lease, step.now) else { return Ok(()) };
                let before = self.versions.insert((view.namespace, key.clone()), *version);
                ensure(before < Some(*version), || format!("a version came twice: {key}"))?;
            }
            Event::Dropped { namespace, .. } => {
                let standing = leases(kernel, step.now).any(|lease| lease.namespace == *namespace);
                ensure(!standing, || format!("deleted under a lease: {namespace}"))?;
            }
            Event::Activated(_) | Event::Revoked(_) => {}
        }
        Ok(())
    }

    fn end(&mut self, lease: LeaseId) -> Result<(), String> {
        ensure(self.ended.insert(lease), || format!("ended twice: {lease}"))
    }
}

fn leases(kernel: &Kernel, now: Time) -> impl Iterator<Item = LeaseView> {
    kernel.leases_from(Cursor::default(), now).map(|(_, view)| view)
}

/// The promise itself, by brute force: no two leases that still stand have members that clash.
fn no_two_holders(kernel: &Kernel, now: Time) -> Result<(), String> {
    let stands = |state| matches!(state, State::Reserved | State::Active | State::Revoking);
    let views: Vec<_> = leases(kernel, now).filter(|view| stands(view.state)).collect();
    for (n, one) in views.iter().enumerate() {
        for other in views[n + 1..].iter().filter(|other| other.namespace == one.namespace) {
            let clash = |a: &Member| other.members.iter().any(|b| a.conflicts_with(b));
            let clashes = one.members.iter().any(clash);
            ensure(!clashes, || format!("two holders at once: {} and {}", one.id, other.id))?;
        }
    }
    Ok(())
}

/// Equal, but that the kernel shows only some of the leases in the way, and the model all of them.
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

/// A panic is a finding like any other: it can be shrunk.
fn apply_catching(kernel: &mut Kernel, step: &Step) -> Result<Outcome, String> {
    let apply = AssertUnwindSafe(|| kernel.apply(step.lsn, step.now, &step.command));
    catch_unwind(apply).map_err(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        format!("apply panicked: {}", said.unwrap_or_default())
    })
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
