//! The steps of the model, and when each is possible.

use std::fmt;

use super::ObjectModel;
use super::state::{Attempt, PUTS_MAX, Put, Record, Role, SERVERS, Server, State};
use super::variant::Variant;

/// One step. Servers are numbers; they print as letters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// A client's command arrives, with its blob uploaded, and is decided in memory.
    Submit(u8),
    /// A request arrives whose response logs nothing.
    Read(u8),
    /// HEAD of the number after the last decided one.
    Head(u8),
    /// HEAD, answered 403.
    HeadDenied(u8),
    /// The response of the HEAD is processed.
    HeadReply(u8),
    /// The object store executes a put in flight.
    Land(Put),
    /// The network repeats a put in flight.
    Duplicate(Put),
    /// The object store answers 409: no effect. A put that is repeated at once is as it was before, so the step is listed
    /// only where 409 has another meaning.
    Conflict(Put),
    /// A server gets no response to its put. The put stays in flight.
    TimeOut(u8),
    /// The response "created" is processed.
    Decide(u8),
    /// After 412 or a timeout: reads the object, and puts the same bytes again if there is none.
    ReadBack(u8),
    /// A follower puts its `open`.
    TakeOver(u8),
    /// A candidate whose `open` is its own lists the floors.
    ListFloors(u8),
    /// Reads the next object of the log.
    Fetch(u8),
    /// Lists the floors after reading.
    CheckFloors(u8),
    /// Begins to recover: lists the floors, reads the snapshot.
    Open(u8),
    Crash(u8),
    /// Puts `close{to}`.
    Close(u8, u8),
    /// Writes a snapshot up to a number, and creates the floor there.
    RaiseFloor(u8, u8),
    /// Deletes the next batch below the floor.
    Delete(u8, u8),
    /// Collects blobs.
    Collect(u8),
    /// Only in broken variants: creates the floor that is due.
    CreateFloor(u8),
    /// Only in a broken variant: stands down with an undecided append.
    StandDown(u8),
    /// Only in a broken variant: names the successor in a message.
    Announce(u8, u8),
    /// Only in a broken variant: goes on after the own `close`.
    TakeBack(u8),
    /// Only in a broken variant: commits the blob of an older term.
    Recommit(u8, u8),
}

