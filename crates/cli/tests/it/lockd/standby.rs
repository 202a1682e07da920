//! Several `lockd serve` on one bucket: takeover, hand-over, standing down and forwarding.

mod all_namespaces;
mod commands;
mod hand_over;
mod histories;
mod history_client;
mod outcomes;
mod over_frames;
mod proxy;
mod revocation;
mod spreading;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use objectserver::ObjectServer;
use rustix::process::Signal;
use serde_json::{Value, json};

use self::proxy::Proxy;
use super::bucket::{document, is_ready, object_server, post, request, serve, serve_at, wait_ms};
use crate::lockd::serve::Running;
use crate::lockd::support::lockd;
use crate::running::until;

/// The shortest silence: takeovers take a little longer than a second.
const FAST: [&str; 2] = ["--takeover-silence", "1s"];

fn is_long() -> bool {
    std::env::var_os("LOCKD_LONG").is_some()
}

/// Numbers the requests of a test run.
static REQUESTS: AtomicU64 = AtomicU64::new(0);

/// Servers on one bucket, the first of which owns every shard when the others start.
fn servers(objects: &ObjectServer, dir: &Path, count: usize, flags: &[&str]) -> Vec<Running> {
    let fast: &[&str] = if flags.contains(&FAST[0]) { &[] } else { &FAST };
    let flags: Vec<&str> = fast.iter().chain(flags).copied().collect();
    (0..count).map(|number| serve(objects, &dir.join(number.to_string()), &flags)).collect()
}

fn acquire(address: &str, key: &str) -> (u16, Value) {
    // With an idempotency key, so that it is sent again if the owner changes meanwhile.
    let body = json!({"key": key, "ttl_seconds": 60}).to_string();
    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
    let headers = format!("x-idempotency-key: {number}\r\n");
    let (status, body) = request(address, "POST /v1/acquire", &headers, &body).expect("a response");
    (status, serde_json::from_str(&body).expect("JSON"))
}

/// The shards that each server says it owns, by the terms, from their records in the bucket.
fn owned(objects: &ObjectServer) -> BTreeMap<u64, u64> {
    let mut owned = BTreeMap::new();
    for (name, _) in objects.objects("locks") {
        if !name.starts_with("test/servers/") {
            continue;
        }
        let Some(bytes) = objects.object("locks", &name) else { continue };
        let record: Value = serde_json::from_slice(&bytes).expect("a record is JSON");
        for shard in record["shards"].as_array().expect("a list") {
            let term = shard["term"].as_u64().expect("a term");
            let known = owned.entry(shard["shard"].as_u64().expect("a number")).or_insert(term);
            *known = (*known).max(term);
        }
    }
    owned
}

/// The number of shards that each server says it owns.
fn loads(objects: &ObjectServer) -> Vec<usize> {
    let records = objects.objects("locks");
    let names = records.keys().filter(|name| name.starts_with("test/servers/"));
    let record =
        |name: &String| -> Option<Value> { serde_json::from_slice(&objects.object("locks", name)?).ok() };
    names.filter_map(record).map(|record| record["shards"].as_array().map_or(0, Vec::len)).collect()
}

#[test]
fn a_request_to_any_server_reaches_the_owner_and_its_response_comes_back() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let servers = servers(&objects, dir.path(), 2, &[]);
    let (one, two) = (&servers[0].address, &servers[1].address);
    assert!(is_ready(one) && is_ready(two));
    let (status, lease) = acquire(two, "orders");
    assert_eq!(status, 200, "{lease}");
    let (status, refusal) = acquire(one, "orders");
    assert_eq!((status, refusal["error"].as_str()), (409, Some("waiting")));
    // A long document, in both directions.
    let id = lease["lease_id"].as_str().expect("a credential");
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(6 << 20));
    let headers = format!("x-lease-id: {id}\r\n");
    let (status, _) = request(two, "POST /v1/update_state?key=orders", &headers, &body).expect("a response");
    assert_eq!(status, 200);
    for address in [one, two] {
        let read = request(address, "GET /v1/get_state?key=orders&public=1", "", "").expect("a response");
        assert_eq!((read.0, read.1.len()), (200, body.len()));
    }
    let (status, _) = post(two, "/v1/release", &json!({"lease_id": id})).expect("a response");
    assert_eq!(status, 200);
    // A waiter that is forwarded is granted when the lease ends.
    let (_, held) = acquire(one, "queue");
    let waiting = {
        let two = two.clone();
        std::thread::spawn(move || {
            post(&two, "/v1/acquire", &json!({"key": "queue", "ttl_seconds": 60, "block_seconds": 30}))
        })
    };
    until("it waits", || {
        let (_, key) = request(one, "GET /v1/describe?key=queue", "", "").expect("a response");
        serde_json::from_str::<Value>(&key).expect("JSON")["waiters"] == 1
    });
    post(one, "/v1/release", &json!({"lease_id": held["lease_id"]})).expect("a response");
    assert_eq!(waiting.join().expect("no panic").expect("a response").0, 200);
}

