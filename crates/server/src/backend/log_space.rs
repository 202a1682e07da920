//! Logs when the space for a shard's log becomes short, and when it is sufficient again; and whenever the server becomes
//! ready, or is no longer.
//!
//! An operator who reads only the log would otherwise learn from `/readyz` alone that nothing is granted any more.

use std::sync::Arc;
use std::time::Duration;

use engine::observe::LogSpace;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::backend::readiness::unready_reason;
use crate::backend::shards::Backend;

/// How often the space of all shards is compared with the last known one.
const INTERVAL: Duration = Duration::from_secs(1);

/// Logs changes until the server stops.
pub(crate) async fn watch(backend: Arc<Backend>, mut stopped: watch::Receiver<bool>) {
    let mut known = vec![LogSpace::Plenty; backend.shards().count()];
    let mut unready = None;
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                log_changes(&backend, &mut known);
                log_readiness(&backend, &mut unready);
            }
            _ = stopped.wait_for(|stopped| *stopped) => return,
        }
    }
}

/// Logs once when the server becomes unready, and once when it is ready again: the reason may change in between.
fn log_readiness(backend: &Backend, known: &mut Option<String>) {
    let reason = unready_reason(backend);
    match (&reason, &known) {
        (Some(reason), None) => tracing::warn!(reason, "not ready"),
        (None, Some(_)) => tracing::info!("ready again"),
        _ => {}
    }
    *known = reason;
}

fn log_changes(backend: &Backend, known: &mut [LogSpace]) {
    for (shard, known) in backend.shards().zip(known) {
        let Ok(engine) = backend.engine(shard) else { continue };
        let health = engine.sequencer().health();
        if health.space == *known {
            continue;
        }
        *known = health.space;
        let effect = match health.space {
            LogSpace::Plenty => "log space is sufficient again; every request is accepted",
            LogSpace::Reserve => "log space is short: no lease is granted or renewed; free disk space",
            LogSpace::Nothing => "log space is exhausted: nothing is accepted; free disk space",
        };
        let reason = health.reason.unwrap_or_default();
        tracing::warn!(shard = shard.0, space = ?health.space, reason, "{effect}");
    }
}
