//! What callers learn when servers die or are too old: no response where the outcome is not known, and no takeover of a log
//! that cannot be read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use objectserver::{Fault, Moment, ObjectServer, Operation};
use rustix::process::Signal;
use serde_json::json;
use store::object::format::decode_object;
use store::object::{MemoryObjects, ObjectLog, ObjectOptions, Objects, RetryPolicy, WriterId};
use store::{LogStore, LsnRange, Seq};

use super::super::bucket::{is_ready, object_server, post, request, wait_ms};
use super::super::bucket_documents::spooled_bytes;
use super::{acquire, owned, servers};
use crate::running::until;

/// A request was forwarded, and its server was killed before it responded. The client was told 503, which means that nothing
/// was carried out; the grant was in the log.
#[test]
fn a_request_whose_outcome_is_unknown_gets_no_response() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let mut running = servers(&objects, dir.path(), 2, &[]);
    assert_eq!(acquire(&running[1].address, "before").0, 200, "requests are forwarded");
    let hold = objects.hold(Operation::Put, "test/log/0/", Moment::BeforeResponse);
    let send = |key: &'static str, headers: &'static str| {
        let address = running[1].address.clone();
        let body = json!({"key": key, "ttl_seconds": 300}).to_string();
        std::thread::spawn(move || request(&address, "POST /v1/acquire", headers, &body))
    };
    // Both are in one batch, or one is not sent to the log at all.
    let (with_key, without) = (send("with-key", "x-idempotency-key: one\r\n"), send("without", ""));
    assert!(hold.wait_for(1, Duration::from_secs(20)), "the append has happened, and its response has not");
    wait_ms(200);
    // SIGKILL.
    drop(running.remove(0));
    hold.release();
    assert_eq!(without.join().expect("no panic"), None, "whether it was carried out is not known");
    let (status, reply) = with_key.join().expect("no panic").expect("it is sent again");
    assert_eq!(status, 200, "{reply}");
    assert!(objects.double_wins().is_empty());
}

/// An upload was under way when its server slept through its succession. It ends with a 503 that names the new owner, and is
/// sent again under its key.
#[test]
fn an_upload_to_a_deposed_owner_is_refused_with_the_address_of_the_next_one() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let running = servers(&objects, dir.path(), 2, &[]);
    let (one, two) = (&running[0], &running[1]);
    let (_, lease) = acquire(&one.address, "orders");
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(6 << 20));
    let (first, second) = body.split_at(body.len() / 2);
    let credential = lease["lease_id"].as_str().expect("a credential");
    let head = "POST /v1/update_state?key=orders";
    let headers = format!("x-idempotency-key: upload\r\nx-lease-id: {credential}\r\n");
    let mut stream = TcpStream::connect(&one.address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let start = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n{headers}\
         content-length: {}\r\n\r\n{first}",
        body.len()
    );
    stream.write_all(start.as_bytes()).expect("it reads");
    // Otherwise it would read the request after it has learned of the new owner, and pass it on.
    until("the upload is under way", || spooled_bytes(one) > 0);
    one.signal(Signal::STOP);
    assert_eq!(acquire(&two.address, "meanwhile").0, 200);
    one.signal(Signal::CONT);
    // It has learned of the new owner.
    assert_eq!(acquire(&one.address, "after").0, 200);
    // The server may respond before it has read everything.
    let _ = stream.write_all(second.as_bytes());
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 503"), "{response}");
    assert!(response.contains(&format!("\"server\":\"http://{}\"", two.address)), "{response}");
    for address in [&one.address, &two.address] {
        let (status, reply) = request(address, head, &headers, &body).expect("a response");
        assert!(status == 200 && reply.contains("\"new_version\":1"), "once: {status} {reply}");
    }
    assert!(objects.double_wins().is_empty());
}