#[test]
fn a_killed_owner_is_replaced_after_the_silence_and_its_leases_live_on() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let mut servers = servers(&objects, dir.path(), 2, &[]);
    let (status, lease) = acquire(&servers[0].address, "orders");
    assert_eq!(status, 200);
    // SIGKILL.
    drop(servers.remove(0));
    let second = &servers[0].address;
    // The request waits for the takeover.
    let (status, other) = acquire(second, "other");
    assert_eq!(status, 200, "{other}");
    assert!(other["fencing_token"].as_u64() > lease["fencing_token"].as_u64());
    let (status, refusal) = acquire(second, "orders");
    assert_eq!(status, 409, "{refusal}");
    let renewed = post(second, "/v1/keepalive", &json!({"lease_id": lease["lease_id"]})).expect("a response");
    assert_eq!(renewed.0, 200, "{renewed:?}");
    assert!(objects.double_wins().is_empty());
}

#[test]
fn an_idle_owner_that_lives_is_not_deposed() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let servers = servers(&objects, dir.path(), 3, &[]);
    assert_eq!(owned(&objects), BTreeMap::from([(0, 1)]));
    let silences = if is_long() { 3600 } else { 4 };
    wait_ms(silences * 1000);
    assert_eq!(owned(&objects), BTreeMap::from([(0, 1)]), "the shard is still in its first term");
    assert_eq!(acquire(&servers[2].address, "orders").0, 200);
}

/// The owner of two shards cannot append to one of them: its puts to that log do not arrive, and nothing else is wrong. It
/// goes on with the other shard, its record goes on being written, and it loses the one that hangs.
#[test]
fn an_owner_whose_append_hangs_loses_that_shard_alone() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let to_store = Proxy::start(objects.endpoint().trim_start_matches("http://"));
    let flags = ["--takeover-silence", "1s", "--shards", "4", "--s3-timeout", "120s"];
    let owner = serve_at(&format!("http://{}", to_store.address), &dir.path().join("a"), &flags);
    let other = serve(&objects, &dir.path().join("b"), &flags);
    until("each has two shards", || loads(&objects) == [2, 2]);
    let kept: Vec<u64> = owned_by(&objects, &owner.address);
    let (hangs, goes_on) = (kept[0], kept[1]);
    let [hanging_namespace, namespace] = [hangs, goes_on].map(|shard| namespace_of(&owner.address, shard));
    let before = owned(&objects);
    to_store.stall(&format!("PUT /locks/test/log/{hangs}/"));
    let address = owner.address.clone();
    let body = json!({"namespace": hanging_namespace, "key": "orders", "ttl_seconds": 60}).to_string();
    let sent = body.clone();
    let hanging = std::thread::spawn(move || {
        request(&address, "POST /v1/acquire", "x-idempotency-key: hangs\r\n", &sent).expect("a response")
    });
    until("the other server has the shard", || owned(&objects).get(&hangs) > before.get(&hangs));
    assert_eq!(owned(&objects).get(&goes_on), before.get(&goes_on), "the other shard is in its term");
    assert!(owned_by(&objects, &owner.address).contains(&goes_on), "and its owner's record says so");
    let goes_on = json!({"namespace": namespace, "key": "goes on", "ttl_seconds": 60});
    assert_eq!(post(&owner.address, "/v1/acquire", &goes_on).expect("a response").0, 200);
    // At the other server the request is granted: the append that hangs has not happened.
    let headers = "x-idempotency-key: hangs\r\n";
    let granted = request(&other.address, "POST /v1/acquire", headers, &body).expect("a response");
    assert_eq!(granted.0, 200, "{}", granted.1);
    // The put arrives late. Its server learns that it has lost the shard, and sends the request there: a replay.
    to_store.flow();
    let (status, reply) = hanging.join().expect("no panic");
    let token = |reply: &str| serde_json::from_str::<Value>(reply).expect("JSON")["fencing_token"].clone();
    assert_eq!((status, token(&reply)), (200, token(&granted.1)), "{reply}");
    assert!(objects.double_wins().is_empty());
}

