//! Calls that concern several shards, when their shards are on several servers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use objectserver::ObjectServer;
use serde_json::{Value, json};

use super::super::bucket::{object_server, post, request};
use super::{loads, servers};
use crate::lockd::serve::Running;
use crate::lockd::support::lockd;
use crate::running::until;

const SHARDS: usize = 4;

/// Two servers that own two shards each, and a namespace of each shard.
struct Divided {
    servers: Vec<Running>,
    namespaces: BTreeMap<String, String>,
    objects: ObjectServer,
    _dir: tempfile::TempDir,
}

impl Divided {
    fn start() -> Divided {
        let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
        let servers = servers(&objects, dir.path(), 2, &["--shards", &SHARDS.to_string()]);
        until("each server has two shards", || loads(&objects) == [SHARDS / 2; 2]);
        let mut namespaces = BTreeMap::new();
        for number in 0.. {
            if namespaces.len() == SHARDS {
                break;
            }
            let namespace = format!("space-{number}");
            let lease = acquire(&servers[0].address, &namespace, "probe");
            let shard = lease["public_id"].as_str().expect("an id")[2..18].to_string();
            namespaces.entry(shard).or_insert(namespace);
        }
        Divided { servers, namespaces, objects, _dir: dir }
    }

    fn addresses(&self) -> impl Iterator<Item = &str> {
        self.servers.iter().map(|server| server.address.as_str())
    }

    fn namespaces(&self) -> BTreeSet<&str> {
        self.namespaces.values().map(String::as_str).collect()
    }
}

fn acquire(address: &str, namespace: &str, key: &str) -> Value {
    let body = json!({"namespace": namespace, "key": key, "ttl_seconds": 120});
    let (status, lease) = post(address, "/v1/acquire", &body).expect("a response");
    assert_eq!(status, 200, "{lease}");
    lease
}

fn get(address: &str, path: &str) -> Value {
    let (status, body) = request(address, &format!("GET {path}"), "", "").expect("a response");
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).expect("JSON")
}

fn call(address: &str, path: &str, body: &Value) -> Value {
    let (status, response) = post(address, path, body).expect("a response");
    assert_eq!(status, 200, "{path} {body}: {response}");
    response
}

fn set_quota(address: &str, quota: &Value) {
    let response = request(address, "PUT /v1/quotas", "", &quota.to_string()).expect("a response");
    assert_eq!(response.0, 200, "{quota}: {response:?}");
}

/// All pages of a list.
fn pages(address: &str, path: &str, field: &str) -> Vec<Value> {
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(address, &format!("{path}?limit=2{cursor}"));
        rows.extend(page[field].as_array().expect("a list").iter().cloned());
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
}

#[test]
fn lists_have_the_rows_of_all_servers_once() {
    let divided = Divided::start();
    for address in divided.addresses() {
        let listed = pages(address, "/v1/namespaces", "namespaces");
        let names: BTreeSet<&str> = listed.iter().filter_map(Value::as_str).collect();
        assert!(names.is_superset(&divided.namespaces()), "{names:?}");
        assert_eq!(names.len(), listed.len(), "each once");
        let leases = pages(address, "/v1/leases", "leases");
        let ids: BTreeSet<&str> = leases.iter().filter_map(|lease| lease["public_id"].as_str()).collect();
        let of: BTreeSet<&str> = leases.iter().filter_map(|lease| lease["namespace"].as_str()).collect();
        assert!(of.is_superset(&divided.namespaces()), "{of:?}");
        assert_eq!(ids.len(), leases.len(), "each once");
    }
}

