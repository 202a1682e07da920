//! A crash (SIGKILL) with many leases live: how long until the next grant, and whether the leases are still there.

use std::time::{Duration, Instant};

use crate::results::Round;
use crate::server::Server;
use crate::system::{Error, Expiry, Result};

use super::fill::{Ttl, fill};
use super::{SESSION, TTL, Timing};

pub(super) async fn run(server: &mut Server, leases: usize, timing: &Timing) -> Result<Round> {
    let ttl = Ttl::Each(Duration::from_secs(1800));
    drop(fill(server, leases, None, ttl, SESSION, timing.deadline).await?);
    let began = Instant::now();
    let ready = server.crash_and_restart().await?;
    let mut client = server.connect(SESSION).await?;
    client.acquire("after-the-restart", TTL).await?;
    let first_grant = began.elapsed();
    // A lease that was granted before the crash must still exclude others. Leases that wait in a queue of the
    // server, instead of being refused, are not tried.
    if !server.system().name().starts_with("etcd-lock") {
        match client.acquire("lease-00000000", TTL).await {
            Err(Error::Held) => {}
            Ok(_) if server.system().expiry() == Expiry::PerLease => {
                return Err(Error::failed("a lease was lost in the crash"));
            }
            other => drop(other?),
        }
    }
    let mut round = Round::default();
    round.set("ready_s", ready.as_secs_f64());
    round.set("first_grant_s", first_grant.as_secs_f64());
    round.set("memory_mb", server.memory() as f64 / 1e6);
    Ok(round)
}
