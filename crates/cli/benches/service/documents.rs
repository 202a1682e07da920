//! A document of 100 MB: written beside `dd`, read beside a handler that streams the same file.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::servers::Running;
use crate::wire::{Connection, field, plain};

const SIZE: usize = 100_000_000;
const ROUNDS: usize = 5;
/// How much is sent and taken at a time.
const PIECE: usize = 256 << 10;

pub(crate) fn measure() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("document.json");
    std::fs::write(&file, document()).expect("room");
    let lockd = Running::start(&["--mtls=false"]);
    let empty = Running::empty();
    let before = lockd.peak();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    let (mut writes, mut reads, mut bytes) = (Vec::new(), Vec::new(), 0);
    runtime.block_on(async {
        let mut connection = Connection::open(&lockd.address, None).await;
        let granted = connection.post("/v1/acquire", r#"{"key":"big","ttl_seconds":300}"#).await;
        let lease = field(granted, "lease_id").to_string();
        let ours = format!("/v1/get_state?key=big HTTP/1.1\r\nx-lease-id: {lease}");
        let stored = dir.path().join("stored.json");
        let theirs = format!("/file?{} HTTP/1.1", stored.display());
        for _ in 0..ROUNDS {
            let plainly = dd(&file, &dir.path().join("copy"));
            writes.push((update(&lockd.address, &lease, &file).await, plainly));
            if reads.is_empty() {
                // Compact, as the server keeps it.
                let whole = take(&lockd.address, &ours).await;
                let body = whole.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
                std::fs::write(&stored, &whole[body..]).expect("room");
            }
            reads.push((get(&lockd.address, &ours).await, get(&empty.address, &theirs).await));
        }
        bytes = std::fs::metadata(&stored).expect("it was written").len();
    });
    tell("update", "dd conv=fsync", &writes, SIZE as u64);
    tell("read", "an empty streaming handler", &reads, bytes);
    let most = lockd.peak();
    let grown = (most - before) as f64 / 1e6;
    println!("  most memory: {:.1} MB, {grown:.1} MB more than before the first", most as f64 / 1e6);
}

/// Pretty-printed records, as programs write them.
fn document() -> Vec<u8> {
    let mut text = b"[\n".to_vec();
    for number in 0.. {
        let record = format!(
            "  {{\n    \"id\": {number},\n    \"name\": \"record {number}\",\n    \"done\": false,\n    \"tags\": [\"a\", \"b\"]\n  }}"
        );
        if text.len() + record.len() + 4 > SIZE {
            break;
        }
        if number > 0 {
            text.extend_from_slice(b",\n");
        }
        text.extend_from_slice(record.as_bytes());
    }
    text.extend_from_slice(b"\n]\n");
    text
}

fn tell(what: &str, beside: &str, rounds: &[(f64, f64)], bytes: u64) {
    let median = |mut figures: Vec<f64>| {
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
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

/// Sends a file as the document; as a client that reads it from disk does.
async fn update(address: &str, lease: &str, file: &Path) -> f64 {
    let began = Instant::now();
    let mut stream = plain(address).await;
    let length = std::fs::metadata(file).expect("it is there").len();
    let head = format!(
        "POST /v1/update_state?key=big HTTP/1.1\r\nhost: lockd\r\nx-lease-id: {lease}\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("it listens");
    let mut file = std::fs::File::open(file).expect("it is there");
    let mut piece = vec![0; PIECE];
    loop {
        let read = std::io::Read::read(&mut file, &mut piece).expect("it is there");
        if read == 0 {
            break;
        }
        stream.write_all(&piece[..read]).await.expect("it listens");
    }
    let mut answer = Vec::new();
    while !answer.ends_with(b"}") {
        assert_ne!(stream.read_buf(&mut answer).await.expect("an answer"), 0, "it hung up");
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    began.elapsed().as_secs_f64()
}

async fn asked(address: &str, target: &str) -> TcpStream {
    let mut stream = plain(address).await;
    let request = format!("GET {target}\r\nhost: lockd\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it listens");
    stream
}

async fn take(address: &str, target: &str) -> Vec<u8> {
    let mut whole = Vec::new();
    asked(address, target).await.read_to_end(&mut whole).await.expect("all of it");
    whole
}

/// Takes all of an answer, and keeps none of it.
async fn get(address: &str, target: &str) -> f64 {
    let began = Instant::now();
    let mut stream = asked(address, target).await;
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
