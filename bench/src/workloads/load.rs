//! A load of clients: closed loop, or open loop at a rate.
//!
//! **Invariant.** In the open loop a latency counts from the moment at which the operation was due, not from when the
//! client got to it: a stalled server cannot hide the requests that it kept from being sent (coordinated omission).

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::task::JoinSet;

use crate::histogram::Histogram;
use crate::results::Round;
use crate::server::Server;
use crate::system::{Error, Result};
use crate::usage;

use super::Timing;

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// What one client repeats.
#[async_trait]
pub(super) trait Work: Send + 'static {
    /// One operation.
    async fn step(&mut self) -> Result<()>;

    /// The latency of the last operation, where it is not that of the whole step.
    fn latency(&self) -> Option<Duration> {
        None
    }
}

/// Due times of an open loop: `client` of `clients`, at `rate` operations per second of all together.
#[derive(Clone, Copy)]
pub(super) struct Schedule {
    first: Duration,
    interval: Duration,
}

impl Schedule {
    pub(super) fn new(client: usize, clients: usize, rate: f64) -> Schedule {
        let interval = Duration::from_secs_f64(clients as f64 / rate);
        Schedule { first: interval.mul_f64(client as f64 / clients as f64), interval }
    }

    /// When the operation `number` is due, from the start.
    pub(super) fn due(&self, number: u32) -> Duration {
        self.first + self.interval * number
    }
}

/// Runs the clients, and measures latencies, and CPU time of server and clients, after the warm-up.
pub(super) async fn run<W: Work>(server: &Server, works: Vec<W>, timing: &Timing) -> Result<Round> {
    let phase = Arc::new(AtomicU8::new(WARM_UP));
    let mut tasks = JoinSet::new();
    let clients = works.len();
    let start = Instant::now();
    for (client, work) in works.into_iter().enumerate() {
        let schedule = timing.rate.map(|rate| Schedule::new(client, clients, rate));
        tasks.spawn(drive(work, Arc::clone(&phase), start, schedule));
    }
    tokio::time::sleep(timing.warm_up).await;
    let before = (server.cpu(), usage::own_cpu(), Instant::now());
    phase.store(MEASURE, Ordering::Relaxed);
    tokio::time::sleep(timing.measured).await;
    phase.store(STOP, Ordering::Relaxed);
    let seconds = before.2.elapsed().as_secs_f64();
    let (server_cpu, client_cpu) = (server.cpu() - before.0, usage::own_cpu() - before.1);
    let mut latencies = Histogram::default();
    let joined = async {
        while let Some(joined) = tasks.join_next().await {
            latencies.merge(&joined.map_err(Error::failed)??);
        }
        Ok(())
    };
    super::within(Duration::from_secs(60), "last operations", joined).await?;
    figures(latencies, seconds, server_cpu, client_cpu)
}

fn figures(latencies: Histogram, seconds: f64, server: Duration, client: Duration) -> Result<Round> {
    if latencies.is_empty() {
        return Err(Error::Unfinished("no operation was completed in the measured time".into()));
    }
    let operations = latencies.len() as f64;
    let mut round = Round::default();
    round.set("per_second", operations / seconds);
    round.set("server_us", server.as_secs_f64() * 1e6 / operations);
    round.set("client_us", client.as_secs_f64() * 1e6 / operations);
    round.set("server_cores", server.as_secs_f64() / seconds);
    round.set_latencies(latencies);
    Ok(round)
}

async fn drive<W: Work>(
    mut work: W,
    phase: Arc<AtomicU8>,
    start: Instant,
    schedule: Option<Schedule>,
) -> Result<Histogram> {
    let mut latencies = Histogram::default();
    for number in 0.. {
        let began_in = phase.load(Ordering::Relaxed);
        if began_in == STOP {
            break;
        }
        let began = match schedule {
            None => Instant::now(),
            Some(schedule) => {
                let due = start + schedule.due(number);
                tokio::time::sleep_until(due.into()).await;
                due
            }
        };
        work.step().await?;
        if began_in == MEASURE && phase.load(Ordering::Relaxed) == MEASURE {
            latencies.record(work.latency().unwrap_or_else(|| began.elapsed()));
        }
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_an_open_loop_are_spread_over_the_interval() {
        let due = |client, number| Schedule::new(client, 4, 8.0).due(number).as_millis();
        assert_eq!([due(0, 0), due(1, 0), due(2, 0), due(3, 0), due(0, 1)], [0, 125, 250, 375, 500]);
    }

    struct Stalling {
        steps: u32,
    }

    #[async_trait]
    impl Work for Stalling {
        async fn step(&mut self) -> Result<()> {
            self.steps += 1;
            let pause = if self.steps == 10 { 200 } else { 0 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
            Ok(())
        }
    }

    /// The server stalls once for 200 ms while an operation is due every 10 ms: about 19 operations were due meanwhile,
    /// and each has the rest of the stall as its latency.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_open_loop_counts_the_operations_that_a_stall_delayed() {
        let phase = Arc::new(AtomicU8::new(MEASURE));
        let stop = Arc::clone(&phase);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stop.store(STOP, Ordering::Relaxed);
        });
        let schedule = Schedule::new(0, 1, 100.0);
        let latencies =
            drive(Stalling { steps: 0 }, phase, Instant::now(), Some(schedule)).await.expect("no error");
        assert!(latencies.quantile_us(0.9) > 50_000.0, "p90 {} us", latencies.quantile_us(0.9));
    }
}
