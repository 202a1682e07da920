//! Acquire and release, each client its own keys; with a document between them, or of several keys at once.

use std::sync::Arc;

use async_trait::async_trait;

use crate::results::Round;
use crate::server::Server;
use crate::system::{Client, Result};
use crate::systems::raw_commit;
use crate::usage;

use super::load::{self, Work};
use super::{SESSION, TTL, Timing};

/// What a cycle does.
#[derive(Clone)]
pub enum Operation {
    /// Acquire and release a key.
    Cycle,
    /// Acquire, write this document, release.
    Document(Arc<Vec<u8>>),
    /// Acquire so many keys at once, and release them.
    Bundle(usize),
}

impl Operation {
    /// A cycle with a JSON document of this length.
    pub fn document(length: usize) -> Operation {
        let mut text = b"{\"data\":\"".to_vec();
        // Not one repeated byte: a system that compresses should have something to do.
        let filler =
            (0..length.saturating_sub(text.len() + 2)).map(|at| b'a' + ((at * at / 7 + at) % 26) as u8);
        text.extend(filler);
        text.extend_from_slice(b"\"}");
        Operation::Document(Arc::new(text))
    }
}

pub(super) async fn run(
    server: &Server,
    clients: usize,
    operation: &Operation,
    timing: &Timing,
) -> Result<Round> {
    if server.system().name() == raw_commit::NAME && matches!(operation, Operation::Cycle) {
        return raw_cycles(server, clients, timing).await;
    }
    let mut works = Vec::with_capacity(clients);
    for (number, client) in server.clients(clients, SESSION).await?.into_iter().enumerate() {
        works.push(Cycle::new(client, number, operation.clone()));
    }
    load::run(server, works, timing).await
}

async fn raw_cycles(server: &Server, clients: usize, timing: &Timing) -> Result<Round> {
    let (folder, timing) = (server.folder().to_path_buf(), *timing);
    let before = usage::own_cpu();
    let work = move || raw_commit::cycles(&folder, clients, timing.warm_up, timing.measured);
    let latencies = tokio::task::spawn_blocking(work).await.map_err(crate::system::Error::failed)??;
    let share = timing.measured.as_secs_f64() / (timing.measured + timing.warm_up).as_secs_f64();
    let operations = latencies.len() as f64;
    let mut round = Round::default();
    round.set("per_second", operations / timing.measured.as_secs_f64());
    round.set("client_us", (usage::own_cpu() - before).as_secs_f64() * share * 1e6 / operations.max(1.0));
    round.set_latencies(latencies);
    Ok(round)
}

struct Cycle {
    client: Box<dyn Client>,
    keys: Vec<String>,
    operation: Operation,
}

impl Cycle {
    fn new(client: Box<dyn Client>, number: usize, operation: Operation) -> Cycle {
        let count = if let Operation::Bundle(count) = operation { count } else { 1 };
        let keys = (0..count).map(|key| format!("key-{number}-{key}")).collect();
        Cycle { client, keys, operation }
    }
}

#[async_trait]
impl Work for Cycle {
    async fn step(&mut self) -> Result<()> {
        let lease = match &self.operation {
            Operation::Bundle(_) => self.client.acquire_bundle(&self.keys, TTL).await?,
            _ => self.client.acquire(&self.keys[0], TTL).await?,
        };
        if let Operation::Document(document) = &self.operation {
            self.client.update(&lease, document).await?;
        }
        self.client.release(lease).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_json_of_the_length() {
        for length in [64, 4096] {
            let Operation::Document(text) = Operation::document(length) else { panic!("a document") };
            assert_eq!(text.len(), length);
            serde_json::from_slice::<serde_json::Value>(&text).expect("JSON");
        }
    }
}
