//! HTTP/1.1 against HTTP/2, over mTLS on loopback: acquire and release by one caller and by 64, and a document of 50 MB.
//!
//! `cargo bench -p lockd-client --bench protocols`. Both versions run in turn, three times; the table has the medians. Only the
//! ratios are comparable between machines. The store is in memory, so that the disk does not hide the protocol.
#![allow(missing_docs, reason = "a bench has no public items")]
#![expect(clippy::disallowed_methods, reason = "it measures elapsed time")]

use std::time::{Duration, Instant};

use lockd_client::{AcquireOptions, Client, Conditions, HttpVersion, StreamProtocol};
use lockd_server::backend::store::StoreUrl;
use lockd_server::{Config, Server};

const ROUNDS: usize = 3;
/// Short: a server remembers the requests of a minute, and limits their number.
const SPAN: Duration = Duration::from_millis(600);
const CALLERS: usize = 64;
const DOCUMENT_BYTES: u32 = 50_000_000;

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config {
        listen: "127.0.0.1:0".into(),
        store: StoreUrl::memory(),
        ..Config::in_directory(dir.path().join("data"))
    };
    let identity = config.data_dir.join("client.pem");
    let mut server = Server::new(config).expect("memory");
    let url = format!("https://{}", server.start().await.expect("loopback"));
    let clients = [HttpVersion::Http1, HttpVersion::Http2].map(|version| {
        let builder = Client::builder().endpoint(&url).identity_file(&identity);
        builder.http_version(version).stream(StreamProtocol::Never).build().expect("valid")
    });
    let mut found: [[Vec<f64>; 2]; 4] = Default::default();
    for _ in 0..ROUNDS {
        for (index, client) in clients.iter().enumerate() {
            found[0][index].push(cycles_per_second(client, 1).await);
            found[1][index].push(cycles_per_second(client, CALLERS).await);
            let (up, down) = document(client).await;
            found[2][index].push(up);
            found[3][index].push(down);
        }
    }
    println!("| | HTTP/1.1 | HTTP/2 | HTTP/2 to HTTP/1.1 |\n|---|---|---|---|");
    let names = [
        "acquire and release by one caller, per second".to_string(),
        format!("acquire and release by {CALLERS} callers, per second"),
        "commit of 50 MB, MB/s".to_string(),
        "read of 50 MB, MB/s".to_string(),
    ];
    for (name, [first, second]) in names.iter().zip(&mut found) {
        let (first, second) = (median(first), median(second));
        println!("| {name} | {first:.0} | {second:.0} | {:.2} |", second / first);
    }
    server.shutdown().await.expect("it closes");
}

/// Acquires and releases, each caller its own key, for [`SPAN`].
async fn cycles_per_second(client: &Client, callers: usize) -> f64 {
    let began = Instant::now();
    let tasks: Vec<_> =
        (0..callers).map(|caller| tokio::spawn(cycles(client.clone(), caller, began))).collect();
    let mut all = 0;
    for task in tasks {
        all += task.await.expect("no panic");
    }
    f64::from(all) / began.elapsed().as_secs_f64()
}

async fn cycles(client: Client, caller: usize, began: Instant) -> u32 {
    let mut count = 0;
    while began.elapsed() < SPAN {
        let key = Some(format!("k{caller}"));
        let request = api::requests::Acquire { key, ..api::requests::Acquire::default() };
        let granted = client.grant(request, Duration::ZERO).await.expect("free");
        client.release(&granted.lease_id).await.expect("ours");
        count += 1;
    }
    count
}

/// MB/s of a commit and of a read.
async fn document(client: &Client) -> (f64, f64) {
    let document = format!("\"{}\"", "x".repeat(DOCUMENT_BYTES as usize - 2));
    let options = AcquireOptions { ttl: Some(Duration::from_secs(300)), ..AcquireOptions::default() };
    let lease = client.acquire("document", &options).await.expect("free");
    let began = Instant::now();
    lease.update_state(document, &Conditions::default()).await.expect("held");
    let up = rate(began);
    let (began, mut read) = (Instant::now(), 0);
    let mut reader = lease.get_state().await.expect("held");
    while let Some(chunk) = reader.chunk().await.expect("held") {
        read += chunk.len();
    }
    assert_eq!(read, DOCUMENT_BYTES as usize);
    let down = rate(began);
    lease.release().await.expect("ours");
    (up, down)
}

fn rate(began: Instant) -> f64 {
    f64::from(DOCUMENT_BYTES) / 1e6 / began.elapsed().as_secs_f64()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
