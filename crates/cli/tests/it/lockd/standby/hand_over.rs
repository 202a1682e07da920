//! Planned hand-overs: their cost in requests, under load, by command; and clients that learn the owner.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use objectserver::{ObjectServer, Operation};
use rustix::process::Signal;
use worktree::clock::{Clock, SystemClock};

use super::super::bucket::{is_ready, object_server, request, wait_ms};
use super::{acquire, check_counts, owned, servers, with_workers};
use crate::lockd::support::lockd;
use crate::running::until;

fn hand_over(address: &str, flags: &[&str]) -> (i32, String) {
    let server = format!("http://{address}");
    let mut args = vec!["store", "hand-over", "--mtls=false", "--server", server.as_str()];
    args.extend(flags);
    let ran = lockd(&args);
    (ran.code, format!("{}{}", ran.stdout, ran.stderr))
}

fn term(objects: &ObjectServer) -> u64 {
    owned(objects).into_values().max().unwrap_or(0)
}

/// A record that ends a tenure, one that begins the next, and the record of the new owner in the bucket.
#[test]
fn a_hand_over_by_command_costs_three_puts() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    // Long enough that few regular beats fall into a hand-over.
    let flags = ["--takeover-silence", "20s"];
    let mut running = servers(&objects, dir.path(), 2, &flags);
    let mut puts = Vec::new();
    for round in 0..4_u64 {
        let (one, two) = (&running[0].address, &running[1].address);
        // The server must have seen that the other one runs.
        let mut output = String::new();
        let mut before = objects.counts().of(Operation::Put);
        until("the shard is handed over", || {
            before = objects.counts().of(Operation::Put);
            let (code, text) = hand_over(one, &[]);
            output = text;
            code == 0
        });
        assert!(output.contains("shards=0"), "{output}");
        // The request finds the next owner, and is one more put.
        let (status, lease) = acquire(one, &format!("key-{round}"));
        assert_eq!(status, 200, "{lease}");
        until("the new owner says so", || term(&objects) == round + 2);
        puts.push(objects.counts().of(Operation::Put) - before - 1);
        let (code, output) = hand_over(one, &["--output", "json"]);
        assert_eq!((code, output.trim()), (0, r#"{"shards":[]}"#), "it owns nothing any more");
        assert!(is_ready(two));
        running.swap(0, 1);
    }
    // A regular beat may fall into some of them.
    assert!(puts.iter().min() <= Some(&3), "{puts:?}");
    assert!(objects.double_wins().is_empty());
}

/// The next owner of a server that stops: two records in the log, and no wait for the silence, which is long here.
#[test]
fn a_server_that_stops_hands_over_with_two_records() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let mut running = servers(&objects, dir.path(), 2, &["--takeover-silence", "20s"]);
    // Each has seen the other run.
    until("there", || hand_over(&running[0].address, &[]).0 == 0);
    until("the other one owns it", || term(&objects) == 2);
    until("and back", || hand_over(&running[1].address, &[]).0 == 0);
    until("the first one owns it", || term(&objects) == 3);
    let logged = || {
        let names = objects.objects("locks").into_keys();
        names.filter(|name| name.starts_with("test/log/")).count()
    };
    let (records, puts) = (logged(), objects.counts().of(Operation::Put));
    let mut first = running.remove(0);
    first.signal(Signal::TERM);
    assert_eq!(first.exit_status().code(), Some(0));
    until("the next owner says so", || term(&objects) == 4);
    // With the last beat of the server that stopped; a regular beat may fall into it.
    println!("{} puts", objects.counts().of(Operation::Put) - puts);
    assert_eq!(logged() - records, 2, "the end of a tenure and the beginning of the next");
    assert_eq!(acquire(&running[0].address, "orders").0, 200);
}

#[test]
fn what_cannot_be_handed_over_is_refused() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let running = servers(&objects, dir.path(), 1, &[]);
    let (code, output) = hand_over(&running[0].address, &[]);
    assert_eq!(code, 1, "{output}");
    assert!(output.contains("no other server of the bucket is known"), "{output}");
    let (code, output) = hand_over(&running[0].address, &["--shard", "7"]);
    assert!(code != 0 && output.contains("no such shard"), "{code} {output}");
}

/// The shard of one server, through another.
#[test]
fn a_named_shard_is_handed_over_by_its_owner() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let running = servers(&objects, dir.path(), 2, &[]);
    until("the other server is known", || hand_over(&running[1].address, &["--shard", "0"]).0 == 0);
    until("the shard has another owner", || term(&objects) == 2);
    assert_eq!(acquire(&running[0].address, "orders").0, 200);
}

