//! How long requests take.

use std::time::Duration;

use futures_util::stream::{StreamExt as _, iter};
use store::object::ObjectsError;
use tokio::time::Instant;

use super::Latency;
use super::session::{Finding, Session};

/// Requests of each operation, and how many of them are in flight.
const SAMPLES: usize = 100;
const LANES: usize = 5;

#[derive(Clone, Copy)]
enum Sample {
    Put,
    Get,
    Head,
}

pub(super) async fn latency(session: &Session, attempt: u32) -> Result<Finding, ObjectsError> {
    let names: Vec<String> =
        (0..SAMPLES).map(|number| session.name(&format!("latency/{attempt}/{number}"))).collect();
    let mut latencies = Vec::new();
    for (operation, sample) in [("put", Sample::Put), ("get", Sample::Get), ("head", Sample::Head)] {
        let requests: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(number, name)| timed(session, sample, number % LANES, name))
            .collect();
        let times: Vec<_> = iter(requests).buffer_unordered(LANES).collect().await;
        let mut times = times.into_iter().collect::<Result<Vec<Duration>, _>>()?;
        times.sort_unstable();
        let (p50_ms, p99_ms) = (percentile_ms(&times, 50), percentile_ms(&times, 99));
        latencies.push(Latency { operation, p50_ms, p99_ms, samples: times.len() });
    }
    let put = &latencies[0];
    let what = format!("a PUT takes {:.1} ms, and {:.1} ms at the 99th percentile", put.p50_ms, put.p99_ms);
    for latency in latencies {
        session.add_latency(latency);
    }
    Ok(Finding::passed(what))
}

async fn timed(
    session: &Session,
    sample: Sample,
    client: usize,
    name: &str,
) -> Result<Duration, ObjectsError> {
    let began = Instant::now();
    match sample {
        Sample::Put => session.create(client, name, "of a latency").await?,
        Sample::Get => drop(session.client(client).get(name, None).await?),
        Sample::Head => drop(session.client(client).head(name).await?),
    }
    Ok(began.elapsed())
}

/// Of sorted times.
fn percentile_ms(times: &[Duration], percent: usize) -> f64 {
    let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert!((percentile_ms(&times, 50) - 50.0).abs() < 1e-9);
        assert!((percentile_ms(&times, 99) - 99.0).abs() < 1e-9);
        assert!((percentile_ms(&times[..1], 99) - 1.0).abs() < 1e-9);
        assert!(percentile_ms(&[], 99).abs() < 1e-9);
    }
}
