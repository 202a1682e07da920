//! Coverage of the command generator: every response, every rejection and every event must occur.

use std::collections::BTreeMap;

use kernel::{Outcome, Rejection, Response};
use sim::generator::CommandGenerator;
use sim::trial::Trial;

/// The name of a variant: what `Debug` prints up to the first bracket.
fn variant(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").split(['(', '{', ' ']).next().unwrap_or_default().to_string()
}

fn note(counts: &mut BTreeMap<String, u64>, kind: &str, value: &impl std::fmt::Debug) {
    *counts.entry(format!("{kind} {}", variant(value))).or_default() += 1;
}

fn note_rejection(counts: &mut BTreeMap<String, u64>, rejection: &Rejection) {
    note(counts, "refused", rejection);
    match rejection {
        Rejection::InvalidRecord(why) => note(counts, "misplaced", why),
        Rejection::Full { table, .. } => note(counts, "full", table),
        _ => {}
    }
}

fn note_outcome(counts: &mut BTreeMap<String, u64>, outcome: &Outcome) {
    match outcome {
        Outcome::Applied(answer, events) => {
            note(counts, "applied", answer);
            if let Response::Dropped { more } = answer {
                note(counts, "dropped_more", more);
            }
            for event in events {
                note(counts, "event", event);
            }
            if let Response::Renewed(results) = answer {
                for rejection in results.iter().filter_map(|result| result.as_ref().err()) {
                    note_rejection(counts, rejection);
                }
            }
        }
        Outcome::Unchanged(answer) => note(counts, "unchanged", answer),
        Outcome::Rejected(rejection) => note_rejection(counts, rejection),
    }
}

const MUST_OCCUR: &str = "
    applied Opened Closed Ticked Granted Live Renewed Released Revoking RevokedAll Reclaimed Dropped Committed Removed Relocated Done Retracted
    unchanged Ticked Granted Live Renewed Released RevokedAll Dropped Committed Removed Relocated Done Retracted
    refused InvalidRecord InvalidTtl InvalidHold InvalidBatch RequestMismatch NotFound Retired NotHeld LeaseRevoked
    refused LeaseExpired StaleEpoch FencingMismatch InvalidState InUse AgentTaken Conflict AlreadyHeld VersionConflict
    refused EtagMismatch Paused QuotaExceeded Full Behind Moved
    misplaced Lsn Time NotOpen Term Store KernelVersion Limits NoIdentity
    full Leases Namespaces Nodes Documents Agents AgentsPerIdentity Policies Requests RequestsPerIdentity
    dropped_more true false
    event Granted Activated Rebound Released Expired Revoked Reclaimed Committed Removed Dropped";

#[test]
fn generated_commands_reach_every_outcome() {
    let mut counts = BTreeMap::new();
    for seed in 0..60 {
        let (mut generator, mut trial) = (CommandGenerator::new(seed), Trial::default());
        for _ in 0..1000 {
            let step = generator.step(&trial.kernel);
            let outcome = trial.step(&step).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            note_outcome(&mut counts, &outcome);
            generator.observe(&step, &outcome);
        }
    }
    for line in MUST_OCCUR.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let kind = words.next().expect("a line has a kind");
        for name in words {
            let found = counts.get(&format!("{kind} {name}")).copied().unwrap_or(0);
            assert!(found > 0, "{kind} {name} never occurred:\n{counts:#?}");
        }
    }
}
