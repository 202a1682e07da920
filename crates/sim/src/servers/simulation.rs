//! The simulation: time, a network, clients and servers, one step at a time.

use std::collections::{BTreeMap, BTreeSet};

use engine::internals::shard::TurnOutput;
use engine::internals::waiting::lease_request_of;
use engine::{
    Advice, Decision, DocumentLocation, Pin, Reply, Submission, Unavailable, Wait, WaiterConnection,
};
use kernel::{Action, Command, LeaseId, Outcome, Response, Span, State};
use store::ErrorKind;
use store::object::WriterId;

use super::ServerStats;
use super::client::{Client, Content, namespace};
use super::clock::{Machine, TrueTime};
use super::ledger::{DecisionTime, Ledger};
use super::server::{Backend, LIMITS, RequestNumber, Server, ServerError};
use crate::disk::{FaultPlan, PersistentErrors, SimFs};
use crate::objects::{NetworkFaults, SimObjects};
use crate::properties::{ClientProperties, ResponseTime};
use crate::rng::Rng;

/// A request that a client has sent.
struct ClientRequest {
    client: usize,
    command: Command,
    at: TrueTime,
    wait: Option<Wait>,
    content: Option<Content>,
    /// Held until the response.
    pin: Option<Pin>,
    /// The deadline of the response, if the server stays up.
    respond_by: TrueTime,
}

impl ClientRequest {
    /// Uploads a long document, and puts its location into the commit.
    fn upload(&mut self, server: &Server, content: Content) -> Result<(), ServerError> {
        let pin = server.upload(&content.bytes())?;
        if let Action::Commit(commit) = &mut self.command.action {
            commit.location = DocumentLocation::Blob(pin.blob()).location();
        }
        self.pin = Some(pin);
        Ok(())
    }
}

pub(super) struct ServerSimulation<'a> {
    rng: Rng,
    now: TrueTime,
    ledger: Ledger,
    properties: ClientProperties,
    clients: Vec<Client>,
    next: RequestNumber,
    /// Leases whose grant was delivered.
    delivered: BTreeSet<LeaseId>,
    /// In transit to a server, with their times of arrival.
    transit: Vec<(TrueTime, ClientRequest)>,
    /// Submitted to the server, without a response so far.
    pending: BTreeMap<RequestNumber, ClientRequest>,
    storage: Storage,
    server: Option<Server>,
    /// Servers paused while another took over their log.
    paused: Vec<Server>,
    machine: Machine,
    boots: u128,
    writers: u128,
    stats: ServerStats,
    trace_line: &'a mut dyn FnMut(String),
}

/// The storage of the simulation, which outlives servers.
enum Storage {
    Disk(SimFs),
    Objects(SimObjects),
}

const CLIENTS: usize = 5;
/// Maximum time of a response beyond the requested wait, in milliseconds.
const SLACK: u64 = 60_000;

