//! One key that all clients want: owner changes per second, and how evenly the clients are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::task::JoinSet;

use crate::histogram::Histogram;
use crate::results::Round;
use crate::server::Server;
use crate::system::{Client, Error, Result};

use super::load::{self, Work};
use super::{SESSION, TTL, Timing};

struct Contender {
    client: Box<dyn Client>,
    owner: Arc<AtomicU64>,
    number: u64,
    waited: Duration,
}

#[async_trait]
impl Work for Contender {
    async fn step(&mut self) -> Result<()> {
        let began = Instant::now();
        let lease = self.client.acquire_waiting("hand-off", TTL).await?;
        self.waited = began.elapsed();
        // Mutual exclusion is checked on the side: two owners at once fail the run.
        let before = self.owner.swap(self.number, Ordering::SeqCst);
        if before != 0 {
            return Err(Error::Failed(format!("client {} and {before} hold the key at once", self.number)));
        }
        self.owner.store(0, Ordering::SeqCst);
        self.client.release(lease).await
    }

    /// The wait alone, without the release.
    fn latency(&self) -> Option<Duration> {
        Some(self.waited)
    }
}

pub(super) async fn run(server: &Server, clients: usize, timing: &Timing) -> Result<Round> {
    let owner = Arc::new(AtomicU64::new(0));
    let clients = server.clients(clients, SESSION).await?.into_iter().zip(1..);
    let works = clients.map(|(client, number)| Contender {
        client,
        owner: Arc::clone(&owner),
        number,
        waited: Duration::ZERO,
    });
    let mut round = load::run(server, works.collect(), timing).await?;
    let mean = round.latencies.mean_us();
    round.set("longest_by_mean", round.latencies.max_us() / mean);
    Ok(round)
}

/// All waiters queue behind one holder, which then releases: how long until each had the key once.
pub(super) async fn herd(server: &Server, waiters: usize, timing: &Timing) -> Result<Round> {
    if server.system().name().starts_with("postgres") && waiters > 1000 {
        return Err(Error::unsupported("a process for each waiting connection"));
    }
    super::within(timing.deadline, "herd", released(server, waiters)).await
}

async fn released(server: &Server, waiters: usize) -> Result<Round> {
    let mut holder = server.connect(SESSION).await?;
    let held = holder.acquire_waiting("herd", SESSION).await?;
    let memory = server.memory();
    let mut tasks = JoinSet::new();
    for mut client in server.clients(waiters, SESSION).await? {
        tasks.spawn(async move {
            let lease = client.acquire_waiting("herd", TTL).await?;
            let granted = Instant::now();
            client.release(lease).await?;
            Ok::<Instant, Error>(granted)
        });
    }
    // There is no common way to see how many wait; requests of all are sent long before this.
    tokio::time::sleep(Duration::from_secs(2) + Duration::from_micros(500) * waiters as u32).await;
    let waiting_memory = server.memory();
    let (began, cpu) = (Instant::now(), server.cpu());
    holder.release(held).await?;
    let mut waits = Histogram::default();
    while let Some(joined) = tasks.join_next().await {
        waits.record(joined.map_err(Error::failed)??.saturating_duration_since(began));
    }
    let seconds = began.elapsed().as_secs_f64();
    let mut round = Round::default();
    round.set("per_second", waiters as f64 / seconds);
    round.set("seconds", seconds);
    round.set("server_us", (server.cpu() - cpu).as_secs_f64() * 1e6 / waiters as f64);
    round.set("bytes_per_waiter", waiting_memory.saturating_sub(memory) as f64 / waiters as f64);
    round.set_latencies(waits);
    Ok(round)
}
