//! The world: time, a network, clients and servers, one step after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::decider::{Advice, Said};
use engine::documents::Place;
use engine::shard::{Reply, Submission, Turn, Unavailable, Wait};
use engine::uploads::Pin;
use engine::waiters::grant_of;
use kernel::{Action, Answer, Command, LeaseId, Outcome, Span, State};
use store::ErrorKind;
use store::object::WriterId;

use super::Tally;
use super::client::{Client, Content, namespace};
use super::clock::{Machine, True};
use super::ledger::{Ledger, Moment};
use super::server::{End, Number, Server, Site};
use crate::disk::{Fate, Refusal, SimFs};
use crate::objects::{SimObjects, Weather};
use crate::rng::Rng;

/// A command that somebody has sent.
struct Sent {
    client: usize,
    command: Command,
    at: True,
    wait: Option<Wait>,
    content: Option<Content>,
    /// Kept until its answer is known.
    pin: Option<Pin>,
    /// It has to be answered by then, if its server lives.
    by: True,
}

impl Sent {
    /// Puts a long document where the commit can name it.
    fn upload(&mut self, server: &Server, content: Content) -> Result<(), End> {
        let pin = server.upload(&content.bytes())?;
        if let Action::Commit(commit) = &mut self.command.action {
            commit.location = Place::Blob(pin.blob()).location();
        }
        self.pin = Some(pin);
        Ok(())
    }
}

pub(super) struct World<'a> {
    rng: Rng,
    now: True,
    ledger: Ledger,
    clients: Vec<Client>,
    next: Number,
    /// Leases whose holders know of them.
    reached: BTreeSet<LeaseId>,
    /// On the way to a server, by when they arrive.
    transit: Vec<(True, Sent)>,
    /// With the server.
    pending: BTreeMap<Number, Sent>,
    site: Ground,
    server: Option<Server>,
    /// Deposed, or about to find out that they are.
    sleepers: Vec<Server>,
    machine: Machine,
    boots: u128,
    writers: u128,
    tally: Tally,
    trace: &'a mut dyn FnMut(String),
}

/// What there is to keep things on.
enum Ground {
    Disk(SimFs),
    Objects(SimObjects),
}

const CLIENTS: usize = 5;
/// How long an answer may take beyond the wait that was asked for.
const SLACK: u64 = 60_000;