/// The bucket denied the stand-by its reads, as it does while credentials expire or a policy is repaired. It took that for a
/// log of a newer version, and did not look again for a minute.
#[test]
fn a_stand_by_that_was_denied_access_takes_over_once_it_has_access_again() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let mut running = servers(&objects, dir.path(), 2, &[]);
    assert_eq!(acquire(&running[1].address, "before").0, 200, "requests are forwarded");
    objects.add_fault(Fault::denied().on(&[Operation::Get, Operation::Head]).on_keys("test/log/"));
    running[1].log.wait_for("the bucket denies access to the log of the shard");
    objects.clear_faults();
    wait_ms(2000);
    // SIGKILL. No request wakes the stand-by.
    drop(running.remove(0));
    wait_ms(5000);
    assert_eq!(owned(&objects).get(&0), Some(&2), "it has taken over after the silence");
    assert!(!running[0].log.seen().contains("by this version"), "{}", running[0].log.seen());
}

/// Appends a batch of a version that does not exist yet, as an upgraded owner would.
fn append_newer(objects: &ObjectServer, shard: u32) {
    let first = objects.object("locks", &format!("test/log/{shard}/{:016x}", 0)).expect("the first batch");
    let store_id = decode_object(&first).expect("a batch").0.store_id;
    let copy = MemoryObjects::default();
    for name in objects.objects("locks").into_keys() {
        let Some(bytes) = objects.object("locks", &name) else { continue };
        let name = name.strip_prefix("test/").expect("within the store");
        copy.put(name, &bytes).expect("in memory");
    }
    let options = ObjectOptions::new(shard, store_id, WriterId(9));
    let log = ObjectLog::open(Arc::new(copy.clone()), options, RetryPolicy::without_pause(1));
    let mut log = log.expect("readable");
    let next = log.bounds().next;
    let last = log.reader().read(Seq(next.0 - 1)).expect("the last batch");
    let (mut payload, lsn) = (last.payload.clone(), last.lsns.last.0 + 1);
    // The version of the batch, behind its magic.
    payload[3] += 1;
    log.append(next, LsnRange::new(lsn, lsn), &payload).expect("a free number");
    let name = format!("log/{shard}/{:016x}", next.0);
    let bytes = copy.get(&name).expect("it was appended");
    assert!(objects.insert("locks", &format!("test/{name}"), bytes));
}

/// An upgrade of one server of two: what it writes cannot be read by the other, which must not take the log over, must say so,
/// and goes on with everything else.
#[test]
fn a_server_that_cannot_read_a_newer_record_says_so_and_leaves_the_log_alone() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let mut running = servers(&objects, dir.path(), 2, &["--shards", "2"]);
    until("each has a shard", || super::loads(&objects) == [1, 1]);
    let log = |objects: &ObjectServer| {
        objects.objects("locks").into_keys().filter(|name| name.starts_with("test/log/0/")).count()
    };
    let [unreadable, readable] = [0, 1].map(|shard| super::namespace_of(&running[0].address, shard));
    append_newer(&objects, 0);
    let appended = log(&objects);
    let before = owned(&objects);
    for server in &mut running {
        // Its owner learns with its next request that the log is another's; then neither can follow it.
        let body = json!({"namespace": unreadable, "key": "orders", "ttl_seconds": 1});
        assert_eq!(post(&server.address, "/v1/acquire", &body).map(|(status, _)| status), Some(503));
    }
    for server in &mut running {
        server.log.wait_for("the shard cannot be followed by this version; it is not taken over");
    }
    wait_ms(4000);
    assert_eq!(log(&objects), appended, "no tenure was opened behind it");
    // The other one may believe that the shard was handed over to this one.
    let unready = running.iter().filter(|server| !is_ready(&server.address));
    assert!(unready.count() > 0, "it cannot grant everywhere, and says so");
    for server in &running {
        let body = json!({"namespace": readable, "key": "goes on", "ttl_seconds": 1});
        let (status, reply) = post(&server.address, "/v1/acquire", &body).expect("a response");
        assert!(status == 200 || status == 409, "the other shard: {reply}");
    }
    assert_eq!(owned(&objects).get(&1), before.get(&1), "it is in its term");
}
