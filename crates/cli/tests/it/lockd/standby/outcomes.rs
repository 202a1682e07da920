//! What callers learn when servers die or are too old: no response where the outcome is not known, and no takeover of a log
//! that cannot be read.

use std::sync::Arc;
use std::time::Duration;

use objectserver::{Moment, ObjectServer, Operation};
use serde_json::json;
use store::object::format::decode_object;
use store::object::{MemoryObjects, ObjectLog, ObjectOptions, Objects, RetryPolicy, WriterId};
use store::{LogStore, LsnRange, Seq};

use super::super::bucket::{is_ready, object_server, post, request, wait_ms};
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
