//! Many leases that are due at one moment: how long until the server has removed the last.

use std::time::{Duration, Instant};

use crate::results::Round;
use crate::server::Server;
use crate::system::{Error, Expiry, Result};

use super::Timing;
use super::fill::{Ttl, fill};

/// Session of systems whose leases end with it.
const SESSION: Duration = Duration::from_secs(10);

pub(super) async fn run(server: &Server, leases: usize, timing: &Timing) -> Result<Round> {
    let mut observer = server.connect(super::SESSION).await?;
    // Systems that cannot count are refused before the work.
    let other = observer.live().await?;
    let due = match server.system().expiry() {
        Expiry::PerLease => {
            let due = Instant::now() + fill_time(leases, timing);
            drop(fill(server, leases, None, Ttl::Until(due), super::SESSION, timing.deadline).await?);
            due
        }
        Expiry::WithSession => {
            let forever = Ttl::Each(SESSION);
            let holders = fill(server, leases, None, forever, SESSION, timing.deadline).await?;
            drop(holders);
            Instant::now() + SESSION
        }
    };
    if Instant::now() > due {
        return Err(Error::Unfinished("the first leases were due before the last was granted".into()));
    }
    tokio::time::sleep_until((due - Duration::from_millis(20)).into()).await;
    let cpu = server.cpu();
    let gone = async {
        while observer.live().await? > other {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(Instant::now())
    };
    let gone = super::within(timing.deadline, "expiry", gone).await?;
    let mut round = Round::default();
    round.set("last_gone_ms", gone.saturating_duration_since(due).as_secs_f64() * 1e3);
    round.set("server_us", (server.cpu() - cpu).as_secs_f64() * 1e6 / leases as f64);
    Ok(round)
}

/// Until when all leases are granted, by the slowest system that shall finish.
fn fill_time(leases: usize, timing: &Timing) -> Duration {
    Duration::from_secs_f64(5.0 + leases as f64 / 2_000.0).min(timing.deadline)
}
