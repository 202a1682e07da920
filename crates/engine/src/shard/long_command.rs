//! Commands that take several records, decided part by part so that other commands get their turn in between.

use std::collections::VecDeque;

use kernel::{Action, Command, Event, Outcome, Renewal, Response};

use crate::authorization::Authorization;
use crate::decision::OnDecided;
use crate::origin::Origin;

/// A long command, and the results of the parts that are decided.
pub(super) struct LongCommand<R> {
    command: Command,
    pub(super) origin: Origin,
    /// Checked before each part.
    pub(super) authorization: Authorization,
    /// The renewals that are left.
    renewals: VecDeque<Renewal>,
    response: Response,
    events: Vec<Event>,
    pub(super) on_decided: Option<OnDecided>,
    pub(super) to: R,
}

impl<R> LongCommand<R> {
    pub(super) fn new(
        command: Command,
        origin: Origin,
        authorization: Authorization,
        on_decided: Option<OnDecided>,
        to: R,
    ) -> LongCommand<R> {
        let renewals: VecDeque<Renewal> = match &command.action {
            Action::Renew(renewals) => renewals.iter().copied().collect(),
            _ => VecDeque::new(),
        };
        let response = match command.action {
            Action::Renew(_) => Response::Renewed(Vec::with_capacity(renewals.len())),
            Action::DropNamespace(_) => Response::Dropped { more: false },
            _ => Response::RevokedAll { revoked: 0, more: false },
        };
        let events = Vec::new();
        LongCommand { command, origin, authorization, renewals, response, events, on_decided, to }
    }

    pub(super) fn action(&self) -> &Action {
        &self.command.action
    }

    pub(super) fn next_part(&mut self) -> Command {
        let mut part = self.command.clone();
        // Under one idempotency key the second part would be answered with the response to the first. A retry of the
        // whole command may apply all parts again: that changes nothing. A deletion is different: resources created in
        // the namespace since must not be deleted by a retry, so its key stays, and the kernel stores the response of the
        // last part.
        if !matches!(part.action, Action::DropNamespace(_)) {
            part.request = None;
        }
        if let Action::Renew(renewals) = &mut part.action {
            let max = self.renewals.len().min(Action::MAX_BATCH);
            *renewals = self.renewals.drain(..max).collect();
        }
        part
    }

    /// Adds the outcome of a part; returns the outcome of the whole command after the last.
    pub(super) fn add(&mut self, outcome: Outcome) -> Option<Outcome> {
        let (response, events) = match outcome {
            Outcome::Applied(response, events) => (response, events),
            Outcome::Unchanged(response) => (response, Vec::new()),
            Outcome::Rejected(rejection) => return Some(Outcome::Rejected(rejection)),
        };
        self.events.extend(events);
        let has_more = match (&mut self.response, response) {
            (Response::Renewed(all), Response::Renewed(some)) => {
                all.extend(some);
                !self.renewals.is_empty()
            }
            (Response::RevokedAll { revoked, .. }, Response::RevokedAll { revoked: some, more }) => {
                *revoked += some;
                more
            }
            (Response::Dropped { .. }, Response::Dropped { more }) => {
                // There may be millions of events, and each was published with its batch.
                self.events.clear();
                more
            }
            (whole, other) => {
                *whole = other;
                false
            }
        };
        let whole = || Outcome::Applied(self.response.clone(), std::mem::take(&mut self.events));
        (!has_more).then(whole)
    }
}
