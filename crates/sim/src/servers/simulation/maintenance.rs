//! Checkpoints, garbage collection, clean stops, and servers that were paused while another took over their log.

use std::collections::BTreeSet;

use engine::Reply;
use engine::observe::LogSpace;
use kernel::Command;
use store::{ErrorKind, Seq};

use super::{ServerSimulation, Storage};
use crate::servers::ledger::Ledger;
use crate::servers::outbox::PublishedReply;
use crate::servers::server::{RequestNumber, Server, ServerError, ServerRequest};

/// Documents that are being relocated, before the log is truncated.
pub(super) struct Relocations {
    pending: BTreeSet<RequestNumber>,
    count: u64,
    floor: Seq,
}

impl ServerSimulation<'_> {
    pub(super) fn maintain(&mut self, server: &mut Server) -> Result<(), ServerError> {
        if self.rng.one_in(60) && self.relocations.is_none() {
            match self.checkpoint(server) {
                Ok(()) => {}
                // A later checkpoint will succeed.
                Err(ServerError::Store(error)) if error.kind == ErrorKind::NoSpace => {}
                Err(error) => return Err(error),
            }
        }
        if self.rng.one_in(100) {
            let swept = server.sweep(&mut self.rng, &mut self.ledger);
            self.publish(server)?;
            swept?;
        }
        if self.rng.one_in(50) {
            self.run_jobs(server, u64::MAX)?;
            let is_disk = matches!(self.storage, Storage::Disk(_));
            if server.is_quiet() && server.is_open() {
                server.check_documents(is_disk || self.paused.is_empty())?;
            }
        }
        Ok(())
    }

    /// Takes a snapshot, and begins to relocate the documents that prevent a truncation.
    fn checkpoint(&mut self, server: &mut Server) -> Result<(), ServerError> {
        let retain = self.rng.below(60_000);
        let plan = server.checkpoint(retain)?;
        self.stats.snapshots += 1;
        let Some(plan) = plan else { return Ok(()) };
        let mut relocations = Relocations { pending: BTreeSet::new(), count: 0, floor: plan.floor };
        let mut requests = Vec::new();
        for step in &plan.moves {
            self.next += 1;
            if let Some(request) = server.relocation(step, self.next)? {
                relocations.count += 1;
                requests.push(request);
            }
        }
        if matches!(self.storage, Storage::Disk(_)) && server.is_quiet() && self.rng.one_in(2) {
            return self.relocate_by_calls(server, requests, &relocations);
        }
        relocations.pending.extend(requests.iter().map(|request| request.number));
        self.relocations = Some(relocations);
        for request in requests {
            let result = server.submit(request, &mut self.ledger);
            self.publish(server)?;
            result?;
        }
        self.raise_floor(server);
        Ok(())
    }

    fn relocate_by_calls(
        &mut self,
        server: &mut Server,
        requests: Vec<ServerRequest>,
        relocations: &Relocations,
    ) -> Result<(), ServerError> {
        for request in requests {
            let reply = server.call(request, &mut self.ledger);
            self.publish(server)?;
            if reply?.is_err() {
                return Ok(());
            }
        }
        self.stats.relocations += relocations.count;
        server.raise_floor(relocations.floor);
        Ok(())
    }

    /// A document was relocated, or could not be: then the log is not truncated.
    pub(super) fn relocated(&mut self, server: &Server, number: RequestNumber, reply: &Reply) {
        let Some(relocations) = &mut self.relocations else { return };
        if !relocations.pending.remove(&number) {
            return;
        }
        if reply.is_err() {
            self.relocations = None;
            return;
        }
        self.raise_floor(server);
    }

    /// The log is truncated when every document that prevented it is durable elsewhere.
    fn raise_floor(&mut self, server: &Server) {
        let done = self.relocations.take_if(|relocations| relocations.pending.is_empty());
        if let Some(done) = done {
            self.stats.relocations += done.count;
            server.raise_floor(done.floor);
        }
    }

    /// A clean stop: every accepted request has its response, and then the server ends.
    pub(super) fn stop(&mut self, server: &mut Server) -> Result<(), ServerError> {
        if server.health().space == LogSpace::Plenty && self.rng.one_in(3) {
            server.hand_over(None);
        } else {
            server.close(self.rng.one_in(2));
        }
        self.run_jobs(server, u64::MAX)?;
        if server.health().is_undecided {
            self.server_ended("killed while stopping");
            return Ok(());
        }
        if !server.has_ended() {
            return Err(ServerError::Violation("a closed server does not end".into()));
        }
        if let Some((number, request)) =
            self.pending.first_key_value().filter(|(_, request)| !super::is_gone(request))
        {
            let what = format!("a server stopped without a response to {number}: {:?}", request.command);
            return Err(ServerError::Violation(what));
        }
        self.stats.clean_stops += 1;
        self.server_ended("stopped");
        Ok(())
    }

    /// Resumes a server whose log was taken over while it was paused. It must not be able to decide anything new; a batch
    /// that was in flight may turn out to be durable.
    pub(super) fn resume_paused(&mut self) -> Result<(), String> {
        let is_replaced = self.server.as_ref().is_some_and(Server::is_open);
        if self.paused.is_empty() || !is_replaced || !self.rng.one_in(10) {
            return Ok(());
        }
        let mut server = self.paused.remove(0);
        let commands = self.transit.iter().take(2).map(|(_, request)| request.command.clone());
        let commands: Vec<Command> = commands.collect();
        let mut ledger = Ledger::default();
        let _ = server.take_reads();
        let _ = server.read_versions(vec![("KEY:a", None)]);
        let first = RequestNumber::MAX / 2;
        let submitted = commands.into_iter().zip(first..).try_for_each(|(command, number)| {
            let request = ServerRequest { number, command, document: None, wait: None, attempt: None };
            server.submit(request, &mut ledger)
        });
        let result = submitted.and_then(|()| server.settle(&mut self.rng, &mut ledger));
        let decides = |published: &PublishedReply| published.number >= first && published.reply.is_ok();
        if server.take_replies().iter().any(decides) || !server.take_reads().is_empty() {
            return Err("a deposed server decided a batch".into());
        }
        match result {
            Err(ServerError::Violation(what)) => Err(what),
            Err(ServerError::Store(error)) => {
                self.stats.deposed += u64::from(error.kind == ErrorKind::Taken);
                self.trace(&format!("deposed: {error}"));
                Ok(())
            }
            // It repeats an append or holds a batch back, and does not know yet.
            Ok(()) if server.health().is_undecided || server.is_holding_back() => {
                self.paused.push(server);
                Ok(())
            }
            Ok(()) => Err("a deposed server does not notice it".into()),
        }
    }
}
