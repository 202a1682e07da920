//! The simulation of agents: an event loop that advances time to the next event.

use std::collections::BTreeMap;

use engine::waiters::{Advice, Attempt, Blocked, Wait, WaiterConnection};
use engine::{Decision, Reply};
use kernel::{Action, Age, Command, Granted, Outcome, Response, Span};

use super::agent::{Agent, AgentRequest, NextStep, request};
use super::{
    AGENTS_MAX, AgentStats, DELAY, FAULTY_DELAY, FAULTY_WAIT, HOLD, Period, SETTLE, WAIT, after,
    bound_with_newcomers, bound_without_newcomers,
};
use crate::disk::{FaultPlan, SimFs};
use crate::properties::{ClientProperties, ResponseTime};
use crate::rng::Rng;
use crate::servers::client::namespace;
use crate::servers::clock::{Machine, TrueTime};
use crate::servers::cycles;
use crate::servers::ledger::Ledger;
use crate::servers::outbox::PublishedReply;
use crate::servers::server::{
    Backend, LIMITS, RequestNumber, Server, ServerError, ServerRequest, TIMER_LATE, TIMER_MAX, WorldSize,
};

pub(super) struct AgentSimulation<'a> {
    rng: Rng,
    now: TrueTime,
    period: Period,
    agents: Vec<Agent>,
    next: RequestNumber,
    /// In transit to the server, with their times of arrival.
    transit: Vec<(TrueTime, RequestNumber, AgentRequest)>,
    /// Submitted to the server, without a response so far.
    pending: BTreeMap<RequestNumber, AgentRequest>,
    fs: SimFs,
    server: Option<Server>,
    machine: Machine,
    boots: u128,
    writers: u128,
    ledger: Ledger,
    properties: ClientProperties,
    stats: AgentStats,
    trace_line: &'a mut dyn FnMut(String),
}

