//! Idle leases that are only kept alive: memory per lease, and CPU of the renewals.
//!
//! Each lease is renewed every 100 s, a third of a TTL of 300 s, in the best way that the system offers for many.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::results::Round;
use crate::server::Server;
use crate::system::{Error, Result};

use super::Timing;
use super::fill::{Holder, Ttl, fill};

const TTL: Duration = Duration::from_secs(1800);
const RENEWED_EVERY: f64 = 100.0;

pub(super) async fn run(server: &Server, leases: usize, timing: &Timing) -> Result<Round> {
    // Connections and buffers of the clients are there before the first reading.
    let few = fill(server, 64, None, Ttl::Each(TTL), TTL, timing.deadline).await?;
    for mut holder in few {
        for lease in holder.leases {
            holder.client.release(lease).await?;
        }
    }
    let (empty, began) = (server.memory(), Instant::now());
    let holders = fill(server, leases, None, Ttl::Each(TTL), TTL, timing.deadline).await?;
    let filled = began.elapsed().as_secs_f64();
    let full = server.memory();
    let window = timing.measured * 5;
    let cpu = server.cpu();
    let began = Instant::now();
    let renewed = super::within(timing.deadline, "renewals", renew(holders, window)).await?;
    let seconds = began.elapsed().as_secs_f64();
    let mut round = Round::default();
    round.set("bytes_per_lease", full.saturating_sub(empty) as f64 / leases as f64);
    round.set("memory_mb", full as f64 / 1e6);
    round.set("granted_per_second", leases as f64 / filled);
    round.set("renewed_per_second", renewed as f64 / seconds);
    round.set("server_cores", (server.cpu() - cpu).as_secs_f64() / seconds);
    Ok(round)
}

/// Renews the share of leases that is due within the window, spread over it.
async fn renew(holders: Vec<Holder>, window: Duration) -> Result<usize> {
    const STEPS: usize = 10;
    let mut tasks = JoinSet::new();
    let share = (window.as_secs_f64() / RENEWED_EVERY).min(1.0);
    for mut holder in holders {
        tasks.spawn(async move {
            let due = (holder.leases.len() as f64 * share).ceil() as usize;
            let began = Instant::now();
            for step in 0..STEPS {
                let part = &holder.leases[due * step / STEPS..due * (step + 1) / STEPS];
                holder.client.renew_many(part, TTL).await?;
                tokio::time::sleep_until((began + window * (step as u32 + 1) / STEPS as u32).into()).await;
            }
            Ok::<usize, Error>(due)
        });
    }
    let mut renewed = 0;
    while let Some(joined) = tasks.join_next().await {
        renewed += joined.map_err(Error::failed)??;
    }
    Ok(renewed)
}