/// The shards that the record of the server with this address names.
fn owned_by(objects: &ObjectServer, address: &str) -> Vec<u64> {
    let names = objects.objects("locks").into_keys().filter(|name| name.starts_with("test/servers/"));
    let records =
        names.filter_map(|name| serde_json::from_slice::<Value>(&objects.object("locks", &name)?).ok());
    let own = records.filter(|record| record["address"] == format!("http://{address}"));
    let shards = own.flat_map(|record| record["shards"].as_array().cloned().unwrap_or_default());
    shards.filter_map(|owned| owned["shard"].as_u64()).collect()
}

/// A namespace of the shard.
fn namespace_of(address: &str, shard: u64) -> String {
    let mut names = (0..1000).map(|number| format!("space-{number}"));
    names.find(|name| shard_of(address, name) == shard).expect("some name is in the shard")
}

/// The shard of a namespace: the id of a lease names it.
fn shard_of(address: &str, namespace: &str) -> u64 {
    let key = format!("shard-{}", REQUESTS.fetch_add(1, Ordering::Relaxed));
    let body = json!({"namespace": namespace, "key": key, "ttl_seconds": 1});
    let (status, lease) = post(address, "/v1/acquire", &body).expect("a response");
    assert_eq!(status, 200, "{lease}");
    u64::from_str_radix(&lease["public_id"].as_str().expect("an id")[2..18], 16).expect("a number")
}

/// The owner is stopped for longer than the silence, and continues with the state that it had.
#[test]
fn an_owner_that_slept_through_its_succession_reveals_nothing_old_and_follows() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let servers = servers(&objects, dir.path(), 2, &[]);
    let (one, two) = (&servers[0], &servers[1]);
    let (_, lease) = acquire(&one.address, "orders");
    one.signal(Signal::STOP);
    let (status, _) = acquire(&two.address, "meanwhile");
    assert_eq!(status, 200);
    let released =
        post(&two.address, "/v1/release", &json!({"lease_id": lease["lease_id"]})).expect("a response");
    assert_eq!(released.0, 200);
    one.signal(Signal::CONT);
    // The old owner believes that the lease is held, and that the other key is free.
    let (status, reply) = acquire(&one.address, "meanwhile");
    assert_eq!(status, 409, "{reply}");
    let (status, reply) = acquire(&one.address, "orders");
    assert_eq!(status, 200, "{reply}");
    until("it follows", || is_ready(&one.address));
    // It takes over again when the other is gone: standing down has not ended it.
    two.signal(Signal::STOP);
    let (status, reply) = acquire(&one.address, "again");
    two.signal(Signal::CONT);
    assert_eq!(status, 200, "{reply}");
    assert!(objects.double_wins().is_empty());
}

/// A worker that counts in a document, through any server, and retries a failed request once under the same idempotency key.
fn count_through(addresses: &[String], key: &str, stop: &AtomicBool, failures: &Mutex<Vec<String>>) -> u64 {
    let (mut acknowledged, mut round, mut token) = (0, 0, 0);
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let call = |name: &str, path: &str, headers: &str, body: &str| {
            let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
            let headers = format!("{headers}x-idempotency-key: {number}\r\n");
            let mut last = None;
            for attempt in 0..2 {
                let address = &addresses[(round + attempt) % addresses.len()];
                last = request(address, &format!("POST {path}"), &headers, body);
                if matches!(last, Some((200, _))) {
                    return last.map(|(_, body)| body);
                }
            }
            failures.lock().expect("not poisoned").push(format!("{key} {name}: {last:?}"));
            None
        };
        let body = json!({"key": key, "ttl_seconds": 30, "block_seconds": 10}).to_string();
        let Some(lease) = call("acquire", "/v1/acquire", "", &body) else { continue };
        let lease: Value = serde_json::from_str(&lease).expect("JSON");
        let newer = lease["fencing_token"].as_u64().expect("a token");
        assert!(newer > token, "tokens grow: {newer} after {token}");
        token = newer;
        let id = lease["lease_id"].as_str().expect("a credential");
        let document = json!({"n": acknowledged + 1}).to_string();
        let path = format!("/v1/update_state?key={key}");
        if call("update", &path, &format!("x-lease-id: {id}\r\n"), &document).is_some() {
            acknowledged += 1;
        }
        call("release", "/v1/release", "", &json!({"lease_id": id}).to_string());
    }
    acknowledged
}

