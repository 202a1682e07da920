//! Responses: from the server over the network to the clients, with their checks.

use engine::internals::shard::Shard;
use engine::internals::waiting::lease_request_of;
use engine::waiters::Advice;
use engine::{Decision, Delivery, Reply, Unavailable};
use kernel::{Action, LeaseId, Outcome, Response, State};

use super::{ClientRequest, ServerSimulation};
use crate::properties::ResponseTime;
use crate::servers::clock::TrueTime;
use crate::servers::outbox::PublishedReply;
use crate::servers::server::{RequestNumber, Server, ServerError};

/// A response that a server has written.
pub(super) struct WrittenResponse {
    number: RequestNumber,
    request: ClientRequest,
    reply: Reply,
    delivery: Delivery,
    is_lost: bool,
    /// The server that wrote it.
    writer: u128,
    /// The lease that is retracted if no response with it arrives.
    lease: Option<LeaseId>,
}

impl ServerSimulation<'_> {
    /// Takes what the server has written. It reaches the clients later, or never.
    pub(super) fn publish(&mut self, server: &Server) -> Result<(), ServerError> {
        for published in server.take_replies() {
            match self.pending.remove(&published.number) {
                Some(request) => self.write(server, request, published)?,
                None => self.relocated(server, published.number, &published.reply),
            }
        }
        for read in server.take_reads() {
            if read.found.is_some() {
                let checked = self.ledger.check_read(read.key, read.found, read.known);
                checked.map_err(ServerError::Violation)?;
            }
        }
        self.properties.check_order().map_err(ServerError::Violation)
    }

    fn write(
        &mut self,
        server: &Server,
        request: ClientRequest,
        published: PublishedReply,
    ) -> Result<(), ServerError> {
        let PublishedReply { number, reply, delivery, decided } = published;
        (self.trace_line)(format!("{} {number} {reply:?}", self.now.0));
        self.stats.responses += 1;
        if let Ok(decision) = &reply {
            let decided = decided.expect("a decision has a time");
            let checked = self.ledger.response_sent(&request.command, decision, request.at, decided);
            checked.map_err(ServerError::Violation)?;
            self.count(decision);
        }
        let is_lost = super::is_gone(&request) || self.rng.one_in(15);
        let is_delivering = |lease: &LeaseId| server.inspect(|shard| shard.is_delivering(*lease));
        let lease = granted(&reply).filter(is_delivering);
        if let Some(lease) = lease.filter(|lease| is_lost && !self.delivered.contains(lease)) {
            self.ledger.undelivered(lease);
        }
        let written = ResponseTime { at: self.now, now: server.now() };
        let checked = self.properties.responded(number, &reply, !is_lost, written);
        checked.map_err(ServerError::Violation)?;
        let delay = if self.rng.one_in(4) { self.rng.below(2000) } else { 0 };
        let response =
            WrittenResponse { number, request, reply, delivery, is_lost, writer: self.writers, lease };
        self.responses.push((TrueTime(self.now.0 + delay), response));
        Ok(())
    }

    /// Responses reach their clients, or are lost. The server, if it is still there, hears of both.
    pub(super) fn deliver_responses(&mut self, server: &Server) {
        let now = self.now;
        let (due, left) = std::mem::take(&mut self.responses).into_iter().partition(|(at, _)| *at <= now);
        self.responses = left;
        let due: Vec<(TrueTime, WrittenResponse)> = due;
        for (_, response) in due {
            let WrittenResponse { number, request, reply, delivery, is_lost, writer, lease } = response;
            delivery.settle(!is_lost);
            if !is_lost {
                self.delivered.extend(granted(&reply));
                self.receive(number, &request, &reply, writer == self.writers);
            } else if let Some(lease) = lease {
                self.stats.undelivered += 1;
                // A server that has ended retracts nothing.
                if writer == self.writers && server.inspect(Shard::has_space) {
                    self.retracting.insert(lease);
                }
            }
        }
    }

    /// A server at rest has forgotten nothing: every request that does not wait has its response, and every grant that
    /// no client knows was retracted.
    pub(super) fn check_at_rest(&mut self, server: &Server) -> Result<(), ServerError> {
        if !server.is_quiet() {
            return server.check_repetition().map_err(ServerError::Violation);
        }
        server.check_at_rest().map_err(ServerError::Violation)?;
        let unanswered = self.pending.iter().find(|(_, request)| !is_waiting(server, request));
        if let Some((number, request)) = unanswered {
            let command = &request.command;
            let what = format!("request {number} has no response from a server at rest: {command:?}");
            return Err(ServerError::Violation(what));
        }
        for lease in std::mem::take(&mut self.retracting) {
            let is_known = self.delivered.contains(&lease);
            let is_delivering = self.responses.iter().any(|(_, response)| response.lease == Some(lease));
            if !is_known && !is_delivering && is_live(server, lease) {
                let what = format!("an undelivered grant was not retracted: {lease:?}");
                return Err(ServerError::Violation(what));
            }
        }
        Ok(())
    }

    /// `is_current`: the server that wrote it runs.
    fn receive(&mut self, number: RequestNumber, request: &ClientRequest, reply: &Reply, is_current: bool) {
        let at = (self.now, is_current);
        let client = &mut self.clients[request.client];
        match reply {
            Err(
                Unavailable::Busy
                | Unavailable::NoSpace
                | Unavailable::TooOften
                | Unavailable::OverLimit(_)
                | Unavailable::Replaced
                | Unavailable::Withdrawn
                | Unavailable::Stopped
                | Unavailable::Moved(_)
                | Unavailable::Deposed,
            ) => {
                return;
            }
            Err(Unavailable::Dismissed(attempt)) => {
                client.blocked(number, &request.command, request.presented, *attempt, at);
            }
            Ok(Decision::Outcome(
                Outcome::Applied(Response::Granted(granted), _)
                | Outcome::Unchanged(Response::Granted(granted)),
            )) => {
                let bundle = lease_request_of(&request.command).map(|grant| &grant.bundle);
                client.granted(granted, bundle, request.presented);
            }
            Ok(Decision::Outcome(Outcome::Applied(Response::Released, _))) => {
                if let Action::Release(held) = &request.command.action {
                    client.released(held.lease);
                }
            }
            Ok(Decision::Blocked(blocked)) => {
                client.blocked(number, &request.command, request.presented, blocked.attempt, at);
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

    /// A response has a deadline, unless the outcome of an append is unknown.
    pub(super) fn check_response_deadlines(&mut self, server: &Server) -> Result<(), ServerError> {
        if server.health().is_undecided {
            let later = TrueTime(self.now.0 + super::SLACK);
            self.pending.values_mut().for_each(|request| request.respond_by = request.respond_by.max(later));
        }
        match self
            .pending
            .iter()
            .find(|(_, request)| request.respond_by < self.now && !super::is_gone(request))
        {
            Some((number, request)) => Err(ServerError::Violation(format!(
                "request {number} has no response, sent at {:?}: {:?}",
                request.at, request.command
            ))),
            None => Ok(()),
        }
    }
}

/// The lease that a reply carries.
fn granted(reply: &Reply) -> Option<LeaseId> {
    match reply {
        Ok(Decision::Outcome(
            Outcome::Applied(Response::Granted(granted), _) | Outcome::Unchanged(Response::Granted(granted)),
        )) => Some(granted.lease),
        _ => None,
    }
}

/// Whether a request may wait, or has taken the place of a try that does.
fn is_waiting(server: &Server, request: &ClientRequest) -> bool {
    let command = &request.command;
    let is_same = |(_, waiter): (_, &engine::waiters::Waiter)| {
        command.request.is_some()
            && waiter.command.request == command.request
            && waiter.command.identity == command.identity
    };
    request.wait.is_some() || server.inspect(|shard| shard.waiters().iter().any(is_same))
}

fn is_live(server: &Server, lease: LeaseId) -> bool {
    let state = server.inspect(|shard| shard.kernel().lease(lease, shard.now()).map(|view| view.state));
    matches!(state, Ok(State::Active | State::Reserved))
}
