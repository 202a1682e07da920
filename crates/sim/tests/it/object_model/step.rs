//! The effect of each step.
//!
//! The functions are named after those of `store::object`: `try_once`, `read_back`, `won`, `lost`, `confirm`, `catch_up`.

use super::ObjectModel;
use super::action::Action;
use super::state::{Attempt, Batch, Event, Pending, Prefix, Put, Read, Record, Role, Server, State};
use super::variant::Variant;

impl ObjectModel {
    pub(super) fn apply(&self, state: &mut State, action: Action) {
        state.event = Event::Nothing;
        match action {
            Action::Submit(name) => state.submit(name),
            Action::Read(name) => self.read(state, name),
            Action::Head(name) => state.head(name, false),
            Action::HeadDenied(name) => state.head(name, true),
            Action::HeadReply(name) => self.head_reply(state, name),
            Action::Land(put) => state.land(put, self.variant == Variant::PutOverwrites),
            Action::Duplicate(put) => state.duplicate(put),
            Action::Conflict(put) => self.conflict(state, put),
            Action::TimeOut(name) => self.time_out(state, name),
            Action::Decide(name) => self.won(state, name),
            Action::ReadBack(name) => self.read_back(state, name),
            Action::TakeOver(name) => self.take_over(state, name),
            Action::ListFloors(name) => state.list_floors(name),
            Action::Fetch(name) => self.fetch(state, name),
            Action::CheckFloors(name) => state.check_floors(name),
            Action::Open(name) => state.open(name),
            Action::Crash(name) => state.crash(name),
            Action::Close(name, to) => state.close(name, to),
            Action::RaiseFloor(name, floor) => self.raise_floor(state, name, floor),
            Action::Delete(name, seq) => state.delete(name, seq),
            Action::Collect(name) => self.collect(state, name),
            Action::CreateFloor(name) => state.create_floor_due(name),
            Action::StandDown(name) => state.stand_down(name),
            Action::Announce(_, to) => state.announce(to),
            Action::TakeBack(name) => state.server_mut(name).role = Role::Owner,
            Action::Recommit(name, command) => state.recommit(name, command),
        }
        self.forget_futile_puts(state);
    }

    /// A late put whose number is in use for ever has no effect any more.
    fn forget_futile_puts(&self, state: &mut State) {
        if self.variant == Variant::TenureDeleted {
            return;
        }
        let (objects, log) = (state.objects, state.log);
        let is_futile = |put: &Put| {
            let object = objects[usize::from(put.seq)];
            !put.is_awaited && object == log.get(put.seq) && object.is_some_and(Batch::begins_tenure)
        };
        state.puts.iter_mut().filter(|put| put.as_ref().is_some_and(is_futile)).for_each(|put| *put = None);
        state.sort_puts();
    }

    fn read(&self, state: &mut State, name: u8) {
        state.budget.reads -= 1;
        let arrived_at = state.log.len;
        state.server_mut(name).read = Some(Read { arrived_at, is_covered: false });
        if self.variant == Variant::ReadUnconfirmed {
            let revealed = state.server(name).log;
            state.serve_read(name, &revealed);
        }
    }

    fn head_reply(&self, state: &mut State, name: u8) {
        let Server { head, read, log, .. } = *state.server(name);
        state.server_mut(name).head = None;
        if head == Some(true) {
            state.stand_down(name);
            state.event = Event::WokenOwnerDeposed;
            return;
        }
        let serves_later = self.variant == Variant::HeadServesLaterRequest;
        if read.is_some_and(|read| read.is_covered || serves_later) {
            state.serve_read(name, &log);
            state.event = Event::ReadByHead;
        }
        state.append_queued(name);
    }

    fn conflict(&self, state: &mut State, put: Put) {
        state.remove_put(put);
        self.lost(state, put.batch.writer.server);
    }

    fn time_out(&self, state: &mut State, name: u8) {
        state.budget.timeouts -= 1;
        if let Some(put) = state.awaited(name) {
            put.is_awaited = false;
        }
        state.sort_puts();
        state.set_attempt(name, Attempt::TimedOut);
        if self.variant == Variant::TimeoutIsFailure {
            self.lost(state, name);
        }
    }

