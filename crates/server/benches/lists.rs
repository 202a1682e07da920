//! The latency of an unrelated acquire while a long list is read: 100,000 agents, namespaces, leases, waiters and quotas.
//!
//! `cargo bench -p lockd-server --bench lists`; arguments after `--` select lists by name (`agents`, `contention`, …). The
//! store is in memory and requests bypass the network: what is measured is how long a list keeps others from being
//! decided. Two connections' worth of work share the machine, so compare with the first line, which reads no list.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use axum::{Extension, Router};
use http_body_util::BodyExt;
use identity::Role;
use lockd_server::backend::shards::RequestLimits;
use lockd_server::http::router::router;
use lockd_server::peer::Peer;
use lockd_server::testing::{backend, fill};
use tower::ServiceExt;

const MANY: usize = 100_000;
const ACQUIRES: usize = 5000;

/// The lists, by name. The last ones filter by a namespace that has one row, so that most rows are visited in vain.
const LISTS: [(&str, &str); 7] = [
    ("agents", "/v1/agents?limit=1000"),
    ("contention", "/v1/contention"),
    ("namespaces", "/v1/namespaces"),
    ("leases", "/v1/leases?limit=1000"),
    ("quotas", "/v1/quotas"),
    ("contention-of-one", "/v1/contention?namespace=namespace-1"),
    ("leases-of-one", "/v1/leases?namespace=namespace-1"),
];

fn main() {
    let picked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("threads").block_on(async {
        let backend = backend(RequestLimits::default());
        fill(&backend, MANY);
        let router = router(&backend).layer(Extension(Peer::anonymous(Role::Operator)));
        measure(&router, "no list", None).await;
        for (name, path) in LISTS {
            if picked.is_empty() || picked.iter().any(|picked| picked == name) {
                measure(&router, name, Some(path)).await;
            }
        }
        println!("the most rows that one query visited: {}", backend.query_rows_max());
    });
}

/// Prints the latency of acquires while `path` is read again and again.
async fn measure(router: &Router, name: &str, path: Option<&'static str>) {
    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let reader = path.map(|path| {
        let (router, stop, reads) = (router.clone(), Arc::clone(&stop), Arc::clone(&reads));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                call(&router, Request::get(path).body(Body::empty()).expect("valid")).await;
                reads.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let mut took: Vec<Duration> = Vec::with_capacity(ACQUIRES);
    for n in 0..ACQUIRES {
        let body = Body::from(format!("{{\"key\":\"{name}-{n}\",\"namespace\":\"default\"}}"));
        let start = Instant::now();
        call(router, Request::post("/v1/acquire").body(body).expect("valid")).await;
        took.push(start.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    if let Some(reader) = reader {
        reader.await.expect("no panic");
    }
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    let (p50, p99, reads) = (at(50), at(99), reads.load(Ordering::Relaxed));
    println!("{name:<20} acquire p50 {p50:>9.1?}  p99 {p99:>9.1?}  worst {:>9.1?}  {reads} reads", at(100));
}

async fn call(router: &Router, request: Request<Body>) {
    let response = router.clone().oneshot(request).await.expect("it always answers");
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.expect("a response");
}
