//! What a connection keeps, turn by turn.

use identity::Role;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::exchange::OUTPUT_MAX;
use super::*;
use crate::backend::shards::RequestLimits;
use crate::peer::Peer;

/// The capacity of the sockets, in bytes: far less than the output that may wait.
const SOCKET_BYTES: usize = 4 << 10;

fn connection(stream: DuplexStream) -> StreamConnection<DuplexStream> {
    let backend = crate::testing::backend(RequestLimits::default());
    let peer = Peer::anonymous(Role::Worker);
    let service = ConnectionService::unauthenticated(&backend, peer, Duration::from_secs(30));
    StreamConnection::new(stream, &service, &Arc::default(), ReadBudget::default(), Duration::from_secs(30))
}

async fn turn(connection: &mut StreamConnection<DuplexStream>) {
    let polled = std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *connection).poll(context))).await;
    assert!(polled.is_pending(), "the connection stays");
}

/// Requests without a response of their own: they are refused, and keep a body in the output. Now and then one that is not:
/// many refusals in a row would be held back.
fn refused(first: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for id in first..first + 16 {
        let (method, target) = match id % 8 {
            0 => (frames::Method::Get, "/v1/whoami"),
            _ => (frames::Method::Post, "/v1/none"),
        };
        frames::encode_request(&mut out, RequestId(id), method, target, [], b"").expect("short");
    }
    out
}

/// Output was freed when all of it was written. A client that reads all the time, but less than it causes, never lets that
/// happen: everything that it had ever received stayed in memory, and with the bodies of its responses their budgets.
#[tokio::test]
async fn output_that_was_written_is_freed_while_more_waits() {
    let (mut client, stream) = tokio::io::duplex(SOCKET_BYTES);
    let mut connection = connection(stream);
    // Less than the replies of a turn.
    let (mut sent, mut received) = (0, [0; 1 << 7]);
    let mut taken = 0;
    for round in 0..5000 {
        if connection.exchange.lock().input().is_empty() {
            client.write_all(&refused(sent + 1)).await.expect("it fits");
            sent += 16;
        }
        turn(&mut connection).await;
        // At first the client does not read.
        if round > 100 {
            taken += client.read(&mut received).await.expect("replies");
        }
        let io = connection.exchange.lock();
        let (waiting, (kept, bodies)) = (io.output_bytes(), io.kept());
        assert!(round <= 100 || waiting > 0, "some of it waits, always");
        assert!(kept <= 4 * OUTPUT_MAX, "round {round}: {kept} bytes are kept, {waiting} wait");
        assert!(bodies <= 4096, "round {round}: {bodies} bodies are kept");
    }
    assert!(taken > 8 * OUTPUT_MAX, "{taken}");
}

/// A target is remembered so that it is parsed once. Four of 32 KiB on each connection were counted by nothing.
#[tokio::test]
async fn long_targets_are_not_remembered() {
    let mut requests = RequestMaker::default();
    for id in 1..10 {
        let mut out = Vec::new();
        for target in [format!("/v1/leases/{}{id}/touch", "x".repeat(30_000)), "/v1/acquire".to_string()] {
            out.clear();
            frames::encode_request(&mut out, RequestId(id), frames::Method::Post, &target, [], b"")
                .expect("it fits");
            let Ok(Some((Message::Request(request), _))) = frames::parse(&out) else { panic!("a request") };
            requests.make(&request);
        }
    }
    assert!((1..1000).contains(&requests.remembered_bytes()), "{}", requests.remembered_bytes());
}
