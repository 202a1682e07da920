//! The world of agents: time goes from one thing that happens to the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::decider::{Advice, Blocked, Said};
use engine::shard::{Reply, Submission, Turn, Wait};
use kernel::{Action, Age, Answer, Command, Granted, Outcome, Span, Time};

use super::agent::{Agent, Next, request};
use super::{AGENTS_MAX, HOLD, SETTLE, Tally, WAIT, WAY, WILD, after, when_nobody_comes, while_others_come};
use crate::disk::{Fate, SimFs};
use crate::life::client::namespace;
use crate::life::clock::{Machine, True};
use crate::life::ledger::Ledger;
use crate::life::rings;
use crate::life::server::{End, Number, Server, Site};
use crate::rng::Rng;

/// What times are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Times {
    Wild,
    /// Nothing is lost, and new attempts keep coming; since then.
    Busy(True),
    /// Nothing is lost, and nobody begins anything; since then.
    Calm(True),
}

impl Times {
    fn are_good(self) -> bool {
        self != Times::Wild
    }
}

/// A command that an agent has sent.
struct Sent {
    agent: usize,
    command: Command,
    /// Set when nobody listens any more, as far as the server can know.
    gone: Arc<AtomicBool>,
    wait: u64,
    /// By its server's clock its wait is over then.
    until: Option<Time>,
    /// Nothing older was there when it asked: it is granted, or something is wrong.
    must: bool,
}

pub(super) struct World<'a> {
    rng: Rng,
    now: True,
    times: Times,
    agents: Vec<Agent>,
    next: Number,
    /// On the way to the server, by when they arrive.
    transit: Vec<(True, Number, Sent)>,
    /// With the server.
    pending: BTreeMap<Number, Sent>,
    fs: SimFs,
    server: Option<Server>,
    machine: Machine,
    boots: u128,
    writers: u128,
    ledger: Ledger,
    tally: Tally,
    trace: &'a mut dyn FnMut(String),
}

