//! Progress callbacks count every byte of a large document, in both directions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use identity::Role;
use lockd_client::{AcquireOptions, Client, Conditions, TransferProgress};

use crate::lockd::server::Server;

#[derive(Default)]
struct ByteCounts {
    announced: AtomicU64,
    moved: AtomicU64,
}

impl TransferProgress for ByteCounts {
    fn begin(&self, bytes: u64) {
        self.announced.fetch_add(bytes, Ordering::Relaxed);
    }

    fn moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[test]
fn a_large_document_is_counted_there_and_back() {
    let server = Server::start(Role::Operator);
    let counts = Arc::new(ByteCounts::default());
    let count = || (counts.announced.load(Ordering::Relaxed), counts.moved.load(Ordering::Relaxed));
    let builder = Client::builder().plain().endpoint(server.address.to_string());
    let client = builder.progress(counts.clone()).build().expect("a client");
    let document = format!("\"{}\"", "x".repeat(3_000_000));
    let bytes = document.len() as u64;
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let lease = client.acquire("orders", &AcquireOptions::default()).await.expect("free");
        assert_eq!(count(), (0, 0), "small requests are not counted");
        lease.update_state(document.clone(), &Conditions::default()).await.expect("room");
        assert_eq!(count(), (bytes, bytes));
        let read = lease.read_state().await.expect("it is there");
        assert_eq!(read.document.as_deref(), Some(document.as_bytes()));
        assert_eq!(count(), (2 * bytes, 2 * bytes));
    });
}
