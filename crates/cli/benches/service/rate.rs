//! Requests per second: 64 connections, each of which acquires and releases its own key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_rustls::rustls::ClientConfig;

use crate::servers::{Running, cpu};
use crate::wire::{Connection, field, tls};

const CONNECTIONS: usize = 64;
const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 11;

/// The request that is repeated.
#[derive(Clone, Copy)]
enum RequestKind {
    /// Acquire and release a key.
    Lease,
    /// The liveness probe, which does next to nothing.
    Health,
}

struct Kind {
    name: &'static str,
    server: Running,
    request: RequestKind,
    tls: Option<Arc<ClientConfig>>,
    rates: Vec<f64>,
    /// CPU time per request of the server and the client, in microseconds.
    costs: Vec<(f64, f64)>,
}

impl Kind {
    fn new(name: &'static str, server: Running, mtls: bool) -> Kind {
        let tls = mtls.then(|| tls(&server.identity(), "http/1.1"));
        Kind { name, server, request: RequestKind::Lease, tls, rates: Vec::new(), costs: Vec::new() }
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

pub(crate) fn measure() {
    let memory = ["--store", "mem://", "--mtls=false"];
    let mut kinds = [
        Kind::new("an empty handler", Running::empty(), false),
        Kind::new("mem://, plain", Running::start(&memory), false),
        Kind::new("disk://, plain", Running::start(&["--mtls=false"]), false),
        Kind::new("mem://, mTLS", Running::start(&["--store", "mem://"]), true),
        Kind { request: RequestKind::Health, ..Kind::new("/healthz, plain", Running::start(&memory), false) },
        Kind {
            request: RequestKind::Health,
            ..Kind::new("/healthz, mTLS", Running::start(&memory[..2]), true)
        },
    ];
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    // Interleaved rounds, so that other load on the machine affects all kinds alike.
    for _ in 0..ROUNDS {
        for kind in &mut kinds {
            let (rate, cost) = runtime.block_on(rate(&kind.server, kind.tls.as_ref(), kind.request));
            kind.rates.push(rate);
            kind.costs.push(cost);
        }
    }
    println!(
        "{CONNECTIONS} connections, acquire + release of a key each; requests a second, median of {ROUNDS}:"
    );
    for kind in &kinds {
        let worst = kind.rates.iter().copied().fold(f64::INFINITY, f64::min);
        let rate = median(kind.rates.iter().copied());
        let server = median(kind.costs.iter().map(|(server, _)| *server));
        let client = median(kind.costs.iter().map(|(_, client)| *client));
        println!(
            "  {:<18} {rate:>9.0}   least {worst:>7.0}   {server:>5.1} us of the server, {client:>5.1} of the client",
            kind.name
        );
    }
    // Ratios per round, since other load on the machine affects both.
    let ratio = |one: usize, other: usize| {
        median(kinds[one].rates.iter().zip(&kinds[other].rates).map(|(one, other)| one / other))
    };
    println!("  mem:// of an empty handler: {:.2} (aim: 0.60)", ratio(1, 0));
    println!("  mem:// of /healthz: {:.2} plain, {:.2} over mTLS", ratio(1, 4), ratio(3, 5));
    println!("  disk:// of mem://: {:.2} (aim: 0.70)", ratio(2, 1));
    println!("  mTLS of plain: {:.2} (aim: 0.70)", ratio(3, 1));
}

/// Requests per second, and the CPU time per request of the server and the client.
async fn rate(server: &Running, tls: Option<&Arc<ClientConfig>>, request: RequestKind) -> (f64, (f64, f64)) {
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for number in 0..CONNECTIONS {
        let mut connection = Connection::open(&server.address, tls).await;
        let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let acquire = format!(r#"{{"key":"key-{number}","ttl_seconds":60,"owner":"bench"}}"#);
            while !stop.load(Ordering::Relaxed) {
                if let RequestKind::Health = request {
                    connection.get("/healthz").await;
                    done.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let granted = connection.post("/v1/acquire", &acquire).await;
                // The empty server returns no lease.
                let lease = if granted.starts_with(b"{") { field(granted, "lease_id") } else { "" };
                let release = format!(r#"{{"lease_id":"{lease}"}}"#);
                connection.post("/v1/release", &release).await;
                done.fetch_add(2, Ordering::Relaxed);
            }
        }));
    }
    // Restart the count: the first connections have been running for a while.
    done.store(0, Ordering::Relaxed);
    let (began, before) = (Instant::now(), (server.cpu(), cpu("self")));
    tokio::time::sleep(ROUND).await;
    let (requests, took) = (done.load(Ordering::Relaxed) as f64, began.elapsed());
    let cost = |now: Duration, before: Duration| now.saturating_sub(before).as_secs_f64() * 1e6 / requests;
    let costs = (cost(server.cpu(), before.0), cost(cpu("self"), before.1));
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no wrong answer");
    }
    (requests / took.as_secs_f64(), costs)
}