impl<'a> AgentSimulation<'a> {
    pub(super) fn new(seed: u64, trace: &'a mut dyn FnMut(String)) -> AgentSimulation<'a> {
        let mut rng = Rng::new(seed ^ 0xa6e7);
        let agents = 2 + rng.below(AGENTS_MAX - 1);
        AgentSimulation {
            rng,
            now: TrueTime(0),
            period: Period::Faulty,
            agents: (0..agents).map(Agent::new).collect(),
            next: 1,
            transit: Vec::new(),
            pending: BTreeMap::new(),
            fs: SimFs::new(FaultPlan { crash_at: None, fail_at: None }),
            server: None,
            machine: Machine::new(TrueTime(0), 1, 0),
            boots: 1,
            writers: 0,
            ledger: Ledger::default(),
            properties: ClientProperties::new(&LIMITS),
            stats: AgentStats::default(),
            trace_line: trace,
        }
    }

    pub(super) fn now(&self) -> TrueTime {
        self.now
    }

    pub(super) fn stats(&self) -> AgentStats {
        self.stats
    }

    /// A faulty period, and then a fault-free one with or without new attempts.
    pub(super) fn round(&mut self) -> Result<(), String> {
        self.period = Period::Faulty;
        let until = after(self.now, 5_000 + self.rng.below(40_000));
        while self.now < until {
            self.step()?;
        }
        self.end_faults();
        let start = self.now;
        if self.rng.one_in(2) {
            self.period = Period::Busy(start);
            let until = after(start, SETTLE + 2 * bound_with_newcomers(self.count()));
            while self.now < until {
                self.step()?;
            }
        } else {
            self.period = Period::Draining(start);
            while self.agents.iter().any(|agent| agent.attempt.is_some()) {
                self.step()?;
            }
        }
        Ok(())
    }

    fn count(&self) -> u64 {
        self.agents.len() as u64
    }

    /// From here on agents release their leases within [`HOLD`].
    fn end_faults(&mut self) {
        let soon = after(self.now, HOLD);
        for lease in self.agents.iter_mut().flat_map(|agent| &mut agent.held) {
            lease.renew_at = None;
            lease.until = lease.until.min(soon);
        }
        self.trace("fault-free period");
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
        let result = self.turn(arrived);
        result.map_err(|error| match error {
            ServerError::Violation(what) => what,
            ServerError::Store(error) => format!("the store failed: {error}"),
        })?;
        if self.period == Period::Faulty {
            self.inject_faults();
        }
        self.check_bounds()
    }

    fn start(&mut self) -> Result<(), String> {
        self.writers += 1;
        let backend = Backend::Disk(self.fs.clone());
        let server =
            Server::start(&WorldSize::SMALL, &backend, &self.machine, self.writers, &mut self.ledger);
        self.server = Some(server.map_err(|error| format!("no start: {error:?}"))?);
        Ok(())
    }

    /// Advances time to the next event: an action of an agent, an arrival, or the server's next wake-up.
    fn pass_time(&mut self) {
        let agents = self.agents.iter().enumerate();
        let acts = agents.filter_map(|(number, agent)| agent.next_at(self.may_begin(number)));
        let arrives = self.transit.iter().map(|(at, ..)| *at);
        let due = self.server.as_ref().and_then(Server::until_timer);
        let wakes = due.map(|span| after(self.now, span.0));
        let next = acts.chain(arrives).chain(wakes).min().unwrap_or(after(self.now, 1000));
        let late = if self.period == Period::Faulty && self.rng.one_in(8) { self.rng.below(500) } else { 0 };
        self.now = after(next.max(self.now), late);
        self.machine.set(self.now);
    }

    fn act(&mut self, number: usize) {
        for command in self.agents[number].maintain_leases(&mut self.rng, self.now) {
            self.send(number, command, None, 0);
        }
        let now = self.now;
        let agent = &mut self.agents[number];
        match agent.attempt.as_ref().map(|attempt| attempt.next) {
            Some(NextStep::RequestAt(at)) if at <= now => self.send_try(number),
            // No response in time: it retries, under the same idempotency key or a new one.
            Some(NextStep::AwaitResponse { number: unanswered, by }) if by <= now => {
                agent.back_off(&mut self.rng, now);
                let forgets = self.rng.one_in(2);
                if let Some(attempt) = self.agents[number].attempt.as_mut().filter(|_| forgets) {
                    attempt.request = None;
                }
                self.disconnect(unanswered);
            }
            None if agent.idle_until <= now && self.may_begin(number) => {
                self.agents[number].begin(&mut self.rng, now);
                self.send_try(number);
            }
            _ => {}
        }
    }

    fn may_begin(&self, agent: usize) -> bool {
        match self.period {
            Period::Faulty => true,
            Period::Busy(_) => self.agents[agent].held.is_empty(),
            Period::Draining(_) => false,
        }
    }

    fn send_try(&mut self, number: usize) {
        let faulty = self.period == Period::Faulty;
        let wait = match self.rng.below(4) {
            0 if faulty => 0,
            1..=3 if faulty => 1 + self.rng.below(FAULTY_WAIT),
            _ => WAIT,
        };
        let new_key = request(self.next);
        let has_key = faulty && self.rng.one_in(2);
        let agent = &mut self.agents[number];
        let attempt = agent.attempt.as_mut().expect("it has an attempt");
        attempt.request = attempt.request.or(has_key.then_some(new_key)).filter(|_| faulty);
        attempt.tries += 1;
        let by = after(self.now, wait + FAULTY_DELAY + 1000);
        attempt.next = NextStep::AwaitResponse { number: self.next, by };
        let attempt = attempt.clone();
        let command = agent.command(&attempt);
        self.send(number, command, attempt.token, wait);
    }

    fn send(&mut self, agent: usize, command: Command, token: Option<Attempt>, wait: u64) {
        let number = self.next;
        self.next += 1;
        let delay = match self.rng.below(20) {
            0 if self.period == Period::Faulty => return,
            1..3 if self.period == Period::Faulty => self.rng.below(FAULTY_DELAY),
            _ => self.rng.below(DELAY),
        };
        let connection = WaiterConnection::default();
        let request =
            AgentRequest { agent, command, token, connection, wait, until: None, must_be_granted: false };
        self.transit.push((after(self.now, delay), number, request));
    }

    /// The client disconnects. The server may not notice.
    fn disconnect(&mut self, number: RequestNumber) {
        let known = self.period.is_fault_free() || self.rng.one_in(2);
        let request = self.transit.iter().find(|(_, other, _)| *other == number).map(|(.., request)| request);
        if let Some(request) = request.or(self.pending.get(&number)).filter(|_| known) {
            request.connection.close();
        }
    }

    /// The requests that have arrived by now. In fault-free periods one at a time, so that each is decided on the state
    /// that `is_oldest` saw.
    fn arrived(&mut self) -> Vec<(RequestNumber, AgentRequest)> {
        let most = if self.period.is_fault_free() { 1 } else { 4 };
        let mut arrived = Vec::new();
        while arrived.len() < most
            && let Some(index) = self.transit.iter().position(|(at, ..)| *at <= self.now)
        {
            let (_, number, request) = self.transit.remove(index);
            arrived.push((number, request));
        }
        arrived
    }

    fn turn(&mut self, arrived: Vec<(RequestNumber, AgentRequest)>) -> Result<(), ServerError> {
        let mut server = self.server.take().expect("it was just started");
        let numbers: Vec<RequestNumber> = arrived.iter().map(|(number, _)| *number).collect();
        for (number, request) in arrived {
            self.submit(&mut server, number, request)?;
        }
        loop {
            server.settle(&mut self.rng, &mut self.ledger)?;
            server.show_state(&mut self.ledger);
            self.stats.settled += 1;
            if self.period == Period::Faulty && self.rng.one_in(200) {
                // All batches are durable, and no response was sent.
                self.server_crashes();
                return Ok(());
            }
            self.publish(&server)?;
            server.inspect(cycles::check).map_err(ServerError::Violation)?;
            self.check_waits(&server).map_err(ServerError::Violation)?;
            // The retraction of undelivered grants takes another batch.
            if server.is_quiet() {
                break;
            }
        }
        server.check_at_rest().map_err(ServerError::Violation)?;
        self.stats.waits += numbers.iter().filter(|number| self.pending.contains_key(number)).count() as u64;
        self.server = Some(server);
        Ok(())
    }

    /// As the server does: a manifest marks its agent alive, and an attempt without a valid age gets a new one.
    fn submit(
        &mut self,
        server: &mut Server,
        number: RequestNumber,
        mut request: AgentRequest,
    ) -> Result<(), ServerError> {
        let now = server.now();
        let fresh = Age { at: now, tie: self.rng.number() };
        if let Action::Acquire(grant) = &mut request.command.action {
            // A token from a faulty period may be of an attempt that was granted without the agent's knowledge.
            let counts = self.began_without_faults(request.agent);
            let presented = request.token.map(|token| token.age).filter(|age| counts && age.counts_at(now));
            let age = presented.unwrap_or(fresh);
            grant.attempt = Some(fresh);
            request.must_be_granted = self.is_oldest(server, request.agent, &request.command, age);
            self.stats.tries += 1;
            self.stats.oldest += u64::from(request.must_be_granted);
            let announce = self.agents[request.agent].announce(false);
            // Its response is not awaited.
            let unused = RequestNumber::MAX - number;
            let announce = ServerRequest {
                number: unused,
                command: announce,
                document: None,
                wait: None,
                attempt: None,
            };
            server.submit(announce, &mut self.ledger)?;
        }
        request.until = (request.wait > 0).then(|| now.after(Span(request.wait)));
        let wait = request
            .until
            .map(|_| Wait { timeout: Span(request.wait), connection: request.connection.clone() });
        let waits = wait.as_ref().map(|wait| wait.connection.clone());
        self.properties.arrived(number, &request.command, waits, self.now);
        let (command, attempt) = (request.command.clone(), request.token);
        self.pending.insert(number, request);
        server.submit(ServerRequest { number, command, document: None, wait, attempt }, &mut self.ledger)
    }

    /// Whether an agent's attempt began in the present fault-free period, after the effects of the faulty one.
    fn began_without_faults(&self, agent: usize) -> bool {
        let (Period::Busy(since) | Period::Draining(since)) = self.period else { return false };
        let attempt = self.agents[agent].attempt.as_ref();
        attempt.is_some_and(|attempt| attempt.since >= after(since, SETTLE))
    }

    /// Whether no conflicting holder, no waiter and no agent that may return to its place is older, in a fault-free period
    /// that has settled.
    fn is_oldest(&self, server: &Server, agent: usize, command: &Command, age: Age) -> bool {
        let (Period::Busy(since) | Period::Draining(since)) = self.period else { return false };
        let Action::Acquire(grant) = &command.action else { return false };
        let others = self.agents.iter().enumerate().filter(|(other, _)| *other != agent);
        let mut tokens = others.filter_map(|(_, other)| other.attempt.as_ref()?.token);
        let agent = &self.agents[agent];
        server.inspect(|shard| {
            let (kernel, now) = (shard.kernel(), shard.now());
            let mut holders = kernel.conflicts(&grant.namespace, &grant.bundle, now);
            let holds = kernel.leases_of_session(&namespace(), &agent.identity, agent.session(), now);
            self.now >= after(since, SETTLE)
                && holds.is_empty()
                && holders.all(|lease| age < lease.age)
                && tokens.all(|token| token.age.at <= now && age < token.age)
                && shard.waiters().iter().all(|(_, waiter)| age < waiter.age)
        })
    }

    /// Sends the responses.
    fn publish(&mut self, server: &Server) -> Result<(), ServerError> {
        for PublishedReply { number, reply, delivery, .. } in server.take_replies() {
            let Some(request) = self.pending.remove(&number) else { continue };
            (self.trace_line)(format!("{} {number} {} {reply:?}", self.now.0, request.agent));
            let faulty = self.period == Period::Faulty;
            let lost = request.connection.is_closed() || faulty && self.rng.one_in(15);
            // A response can be lost without an error at the server.
            let lost_silently = faulty && self.rng.one_in(20);
            delivery.settle(!lost);
            let written = ResponseTime { at: self.now, now: server.now() };
            self.properties
                .responded(number, &reply, !lost && !lost_silently, written)
                .map_err(ServerError::Violation)?;
            if !lost && !lost_silently {
                self.receive(number, &request, &reply).map_err(ServerError::Violation)?;
            }
        }
        self.properties.check_order().map_err(ServerError::Violation)
    }

    fn receive(
        &mut self,
        number: RequestNumber,
        request: &AgentRequest,
        reply: &Reply,
    ) -> Result<(), String> {
        let (now, hold_ms) = (self.now, self.rng.below(HOLD + 1));
        let (granted, blocked) = match reply {
            Ok(Decision::Outcome(
                Outcome::Applied(Response::Granted(granted), _)
                | Outcome::Unchanged(Response::Granted(granted)),
            )) => (Some(granted), None),
            Ok(Decision::Blocked(blocked)) => (None, Some(&**blocked)),
            _ => (None, None),
        };
        if request.must_be_granted && granted.is_none() {
            return Err(format!("the oldest attempt was not granted: {:?}: {reply:?}", request.command));
        }
        let agent = &mut self.agents[request.agent];
        if !matches!(request.command.action, Action::Acquire(_)) {
            if let Some(granted) = granted {
                agent.granted(granted, now, hold_ms);
            }
            return Ok(());
        }
        let awaits =
            |next: NextStep| matches!(next, NextStep::AwaitResponse { number: other, .. } if other == number);
        if !agent.attempt.as_ref().is_some_and(|attempt| awaits(attempt.next)) {
            // The agent no longer waits for it. A granted lease expires.
            return Ok(());
        }
        match (granted, blocked) {
            (Some(granted), _) => self.was_granted(request.agent, granted, hold_ms),
            (None, Some(blocked)) => self.was_blocked(request, blocked),
            // Its session already holds it, after a lost response; or an old response is replayed for its key.
            (None, None) => {
                agent.back_off(&mut self.rng, now);
                if let Some(attempt) = &mut agent.attempt {
                    attempt.request = None;
                }
            }
        }
        Ok(())
    }

    fn was_granted(&mut self, number: usize, granted: &Granted, hold_ms: u64) {
        self.stats.grants += 1;
        let (now, agent) = (self.now, &mut self.agents[number]);
        let attempt = agent.attempt.take().expect("it was granted just now");
        agent.granted(granted, now, hold_ms);
        agent.idle_until = after(now, self.rng.below(3000));
        match self.period {
            Period::Faulty if self.rng.one_in(2) => {
                let lease = agent.held.last_mut().expect("just granted");
                lease.until = after(now, self.rng.below(3 * HOLD));
                lease.renew_at = Some(after(now, HOLD / 3));
            }
            Period::Faulty => {}
            Period::Busy(since) | Period::Draining(since) => {
                self.stats.in_time += 1;
                self.stats.longest_ms = self.stats.longest_ms.max(now.0 - attempt.since.max(since).0);
                self.stats.most_tries = self.stats.most_tries.max(attempt.tries);
            }
        }
    }

    fn was_blocked(&mut self, request: &AgentRequest, blocked: &Blocked) {
        match blocked.advice {
            Advice::Wait => self.stats.timeouts += u64::from(request.wait > 0),
            Advice::Die | Advice::Deadlock => self.stats.deaths += 1,
        }
        let agent = &mut self.agents[request.agent];
        agent.back_off(&mut self.rng, self.now);
        if let Some(attempt) = &mut agent.attempt {
            (attempt.token, attempt.request) = (Some(blocked.attempt), None);
        }
        // The leases that the server asks it to release, as far as it knows them.
        for lease in agent.held.iter_mut().filter(|known| blocked.release.contains(&known.held.lease)) {
            (lease.until, lease.rebind_at) = (self.now, None);
        }
    }

    /// Every waiter belongs to a pending request, is not past its timeout, and the server wakes up by then.
    fn check_waits(&self, server: &Server) -> Result<(), String> {
        server.inspect(|shard| {
            let (now, wakes) = (shard.now(), server.until_timer());
            for (ticket, waiter) in shard.waiters().iter() {
                let request = self.pending.values().find(|request| request.connection == waiter.connection);
                let until = request.and_then(|request| request.until);
                let Some(until) = until else {
                    return Err(format!("{ticket:?} has no pending request: {waiter:?}"));
                };
                if until.after(TIMER_LATE) < now {
                    return Err(format!("{ticket:?} is past its timeout {until:?} at {now:?}: {waiter:?}"));
                }
                let latest = now.until(until).0.min(TIMER_MAX.0) + 1 + TIMER_LATE.0;
                if wakes.is_none_or(|span| span.0 > latest) && server.is_quiet() {
                    return Err(format!(
                        "{ticket:?} waits until {until:?}, and the server's next wake-up is in {wakes:?}"
                    ));
                }
            }
            Ok(())
        })
    }

    /// No attempt may take longer than its bound.
    fn check_bounds(&self) -> Result<(), String> {
        let (since, bound) = match self.period {
            Period::Faulty => return Ok(()),
            Period::Busy(since) => (since, bound_with_newcomers(self.count())),
            Period::Draining(since) => (since, bound_without_newcomers(self.count())),
        };
        let settled = after(since, SETTLE);
        for attempt in self.agents.iter().filter_map(|agent| agent.attempt.as_ref()) {
            let by = after(attempt.since.max(settled), bound);
            if self.now > by {
                return Err(format!("{:?}: not granted by {by:?}: {attempt:?}", self.period));
            }
        }
        Ok(())
    }

    fn inject_faults(&mut self) {
        if self.rng.one_in(80) {
            self.server_crashes();
        }
        let number = usize::try_from(self.rng.below(self.count())).expect("few");
        if self.rng.one_in(60) {
            self.stats.restarts += 1;
            self.trace("an agent crashes");
            if let Some(NextStep::AwaitResponse { number: unanswered, .. }) =
                self.agents[number].attempt.as_ref().map(|attempt| attempt.next)
            {
                self.disconnect(unanswered);
            }
            self.agents[number].crash();
        } else if self.rng.one_in(40) {
            self.restart(number);
        }
    }

    /// It announces a restart, lets its leases expire, and rebinds them, possibly too late.
    fn restart(&mut self, number: usize) {
        self.stats.restarts += 1;
        let announce = self.agents[number].announce(true);
        self.send(number, announce, None, 0);
        let at = after(self.now, HOLD + self.rng.below(super::GRACE.0 + 2000));
        for lease in &mut self.agents[number].held {
            (lease.renew_at, lease.rebind_at) = (None, Some(at));
        }
    }

    /// Waiters and unsent responses are lost. Across a reboot kernel time stands still.
    fn server_crashes(&mut self) {
        self.trace("the server crashes");
        self.stats.crashes += 1;
        self.server = None;
        self.pending.clear();
        self.properties.disconnected();
        self.fs = self.fs.after_crash(&mut self.rng, FaultPlan { crash_at: None, fail_at: None });
        if self.rng.one_in(2) {
            self.boots += 1;
            let up = self.rng.below(5000);
            self.machine.reboot(self.boots, up);
        }
    }

    fn trace(&mut self, what: &str) {
        (self.trace_line)(format!("{} {what}", self.now.0));
    }
}