    /// Finds out whose the object is.
    fn read_back(&self, state: &mut State, name: u8) {
        let server = *state.server(name);
        let pending = server.pending.expect("it is undecided");
        match self.variant {
            Variant::ExistsIsAnothers if pending.attempt == Attempt::Exists => return self.lost(state, name),
            Variant::ExistsIsOwn if pending.attempt == Attempt::Exists => return self.won(state, name),
            _ => {}
        }
        let is_same_writer = |batch: Batch| {
            self.variant == Variant::BatchReformedSameWriter && batch.writer == pending.batch.writer
        };
        match state.object(server.log.len) {
            Some(batch) if batch == pending.batch || is_same_writer(batch) => {
                self.won(state, name);
                state.event = Event::OwnPutRecognised;
            }
            Some(_) if state.floor > server.log.len && self.variant != Variant::AnothersBelowFloor => {
                state.abandon(name);
            }
            Some(_) => self.lost(state, name),
            None => self.put_again(state, name, pending.batch),
        }
    }

    fn put_again(&self, state: &mut State, name: u8, batch: Batch) {
        let is_reformed = matches!(self.variant, Variant::BatchReformed | Variant::BatchReformedSameWriter);
        let server = state.server_mut(name);
        let record = match (server.queued, batch.command()) {
            (Some(queued), command @ Some(_)) if is_reformed => {
                server.queued = command;
                Record::Write(queued)
            }
            _ => batch.record,
        };
        state.send(name, record);
    }

    /// The number is this writer's.
    fn won(&self, state: &mut State, name: u8) {
        let (role, pending) = (state.server(name).role, state.server(name).pending.expect("it is undecided"));
        if role == Role::Candidate {
            if matches!(pending.batch.record, Record::OpenWith(_)) {
                state.acknowledge(state.server(name).log.len, pending.batch);
            }
            state.server_mut(name).role = Role::Listing;
            if matches!(self.variant, Variant::FloorsNotListed | Variant::FloorsListedBeforePut) {
                state.begin_tenure(name);
            }
            return;
        }
        let closes = state.server(name).is_closing();
        let serves_later = self.variant == Variant::AppendServesLaterRequest;
        state.push_pending(name);
        if state.server(name).read.is_some_and(|read| read.is_covered || serves_later) {
            let revealed = state.server(name).log;
            state.serve_read(name, &revealed);
            state.event = Event::ReadByAppend;
        }
        if closes && self.variant != Variant::DecidesBehindClose {
            state.follow(name);
        } else {
            state.append_queued(name);
        }
    }

    /// The number is another writer's.
    fn lost(&self, state: &mut State, name: u8) {
        match state.server(name).role {
            Role::Candidate => {
                if let Some(command) = state.server(name).pending.and_then(|pending| pending.batch.command())
                {
                    state.refused |= 1 << command;
                }
                state.server_mut(name).pending = None;
                state.server_mut(name).role = Role::Follower;
            }
            _ if self.variant == Variant::StateKept => {
                state.push_pending_unchecked(name);
                state.follow(name);
            }
            _ => state.stand_down(name),
        }
    }

    fn take_over(&self, state: &mut State, name: u8) {
        let is_truncated = state.floor > state.server(name).log.len;
        if self.variant == Variant::FloorsListedBeforePut && is_truncated {
            return state.stand_down(name);
        }
        state.server_mut(name).role = Role::Candidate;
        let with_command = self.variant == Variant::OpenWithCommand && state.budget.commands > 0;
        if !with_command {
            return state.append(name, Record::Open);
        }
        let command = state.commands;
        state.commands += 1;
        state.budget.commands -= 1;
        state.blobs |= 1 << command;
        state.blob_terms[usize::from(command)] = state.server(name).log.len;
        state.append(name, Record::OpenWith(command));
    }

    fn fetch(&self, state: &mut State, name: u8) {
        let batch = state.object(state.server(name).log.len).expect("it was there");
        let server = state.server_mut(name);
        server.log.push(batch);
        if self.variant == Variant::FloorsNotListedAfterRead {
            server.checked = server.log.len;
        }
    }

