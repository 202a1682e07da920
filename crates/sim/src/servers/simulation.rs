//! The simulation: time, a network, clients and servers, one step at a time.
//!
//! In each step some requests reach the server, and it runs some of its jobs, both in random order: an append stays in
//! flight while later requests are decided, and a crash may come at any moment between two jobs or within an append.

mod maintenance;
mod responses;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::document::{DocumentLocation, Pin};
use engine::internals::waiting::lease_request_of;
use engine::waiters::{Wait, WaiterConnection};
use kernel::{Action, Age, Command, LeaseId, Span};
use store::ErrorKind;
use store::object::WriterId;

use super::ServerStats;
use super::client::{Client, Content, PresentedAttempt};
use super::clock::{Machine, TrueTime};
use super::ledger::Ledger;
use super::server::{Backend, LIMITS, RequestNumber, Server, ServerError, ServerRequest, WorldSize};
use crate::disk::{FaultPlan, PersistentErrors, SimFs};
use crate::objects::{NetworkFaults, SimHandle, SimObjects};
use crate::properties::ClientProperties;
use crate::rng::Rng;

use self::maintenance::Relocations;
use self::responses::WrittenResponse;

/// A request that a client has sent.
struct ClientRequest {
    client: usize,
    command: Command,
    at: TrueTime,
    wait: Option<Wait>,
    presented: Option<PresentedAttempt>,
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
    /// Leases whose grant was lost, to be retracted.
    retracting: BTreeSet<LeaseId>,
    /// Responses on their way to a client, with their times of arrival.
    responses: Vec<(TrueTime, WrittenResponse)>,
    /// In transit to a server, with their times of arrival.
    transit: Vec<(TrueTime, ClientRequest)>,
    /// Submitted to the server, without a response so far.
    pending: BTreeMap<RequestNumber, ClientRequest>,
    storage: Storage,
    size: WorldSize,
    server: Option<Server>,
    relocations: Option<Relocations>,
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
    /// With the connection of the server that was started last.
    Objects(SimObjects, SimHandle),
}

const CLIENTS: usize = 5;
/// Maximum time of a response beyond the requested wait, in milliseconds.
const SLACK: u64 = 60_000;
/// The delays of most requests are shorter than this, in milliseconds.
const SHORT_DELAY_MS: u64 = 500;

