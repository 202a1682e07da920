//! A document of 100 MB passes through the SDK in both directions without being held in memory.
//!
//! The transfers run in a process of their own, which is this test again: the server would count, too.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lockd_client::{AcquireOptions, Client, Conditions, DocumentBody};

use crate::common::{MtlsServer, Protocol};

/// The server's limit is 100,000,000.
const DOCUMENT_BYTES: usize = 99_999_990;
/// Below 16 MB in an optimised program. Without optimisations the pages of the program are most of it.
const RESIDENT_KIB_MAX: u64 = if cfg!(debug_assertions) { 40 << 10 } else { 16_000_000 >> 10 };
/// Memory without the pages of the program: buffers and connections.
const ANONYMOUS_KIB_MAX: u64 = 4 << 10;
/// In the process of the transfers: the server's URL, the identity file and the document, each on a line.
const TRANSFER: &str = "LOCKD_TEST_TRANSFER";

fn write_document(path: &Path) {
    let mut file = BufWriter::new(File::create(path).expect("a file"));
    let chunk = vec![b'x'; (DOCUMENT_BYTES - 2) / 4];
    file.write_all(b"\"").expect("space");
    (0..4).for_each(|_| file.write_all(&chunk).expect("space"));
    file.write_all(b"\"").expect("space");
    file.flush().expect("space");
}

/// A figure of this process, in KiB.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a figure");
    line.trim().strip_suffix(" kB").expect("in KiB").parse().expect("a number")
}

async fn transfer(url: &str, identity: &str, document: &str) {
    let client = Client::connect(url, identity).await.expect("it listens");
    let options = AcquireOptions { ttl: Some(Duration::from_secs(300)), ..AcquireOptions::default() };
    let lease = client.acquire("orders", &options).await.expect("free");
    let body = DocumentBody::open(document).expect("a file");
    let committed = lease.update_state(body, &Conditions::default()).await.expect("held");
    let mut anonymous = memory("RssAnon:");
    let (mut reader, mut read) = (lease.get_state().await.expect("held"), 0);
    while let Some(chunk) = reader.chunk().await.expect("held") {
        read += chunk.len() as u64;
        anonymous = anonymous.max(memory("RssAnon:"));
    }
    assert_eq!((committed.bytes, read), (DOCUMENT_BYTES as u64, DOCUMENT_BYTES as u64));
    let resident = memory("VmHWM:");
    println!("resident {resident} KiB, anonymous {anonymous} KiB");
    assert!(resident < RESIDENT_KIB_MAX, "{resident} KiB");
    assert!(anonymous < ANONYMOUS_KIB_MAX, "{anonymous} KiB");
}

#[tokio::test]
async fn a_document_of_100_mb_is_not_held_in_memory() {
    if let Ok(told) = std::env::var(TRANSFER) {
        let mut lines = told.lines();
        let mut next = || lines.next().expect("three lines");
        return transfer(next(), next(), next()).await;
    }
    let server = MtlsServer::start(Protocol::Http1).await;
    let dir = tempfile::tempdir().expect("a directory");
    let document = dir.path().join("document");
    write_document(&document);
    let told = format!("{}\n{}\n{}", server.url(), server.identity_file().display(), document.display());
    let ran = tokio::task::spawn_blocking(move || {
        let name = "memory::a_document_of_100_mb_is_not_held_in_memory";
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(TRANSFER, told);
        command.output().expect("it runs")
    });
    let ran = ran.await.expect("no panic");
    let said = String::from_utf8_lossy(&ran.stdout);
    print!("{said}");
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("resident "), "the transfer ran: {said}");
}
