//! A mix over minutes, with p99.9 over time: rotation of logs, snapshots and compaction fall into it.
//!
//! Of ten operations six are cycles, two are cycles with a document of 4 KiB, and two renew a lease that the client keeps.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::histogram::Histogram;
use crate::results::Round;
use crate::server::Server;
use crate::system::{Client, Error, Lease, Result};

use super::cycles::Operation;
use super::load::{self, Work};
use super::{SESSION, TTL, Timing};

/// Windows of a run.
const WINDOWS: u32 = 60;

struct Mix {
    client: Box<dyn Client>,
    key: String,
    kept: Lease,
    document: Arc<Vec<u8>>,
    number: u32,
    windows: Arc<Mutex<Vec<Histogram>>>,
    began: Instant,
    window: Duration,
}

#[async_trait]
impl Work for Mix {
    async fn step(&mut self) -> Result<()> {
        self.number += 1;
        let began = Instant::now();
        match self.number % 10 {
            3 | 7 => self.client.renew(&self.kept, SESSION).await?,
            kind => {
                let lease = self.client.acquire(&self.key, TTL).await?;
                if kind == 1 || kind == 5 {
                    self.client.update(&lease, &self.document).await?;
                }
                self.client.release(lease).await?;
            }
        }
        let window = (self.began.elapsed().as_secs_f64() / self.window.as_secs_f64()) as usize;
        let mut windows = self.windows.lock().map_err(Error::failed)?;
        if let Some(histogram) = windows.get_mut(window) {
            histogram.record(began.elapsed());
        }
        Ok(())
    }
}

pub(super) async fn run(server: &Server, clients: usize, length: Duration, timing: &Timing) -> Result<Round> {
    let Operation::Document(document) = Operation::document(4096) else {
        return Err(Error::failed("no document"));
    };
    let windows = Arc::new(Mutex::new(vec![Histogram::default(); WINDOWS as usize]));
    let mut works = Vec::with_capacity(clients);
    let connected = server.clients(clients, SESSION).await?;
    let mut kept = Vec::with_capacity(clients);
    let mut ready = Vec::with_capacity(clients);
    for (number, mut client) in connected.into_iter().enumerate() {
        kept.push(client.acquire(&format!("kept-{number}"), SESSION).await?);
        ready.push(client);
    }
    let began = Instant::now() + timing.warm_up;
    for ((number, client), kept) in ready.into_iter().enumerate().zip(kept) {
        let (document, windows) = (Arc::clone(&document), Arc::clone(&windows));
        let key = format!("mixed-{number}");
        let window = length / WINDOWS;
        works.push(Mix { client, key, kept, document, number: number as u32, windows, began, window });
    }
    let timing = Timing { measured: length, ..*timing };
    let mut round = load::run(server, works, &timing).await?;
    let windows = windows.lock().map_err(Error::failed)?;
    let at = |number: usize| (length / WINDOWS).as_secs_f64() * number as f64;
    let full = windows.iter().enumerate().filter(|(_, window)| !window.is_empty());
    round.series = full.map(|(number, window)| (at(number), window.quantile_us(0.999))).collect();
    let by_p50 = round.figures["p999_us"] / round.figures["p50_us"];
    round.set("p999_by_p50", by_p50);
    Ok(round)
}
