//! Work whose instructions `.ci/instructions` counts: `instructions PART COUNT` does a part so many times.
//!
//! Valgrind counts the same instructions on an idle machine and on a busy one, so a bound on them fails when the code becomes
//! slower, and only then.
#![allow(missing_docs, reason = "a program has no public items")]

use std::fmt::Write as _;

use engine::internals::record::{Record, decode_batch};
use identity::Role;
use kernel::{
    Action, Bundle, ClockReading, Command, Credential, Limits, Lsn, Outcome, ResourceName, Shard, Span, Time,
};
use lockd_server::backend::shards::RequestLimits;
use lockd_server::http::listener::ConnectionLimits;
use lockd_server::testing::{Loopback, TestClock, backend_with_clock};
use sim::fixture::{TestKernel, grant, held, identity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A TTL that outlasts the run.
const LONG: Span = Span(1 << 31);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let part = arguments.next().unwrap_or_default();
    let count: u64 =
        arguments.next().and_then(|count| count.parse().ok()).expect("usage: instructions PART COUNT");
    match part.as_str() {
        "kernel" => kernel_cycles(count),
        "codec" => codec(count),
        "route" => routes(count),
        "stream" => streams(count),
        _ => panic!("parts: kernel, codec, route, stream"),
    }
}

fn request(key: u64) -> Action {
    let name = ResourceName::key(&format!("key-{key}")).expect("a valid key");
    Action::Acquire(grant(Bundle::of_key(name), LONG))
}

/// Acquire and release of a key, by the kernel alone.
fn kernel_cycles(count: u64) {
    let mut kernel = TestKernel::new(Limits { ttl_max: LONG, ..Limits::default() });
    for number in 0..count {
        let granted = match kernel.by("worker", request(number % 64)) {
            Outcome::Applied(kernel::Response::Granted(granted), _) => granted,
            other => panic!("the key is free: {other:?}"),
        };
        let released = kernel.by("worker", Action::Release(held(&granted)));
        assert!(matches!(released, Outcome::Applied(..)), "the lease is held");
    }
}

/// A batch of an acquire and a release, encoded and decoded.
fn codec(count: u64) {
    let who = identity("worker");
    for number in 0..count {
        let lease = kernel::LeaseId { shard: Shard(0), lsn: Lsn(number + 1) };
        let credential = Credential { lease, epoch: kernel::Epoch(1) };
        let record = |lsn, action| Record {
            lsn: Lsn(lsn),
            now: Time(number),
            correlation: 0,
            command: Command::by(&who, action),
            document: None,
        };
        let records = [record(number + 1, request(number)), record(number + 2, Action::Release(credential))];
        let batch = Record::encode_batch(ClockReading::default(), &records);
        let decoded = decode_batch(&batch, Shard(0)).expect("just encoded");
        assert_eq!(decoded.records, records);
    }
}

/// Acquire and release over HTTP.
fn routes(count: u64) {
    cycles(count, &[], &async |stream, path, body, _| call(stream, path, body).await);
}

/// Acquire and release in frames.
fn streams(count: u64) {
    cycles(count, frames::PREFACE, &async |stream, path, body, id| exchange(stream, path, body, id).await);
}

/// Acquire and release over a connection on loopback, client and server on one thread, with a store in memory. The
/// connection begins with `preface`, to which the server replies with something if it is not empty.
fn cycles(count: u64, preface: &[u8], call: &impl AsyncFn(&mut TcpStream, &str, &str, u32) -> String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // Valgrind does not let rustix read the machine's clock.
        let backend = backend_with_clock(RequestLimits::default(), &TestClock::default());
        let server = Loopback::with_backend(Role::Operator, ConnectionLimits::default(), backend).await;
        let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
        stream.set_nodelay(true).expect("a TCP socket");
        stream.write_all(preface).await.expect("the server reads");
        if !preface.is_empty() {
            let read = stream.read(&mut [0; 64]).await.expect("a preface and settings");
            assert!(read > frames::PREFACE.len(), "they arrive in one segment");
        }
        for number in 0..u32::try_from(count).expect("few") {
            let body = format!(r#"{{"key":"key-{}","ttl_ms":60000}}"#, number % 64);
            let granted = call(&mut stream, "/v1/acquire", &body, number * 2 + 1).await;
            let credential = granted.split("\"lease_id\":\"").nth(1).and_then(|rest| rest.split('"').next());
            let body = format!(r#"{{"lease_id":"{}"}}"#, credential.expect("a grant"));
            let released = call(&mut stream, "/v1/release", &body, number * 2 + 2).await;
            assert!(released.contains("\"released\":true"));
        }
    });
}

async fn exchange(stream: &mut TcpStream, path: &str, body: &str, id: u32) -> String {
    let mut request = Vec::new();
    let id = frames::RequestId(id);
    frames::encode_request(&mut request, id, frames::Method::Post, path, [], body.as_bytes()).expect("short");
    receive(stream, &request).await
}

async fn call(stream: &mut TcpStream, path: &str, body: &str) -> String {
    let mut request =
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
    write!(request, "content-length: {}\r\n\r\n{body}", body.len()).expect("a string takes it");
    receive(stream, request.as_bytes()).await
}

async fn receive(stream: &mut TcpStream, request: &[u8]) -> String {
    stream.write_all(request).await.expect("the server reads");
    // A short response arrives in one segment.
    let mut response = [0; 2048];
    let length = stream.read(&mut response).await.expect("a response");
    String::from_utf8_lossy(&response[..length]).into_owned()
}