impl<'a> ServerSimulation<'a> {
    pub(super) fn new(seed: u64, trace: &'a mut dyn FnMut(String)) -> ServerSimulation<'a> {
        let mut rng = Rng::new(seed);
        let storage = if seed.is_multiple_of(3) {
            let faults = NetworkFaults { fault_percent: rng.below(12), delay_max: 1 + rng.below(60) };
            Storage::Objects(SimObjects::new(rng.number(), faults))
        } else {
            Storage::Disk(SimFs::new(FaultPlan { crash_at: Some(200 + rng.below(4000)), fail_at: None }))
        };
        ServerSimulation {
            machine: Machine::new(TrueTime(0), 1, drift(&mut rng)),
            rng,
            now: TrueTime(0),
            ledger: Ledger::default(),
            properties: ClientProperties::new(&LIMITS),
            clients: (0..CLIENTS).map(Client::new).collect(),
            next: 1,
            delivered: BTreeSet::new(),
            transit: Vec::new(),
            pending: BTreeMap::new(),
            storage,
            server: None,
            paused: Vec::new(),
            boots: 1,
            writers: 0,
            stats: ServerStats::default(),
            trace_line: trace,
        }
    }

    pub(super) fn run(&mut self, until: TrueTime) -> Result<(), String> {
        while self.now < until {
            self.pass_time();
            self.clients_act();
            match self.server_acts() {
                Ok(()) => {}
                Err(ServerError::Violation(what)) => return Err(what),
                Err(ServerError::Store(error)) => self.server_ended(&error.to_string()),
            }
            self.resume_paused()?;
            self.ledger.prune(self.now);
            self.properties.prune(self.now);
        }
        Ok(())
    }

    pub(super) fn now(&self) -> TrueTime {
        self.now
    }

    pub(super) fn stats(&self) -> ServerStats {
        self.stats
    }

    fn pass_time(&mut self) {
        let ms = match self.rng.below(100) {
            0 => self.rng.below(20_000),
            1..20 => self.rng.below(1000),
            _ => self.rng.below(60),
        };
        self.now.0 += ms;
        self.machine.set(self.now);
        for server in &self.paused {
            server.machine.set(self.now);
        }
        if self.rng.one_in(200) {
            // By up to 25,000 hours, nearly three years.
            let hours = self.rng.below(100_000).cast_signed();
            self.machine.jump(hours * 3_600_000_000 / 4);
        }
        if let Storage::Disk(fs) = &self.storage
            && self.rng.one_in(40)
        {
            let code = Some(*self.rng.pick(&[28, 24, 122])).filter(|_| self.rng.one_in(3));
            fs.set_errors(PersistentErrors { opening: None, growing: code });
        }
    }

    fn clients_act(&mut self) {
        for _ in 0..self.rng.below(4) {
            let client = usize::from(self.rng.small(u8::try_from(CLIENTS).expect("few")));
            let now = self.server.as_ref().map(|server| server.shard.now()).unwrap_or_default();
            self.next += 1;
            let (command, content) = self.clients[client].next(&mut self.rng, now, self.next);
            let copies = if self.rng.one_in(12) { 2 } else { 1 };
            for _ in 0..copies {
                self.send(client, command.clone(), content);
            }
        }
        // A waiting client disconnects.
        if self.rng.one_in(6) {
            let waiting: Vec<&ClientRequest> =
                self.pending.values().filter(|request| request.wait.is_some()).collect();
            if !waiting.is_empty()
                && let Some(wait) = &self.rng.pick(&waiting).wait
            {
                wait.connection.close();
            }
        }
    }

    fn send(&mut self, client: usize, command: Command, content: Option<Content>) {
        let delay = match self.rng.below(20) {
            0 => return,
            1 => self.rng.below(30_000),
            2..5 => self.rng.below(500),
            _ => 0,
        };
        let waits = lease_request_of(&command).is_some() && self.rng.one_in(2);
        let most = 1 + self.rng.below(8000);
        let wait = waits.then(|| Wait { timeout: Span(most), connection: WaiterConnection::default() });
        let (arrives, at) = (TrueTime(self.now.0 + delay), self.now);
        let respond_by = TrueTime(arrives.0 + most + SLACK);
        self.transit
            .push((arrives, ClientRequest { client, command, at, wait, content, pin: None, respond_by }));
    }

    fn server_acts(&mut self) -> Result<(), ServerError> {
        let Some(mut server) = self.server.take() else { return self.restart() };
        let done = self.turn(&mut server).and_then(|()| self.maintain(&mut server));
        // A killed process loses no writes; another server takes its place.
        let killed = self.rng.one_in(400);
        let replaced = matches!(self.storage, Storage::Objects(_)) && self.rng.one_in(150);
        if done.is_ok() && replaced {
            self.trace("paused");
            self.paused.push(server);
            self.drop_pending();
        } else if done.is_ok() && killed {
            self.server_ended("killed");
        } else if done.is_ok() {
            self.server = Some(server);
        }
        done
    }

    fn turn(&mut self, server: &mut Server) -> Result<(), ServerError> {
        let submissions = self.arrivals(server)?;
        let known: Vec<_> = ["KEY:a", "KEY:b"].map(|key| (key, self.ledger.version(key))).into();
        let turn = server.turn(submissions, &mut self.ledger)?;
        self.stats.batches += 1;
        for (key, version) in known {
            let name = kernel::ResourceName::parse(key, None).expect("a valid name");
            let found = server.shard.kernel().key(&namespace(), &name).map(|view| view.version);
            // A key without a row has no version to compare.
            if let Some(found) = found {
                self.ledger.check_read(key, Some(found), version).map_err(ServerError::Violation)?;
            }
        }
        self.publish(server, turn)?;
        kernel::invariants::check(server.shard.kernel()).map_err(ServerError::Violation)?;
        super::cycles::check(&server.shard).map_err(ServerError::Violation)?;
        self.check_response_deadlines()
    }

    /// The requests that have arrived by now.
    fn arrivals(&mut self, server: &Server) -> Result<Vec<Submission<RequestNumber>>, ServerError> {
        let mut arrived = Vec::new();
        let (now, mut left) = (self.now, Vec::new());
        for (at, request) in std::mem::take(&mut self.transit) {
            if at <= now && arrived.len() < 8 { arrived.push(request) } else { left.push((at, request)) }
        }
        self.transit = left;
        let mut submissions = Vec::new();
        for mut request in arrived {
            self.next += 1;
            let mut document = None;
            if let Some(content) = request.content.filter(|_| request.pin.is_none()) {
                if content.length > 300 {
                    match request.upload(server, content) {
                        Err(ServerError::Store(error)) if error.kind == ErrorKind::NoSpace => continue,
                        other => other?,
                    }
                    if self.rng.one_in(3) {
                        // A pause between the upload and the commit.
                        self.transit.push((TrueTime(now.0 + self.rng.below(5000)), request));
                        continue;
                    }
                } else {
                    document = Some(content.bytes());
                }
            }
            self.ledger.request_arrived(&request.command);
            let waits = request.wait.as_ref().map(|wait| wait.connection.clone());
            self.properties.arrived(self.next, &request.command, waits, now);
            let (command, wait) = (request.command.clone(), request.wait.clone());
            submissions.push(Submission {
                command,
                correlation: u128::from(self.next),
                document,
                wait,
                on_decided: None,
                to: self.next,
            });
            self.pending.insert(self.next, request);
        }
        Ok(submissions)
    }

    fn publish(&mut self, server: &mut Server, turn: TurnOutput<RequestNumber>) -> Result<(), ServerError> {
        let decided = DecisionTime { at: self.now, now: server.shard.now() };
        for (number, reply, lease) in turn.replies {
            let Some(request) = self.pending.remove(&number) else { continue };
            (self.trace_line)(format!("{} {number} {reply:?}", self.now.0));
            self.stats.responses += 1;
            let gone = request.wait.as_ref().is_some_and(|wait| wait.connection.is_closed());
            let lost = gone || self.rng.one_in(15);
            if let Ok(decision) = &reply {
                self.ledger
                    .response_sent(&request.command, decision, request.at, decided)
                    .map_err(ServerError::Violation)?;
                self.count(decision);
            }
            if let Some(lease) = lease {
                self.deliver(server, lease, !lost)?;
            }
            let written = ResponseTime { at: decided.at, now: decided.now };
            self.properties.responded(number, &reply, !lost, written).map_err(ServerError::Violation)?;
            if !lost {
                self.receive(&request, &reply);
            }
        }
        self.properties.check_order().map_err(ServerError::Violation)
    }

    fn deliver(&mut self, server: &mut Server, lease: LeaseId, delivered: bool) -> Result<(), ServerError> {
        if delivered {
            self.delivered.insert(lease);
            server.shard.delivered(lease, true);
            return Ok(());
        }
        self.stats.undelivered += 1;
        let known = self.delivered.contains(&lease);
        if !known {
            self.ledger.undelivered(lease);
        }
        let was_live = is_live(server, lease);
        server.shard.delivered(lease, false);
        let is_live = is_live(server, lease);
        if was_live && !is_live && known {
            return Err(ServerError::Violation(format!("a delivered grant was retracted: {lease:?}")));
        }
        let may_stay = known || server.shard.is_delivering(lease) || !server.shard.has_space();
        if is_live && !may_stay && !self.pending.values().any(|request| uses(&request.command, lease)) {
            return Err(ServerError::Violation(format!("an undelivered grant was not retracted: {lease:?}")));
        }
        Ok(())
    }

    fn receive(&mut self, request: &ClientRequest, reply: &Reply) {
        let client = &mut self.clients[request.client];
        match reply {
            Err(
                Unavailable::Busy
                | Unavailable::NoSpace
                | Unavailable::TooOften
                | Unavailable::Replaced
                | Unavailable::Stopped
                | Unavailable::Deposed,
            ) => {
                return;
            }
            Ok(Decision::Outcome(
                Outcome::Applied(Response::Granted(granted), _)
                | Outcome::Unchanged(Response::Granted(granted)),
            )) => client.granted(granted, lease_request_of(&request.command).map(|grant| &grant.bundle)),
            Ok(Decision::Outcome(Outcome::Applied(Response::Released, _))) => {
                if let Action::Release(held) = &request.command.action {
                    client.released(held.lease);
                }
            }
            Ok(Decision::Blocked(blocked)) if blocked.advice == Advice::Die => {
                client.died(lease_request_of(&request.command).and_then(|grant| grant.attempt));
            }
            Ok(_) => {}
        }
        client.responded(&request.command);
    }

    fn count(&mut self, decision: &Decision) {
        match decision {
            Decision::Outcome(Outcome::Applied(Response::Granted(_), _)) => self.stats.grants += 1,
            Decision::Outcome(Outcome::Applied(Response::Committed(_), _)) => self.stats.commits += 1,
            Decision::Blocked(blocked) if blocked.advice != Advice::Wait => {
                self.stats.deadlock_rejections += 1;
            }
            _ => {}
        }
    }

    fn check_response_deadlines(&self) -> Result<(), ServerError> {
        match self.pending.iter().find(|(_, request)| request.respond_by < self.now && !is_gone(request)) {
            Some((number, request)) => Err(ServerError::Violation(format!(
                "request {number} has no response, sent at {:?}: {:?}",
                request.at, request.command
            ))),
            None => Ok(()),
        }
    }

    fn maintain(&mut self, server: &mut Server) -> Result<(), ServerError> {
        if self.rng.one_in(60) {
            let retain = self.rng.below(60_000);
            let mut turns = Vec::new();
            match server.checkpoint(&mut self.ledger, retain, &mut turns) {
                Ok(moved) => {
                    self.stats.snapshots += 1;
                    self.stats.relocations += moved as u64;
                }
                // A later checkpoint will succeed.
                Err(ServerError::Store(error)) if error.kind == ErrorKind::NoSpace => {}
                Err(error) => return Err(error),
            }
            turns.into_iter().try_for_each(|turn| self.publish(server, turn))?;
        }
        if self.rng.one_in(100) {
            server.sweep()?;
        }
        if self.rng.one_in(50) {
            server.check_documents()?;
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), ServerError> {
        if self.rng.one_in(3) {
            return Ok(());
        }
        self.writers += 1;
        let backend = match &mut self.storage {
            Storage::Disk(fs) => {
                // After a power failure unsynced writes may be lost; after the end of the process alone they are not.
                if fs.is_powered_off() || self.rng.one_in(2) {
                    let crash_at = Some(100 + self.rng.below(5000));
                    *fs = fs.after_crash(&mut self.rng, FaultPlan { crash_at, fail_at: None });
                    if self.rng.one_in(2) {
                        self.boots += 1;
                        self.machine.reboot(self.boots, up_ms(&mut self.rng));
                    }
                }
                Backend::Disk(fs.clone())
            }
            Storage::Objects(objects) => {
                self.boots += 1;
                self.machine = Machine::new(self.now, self.boots, drift(&mut self.rng));
                self.machine.reboot(self.boots, up_ms(&mut self.rng));
                Backend::Objects(objects.handle(), WriterId(self.writers))
            }
        };
        // Servers do not start with a clock in the future. It may be behind the one of the last tenure.
        let days = self.rng.below(60).cast_signed();
        self.machine.jump(if self.rng.one_in(2) { -days * 86_400_000_000 } else { 0 });
        let server = Server::start(&backend, &self.machine, self.writers, &mut self.ledger)?;
        self.trace("starts");
        self.server = Some(server);
        Ok(())
    }

    /// Resumes a server whose log was taken over while it was paused. It must not be able to send a response.
    fn resume_paused(&mut self) -> Result<(), String> {
        if self.paused.is_empty() || !self.rng.one_in(10) || self.server.is_none() {
            return Ok(());
        }
        let mut server = self.paused.remove(0);
        let commands: Vec<Command> =
            self.transit.iter().take(2).map(|(_, request)| request.command.clone()).collect();
        let submissions = commands.into_iter().map(|command| Submission {
            command,
            correlation: 0,
            document: None,
            wait: None,
            on_decided: None,
            to: RequestNumber::MAX,
        });
        match server.turn(submissions.collect(), &mut Ledger::default()) {
            Ok(_) => Err("a deposed server decided a batch".into()),
            Err(ServerError::Violation(what)) => Err(what),
            Err(ServerError::Store(error)) => {
                self.trace(&format!("deposed: {error}"));
                Ok(())
            }
        }
    }

    fn server_ended(&mut self, how: &str) {
        self.trace(&format!("ends: {how}"));
        self.stats.crashes += 1;
        self.drop_pending();
    }

    /// Pending requests get no response, and uploads without a commit are lost with their pins.
    fn drop_pending(&mut self) {
        self.pending.clear();
        self.properties.disconnected();
        self.transit.retain(|(_, request)| request.pin.is_none());
    }

    fn trace(&mut self, what: &str) {
        (self.trace_line)(format!("{} {what}", self.now.0));
    }
}

fn is_live(server: &Server, lease: LeaseId) -> bool {
    let state = server.shard.kernel().lease(lease, server.shard.now()).map(|view| view.state);
    matches!(state, Ok(State::Active | State::Reserved))
}

fn is_gone(request: &ClientRequest) -> bool {
    request.wait.as_ref().is_some_and(|wait| wait.connection.is_closed())
}

fn uses(command: &Command, lease: LeaseId) -> bool {
    match &command.action {
        Action::Renew(renewals) => renewals.iter().any(|renewal| renewal.held.lease == lease),
        Action::Touch(held) | Action::Activate(held) => held.lease == lease,
        _ => false,
    }
}

/// The uptime of a machine that takes a log over, in milliseconds: mostly it has just booted.
fn up_ms(rng: &mut Rng) -> u64 {
    if rng.one_in(3) { rng.below(1_000_000) } else { rng.below(100) }
}

fn drift(rng: &mut Rng) -> i64 {
    rng.below(2 * Machine::DRIFT_MAX.unsigned_abs()).cast_signed() - Machine::DRIFT_MAX
}