impl<'a> World<'a> {
    pub(super) fn new(seed: u64, trace: &'a mut dyn FnMut(String)) -> World<'a> {
        let mut rng = Rng::new(seed);
        let site = if seed.is_multiple_of(3) {
            let weather = Weather { trouble: rng.below(12), late_max: 1 + rng.below(60) };
            Ground::Objects(SimObjects::new(rng.number(), weather))
        } else {
            Ground::Disk(SimFs::new(Fate { crash_at: Some(200 + rng.below(4000)), fail_at: None }))
        };
        World {
            machine: Machine::new(True(0), 1, drift(&mut rng)),
            rng,
            now: True(0),
            ledger: Ledger::default(),
            clients: (0..CLIENTS).map(Client::new).collect(),
            next: 1,
            reached: BTreeSet::new(),
            transit: Vec::new(),
            pending: BTreeMap::new(),
            site,
            server: None,
            sleepers: Vec::new(),
            boots: 1,
            writers: 0,
            tally: Tally::default(),
            trace,
        }
    }

    pub(super) fn live(&mut self, until: True) -> Result<(), String> {
        while self.now < until {
            self.pass_time();
            self.clients_act();
            match self.server_acts() {
                Ok(()) => {}
                Err(End::Wrong(what)) => return Err(what),
                Err(End::Died(error)) => self.server_dies(&error.to_string()),
            }
            self.wake_sleepers()?;
            self.ledger.tidy(self.now);
        }
        Ok(())
    }

    pub(super) fn now(&self) -> True {
        self.now
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    fn pass_time(&mut self) {
        let ms = match self.rng.below(100) {
            0 => self.rng.below(20_000),
            1..20 => self.rng.below(1000),
            _ => self.rng.below(60),
        };
        self.now.0 += ms;
        self.machine.set(self.now);
        for sleeper in &self.sleepers {
            sleeper.machine.set(self.now);
        }
        if self.rng.one_in(200) {
            // By hours, or to 2038 and back.
            let hours = self.rng.below(100_000).cast_signed();
            self.machine.jump(hours * 3_600_000_000 / 4);
        }
        if let Ground::Disk(fs) = &self.site
            && self.rng.one_in(40)
        {
            let code = Some(*self.rng.pick(&[28, 24, 122])).filter(|_| self.rng.one_in(3));
            fs.refuse(Refusal { opening: None, growing: code });
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
        // Somebody loses patience.
        if self.rng.one_in(6) {
            let waiting: Vec<&Sent> = self.pending.values().filter(|sent| sent.wait.is_some()).collect();
            if !waiting.is_empty()
                && let Some(wait) = &self.rng.pick(&waiting).wait
            {
                wait.gone.store(true, Ordering::Release);
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
        let waits = grant_of(&command).is_some() && self.rng.one_in(2);
        let most = 1 + self.rng.below(8000);
        let wait = waits.then(|| Wait { most: Span(most), gone: Arc::new(AtomicBool::new(false)) });
        let (arrives, at) = (True(self.now.0 + delay), self.now);
        let by = True(arrives.0 + most + SLACK);
        self.transit.push((arrives, Sent { client, command, at, wait, content, pin: None, by }));
    }

    fn server_acts(&mut self) -> Result<(), End> {
        let Some(mut server) = self.server.take() else { return self.restart() };
        let done = self.turn(&mut server).and_then(|()| self.upkeep(&mut server));
        // A process that is killed leaves the disk as it is; another takes its place.
        let killed = self.rng.one_in(400);
        let replaced = matches!(self.site, Ground::Objects(_)) && self.rng.one_in(150);
        if done.is_ok() && replaced {
            self.say("falls asleep");
            self.sleepers.push(server);
            self.forget_pending();
        } else if done.is_ok() && killed {
            self.server_dies("killed");
        } else if done.is_ok() {
            self.server = Some(server);
        }
        done
    }

    fn turn(&mut self, server: &mut Server) -> Result<(), End> {
        let submissions = self.deliveries(server)?;
        let known: Vec<_> = ["KEY:a", "KEY:b"].map(|key| (key, self.ledger.version(key))).into();
        let turn = server.turn(submissions, &mut self.ledger)?;
        self.tally.turns += 1;
        for (key, version) in known {
            let name = kernel::ResourceName::parse(key, None).expect("a valid name");
            let found = server.shard.kernel().key(&namespace(), &name).map(|view| view.version);
            // A key of which nothing is known has no version, and cannot have been told one that counts.
            if let Some(found) = found {
                self.ledger.read(key, Some(found), version).map_err(End::Wrong)?;
            }
        }
        self.publish(server, turn)?;
        kernel::invariants::check(server.shard.kernel()).map_err(End::Wrong)?;
        super::rings::check(&server.shard).map_err(End::Wrong)?;
        self.nobody_waits_for_ever()
    }

    /// What has arrived by now.
    fn deliveries(&mut self, server: &Server) -> Result<Vec<Submission<Number>>, End> {
        let mut arrived = Vec::new();
        let (now, mut left) = (self.now, Vec::new());
        for (at, sent) in std::mem::take(&mut self.transit) {
            if at <= now && arrived.len() < 8 { arrived.push(sent) } else { left.push((at, sent)) }
        }
        self.transit = left;
        let mut submissions = Vec::new();
        for mut sent in arrived {
            self.next += 1;
            let mut document = None;
            if let Some(content) = sent.content.filter(|_| sent.pin.is_none()) {
                if content.length > 300 {
                    match sent.upload(server, content) {
                        Err(End::Died(error)) if error.kind == ErrorKind::NoSpace => continue,
                        other => other?,
                    }
                    if self.rng.one_in(3) {
                        // It takes its time between the upload and the commit.
                        self.transit.push((True(now.0 + self.rng.below(5000)), sent));
                        continue;
                    }
                } else {
                    document = Some(content.bytes());
                }
            }
            self.ledger.arrived(&sent.command);
            let (command, wait) = (sent.command.clone(), sent.wait.clone());
            submissions.push(Submission {
                command,
                correlation: u128::from(self.next),
                document,
                wait,
                peek: None,
                to: self.next,
            });
            self.pending.insert(self.next, sent);
        }
        Ok(submissions)
    }

    fn publish(&mut self, server: &mut Server, turn: Turn<Number>) -> Result<(), End> {
        let moment = Moment { at: self.now, now: server.shard.now() };
        for (number, reply, lease) in turn.replies {
            let Some(sent) = self.pending.remove(&number) else { continue };
            (self.trace)(format!("{} {number} {reply:?}", self.now.0));
            self.tally.answers += 1;
            let gone = sent.wait.as_ref().is_some_and(|wait| wait.gone.load(Ordering::Acquire));
            let lost = gone || self.rng.one_in(15);
            if let Ok(said) = &reply {
                self.ledger.told(&sent.command, said, sent.at, moment).map_err(End::Wrong)?;
                self.count(said);
            }
            if let Some(lease) = lease {
                self.hand_over(server, lease, !lost)?;
            }
            if !lost {
                self.hear(&sent, &reply);
            }
        }
        Ok(())
    }

    fn hand_over(&mut self, server: &mut Server, lease: LeaseId, reached: bool) -> Result<(), End> {
        if reached {
            self.reached.insert(lease);
            server.shard.delivered(lease, true);
            return Ok(());
        }
        self.tally.undelivered += 1;
        let known = self.reached.contains(&lease);
        if !known {
            self.ledger.undelivered(lease);
        }
        let stood = stands(server, lease);
        server.shard.delivered(lease, false);
        let stands = stands(server, lease);
        if stood && !stands && known {
            return Err(End::Wrong(format!("a grant that had reached its holder was undone: {lease:?}")));
        }
        let may = known || server.shard.is_delivering(lease) || !server.shard.has_space();
        if stands && !may && !self.pending.values().any(|sent| uses(&sent.command, lease)) {
            return Err(End::Wrong(format!("a grant that reached nobody stands: {lease:?}")));
        }
        Ok(())
    }

    fn hear(&mut self, sent: &Sent, reply: &Reply) {
        let client = &mut self.clients[sent.client];
        match reply {
            Err(
                Unavailable::Busy
                | Unavailable::NoSpace
                | Unavailable::TooOften
                | Unavailable::Replaced
                | Unavailable::Stopped,
            ) => {
                return;
            }
            Ok(Said::Outcome(
                Outcome::Applied(Answer::Granted(granted), _) | Outcome::Unchanged(Answer::Granted(granted)),
            )) => client.granted(granted, grant_of(&sent.command).map(|grant| &grant.bundle)),
            Ok(Said::Outcome(Outcome::Applied(Answer::Released, _))) => {
                if let Action::Release(held) = &sent.command.action {
                    client.gave_back(held.lease);
                }
            }
            Ok(Said::Blocked(blocked)) if blocked.advice == Advice::Die => {
                client.died(grant_of(&sent.command).and_then(|grant| grant.attempt));
            }
            Ok(_) => {}
        }
        client.heard(&sent.command);
    }

    fn count(&mut self, said: &Said) {
        match said {
            Said::Outcome(Outcome::Applied(Answer::Granted(_), _)) => self.tally.grants += 1,
            Said::Outcome(Outcome::Applied(Answer::Committed(_), _)) => self.tally.commits += 1,
            Said::Blocked(blocked) if blocked.advice != Advice::Wait => self.tally.dead_ends += 1,
            _ => {}
        }
    }

    fn nobody_waits_for_ever(&self) -> Result<(), End> {
        match self.pending.iter().find(|(_, sent)| sent.by < self.now && !is_gone(sent)) {
            Some((number, sent)) => {
                Err(End::Wrong(format!("{number} still waits, sent at {:?}: {:?}", sent.at, sent.command)))
            }
            None => Ok(()),
        }
    }

    fn upkeep(&mut self, server: &mut Server) -> Result<(), End> {
        if self.rng.one_in(60) {
            let retain = self.rng.below(60_000);
            let mut turns = Vec::new();
            match server.checkpoint(&mut self.ledger, retain, &mut turns) {
                Ok(moved) => {
                    self.tally.snapshots += 1;
                    self.tally.moves += moved as u64;
                }
                // It comes again.
                Err(End::Died(error)) if error.kind == ErrorKind::NoSpace => {}
                Err(end) => return Err(end),
            }
            turns.into_iter().try_for_each(|turn| self.publish(server, turn))?;
        }
        if self.rng.one_in(100) {
            server.sweep()?;
        }
        if self.rng.one_in(50) {
            check_documents(server)?;
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), End> {
        if self.rng.one_in(3) {
            return Ok(());
        }
        self.writers += 1;
        let site = match &mut self.site {
            Ground::Disk(fs) => {
                // The power was off, or only the process gone: then what was not synced is still there.
                if fs.is_off() || self.rng.one_in(2) {
                    let crash_at = Some(100 + self.rng.below(5000));
                    *fs = fs.after_crash(&mut self.rng, Fate { crash_at, fail_at: None });
                    if self.rng.one_in(2) {
                        self.boots += 1;
                        self.machine.reboot(self.boots, up_ms(&mut self.rng));
                    }
                }
                Site::Disk(fs.clone())
            }
            Ground::Objects(objects) => {
                self.boots += 1;
                self.machine = Machine::new(self.now, self.boots, drift(&mut self.rng));
                self.machine.reboot(self.boots, up_ms(&mut self.rng));
                Site::Objects(objects.handle(), WriterId(self.writers))
            }
        };
        // Nobody starts by a clock that cannot be right. It may be behind the one that the log was opened by last.
        let days = self.rng.below(60).cast_signed();
        self.machine.jump(if self.rng.one_in(2) { -days * 86_400_000_000 } else { 0 });
        let server = Server::start(&site, &self.machine, self.writers, &mut self.ledger)?;
        self.say("starts");
        self.server = Some(server);
        Ok(())
    }

    /// Those that were replaced while they slept go on as if nothing had happened. Whatever they do, they may tell
    /// nobody.
    fn wake_sleepers(&mut self) -> Result<(), String> {
        if self.sleepers.is_empty() || !self.rng.one_in(10) || self.server.is_none() {
            return Ok(());
        }
        let mut sleeper = self.sleepers.remove(0);
        let late: Vec<Command> = self.transit.iter().take(2).map(|(_, sent)| sent.command.clone()).collect();
        let submissions = late.into_iter().map(|command| Submission {
            command,
            correlation: 0,
            document: None,
            wait: None,
            peek: None,
            to: Number::MAX,
        });
        match sleeper.turn(submissions.collect(), &mut Ledger::default()) {
            Ok(_) => Err("a server that had been replaced went on".into()),
            Err(End::Wrong(what)) => Err(what),
            Err(End::Died(error)) => {
                self.say(&format!("deposed: {error}"));
                Ok(())
            }
        }
    }

    fn server_dies(&mut self, how: &str) {
        self.say(&format!("dies: {how}"));
        self.tally.deaths += 1;
        self.forget_pending();
    }

    /// Nobody hears of what was under way, and whoever was between an upload and its commit has nothing to commit.
    fn forget_pending(&mut self) {
        self.pending.clear();
        self.transit.retain(|(_, sent)| sent.pin.is_none());
    }

    fn say(&mut self, what: &str) {
        (self.trace)(format!("{} {what}", self.now.0));
    }
}

/// Every document reads back as what was committed.
fn check_documents(server: &mut Server) -> Result<(), End> {
    for (key, document) in server.documents() {
        let content = Content::of(document.etag);
        match server.read(&document) {
            Ok(bytes) if bytes == content.bytes() => {}
            Ok(bytes) => {
                return Err(End::Wrong(format!("{key} reads otherwise: {} bytes, {content:?}", bytes.len())));
            }
            Err(error) if error.kind == ErrorKind::Gone && server.confirm().is_ok() => {
                return Err(End::Wrong(format!("{key} is gone: {document:?}: {error}")));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn stands(server: &Server, lease: LeaseId) -> bool {
    let state = server.shard.kernel().lease(lease, server.shard.now()).map(|view| view.state);
    matches!(state, Ok(State::Active | State::Reserved))
}

fn is_gone(sent: &Sent) -> bool {
    sent.wait.as_ref().is_some_and(|wait| wait.gone.load(Ordering::Acquire))
}

fn uses(command: &Command, lease: LeaseId) -> bool {
    match &command.action {
        Action::Renew(renewals) => renewals.iter().any(|renewal| renewal.held.lease == lease),
        Action::Touch(held) | Action::Activate(held) => held.lease == lease,
        _ => false,
    }
}

/// How long a machine has been up that takes a log over: mostly it was just started.
fn up_ms(rng: &mut Rng) -> u64 {
    if rng.one_in(3) { rng.below(1_000_000) } else { rng.below(100) }
}

fn drift(rng: &mut Rng) -> i64 {
    rng.below(2 * Machine::DRIFT_MAX.unsigned_abs()).cast_signed() - Machine::DRIFT_MAX
}