impl<'a> World<'a> {
    pub(super) fn new(seed: u64, trace: &'a mut dyn FnMut(String)) -> World<'a> {
        let mut rng = Rng::new(seed ^ 0xa6e7);
        let agents = 2 + rng.below(AGENTS_MAX - 1);
        World {
            rng,
            now: True(0),
            times: Times::Wild,
            agents: (0..agents).map(Agent::new).collect(),
            next: 1,
            transit: Vec::new(),
            pending: BTreeMap::new(),
            fs: SimFs::new(Fate { crash_at: None, fail_at: None }),
            server: None,
            machine: Machine::new(True(0), 1, 0),
            boots: 1,
            writers: 0,
            ledger: Ledger::default(),
            tally: Tally::default(),
            trace,
        }
    }

    pub(super) fn now(&self) -> True {
        self.now
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// A wild time, and then a good one: either others keep coming, or nobody new does.
    pub(super) fn round(&mut self) -> Result<(), String> {
        self.times = Times::Wild;
        let until = after(self.now, 5_000 + self.rng.below(40_000));
        while self.now < until {
            self.step()?;
        }
        self.calm_down();
        let start = self.now;
        if self.rng.one_in(2) {
            self.times = Times::Busy(start);
            let until = after(start, SETTLE + 2 * while_others_come(self.count()));
            while self.now < until {
                self.step()?;
            }
        } else {
            self.times = Times::Calm(start);
            while self.agents.iter().any(|agent| agent.attempt.is_some()) {
                self.step()?;
            }
        }
        Ok(())
    }

    fn count(&self) -> u64 {
        self.agents.len() as u64
    }

    /// From here on everyone does as it promised.
    fn calm_down(&mut self) {
        let soon = after(self.now, HOLD);
        for holding in self.agents.iter_mut().flat_map(|agent| &mut agent.held) {
            holding.renew_at = None;
            holding.until = holding.until.min(soon);
        }
        self.say("good times");
    }

    fn step(&mut self) -> Result<(), String> {
        if self.server.is_none() {
            self.start()?;
        }
        self.pass_time();
        for agent in 0..self.agents.len() {
            self.act(agent);
        }
        let arrived = self.arrived();
        let done = self.turn(arrived);
        done.map_err(|end| match end {
            End::Wrong(what) => what,
            End::Died(error) => format!("the store failed: {error}"),
        })?;
        if self.times == Times::Wild {
            self.have_bad_luck();
        }
        self.check_bounds()
    }

    fn start(&mut self) -> Result<(), String> {
        self.writers += 1;
        let site = Site::Disk(self.fs.clone());
        let server = Server::start(&site, &self.machine, self.writers, &mut self.ledger);
        self.server = Some(server.map_err(|end| format!("no start: {end:?}"))?);
        Ok(())
    }

    /// To the next thing that happens: nothing comes of itself before it. A server wakes up when it means to.
    fn pass_time(&mut self) {
        let agents = self.agents.iter().enumerate();
        let acts = agents.filter_map(|(number, agent)| agent.next_at(self.may_begin(number)));
        let arrives = self.transit.iter().map(|(at, ..)| *at);
        let due = self.server.as_ref().and_then(|server| server.shard.until_due());
        let wakes = due.map(|span| after(self.now, span.0));
        let next = acts.chain(arrives).chain(wakes).min().unwrap_or(after(self.now, 1000));
        let late = if self.times == Times::Wild && self.rng.one_in(8) { self.rng.below(500) } else { 0 };
        self.now = after(next.max(self.now), late);
        self.machine.set(self.now);
    }

    fn act(&mut self, number: usize) {
        for command in self.agents[number].tend(&mut self.rng, self.now) {
            self.send(number, command, 0, Arc::default());
        }
        let now = self.now;
        let agent = &mut self.agents[number];
        match agent.attempt.as_ref().map(|attempt| attempt.next) {
            Some(Next::AskAt(at)) if at <= now => self.ask(number),
            // It has heard nothing, and asks again: under the same key, or another.
            Some(Next::Heard { number: unheard, by }) if by <= now => {
                agent.back_off(&mut self.rng, now);
                let forgets = self.rng.one_in(2);
                if let Some(attempt) = self.agents[number].attempt.as_mut().filter(|_| forgets) {
                    attempt.request = None;
                }
                self.hang_up(unheard);
            }
            None if agent.idle_until <= now && self.may_begin(number) => {
                self.agents[number].begin(&mut self.rng, now);
                self.ask(number);
            }
            _ => {}
        }
    }

    fn may_begin(&self, agent: usize) -> bool {
        match self.times {
            Times::Wild => true,
            Times::Busy(_) => self.agents[agent].held.is_empty(),
            Times::Calm(_) => false,
        }
    }

    fn ask(&mut self, number: usize) {
        let wild = self.times == Times::Wild;
        let wait = match self.rng.below(4) {
            0 if wild => 0,
            1..=3 if wild => 1 + self.rng.below(WILD.0),
            _ => WAIT,
        };
        let new_key = request(self.next);
        let has_key = wild && self.rng.one_in(2);
        let agent = &mut self.agents[number];
        let attempt = agent.attempt.as_mut().expect("it has something to ask for");
        attempt.request = attempt.request.or(has_key.then_some(new_key)).filter(|_| wild);
        attempt.tries += 1;
        let by = after(self.now, wait + WILD.1 + 1000);
        attempt.next = Next::Heard { number: self.next, by };
        let attempt = attempt.clone();
        let command = agent.ask(&attempt, attempt.age);
        self.send(number, command, wait, Arc::default());
    }

    fn send(&mut self, agent: usize, command: Command, wait: u64, gone: Arc<AtomicBool>) {
        let number = self.next;
        self.next += 1;
        let way = match self.rng.below(20) {
            0 if self.times == Times::Wild => return,
            1..3 if self.times == Times::Wild => self.rng.below(WILD.1),
            _ => self.rng.below(WAY),
        };
        let sent = Sent { agent, command, gone, wait, until: None, must: false };
        self.transit.push((after(self.now, way), number, sent));
    }

    /// Nobody listens for this answer any more. The server may not know.
    fn hang_up(&mut self, number: Number) {
        let known = self.times.are_good() || self.rng.one_in(2);
        let sent = self.transit.iter().find(|(_, other, _)| *other == number).map(|(.., sent)| sent);
        if let Some(sent) = sent.or(self.pending.get(&number)).filter(|_| known) {
            sent.gone.store(true, Ordering::Release);
        }
    }

    /// What has arrived by now. In good times one at a time, so that each meets the state that it is judged by.
    fn arrived(&mut self) -> Vec<(Number, Sent)> {
        let most = if self.times.are_good() { 1 } else { 4 };
        let mut arrived = Vec::new();
        while arrived.len() < most
            && let Some(place) = self.transit.iter().position(|(at, ..)| *at <= self.now)
        {
            let (_, number, sent) = self.transit.remove(place);
            arrived.push((number, sent));
        }
        arrived
    }

    fn turn(&mut self, arrived: Vec<(Number, Sent)>) -> Result<(), End> {
        let mut server = self.server.take().expect("it was just started");
        let numbers: Vec<Number> = arrived.iter().map(|(number, _)| *number).collect();
        let mut submissions = Vec::new();
        for (number, sent) in arrived {
            self.submit(&server, number, sent, &mut submissions);
        }
        loop {
            let turn = server.turn(submissions, &mut self.ledger)?;
            self.tally.turns += 1;
            if self.times == Times::Wild && self.rng.one_in(200) {
                // It has happened, and nobody is told.
                self.server_crashes();
                return Ok(());
            }
            // What is undone because nobody was reached is one more turn.
            let again = self.publish(&mut server, turn)?;
            rings::check(&server.shard).map_err(End::Wrong)?;
            self.check_waits(&server).map_err(End::Wrong)?;
            if !again {
                break;
            }
            submissions = Vec::new();
        }
        self.tally.waits += numbers.iter().filter(|number| self.pending.contains_key(number)).count() as u64;
        self.server = Some(server);
        Ok(())
    }

    /// As the service does it: who declares something is alive, and an attempt that is new, or counts as new, gets its
    /// age here.
    fn submit(&mut self, server: &Server, number: Number, mut sent: Sent, to: &mut Vec<Submission<Number>>) {
        let now = server.shard.now();
        let fresh = Age { at: now, tie: self.rng.number() };
        if let Action::Acquire(grant) = &mut sent.command.action {
            let age = grant.attempt.filter(|age| age.counts_at(now)).unwrap_or(fresh);
            grant.attempt = Some(age);
            sent.must = self.is_oldest(server, sent.agent, &sent.command, age);
            self.tally.tries += 1;
            self.tally.oldest += u64::from(sent.must);
            to.push(Submission::new(self.agents[sent.agent].says(false), Number::MAX));
        }
        sent.until = (sent.wait > 0).then(|| now.after(Span(sent.wait)));
        let wait = sent.until.map(|_| Wait { most: Span(sent.wait), gone: Arc::clone(&sent.gone) });
        to.push(Submission { wait, ..Submission::new(sent.command.clone(), number) });
        self.pending.insert(number, sent);
    }

    /// Is nothing older there, of all that holds and waits, now that nothing wild can come any more?
    fn is_oldest(&self, server: &Server, agent: usize, command: &Command, age: Age) -> bool {
        let (Times::Busy(since) | Times::Calm(since)) = self.times else { return false };
        let Action::Acquire(grant) = &command.action else { return false };
        let (kernel, now) = (server.shard.kernel(), server.shard.now());
        let agent = &self.agents[agent];
        let mut holders = kernel.conflicts(&grant.namespace, &grant.bundle, now);
        let holds = kernel.leases_of_session(&namespace(), &agent.identity, agent.session(), now);
        self.now >= after(since, SETTLE)
            && holds.is_empty()
            && holders.all(|lease| age < lease.age)
            && server.shard.waiters().iter().all(|(_, waiter)| age < waiter.age)
    }

    /// Gives the answers. Returns whether something has to be undone.
    fn publish(&mut self, server: &mut Server, turn: Turn<Number>) -> Result<bool, End> {
        let mut undone = false;
        for (number, reply, lease) in turn.replies {
            let Some(sent) = self.pending.remove(&number) else { continue };
            (self.trace)(format!("{} {number} {} {reply:?}", self.now.0, sent.agent));
            let wild = self.times == Times::Wild;
            let lost = sent.gone.load(Ordering::Acquire) || wild && self.rng.one_in(15);
            // A wire may swallow an answer, and nobody knows.
            let swallowed = wild && self.rng.one_in(20);
            if let Some(lease) = lease {
                server.shard.delivered(lease, !lost);
                undone |= lost;
            }
            if !lost && !swallowed {
                self.hear(number, &sent, &reply).map_err(End::Wrong)?;
            }
        }
        Ok(undone)
    }

    fn hear(&mut self, number: Number, sent: &Sent, reply: &Reply) -> Result<(), String> {
        let (now, keeps) = (self.now, self.rng.below(HOLD + 1));
        let (granted, blocked) = match reply {
            Ok(Said::Outcome(
                Outcome::Applied(Answer::Granted(granted), _) | Outcome::Unchanged(Answer::Granted(granted)),
            )) => (Some(granted), None),
            Ok(Said::Blocked(blocked)) => (None, Some(&**blocked)),
            _ => (None, None),
        };
        if sent.must && granted.is_none() {
            return Err(format!("the oldest was not granted: {:?}: {reply:?}", sent.command));
        }
        let agent = &mut self.agents[sent.agent];
        if !matches!(sent.command.action, Action::Acquire(_)) {
            if let Some(granted) = granted {
                agent.granted(granted, now, keeps);
            }
            return Ok(());
        }
        let asks = |next: Next| matches!(next, Next::Heard { number: other, .. } if other == number);
        if !agent.attempt.as_ref().is_some_and(|attempt| asks(attempt.next)) {
            // It has given that up. What it was given runs out.
            return Ok(());
        }
        match (granted, blocked) {
            (Some(granted), _) => self.was_granted(sent.agent, granted, keeps),
            (None, Some(blocked)) => self.was_blocked(sent, blocked),
            // Its session has it already, under an answer that was lost; or an old answer is kept for its key.
            (None, None) => {
                agent.back_off(&mut self.rng, now);
                if let Some(attempt) = &mut agent.attempt {
                    attempt.request = None;
                }
            }
        }
        Ok(())
    }

    fn was_granted(&mut self, number: usize, granted: &Granted, keeps: u64) {
        self.tally.grants += 1;
        let (now, agent) = (self.now, &mut self.agents[number]);
        let attempt = agent.attempt.take().expect("it was granted just now");
        agent.granted(granted, now, keeps);
        agent.idle_until = after(now, self.rng.below(3000));
        match self.times {
            Times::Wild if self.rng.one_in(2) => {
                let holding = agent.held.last_mut().expect("just granted");
                holding.until = after(now, self.rng.below(3 * HOLD));
                holding.renew_at = Some(after(now, HOLD / 3));
            }
            Times::Wild => {}
            Times::Busy(since) | Times::Calm(since) => {
                self.tally.in_time += 1;
                self.tally.longest_ms = self.tally.longest_ms.max(now.0 - attempt.since.max(since).0);
                self.tally.most_tries = self.tally.most_tries.max(attempt.tries);
            }
        }
    }

    fn was_blocked(&mut self, sent: &Sent, blocked: &Blocked) {
        match blocked.advice {
            Advice::Wait => self.tally.timeouts += u64::from(sent.wait > 0),
            Advice::Die | Advice::Deadlock => self.tally.deaths += 1,
        }
        let agent = &mut self.agents[sent.agent];
        agent.back_off(&mut self.rng, self.now);
        if let Some(attempt) = &mut agent.attempt {
            (attempt.age, attempt.request) = (Some(blocked.age), None);
        }
        // What it is told to give back, and knows of.
        for holding in agent.held.iter_mut().filter(|known| blocked.release.contains(&known.held.lease)) {
            (holding.until, holding.rebind_at) = (self.now, None);
        }
    }

    /// Every wait is somebody's, is not over, and ends though nobody asks the server for anything.
    fn check_waits(&self, server: &Server) -> Result<(), String> {
        let now = server.shard.now();
        let wakes = server.shard.until_due();
        for (ticket, waiter) in server.shard.waiters().iter() {
            let sent = self.pending.values().find(|sent| Arc::ptr_eq(&sent.gone, &waiter.gone));
            let until = sent.and_then(|sent| sent.until);
            let Some(until) = until else { return Err(format!("{ticket:?} waits for nobody: {waiter:?}")) };
            if until < now {
                return Err(format!("{ticket:?} waits until {until:?}, and it is {now:?}: {waiter:?}"));
            }
            if wakes.is_none_or(|span| span.0 > now.until(until).0 + 1) {
                return Err(format!("{ticket:?} waits until {until:?}, and the server sleeps for {wakes:?}"));
            }
        }
        Ok(())
    }

    /// Has any attempt taken longer than it may?
    fn check_bounds(&self) -> Result<(), String> {
        let (since, bound) = match self.times {
            Times::Wild => return Ok(()),
            Times::Busy(since) => (since, while_others_come(self.count())),
            Times::Calm(since) => (since, when_nobody_comes(self.count())),
        };
        let settled = after(since, SETTLE);
        for attempt in self.agents.iter().filter_map(|agent| agent.attempt.as_ref()) {
            let by = after(attempt.since.max(settled), bound);
            if self.now > by {
                return Err(format!("{:?}: not granted by {by:?}: {attempt:?}", self.times));
            }
        }
        Ok(())
    }

    fn have_bad_luck(&mut self) {
        if self.rng.one_in(80) {
            self.server_crashes();
        }
        let number = usize::try_from(self.rng.below(self.count())).expect("few");
        if self.rng.one_in(60) {
            self.tally.restarts += 1;
            self.say("an agent crashes");
            if let Some(Next::Heard { number: unheard, .. }) =
                self.agents[number].attempt.as_ref().map(|attempt| attempt.next)
            {
                self.hang_up(unheard);
            }
            self.agents[number].crash();
        } else if self.rng.one_in(40) {
            self.restart(number);
        }
    }

    /// It says that it restarts, lets its leases run out, and takes them back, or comes too late.
    fn restart(&mut self, number: usize) {
        self.tally.restarts += 1;
        let says = self.agents[number].says(true);
        self.send(number, says, 0, Arc::default());
        let at = after(self.now, HOLD + self.rng.below(super::GRACE.0 + 2000));
        for holding in &mut self.agents[number].held {
            (holding.renew_at, holding.rebind_at) = (None, Some(at));
        }
    }

    /// Whoever waits is forgotten, and so is what was about to be told. With a reboot time stands still meanwhile.
    fn server_crashes(&mut self) {
        self.say("the server crashes");
        self.tally.crashes += 1;
        self.server = None;
        self.pending.clear();
        self.fs = self.fs.after_crash(&mut self.rng, Fate { crash_at: None, fail_at: None });
        if self.rng.one_in(2) {
            self.boots += 1;
            let up = self.rng.below(5000);
            self.machine.reboot(self.boots, up);
        }
    }

    fn say(&mut self, what: &str) {
        (self.trace)(format!("{} {what}", self.now.0));
    }
}