#[test]
fn acts_on_all_namespaces_reach_every_shard() {
    let divided = Divided::start();
    let addresses: Vec<&str> = divided.addresses().collect();
    for namespace in divided.namespaces() {
        set_quota(addresses[0], &json!({"namespace": namespace, "max_leases": 50}));
    }
    set_quota(addresses[1], &json!({"identity": "intruder", "max_leases": 7}));
    for address in &addresses {
        let quotas = pages(address, "/v1/quotas", "quotas");
        let of: BTreeSet<Option<&str>> = quotas.iter().map(|quota| quota["namespace"].as_str()).collect();
        let expected = divided.namespaces().into_iter().map(Some).chain([None]).collect();
        assert_eq!((of, quotas.len()), (expected, SHARDS + 1), "{quotas:?}");
    }
    // A pause of the caller in all namespaces, and its end, at either server.
    let own = get(addresses[0], "/v1/whoami")["identity"].clone();
    for (address, paused) in [(addresses[0], true), (addresses[1], false)] {
        call(address, "/v1/pause", &json!({"identity": own, "paused": paused}));
        for namespace in divided.namespaces() {
            let body = json!({"namespace": namespace, "key": format!("{paused}"), "ttl_seconds": 60});
            let (status, reply) = post(addresses[0], "/v1/acquire", &body).expect("a response");
            assert_eq!(status, if paused { 429 } else { 200 }, "{namespace}: {reply}");
        }
    }
}

#[test]
fn contention_is_that_of_all_servers() {
    let divided = Divided::start();
    let mut waiters = Vec::new();
    for namespace in divided.namespaces() {
        acquire(&divided.servers[0].address, namespace, "contended");
        let body =
            json!({"namespace": namespace, "key": "contended", "ttl_seconds": 60, "block_seconds": 30});
        let address = divided.servers[1].address.clone();
        waiters.push(std::thread::spawn(move || post(&address, "/v1/acquire", &body)));
    }
    for address in divided.addresses() {
        let of = |list: &Value| -> BTreeSet<String> {
            let names =
                list.as_array().expect("a list").iter().filter_map(|entry| entry["namespace"].as_str());
            names.map(ToString::to_string).collect()
        };
        let expected: BTreeSet<String> = divided.namespaces.values().cloned().collect();
        until("all waiters are listed", || of(&get(address, "/v1/contention")["waiting"]) == expected);
        assert_eq!(of(&get(address, "/v1/contention")["hotspots"]), expected);
        for namespace in divided.namespaces() {
            let one = get(address, &format!("/v1/contention?namespace={namespace}"));
            assert_eq!(one["waiting"].as_array().map(Vec::len), Some(1), "{one}");
        }
    }
    drop(divided);
    for waiter in waiters {
        drop(waiter.join());
    }
}

/// Heartbeats sent to a stand-by were refused lease by lease as `moved`.
#[test]
fn requests_for_many_leases_are_divided_among_the_servers() {
    let divided = Divided::start();
    let leases: Vec<Value> = divided
        .namespaces()
        .into_iter()
        .flat_map(|namespace| {
            ["a", "b"].map(|key| acquire(&divided.servers[0].address, namespace, key)["lease_id"].clone())
        })
        .collect();
    // In an order that no shard has, with a credential that is none.
    let mut ids: Vec<Value> =
        leases.iter().step_by(2).chain(leases.iter().skip(1).step_by(2)).cloned().collect();
    ids.insert(3, json!("no credential"));
    let results = |address: &str, path: &str, body: &Value| -> Vec<(Value, bool, Value)> {
        let response = call(address, path, body);
        let results = response["results"].as_array().expect("a list").iter();
        results.map(|one| (one["lease_id"].clone(), one["ok"] == true, one["error"].clone())).collect()
    };
    let expected: Vec<(Value, bool, Value)> = ids
        .iter()
        .enumerate()
        .map(|(at, id)| (id.clone(), at != 3, if at == 3 { json!("invalid_body") } else { Value::Null }))
        .collect();
    for address in divided.addresses() {
        for path in ["/v1/leases/heartbeat", "/v1/leases/reconcile"] {
            assert_eq!(results(address, path, &json!({"lease_ids": ids})), expected, "{path}");
        }
        // The agent's namespace is in one shard, the leases in others.
        let namespace = divided.namespaces.values().next().expect("one of each shard");
        let intents = json!([{"predicate": "CONSUMES", "object": "KEY:manifest"}]);
        let manifest =
            json!({"namespace": namespace, "agent_id": "builder", "session_id": "s", "intents": intents});
        call(address, "/v1/manifest", &manifest);
        let state = json!({"namespace": namespace, "state": "DIE_RESTART"});
        call(address, "/v1/agents/builder/state", &state);
        let body = json!({"namespace": namespace, "agent_id": "builder", "lease_ids": [leases.last()]});
        let answered = results(address, "/v1/leases/heartbeat", &body);
        assert_eq!(answered[0].2, json!("not_held"), "a lease of another namespace than the named one");
        let agents = get(address, &format!("/v1/agents?namespace={namespace}"));
        assert_eq!(agents["agents"][0]["state"], "ALIVE", "{agents}");
    }
    let second = &divided.servers[1].address;
    assert_eq!(results(second, "/v1/leases/release", &json!({"lease_ids": ids})), expected);
    let left = pages(second, "/v1/leases", "leases");
    let active = left.iter().filter(|lease| lease["state"] == "active" && lease["members"][0]["name"] == "a");
    assert_eq!(active.count(), 0);
}