/// Runs workers through all servers until `during` returns. Their counts by key, and the requests that failed twice.
fn with_workers(
    addresses: &[String],
    workers: usize,
    during: impl FnOnce(),
) -> (BTreeMap<String, u64>, Vec<String>) {
    let (stop, failures) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    // Keys of their own: what is found was written here.
    let series = REQUESTS.fetch_add(1, Ordering::Relaxed);
    let counts = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers)
            .map(|number| {
                let (key, stop, failures) = (format!("job-{series}-{number}"), &stop, &failures);
                scope.spawn(move || {
                    let count = count_through(addresses, &key, stop, failures);
                    (key, count)
                })
            })
            .collect();
        during();
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
    });
    (counts, failures.into_inner().expect("not poisoned"))
}

fn check_counts(address: &str, counts: &BTreeMap<String, u64>) {
    for (key, acknowledged) in counts {
        let found = document(address, key);
        assert!((*acknowledged..=acknowledged + 1).contains(&found), "{key}: {acknowledged}, found {found}");
    }
}

#[test]
fn a_hand_over_under_load_fails_no_request_that_is_sent_twice() {
    let (objects, dir) = (object_server(1), tempfile::tempdir().expect("a directory"));
    let mut servers = servers(&objects, dir.path(), 3, &[]);
    let addresses: Vec<_> = servers[1..].iter().map(|server| server.address.clone()).collect();
    let mut first = servers.remove(0);
    let (counts, failures) = with_workers(&addresses, 4, || {
        wait_ms(500);
        first.signal(Signal::TERM);
        assert_eq!(first.exit_status().code(), Some(0));
        wait_ms(1000);
    });
    assert_eq!(failures, Vec::<String>::new());
    assert!(counts.values().all(|count| *count > 0), "{counts:?}");
    check_counts(&servers[0].address, &counts);
    assert_eq!(owned(&objects), BTreeMap::from([(0, 2)]), "handed over, not taken over");
    assert!(objects.double_wins().is_empty());
}

/// Two of these compete for a key whose leases outlast the test: while one has a grant that it has not released, the other
/// must not get one. The number of grants.
fn compete(addresses: &[String], key: &str, is_held: &AtomicBool, stop: &AtomicBool) -> u64 {
    let mut grants = 0;
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let body = json!({"key": key, "ttl_seconds": 300, "block_seconds": 2}).to_string();
        let call = |head: &str, body: &str, tries: usize| {
            let headers = format!("x-idempotency-key: {}\r\n", REQUESTS.fetch_add(1, Ordering::Relaxed));
            (0..tries).find_map(|attempt| {
                let address = &addresses[(round + attempt) % addresses.len()];
                let reply = request(address, &format!("POST {head}"), &headers, body)?;
                if reply.0 == 200 || reply.0 == 409 {
                    return Some(reply);
                }
                wait_ms(50);
                None
            })
        };
        // Until there is a decision: a grant without a response would block the key.
        let Some((200, lease)) = call("/v1/acquire", &body, 200) else { continue };
        grants += 1;
        assert!(!is_held.swap(true, Ordering::SeqCst), "{key} was granted twice: {lease}");
        wait_ms(2);
        is_held.store(false, Ordering::SeqCst);
        let lease: Value = serde_json::from_str(&lease).expect("JSON");
        let released = call("/v1/release", &json!({"lease_id": lease["lease_id"]}).to_string(), 200);
        assert!(matches!(released, Some((200, _))), "{released:?}");
    }
    grants
}

/// Runs two competitors until `during` returns. The number of grants.
fn with_competitors<T>(addresses: &[String], during: impl FnOnce() -> T) -> (u64, T) {
    let key = format!("contended-{}", REQUESTS.fetch_add(1, Ordering::Relaxed));
    let (is_held, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let competitors: Vec<_> =
            (0..2).map(|_| scope.spawn(|| compete(addresses, &key, &is_held, &stop))).collect();
        let done = during();
        stop.store(true, Ordering::Relaxed);
        let grants = competitors.into_iter().map(|one| one.join().expect("granted to one at a time")).sum();
        (grants, done)
    })
}

/// Owners are killed and paused under load, and servers start again: 200 kills in the long form.
#[test]
fn nothing_acknowledged_is_lost_or_granted_twice_when_owners_are_killed_and_paused() {
    let (objects, dir) = (object_server(1), tempfile::tempdir().expect("a directory"));
    let mut servers = servers(&objects, dir.path(), 3, &[]);
    let rounds = if is_long() { 300 } else { 3 };
    let (mut kills, mut acknowledged, mut granted) = (0, 0, 0);
    for round in 0..rounds {
        let addresses: Vec<_> = servers.iter().map(|server| server.address.clone()).collect();
        let owner = owner_of_the_shard(&objects, &servers);
        let (grants, (counted, _)) = with_competitors(&addresses, || {
            with_workers(&addresses, 4, || {
                wait_ms(400);
                let victim = servers.remove(owner);
                if round % 3 == 2 {
                    victim.signal(Signal::STOP);
                    wait_ms(2500);
                    victim.signal(Signal::CONT);
                    servers.push(victim);
                } else {
                    // SIGKILL.
                    drop(victim);
                    kills += 1;
                    servers.push(serve(&objects, &dir.path().join(format!("r{round}")), &FAST));
                }
                wait_ms(1500);
            })
        });
        check_counts(&servers[0].address, &counted);
        acknowledged += counted.values().sum::<u64>();
        granted += grants;
    }
    println!("{kills} owners killed: {acknowledged} acknowledged writes, {granted} contended grants");
    assert!(kills * 3 >= rounds * 2 && acknowledged > 0 && granted > 0);
    assert!(objects.double_wins().is_empty());
}