    fn raise_floor(&self, state: &mut State, name: u8, floor: u8) {
        state.budget.floors -= 1;
        state.server_mut(name).to_delete.1 = floor;
        match self.variant {
            Variant::FloorAfterDeletion => state.server_mut(name).floor_due = floor,
            Variant::OldFloorDeletedFirst if state.floor > 0 => {
                state.floor = 0;
                state.server_mut(name).floor_due = floor;
            }
            _ => state.create_floor(name, floor),
        }
    }

    fn collect(&self, state: &mut State, name: u8) {
        state.budget.collections -= 1;
        state.blobs &= !self.garbage(state, name);
    }
}

impl State {
    /// Puts the next batch of a server. It serves the read that waits.
    fn append(&mut self, name: u8, record: Record) {
        if let Some(read) = &mut self.server_mut(name).read {
            read.is_covered = true;
        }
        self.send(name, record);
    }

    /// The command is decided at once, and appended unless the writer is busy.
    fn submit(&mut self, name: u8) {
        let command = self.commands;
        self.commands += 1;
        self.budget.commands -= 1;
        self.blobs |= 1 << command;
        self.blob_terms[usize::from(command)] = self.server(name).tenure;
        self.server_mut(name).queued = Some(command);
        self.append_queued(name);
    }

    fn recommit(&mut self, name: u8, command: u8) {
        self.refused &= !(1 << command);
        self.server_mut(name).queued = Some(command);
        self.append_queued(name);
    }

    fn append_queued(&mut self, name: u8) {
        let server = self.server_mut(name);
        if server.pending.is_some() || server.head.is_some() {
            return;
        }
        if let Some(command) = server.queued.take() {
            self.append(name, Record::Write(command));
        }
    }

    /// Executed at once; its response is processed later.
    fn head(&mut self, name: u8, is_denied: bool) {
        let server = self.server(name);
        let after_undecided = u8::from(server.pending.is_some());
        let is_found = !is_denied && self.object(server.log.len + after_undecided).is_some();
        let server = self.server_mut(name);
        server.head = Some(is_found);
        if let Some(read) = &mut server.read {
            read.is_covered = true;
        }
    }

    fn list_floors(&mut self, name: u8) {
        if self.floor > self.server(name).log.len {
            self.stand_down(name);
            self.event = Event::CandidateStoodDown;
        } else {
            self.begin_tenure(name);
        }
    }

    fn close(&mut self, name: u8, to: u8) {
        self.budget.closes -= 1;
        self.append(name, Record::Close { to });
    }

    fn send(&mut self, name: u8, record: Record) {
        let batch = Batch { writer: self.writer(name), record };
        let seq = self.server(name).log.len;
        self.server_mut(name).pending = Some(Pending { batch, attempt: Attempt::Sent });
        self.add_put(Put { seq, batch, is_awaited: true });
    }

    fn remove_put(&mut self, put: Put) {
        let slot = self.puts.iter_mut().find(|slot| **slot == Some(put)).expect("it is in flight");
        *slot = None;
        self.sort_puts();
    }

    fn duplicate(&mut self, put: Put) {
        self.budget.duplicates -= 1;
        self.add_put(Put { is_awaited: false, ..put });
    }

    /// Creates the object unless its name is in use.
    fn land(&mut self, put: Put, overwrites: bool) {
        self.remove_put(put);
        let object = &mut self.objects[usize::from(put.seq)];
        let is_created = object.is_none() || overwrites;
        if is_created {
            *object = Some(put.batch);
            if put.seq == self.log.len {
                self.log.push(put.batch);
                self.event = if put.is_awaited { Event::Nothing } else { Event::LatePutLanded };
            } else {
                self.event = Event::LandedBelowFloor;
            }
        }
        if put.is_awaited {
            let attempt = if is_created { Attempt::Created } else { Attempt::Exists };
            self.set_attempt(put.batch.writer.server, attempt);
        }
    }

    fn set_attempt(&mut self, name: u8, attempt: Attempt) {
        self.server_mut(name).pending.as_mut().expect("it is undecided").attempt = attempt;
    }

    fn push_pending_unchecked(&mut self, name: u8) {
        let server = self.server_mut(name);
        let pending = server.pending.take().expect("it is undecided");
        server.log.push(pending.batch);
        server.checked = server.log.len;
    }

