//! 1,000 connections over mutual TLS with ten requests each at all times: 10,000 waiters for 200 keys, for a minute.
//!
//! Each holder checks that no other waiter holds the key and that its token is greater than every earlier one; then it
//! releases the key and queues again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};

use crate::servers::Running;
use crate::wire::{encrypted, tls};

const CONNECTIONS: usize = 1000;
const STREAMS: usize = 10;
const KEYS: usize = 200;
const MINUTE: Duration = Duration::from_secs(60);

/// The expected state of a key: whether it is held, and the greatest token so far.
#[derive(Default)]
struct Key {
    held: bool,
    newest: u64,
}

#[derive(Default)]
struct Counters {
    stop: AtomicBool,
    handed: AtomicU64,
    timed_out: AtomicU64,
    waiting: AtomicU64,
}

pub(crate) fn measure() {
    let server = Running::start(&["--max-leases-per-identity", "100000"]);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    runtime.block_on(run(&server));
}

async fn run(server: &Running) {
    let config = tls(&server.identity(), "h2");
    let keys: Arc<Vec<Mutex<Key>>> = Arc::new((0..KEYS).map(|_| Mutex::default()).collect());
    let counters = Arc::new(Counters::default());
    let mut tasks = tokio::task::JoinSet::new();
    let began = Instant::now();
    for number in 0..CONNECTIONS {
        let io = TokioIo::new(encrypted(&server.address, &config).await);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
        tokio::spawn(connection);
        for stream in 0..STREAMS {
            let waiter = Waiter {
                sender: sender.clone(),
                key: (number * STREAMS + stream) % KEYS,
                keys: Arc::clone(&keys),
                counters: Arc::clone(&counters),
            };
            tasks.spawn(waiter.run());
        }
    }
    println!(
        "{CONNECTIONS} connections with {STREAMS} requests each after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let resident = watch(server, &counters).await;
    counters.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no answer was wrong");
    }
    let (early, late) = (most(&resident[20..40]), most(&resident[40..]));
    let handed = counters.handed.load(Ordering::Relaxed);
    println!(
        "handed over {handed} times, {:.0} a second; waits that ran out: {}",
        handed as f64 / MINUTE.as_secs_f64(),
        counters.timed_out.load(Ordering::Relaxed)
    );
    println!(
        "resident: {:.1} MB at 20 to 40 s, {:.1} MB after (flat: {:.2})",
        early / 1e6,
        late / 1e6,
        late / early
    );
    println!("no two holders, no token twice, no lease lost, no answer wrong");
}

/// Samples the server's resident memory every second.
async fn watch(server: &Running, counters: &Counters) -> Vec<f64> {
    let mut resident = Vec::new();
    let began = Instant::now();
    while began.elapsed() < MINUTE {
        tokio::time::sleep(Duration::from_secs(1)).await;
        resident.push(server.resident() as f64);
        if resident.len().is_multiple_of(10) {
            let (waiting, handed) =
                (counters.waiting.load(Ordering::Relaxed), counters.handed.load(Ordering::Relaxed));
            println!(
                "  {:>2} s: {waiting} wait, {handed} handed over, {:.1} MB",
                resident.len(),
                resident[resident.len() - 1] / 1e6
            );
        }
    }
    resident
}

fn most(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(0.0, f64::max)
}

struct Waiter {
    sender: SendRequest<Full<Bytes>>,
    key: usize,
    keys: Arc<Vec<Mutex<Key>>>,
    counters: Arc<Counters>,
}

impl Waiter {
    async fn run(mut self) {
        while !self.counters.stop.load(Ordering::Relaxed) {
            let name = format!("key-{}", self.key);
            let request = json!({"key": name, "ttl_seconds": 60, "block_seconds": 20});
            self.counters.waiting.fetch_add(1, Ordering::Relaxed);
            let (status, lease) = self.post("/v1/acquire", &request).await;
            self.counters.waiting.fetch_sub(1, Ordering::Relaxed);
            if status == 409 {
                assert_eq!(lease["error"], "waiting", "{lease}");
                self.counters.timed_out.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            assert_eq!(status, 200, "{lease}");
            self.check_grant(lease["fencing_token"].as_u64().expect("a token"));
            // Marked free before the release is sent: from then on another waiter may be granted the key.
            self.keys[self.key].lock().expect("no panic").held = false;
            let (status, released) = self.post("/v1/release", &json!({"lease_id": lease["lease_id"]})).await;
            assert_eq!((status, &released["released"]), (200, &json!(true)), "a lease was lost");
            self.counters.handed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn check_grant(&self, token: u64) {
        let mut key = self.keys[self.key].lock().expect("no panic");
        assert!(!key.held, "two holders of key-{}", self.key);
        assert!(token > key.newest, "token {token} after {}", key.newest);
        *key = Key { held: true, newest: token };
    }

    async fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let request = Request::post(format!("https://lockd{path}")).body(Full::from(body.to_string()));
        self.sender.ready().await.expect("connected");
        let response = self.sender.send_request(request.expect("sound")).await.expect("an answer");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("whole").to_bytes();
        (status, serde_json::from_slice(&body).expect("JSON"))
    }
}