/// The place of the server that owns the only shard, by the record with the highest term; the first if it is not there.
fn owner_of_the_shard(objects: &ObjectServer, servers: &[Running]) -> usize {
    let names = objects.objects("locks").into_keys().filter(|name| name.starts_with("test/servers/"));
    let record = |name: String| serde_json::from_slice(&objects.object("locks", &name)?).ok();
    let newest = names.filter_map(record).max_by_key(|record: &Value| record["shards"][0]["term"].as_u64());
    let address = newest.and_then(|record| record["address"].as_str().map(ToString::to_string));
    let is_owner = |server: &Running| address == Some(format!("http://{}", server.address));
    servers.iter().position(is_owner).unwrap_or(0)
}

/// The client's identity and rights are those of its own certificate, wherever its request arrives.
#[test]
fn a_forwarded_request_has_the_identity_of_its_client() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let endpoint = objects.endpoint();
    let process = r#"echo '{"Version":1,"AccessKeyId":"id","SecretAccessKey":"secret","SessionToken":null,"Expiration":null}'"#;
    let store = ["--store", "s3://locks/test", "--s3-region", "us-east-1", "--takeover-silence", "1s"];
    let mut flags = store.to_vec();
    flags.extend(["--s3-endpoint", endpoint.as_str(), "--s3-credential-process", process]);
    let one = Running::start(&dir.path().join("one"), &flags);
    let (server, client) = (dir.path().join("one/server.pem"), dir.path().join("one/client.pem"));
    flags.extend(["--bundle", server.to_str().expect("text")]);
    let two = Running::start(&dir.path().join("two"), &flags);
    let run = |address: &str, args: &[&str]| {
        let server = format!("https://{address}");
        let mut all = vec!["client"];
        all.extend(args);
        all.extend(["--server", server.as_str(), "--identity", client.to_str().expect("text")]);
        let ran = lockd(&all);
        (ran.code, format!("{}{}", ran.stdout, ran.stderr))
    };
    for (number, address) in [&one.address, &two.address].into_iter().enumerate() {
        let (code, output) =
            run(address, &["acquire", "--ttl", "60s", "--output", "json", &format!("key-{number}")]);
        assert_eq!(code, 0, "{output}");
        let (code, output) = run(address, &["describe", &format!("key-{number}")]);
        assert_eq!(code, 0, "{output}");
        assert!(!output.contains("anonymous"), "{output}");
    }
    // A client that claims to be a server that forwards is refused.
    let mut connection = two.connect(&client);
    let forged = "x-lockd-forwarded: eyJpZGVudGl0eSI6InJvb3QifQ\r\n";
    let (status, body) = connection.send("GET", "/v1/describe?key=key-0", forged, "").expect("a response");
    assert_eq!(status, 403, "{body}");
}

/// An upgrade: each server in turn is stopped, and started again.
#[test]
fn a_rolling_restart_under_load_fails_no_request_that_is_sent_twice() {
    let (objects, dir) = (object_server(1), tempfile::tempdir().expect("a directory"));
    let mut servers = servers(&objects, dir.path(), 3, &["--shards", "4"]);
    for round in 0..3 {
        let mut leaving = servers.remove(0);
        let addresses: Vec<_> = servers.iter().map(|server| server.address.clone()).collect();
        let (counts, failures) = with_workers(&addresses, 4, || {
            wait_ms(300);
            leaving.signal(Signal::TERM);
            assert_eq!(leaving.exit_status().code(), Some(0));
            servers.push(serve(&objects, &dir.path().join(format!("r{round}")), &FAST));
            wait_ms(700);
        });
        assert_eq!(failures, Vec::<String>::new(), "round {round}");
        assert!(counts.values().all(|count| *count > 0), "{counts:?}");
    }
    assert!(objects.double_wins().is_empty());
}