    /// Acknowledges the batch, and adds it to the server's state.
    fn push_pending(&mut self, name: u8) {
        let pending = self.server(name).pending.expect("it is undecided");
        self.acknowledge(self.server(name).log.len, pending.batch);
        self.push_pending_unchecked(name);
    }

    fn acknowledge(&mut self, seq: u8, batch: Batch) {
        if self.log.get(seq) == Some(batch) {
            self.acknowledged |= 1 << seq;
        } else {
            self.phantom = Some((seq, batch));
        }
    }

    fn begin_tenure(&mut self, name: u8) {
        let tenure = self.server(name).log.len;
        self.push_pending(name);
        let server = self.server_mut(name);
        (server.role, server.tenure) = (Role::Owner, tenure);
    }

    /// Reveals a state to a client. It must have been the log at a moment after the request arrived.
    fn serve_read(&mut self, name: u8, revealed: &Prefix) {
        let read = self.server_mut(name).read.take().expect("it waits");
        let was_current = revealed.len >= read.arrived_at && self.log.starts_with(revealed);
        self.is_stale_read |= !was_current;
    }

    /// The undecided batch and what was decided behind it did not happen. The whole state is discarded.
    fn stand_down(&mut self, name: u8) {
        let server = self.server(name);
        let undecided = server.pending.and_then(|pending| pending.batch.command());
        for command in undecided.into_iter().chain(server.queued) {
            self.refused |= 1 << command;
        }
        self.discard(name);
    }

    /// Another writer's object below a floor tells nothing: the own batch may have been there before it. The state is
    /// discarded, and callers get no response (indeterminate).
    fn abandon(&mut self, name: u8) {
        self.discard(name);
        self.event = Event::Abandoned;
    }

    /// The callers of a process that ends get no response.
    fn crash(&mut self, name: u8) {
        self.budget.crashes -= 1;
        self.discard(name);
    }

    fn discard(&mut self, name: u8) {
        if let Some(put) = self.awaited(name) {
            put.is_awaited = false;
        }
        self.sort_puts();
        *self.server_mut(name) = Server::DOWN;
        self.server_mut(name).opening = self.fresh_opening(name);
    }

    /// Follows with the state that it has: nothing was decided after its last batch.
    fn follow(&mut self, name: u8) {
        let Server { log, checked, opening, queued, .. } = *self.server(name);
        if let Some(command) = queued {
            self.refused |= 1 << command;
        }
        *self.server_mut(name) = Server { role: Role::Follower, log, checked, opening, ..Server::DOWN };
    }

    fn open(&mut self, name: u8) {
        let (floor, log) = (self.floor, self.snapshot);
        let opening = self.fresh_opening(name);
        let role = Role::Opening { floor };
        *self.server_mut(name) = Server { role, log, checked: log.len, opening, ..Server::DOWN };
    }

    /// What was read is the log, if no floor above it is listed now.
    fn check_floors(&mut self, name: u8) {
        let floor = self.floor;
        let server = self.server_mut(name);
        let is_log = match server.role {
            Role::Opening { floor: listed } => floor == listed,
            _ => floor <= server.checked,
        };
        if is_log {
            (server.role, server.checked) = (Role::Follower, server.log.len);
        } else {
            self.discard(name);
            self.event = Event::FollowerStoodDown;
        }
    }

    fn create_floor(&mut self, name: u8, floor: u8) {
        if floor > self.floor {
            self.floor = floor;
            self.snapshot = self.server(name).log.first(floor);
        }
    }

    fn create_floor_due(&mut self, name: u8) {
        let floor = std::mem::take(&mut self.server_mut(name).floor_due);
        self.create_floor(name, floor);
    }

    fn delete(&mut self, name: u8, seq: u8) {
        self.server_mut(name).to_delete.0 = seq + 1;
        self.objects[usize::from(seq)] = None;
    }

    /// The successor goes on as if the log were its own; the message that it has done so is lost.
    fn announce(&mut self, to: u8) {
        self.budget.closes -= 1;
        let successor = self.server_mut(to);
        (successor.role, successor.tenure) = (Role::Owner, successor.log.len);
    }
}
