//! A document of 100 MB: its update compared with `dd`, its read with a handler that streams the same file.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::servers::Running;
use crate::wire::{Connection, field, plain};

const SIZE: usize = 100_000_000;
const ROUNDS: usize = 5;
/// Number of concurrent uploads, and the bytes sent of each.
const UPLOADS: usize = 64;
const BEGUN: usize = 8_000_000;
/// Read buffer of the client.
const PIECE: usize = 256 << 10;

pub(crate) fn measure() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("document.json");
    std::fs::write(&file, document()).expect("room");
    let lockd = Running::start(&["--mtls=false"]);
    let empty = Running::empty();
    let before = lockd.peak();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    let (mut writes, mut costs, mut reads, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
    runtime.block_on(async {
        let mut connection = Connection::open(&lockd.address, None).await;
        let granted = connection.post("/v1/acquire", r#"{"key":"big","ttl_seconds":300}"#).await;
        let lease = field(granted, "lease_id").to_string();
        let ours = format!("/v1/get_state?key=big HTTP/1.1\r\nx-lease-id: {lease}");
        let stored = dir.path().join("stored.json");
        let theirs = format!("/file?{} HTTP/1.1", stored.display());
        for _ in 0..ROUNDS {
            let plainly = dd(&file, &dir.path().join("copy"));
            let ran = lockd.cpu();
            writes.push((update(&lockd.address, &lease, &file), plainly));
            costs.push(lockd.cpu().saturating_sub(ran).as_secs_f64() * 1e3);
            if reads.is_empty() {
                // Compact JSON, as the server stores it.
                let whole = take(&lockd.address, &ours).await;
                let body = whole.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
                std::fs::write(&stored, &whole[body..]).expect("room");
            }
            reads.push((get(&lockd.address, &ours).await, get(&empty.address, &theirs).await));
        }
        bytes = std::fs::metadata(&stored).expect("it was written").len();
    });
    print_rates("update", "dd conv=fsync", &writes, SIZE as u64);
    println!("  an update costs the server {:.0} ms of processor time", median(costs));
    print_rates("read", "an empty streaming handler", &reads, bytes);
    println!(
        "  each of {UPLOADS} uploads under way: {:.2} MB (aim: 1 MiB)",
        runtime.block_on(bytes_per_upload(&file)) / 1e6
    );
    let most = lockd.peak();
    let grown = (most - before) as f64 / 1e6;
    println!("  most memory: {:.1} MB, {grown:.1} MB more than before the first", most as f64 / 1e6);
}

/// The server's memory per upload that waits for more input, in bytes.
async fn bytes_per_upload(file: &Path) -> f64 {
    let lockd = Running::start(&["--mtls=false"]);
    let mut connection = Connection::open(&lockd.address, None).await;
    let begun = &std::fs::read(file).expect("it is there")[..BEGUN];
    let mut streams = Vec::new();
    let mut before = 0;
    // The first upload warms up one-time allocations.
    for number in 0..=UPLOADS {
        let request = format!(r#"{{"key":"big","namespace":"n{number}","ttl_seconds":300}}"#);
        let lease = field(connection.post("/v1/acquire", &request).await, "lease_id").to_string();
        let mut stream = plain(&lockd.address).await;
        stream.write_all(head(&lease, SIZE as u64).as_bytes()).await.expect("it listens");
        stream.write_all(begun).await.expect("it listens");
        streams.push(stream);
        if number == 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            before = lockd.resident();
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    (lockd.resident() - before) as f64 / UPLOADS as f64
}

fn head(lease: &str, length: u64) -> String {
    format!(
        "POST /v1/update_state?key=big HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         x-lease-id: {lease}\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// Checkpoints of workers, pretty-printed, as in the benchmark of the compactor.
fn document() -> Vec<u8> {
    let mut text = b"[\n".to_vec();
    for number in 0_u32.. {
        let record = serde_json::to_vec_pretty(&record(number)).expect("it can always be written");
        if text.len() + record.len() + 4 > SIZE {
            break;
        }
        if number > 0 {
            text.extend_from_slice(b",\n");
        }
        text.extend_from_slice(&record);
    }
    text.extend_from_slice(b"\n]\n");
    text
}

fn record(n: u32) -> serde_json::Value {
    serde_json::json!({
        "id": u64::from(n) * 7_919_000_001,
        "owner": format!("worker-{}", n % 97),
        "path": format!("s3://bucket/orders/{:08}/part-{}.parquet", n, n % 13),
        "progress": {"step": (["fetch", "merge", "write"][n as usize % 3]), "count": n, "ratio": f64::from(n) / 7.0},
        "updated": "2026-11-15T08:42:00.123Z",
        "tags": ["blue", "retry", format!("shard-{}", n % 64)],
        "done": n.is_multiple_of(2),
        "offsets": [n, n + 1, n + 17, -3, 0],
    })
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn print_rates(what: &str, beside: &str, rounds: &[(f64, f64)], bytes: u64) {
    let rate = |seconds: f64| bytes as f64 / seconds / 1e6;
    let ours = median(rounds.iter().map(|(ours, _)| rate(*ours)).collect());
    let theirs = median(rounds.iter().map(|(_, theirs)| rate(*theirs)).collect());
    let ratio = median(rounds.iter().map(|(ours, theirs)| theirs / ours).collect());
    println!(
        "  {what} of {} MB: {ours:.0} MB/s; {beside}: {theirs:.0} MB/s; ratio {ratio:.2} (aim: 0.50)",
        bytes / 1_000_000
    );
}

fn dd(from: &Path, to: &Path) -> f64 {
    let began = Instant::now();
    let mut command = Command::new("dd");
    command.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
    let done = command.args(["bs=1M", "conv=fsync", "status=none"]).status().expect("dd");
    assert!(done.success(), "{done}");
    began.elapsed().as_secs_f64()
}

/// Sends a file as the document with `sendfile`, the cheapest way for this machine.
fn update(address: &str, lease: &str, file: &Path) -> f64 {
    let began = Instant::now();
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    let mut file = std::fs::File::open(file).expect("it is there");
    let length = file.metadata().expect("it is there").len();
    stream.write_all(head(lease, length).as_bytes()).expect("it listens");
    std::io::copy(&mut file, &mut stream).expect("it listens");
    let (mut answer, mut piece) = (Vec::new(), [0; 1024]);
    while !answer.ends_with(b"}") {
        let read = stream.read(&mut piece).expect("an answer");
        assert_ne!(read, 0, "it hung up");
        answer.extend_from_slice(&piece[..read]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    began.elapsed().as_secs_f64()
}

async fn send(address: &str, target: &str) -> TcpStream {
    let mut stream = plain(address).await;
    let request = format!("GET {target}\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it listens");
    stream
}

async fn take(address: &str, target: &str) -> Vec<u8> {
    let mut whole = Vec::new();
    send(address, target).await.read_to_end(&mut whole).await.expect("all of it");
    whole
}

/// Reads and discards a whole response; returns the seconds it took.
async fn get(address: &str, target: &str) -> f64 {
    let began = Instant::now();
    let mut stream = send(address, target).await;
    let (mut taken, mut piece) = (0, vec![0; PIECE]);
    loop {
        match stream.read(&mut piece).await.expect("all of it") {
            0 => break,
            read => taken += read,
        }
    }
    assert!(taken > SIZE / 4, "{taken} bytes are no document");
    began.elapsed().as_secs_f64()
}