#[test]
fn hand_overs_under_load_fail_no_request_that_is_sent_twice() {
    let (objects, dir) = (object_server(1), tempfile::tempdir().expect("a directory"));
    let mut running = servers(&objects, dir.path(), 3, &[]);
    let addresses: Vec<_> = running[1..].iter().map(|server| server.address.clone()).collect();
    let mut first = running.remove(0);
    let clock = SystemClock::new();
    let began = clock.boot();
    let (counts, failures) = with_workers(&addresses, 24, || {
        for _ in 0..3 {
            wait_ms(500);
            // By command first, then the server ends.
            let owner = running
                .iter()
                .chain([&first])
                .find(|one| hand_over(&one.address, &[]).1.contains("shards=0"));
            assert!(owner.is_some(), "one of them owns the shard");
        }
        first.signal(Signal::TERM);
        assert_eq!(first.exit_status().code(), Some(0));
        wait_ms(1000);
    });
    let ms = clock.boot().since(began);
    assert_eq!(failures, Vec::<String>::new());
    check_counts(&running[0].address, &counts);
    let requests = counts.values().sum::<u64>() * 3;
    println!("{requests} requests in {ms} ms, {} a second, none failed", requests * 1000 / ms.max(1));
    assert!(term(&objects) >= 4, "handed over: {:?}", owned(&objects));
    assert!(objects.double_wins().is_empty());
}

/// A server names the next owner, which has just been killed. Nothing takes a hand-over back: after the silence any server
/// opens, here the one that has handed the shard over. Requests wait for that.
#[test]
fn a_shard_that_was_handed_over_to_a_dead_server_is_served_again_after_the_silence() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let mut running = servers(&objects, dir.path(), 2, &["--takeover-silence", "3s"]);
    until("there", || hand_over(&running[0].address, &[]).0 == 0);
    until("the other one owns it", || term(&objects) == 2);
    until("and back", || hand_over(&running[1].address, &[]).0 == 0);
    until("the first one owns it", || term(&objects) == 3);
    // SIGKILL.
    drop(running.pop());
    let one = &running[0].address;
    let (code, output) = hand_over(one, &[]);
    assert_eq!(code, 0, "it does not know yet: {output}");
    let (status, lease) = acquire(one, "orders");
    assert_eq!(status, 200, "{lease}");
    until("it owns the shard again", || term(&objects) == 4);
    assert!(objects.double_wins().is_empty());
}

fn forwarded(address: &str) -> u64 {
    let (_, metrics) = request(address, "GET /metrics", "", "").expect("a response");
    let line = metrics.lines().find(|line| line.starts_with("lockd_requests_forwarded_total"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("the metric")
}

/// A client that was given both servers sent every request to the stand-by, which forwarded it.
#[test]
fn a_client_learns_the_owner_and_goes_there() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let running = servers(&objects, dir.path(), 2, &[]);
    let (owner, standby) = (&running[0].address, &running[1].address);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = lockd_client::Client::builder().plain();
    let client = client.endpoint(format!("http://{standby}")).endpoint(format!("http://{owner}"));
    let client = client.build().expect("valid");
    for _ in 0..5 {
        let page = runtime.block_on(client.leases(None, None)).expect("a page");
        assert_eq!(page.leases.len(), 0);
    }
    assert_eq!(forwarded(standby), 1, "only the first request");
    // A stale hint: the owner changes, and the client finds the new one.
    until("the other server is known", || hand_over(owner, &[]).0 == 0);
    for _ in 0..5 {
        runtime.block_on(client.leases(None, None)).expect("a page");
    }
    assert!(forwarded(owner) <= 2, "{}", forwarded(owner));
}

/// An upload is under way when its server hands the shard over: it ends with a 503, and is sent again under its key.
#[test]
fn an_upload_in_flight_is_refused_and_succeeds_when_it_is_sent_again() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let running = servers(&objects, dir.path(), 2, &[]);
    let (owner, standby) = (&running[0].address, &running[1].address);
    let (_, lease) = acquire(owner, "orders");
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(6 << 20));
    let head = "POST /v1/update_state?key=orders";
    let headers =
        format!("x-idempotency-key: upload\r\nx-lease-id: {}\r\n", lease["lease_id"].as_str().expect("text"));
    let (first, second) = body.split_at(body.len() / 2);
    let mut stream = TcpStream::connect(owner).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let length = body.len();
    let start = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n{headers}\
         content-length: {length}\r\n\r\n{first}"
    );
    stream.write_all(start.as_bytes()).expect("it reads");
    until("the other server is known", || hand_over(owner, &[]).0 == 0);
    // The server may respond before it has read everything.
    let _ = stream.write_all(second.as_bytes());
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 503"), "{response}");
    // A stream is not kept for the next owner: the client repeats it until there is one.
    for address in [standby, owner] {
        let mut reply = String::new();
        until("the upload is taken", || {
            // No response if the stream to the owner broke: its outcome is not known, and the key makes a retry safe.
            let Some((status, text)) = request(address, head, &headers, &body) else { return false };
            assert!(status == 200 || status == 503, "{text}");
            reply = text;
            status == 200
        });
        assert!(reply.contains("\"new_version\":1"), "once: {reply}");
    }
}