impl ObjectModel {
    pub(super) fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        self.store_steps(state, actions);
        for server in (0..).take(SERVERS) {
            self.append_steps(state, server, actions);
            self.read_steps(state, server, actions);
            takeover_steps(state, server, actions);
            self.upkeep_steps(state, server, actions);
            self.broken_steps(state, server, actions);
        }
    }

    fn store_steps(&self, state: &State, actions: &mut Vec<Action>) {
        for at in 0..PUTS_MAX {
            let Some(put) = state.puts[at] else { continue };
            if at > 0 && state.puts[at - 1] == Some(put) {
                continue;
            }
            actions.push(Action::Land(put));
            if state.budget.duplicates > 0 && state.has_free_put() {
                actions.push(Action::Duplicate(put));
            }
            if put.is_awaited && self.variant == Variant::ConflictIsTaken {
                actions.push(Action::Conflict(put));
            }
        }
    }

    fn append_steps(&self, state: &State, name: u8, actions: &mut Vec<Action>) {
        let server = state.server(name);
        let Some(pending) = server.pending.filter(|_| server.role != Role::Listing) else { return };
        match pending.attempt {
            Attempt::Sent if state.budget.timeouts > 0 && state.has_free_put() => {
                actions.push(Action::TimeOut(name));
            }
            Attempt::Created => actions.push(Action::Decide(name)),
            Attempt::Exists | Attempt::TimedOut if state.has_free_put() => {
                actions.push(Action::ReadBack(name));
            }
            _ => {}
        }
        if self.variant == Variant::StandsDownUndecided && state.has_newer_owner(name) {
            actions.push(Action::StandDown(name));
        }
    }

    fn read_steps(&self, state: &State, name: u8, actions: &mut Vec<Action>) {
        let server = state.server(name);
        if server.head.is_some() {
            actions.push(Action::HeadReply(name));
        }
        if server.role != Role::Owner {
            return;
        }
        if state.budget.reads > 0 && server.read.is_none() {
            actions.push(Action::Read(name));
        }
        let is_wanted = match self.variant {
            Variant::HeadServesLaterRequest => true,
            _ => server.read.is_some_and(|read| !read.is_covered),
        };
        let is_free = server.pending.is_none() || self.variant == Variant::HeadWhileUndecided;
        if is_wanted && is_free && server.head.is_none() {
            actions.push(Action::Head(name));
            if self.variant == Variant::DeniedConfirms {
                actions.push(Action::HeadDenied(name));
            }
        }
    }

    fn upkeep_steps(&self, state: &State, name: u8, actions: &mut Vec<Action>) {
        let server = state.server(name);
        if server.role != Role::Owner {
            return;
        }
        let decides_behind_close = self.variant == Variant::DecidesBehindClose;
        if state.budget.commands > 0
            && server.queued.is_none()
            && (!server.is_closing() || decides_behind_close)
            && state.may_append(name)
        {
            actions.push(Action::Submit(name));
        }
        let is_idle = server.pending.is_none() && server.queued.is_none() && server.head.is_none();
        if is_idle && state.budget.closes > 0 && state.may_append(name) {
            actions.extend(others(name).map(|to| Action::Close(name, to)));
        }
        if state.budget.floors > 0 && server.floor_due == 0 {
            let floor = server.log.len;
            if floor > state.floor && floor > server.to_delete.1 {
                actions.push(Action::RaiseFloor(name, floor));
            }
        }
        let waits = server.floor_due > 0 && self.variant == Variant::OldFloorDeletedFirst;
        if let Some(seq) = self.next_deletion(server).filter(|_| !waits) {
            actions.push(Action::Delete(name, seq));
        } else if server.floor_due > 0 {
            actions.push(Action::CreateFloor(name));
        }
        if state.budget.collections > 0 && self.garbage(state, name) != 0 {
            actions.push(Action::Collect(name));
        }
    }

    fn broken_steps(&self, state: &State, name: u8, actions: &mut Vec<Action>) {
        let server = state.server(name);
        match self.variant {
            Variant::HandOverWithoutRecord if server.role == Role::Owner && server.pending.is_none() => {
                let is_ready = |to: &u8| {
                    let other = state.server(*to);
                    other.role == Role::Follower && other.log == server.log && other.checked == other.log.len
                };
                let first = state.budget.closes > 0;
                actions.extend(
                    others(name).filter(is_ready).filter(|_| first).map(|to| Action::Announce(name, to)),
                );
            }
            Variant::HandOverTakenBack if server.role == Role::Follower => {
                let last = server.log.len.checked_sub(1).and_then(|last| server.log.get(last));
                let is_own = last.is_some_and(|batch| {
                    matches!(batch.record, Record::Close { .. }) && batch.writer == state.writer(name)
                });
                if is_own {
                    actions.push(Action::TakeBack(name));
                }
            }
            Variant::OlderTermCommitted if server.role == Role::Owner && server.pending.is_none() => {
                let may = |command: &u8| state.refused & state.blobs & (1 << command) != 0;
                let commands = (0..state.commands).filter(may).filter(|_| state.may_append(name));
                actions.extend(commands.map(|command| Action::Recommit(name, command)));
            }
            _ => {}
        }
    }

    /// The next batch below the floor that the server deletes. Those that began a tenure stay.
    pub(super) fn next_deletion(&self, server: &Server) -> Option<u8> {
        let (from, to) = server.to_delete;
        let is_deletable = |seq: &u8| {
            let stays = server.log.get(*seq).is_none_or(super::state::Batch::begins_tenure);
            !stays || self.variant == Variant::TenureDeleted
        };
        (from..to).find(is_deletable)
    }

    /// The blobs that a server collects, as bits: of its own term or an older one, not referenced by its durable state, and
    /// not those of its own undecided commits.
    pub(super) fn garbage(&self, state: &State, name: u8) -> u8 {
        let server = state.server(name);
        let undecided = server.pending.and_then(|pending| pending.batch.command());
        let is_garbage = |command: &u8| {
            let term = state.blob_terms[usize::from(*command)];
            let is_pinned = (undecided == Some(*command) || server.queued == Some(*command))
                && term == server.tenure
                && self.variant != Variant::PinsIgnored;
            let is_ours = term <= server.tenure || self.variant == Variant::NewerTermCollected;
            is_ours && !is_pinned && server.log.document() != Some(*command)
        };
        let garbage = (0..state.commands).filter(is_garbage).fold(0, |bits, command| bits | 1 << command);
        garbage & state.blobs
    }
}