/// A stream of events of all namespaces at a server.
struct Stream {
    socket: BufReader<TcpStream>,
}

impl Stream {
    fn open(address: &str, headers: &str) -> Stream {
        let mut socket = TcpStream::connect(address).expect("it listens");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let head = format!("GET /v1/events HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        socket.write_all(head.as_bytes()).expect("it reads");
        let mut stream = Stream { socket: BufReader::new(socket) };
        assert_eq!(stream.line().trim(), "HTTP/1.1 200 OK");
        stream
    }

    /// Empty at the end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.socket.read_line(&mut line).expect("a line before the timeout");
        line
    }

    /// The names of events up to the first grant of the last of these keys, and the keys that were granted.
    fn read_grants(&mut self, keys: &BTreeSet<String>) -> (Vec<String>, Vec<String>) {
        let (mut events, mut granted) = (Vec::new(), Vec::new());
        while granted.iter().collect::<BTreeSet<_>>().len() < keys.len() {
            let line = self.line();
            assert!(!line.is_empty(), "the stream ended after {events:?} {granted:?}");
            if let Some(event) = line.strip_prefix("event: ") {
                events.push(event.trim().to_string());
            }
            if events.last().is_some_and(|event| event == "granted")
                && let Some(data) = line.strip_prefix("data: ")
            {
                let event: Value = serde_json::from_str(data.trim()).expect("JSON");
                let key = event["resources"][0]["name"].as_str().expect("a name").to_string();
                granted.extend(keys.contains(&key).then_some(key));
            }
        }
        (events, granted)
    }
}

/// Without a server that owned every shard, there was no stream of all events.
#[test]
fn a_stream_of_all_namespaces_has_the_events_of_all_servers() {
    let divided = Divided::start();
    for (round, address) in divided.addresses().enumerate() {
        let (mut stream, mut keys) = (Stream::open(address, ""), BTreeSet::new());
        for namespace in divided.namespaces() {
            let key = format!("{namespace}-{round}");
            acquire(&divided.servers[0].address, namespace, &key);
            keys.insert(key);
        }
        let (_, granted) = stream.read_grants(&keys);
        assert_eq!(granted.len(), keys.len(), "each once: {granted:?}");
    }
}

/// A shard moves: its events would be missing. The stream ends, and the next one begins with `reset`.
#[test]
fn a_stream_of_all_namespaces_ends_when_a_shard_moves() {
    let divided = Divided::start();
    let (one, two) = (&divided.servers[0].address, &divided.servers[1].address);
    let mut streams = [Stream::open(one, ""), Stream::open(two, "")];
    let server = format!("http://{one}");
    let args = ["store", "hand-over", "--mtls=false", "--server", server.as_str()];
    until("a shard is handed over", || lockd(&args).code == 0);
    for stream in &mut streams {
        while !stream.line().is_empty() {}
    }
    // The shards go back until each server has its part.
    until("each server has two shards again", || loads(&divided.objects) == [SHARDS / 2; 2]);
    let mut stream = Stream::open(two, "last-event-id: 1.0\r\n");
    let key = "after".to_string();
    acquire(one, divided.namespaces().first().expect("some"), &key);
    let (events, _) = stream.read_grants(&BTreeSet::from([key]));
    assert_eq!(events.first().map(String::as_str), Some("reset"), "{events:?}");
}