impl<'a> ServerSimulation<'a> {
    pub(super) fn new(seed: u64, trace: &'a mut dyn FnMut(String)) -> ServerSimulation<'a> {
        let mut rng = Rng::new(seed);
        let storage = if seed.is_multiple_of(3) {
            let faults = NetworkFaults {
                fault_percent: rng.below(12),
                delay_max: 1 + rng.below(60),
                ..NetworkFaults::default()
            };
            let objects = SimObjects::new(rng.number(), faults);
            let handle = objects.handle();
            Storage::Objects(objects, handle)
        } else {
            Storage::Disk(SimFs::new(FaultPlan { crash_at: Some(200 + rng.below(4000)), fail_at: None }))
        };
        // With few tries, the outcome of an append is often unknown.
        let tries = 2 + u32::from(rng.small(5));
        let size = WorldSize { tries, ..WorldSize::SMALL };
        ServerSimulation {
            machine: Machine::new(TrueTime(0), 1, drift(&mut rng)),
            rng,
            now: TrueTime(0),
            ledger: Ledger::default(),
            properties: ClientProperties::new(&LIMITS),
            clients: (0..CLIENTS).map(Client::new).collect(),
            next: 1,
            delivered: BTreeSet::new(),
            retracting: BTreeSet::new(),
            responses: Vec::new(),
            transit: Vec::new(),
            pending: BTreeMap::new(),
            storage,
            size,
            server: None,
            relocations: None,
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
        if let Storage::Objects(_, handle) = &self.storage
            && self.rng.one_in(40)
        {
            handle.set_partitioned(self.rng.one_in(3));
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
            let now = self.server.as_ref().map(Server::now).unwrap_or_default();
            self.next += 1;
            let (command, content, mut presented) =
                self.clients[client].next(&mut self.rng, (now, self.now), self.next);
            let copies = if self.rng.one_in(12) { 2 } else { 1 };
            if let Some(presented) = presented.as_mut().filter(|_| copies > 1) {
                presented.is_certain = false;
                self.clients[client].distrust();
            }
            for _ in 0..copies {
                self.send(client, command.clone(), content, presented);
            }
        }
        // A waiting client disconnects.
        if self.rng.one_in(6) {
            let waiting: Vec<&ClientRequest> =
                self.pending.values().filter(|request| request.wait.is_some()).collect();
            if !waiting.is_empty()
                && let Some(wait) = &self.rng.pick(&waiting).wait
            {
                let connection = wait.connection.clone();
                connection.close();
                // The server notices it, or does not.
                if let Some(server) = self.server.as_ref().filter(|_| self.rng.one_in(2)) {
                    server.disconnect(connection);
                }
            }
        }
    }

    fn send(
        &mut self,
        client: usize,
        command: Command,
        content: Option<Content>,
        presented: Option<PresentedAttempt>,
    ) {
        let delay = match self.rng.below(20) {
            0 => return,
            1 => self.rng.below(30_000),
            2..5 => self.rng.below(SHORT_DELAY_MS),
            _ => 0,
        };
        let waits = lease_request_of(&command).is_some() && self.rng.one_in(2);
        let most = 1 + self.rng.below(8000);
        let wait = waits.then(|| Wait { timeout: Span(most), connection: WaiterConnection::default() });
        let (arrives, at) = (TrueTime(self.now.0 + delay), self.now);
        self.transit.push((
            arrives,
            ClientRequest { client, command, at, wait, presented, content, pin: None, respond_by: at },
        ));
    }

    fn server_acts(&mut self) -> Result<(), ServerError> {
        let Some(mut server) = self.server.take() else { return self.restart() };
        let done = self.serve(&mut server).and_then(|()| self.maintain(&mut server));
        match done {
            Ok(()) => self.end_of_step(server),
            Err(error) => {
                if matches!(&error, ServerError::Store(error) if error.kind == ErrorKind::Taken) {
                    self.stats.deposed += 1;
                }
                Err(error)
            }
        }
    }

    /// The server goes on, or is paused, stopped, or killed.
    fn end_of_step(&mut self, mut server: Server) -> Result<(), ServerError> {
        // A killed process loses no writes; another server takes its place.
        let killed = self.rng.one_in(400);
        let replaced = matches!(self.storage, Storage::Objects(..)) && self.rng.one_in(150);
        if replaced && server.is_open() {
            self.trace("paused");
            self.paused.push(server);
            self.drop_pending();
        } else if killed && self.rng.one_in(4) {
            self.stop(&mut server)?;
        } else if killed && server.is_quiet() && self.rng.one_in(4) {
            server.panic_in_turn().map_err(ServerError::Violation)?;
            self.stats.panics += 1;
            self.server_ended("panicked");
        } else if killed {
            self.server_ended("killed");
        } else {
            self.server = Some(server);
        }
        Ok(())
    }

    /// Requests reach the server, and it runs some of its jobs.
    fn serve(&mut self, server: &mut Server) -> Result<(), ServerError> {
        self.deliver_responses(server);
        self.arrivals(server)?;
        if self.rng.one_in(4) {
            let known = ["KEY:a", "KEY:b"].map(|key| (key, self.ledger.version(key)));
            // Refused only by a sequencer that has ended, which is noticed below.
            let _ = server.read_versions(known.into());
        }
        let jobs = if self.rng.one_in(3) { u64::MAX } else { self.rng.below(4) };
        self.run_jobs(server, jobs)?;
        let is_large = server.inspect(|shard| shard.load().0) > WorldSize::SMALL_BATCH;
        if is_large {
            self.run_jobs(server, u64::MAX)?;
        }
        let checked = server.inspect(|shard| {
            kernel::invariants::check(shard.kernel()).and_then(|()| super::cycles::check(shard))
        });
        checked.map_err(ServerError::Violation)?;
        self.check_at_rest(server)?;
        server.show_state(&mut self.ledger);
        self.check_response_deadlines(server)
    }

    /// Runs at most `jobs` jobs, and publishes what they write.
    fn run_jobs(&mut self, server: &mut Server, jobs: u64) -> Result<(), ServerError> {
        let mut left = jobs;
        let mut runs = true;
        while runs && left > 0 {
            let step = server.step(&mut self.rng, &mut self.ledger);
            // Responses written before the end are in flight.
            self.publish(server)?;
            runs = step?;
            left -= 1;
            let health = server.health();
            self.stats.undecided += u64::from(health.is_undecided);
            if !server.inspect(engine::internals::shard::Shard::has_space) {
                // Without space for it no grant is retracted.
                self.stats.out_of_space += 1;
                self.retracting.clear();
            }
        }
        Ok(())
    }

    /// Submits the requests that have arrived by now.
    fn arrivals(&mut self, server: &mut Server) -> Result<(), ServerError> {
        let mut arrived = Vec::new();
        let (now, mut left) = (self.now, Vec::new());
        for (at, request) in std::mem::take(&mut self.transit) {
            if at <= now && arrived.len() < 8 { arrived.push(request) } else { left.push((at, request)) }
        }
        self.transit = left;
        // They arrive one by one, or while a job appends.
        let mut during_append = self.rng.one_in(3).then(Vec::new);
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
            let request = self.arrived(request, document);
            match &mut during_append {
                Some(requests) => requests.push(request),
                None => self.submit(server, request)?,
            }
        }
        let Some(requests) = during_append else { return Ok(()) };
        server.submit_during_append(requests, 0);
        let jobs = self.rng.below(4);
        self.run_jobs(server, jobs)?;
        let flushed = server.flush_arrivals(&mut self.ledger);
        self.publish(server)?;
        flushed
    }

    /// Takes note of a request that reaches the server.
    fn arrived(&mut self, mut request: ClientRequest, document: Option<Vec<u8>>) -> ServerRequest {
        let wait = request.wait.as_ref().map_or(0, |wait| wait.timeout.0);
        request.respond_by = TrueTime(self.now.0 + wait + SLACK);
        if let Action::Acquire(wanted) | Action::Reserve(wanted) = &mut request.command.action {
            // As the server does: the age of each request is unique.
            wanted.attempt = wanted.attempt.map(|age| Age { tie: self.next, ..age });
        }
        self.ledger.request_arrived(&request.command);
        let waits = request.wait.as_ref().map(|wait| wait.connection.clone());
        self.properties.arrived(self.next, &request.command, waits, self.now);
        // One that does not count gives no place.
        if let Some(presented) = request.presented.filter(|presented| !presented.is_void) {
            // It was certain when the request was sent. On a long way the token may lapse, or another try use it.
            let is_prompt = self.now.0 - request.at.0 < SHORT_DELAY_MS;
            self.properties.presented(self.next, presented.first, presented.is_certain && is_prompt);
        }
        let (command, wait) = (request.command.clone(), request.wait.clone());
        let attempt = request.presented.map(|presented| presented.attempt);
        self.pending.insert(self.next, request);
        ServerRequest { number: self.next, command, document, wait, attempt }
    }

    fn submit(&mut self, server: &mut Server, request: ServerRequest) -> Result<(), ServerError> {
        let lsn = server.inspect(|shard| shard.kernel().last_lsn());
        let in_flight = lsn > server.durable();
        let result = server.submit(request, &mut self.ledger);
        self.publish(server)?;
        result?;
        let decided = server.inspect(|shard| shard.kernel().last_lsn()) > lsn;
        self.stats.pipelined += u64::from(in_flight && decided);
        if self.rng.one_in(4) {
            self.run_jobs(server, 1)?;
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), ServerError> {
        if self.rng.one_in(3) {
            return Ok(());
        }
        self.writers += 1;
        self.clients.iter_mut().for_each(Client::server_started);
        for (_, request) in &mut self.transit {
            request.presented =
                request.presented.map(|presented| PresentedAttempt { is_void: false, ..presented });
        }
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
            Storage::Objects(objects, handle) => {
                self.boots += 1;
                self.machine = Machine::new(self.now, self.boots, drift(&mut self.rng));
                self.machine.reboot(self.boots, up_ms(&mut self.rng));
                *handle = objects.handle();
                Backend::Objects(Arc::new(handle.clone()), WriterId(self.writers))
            }
        };
        // Servers do not start with a clock in the future. It may be behind the one of the last tenure.
        let days = self.rng.below(60).cast_signed();
        self.machine.jump(if self.rng.one_in(2) { -days * 86_400_000_000 } else { 0 });
        let server = Server::start(&self.size, &backend, &self.machine, self.writers, &mut self.ledger)?;
        self.trace("starts");
        self.server = Some(server);
        Ok(())
    }

    fn server_ended(&mut self, how: &str) {
        self.trace(&format!("ends: {how}"));
        self.stats.crashes += 1;
        self.drop_pending();
    }

    /// Pending requests get no response, and uploads without a commit are lost with their pins.
    fn drop_pending(&mut self) {
        self.pending.clear();
        self.retracting.clear();
        self.relocations = None;
        self.properties.disconnected();
        self.transit.retain(|(_, request)| request.pin.is_none());
    }

    fn trace(&mut self, what: &str) {
        (self.trace_line)(format!("{} {what}", self.now.0));
    }
}

fn is_gone(request: &ClientRequest) -> bool {
    request.wait.as_ref().is_some_and(|wait| wait.connection.is_closed())
}

/// The uptime of a machine that takes a log over, in milliseconds: mostly it has just booted.
fn up_ms(rng: &mut Rng) -> u64 {
    if rng.one_in(3) { rng.below(1_000_000) } else { rng.below(100) }
}

fn drift(rng: &mut Rng) -> i64 {
    rng.below(2 * Machine::DRIFT_MAX.unsigned_abs()).cast_signed() - Machine::DRIFT_MAX
}