fn takeover_steps(state: &State, name: u8, actions: &mut Vec<Action>) {
    let server = state.server(name);
    match server.role {
        Role::Down => actions.push(Action::Open(name)),
        Role::Listing => actions.push(Action::ListFloors(name)),
        Role::Opening { .. } | Role::Follower => {
            if state.object(server.log.len).is_some() {
                actions.push(Action::Fetch(name));
            }
            let is_opening = server.role != Role::Follower;
            if is_opening || server.log.len > server.checked || state.floor > server.checked {
                actions.push(Action::CheckFloors(name));
            }
            if !is_opening && server.log.len == server.checked && state.may_append(name) {
                actions.push(Action::TakeOver(name));
            }
        }
        Role::Candidate | Role::Owner => {}
    }
    if server.role != Role::Down && state.budget.crashes > 0 {
        actions.push(Action::Crash(name));
    }
}

fn others(name: u8) -> impl Iterator<Item = u8> {
    (0..).take(SERVERS).filter(move |other| *other != name)
}

impl State {
    /// The bounds of the model allow the server another put, for the number after its log.
    pub(super) fn may_append(&self, name: u8) -> bool {
        let server = self.server(name);
        let behind = u8::from(server.pending.is_some());
        server.log.len + behind < self.budget.log && self.has_free_put()
    }

    fn has_newer_owner(&self, name: u8) -> bool {
        let tenure = self.server(name).tenure;
        self.servers.iter().any(|other| other.role == Role::Owner && other.tenure > tenure)
    }

    /// The put in flight that a server waits for.
    pub(super) fn awaited(&mut self, name: u8) -> Option<&mut Put> {
        let is_its = |put: &&mut Put| put.is_awaited && put.batch.writer.server == name;
        self.puts.iter_mut().flatten().find(is_its)
    }
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |server: &u8| letter(*server);
        match self {
            Action::Submit(s) => write!(f, "{}: a command arrives", name(s)),
            Action::Read(s) => write!(f, "{}: a read arrives", name(s)),
            Action::Head(s) => write!(f, "{}: HEAD is executed", name(s)),
            Action::HeadDenied(s) => write!(f, "{}: HEAD is denied", name(s)),
            Action::HeadReply(s) => write!(f, "{}: the response of the HEAD arrives", name(s)),
            Action::Land(put) => write!(f, "store: executes {put}"),
            Action::Duplicate(put) => write!(f, "network: repeats {put}"),
            Action::Conflict(put) => write!(f, "store: answers 409 to {put}"),
            Action::TimeOut(s) => write!(f, "{}: its put times out", name(s)),
            Action::Decide(s) => write!(f, "{}: the response of its put arrives: created", name(s)),
            Action::ReadBack(s) => write!(f, "{}: reads the object back", name(s)),
            Action::TakeOver(s) => write!(f, "{}: puts its open", name(s)),
            Action::ListFloors(s) => write!(f, "{}: lists the floors after its open", name(s)),
            Action::Fetch(s) => write!(f, "{}: reads the next batch", name(s)),
            Action::CheckFloors(s) => write!(f, "{}: lists the floors after reading", name(s)),
            Action::Open(s) => write!(f, "{}: begins to recover", name(s)),
            Action::Crash(s) => write!(f, "{}: crashes", name(s)),
            Action::Close(s, to) => write!(f, "{}: puts close to {}", name(s), name(to)),
            Action::RaiseFloor(s, floor) => write!(f, "{}: snapshot and floor at {floor}", name(s)),
            Action::Delete(s, seq) => write!(f, "{}: deletes batch {seq}", name(s)),
            Action::Collect(s) => write!(f, "{}: collects blobs", name(s)),
            Action::CreateFloor(s) => write!(f, "{}: creates the floor that is due", name(s)),
            Action::StandDown(s) => write!(f, "{}: stands down", name(s)),
            Action::Announce(s, to) => write!(f, "{}: tells {} to go on", name(s), name(to)),
            Action::TakeBack(s) => write!(f, "{}: goes on after its close", name(s)),
            Action::Recommit(s, command) => write!(f, "{}: commits blob {command} again", name(s)),
        }
    }
}

impl fmt::Display for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_awaited { "the put" } else { "a late put" };
        write!(f, "{kind} of {} by {}: ", self.seq, letter(self.batch.writer.server))?;
        match self.batch.record {
            Record::Open => write!(f, "open"),
            Record::OpenWith(command) => write!(f, "open and command {command}"),
            Record::Write(command) => write!(f, "command {command}"),
            Record::Close { to } => write!(f, "close to {}", letter(to)),
        }
    }
}

fn letter(server: u8) -> char {
    char::from(b'A' + server)
}
