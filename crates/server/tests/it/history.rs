//! Histories of resources, the caller's own rights, and the additions to contention that a console shows.

use lockd_server::testing::TestClock;
use serde_json::{Value, json};

use crate::support::{Server, header};

const HOUR_MS: u64 = 3_600_000;

async fn history(server: &Server, resource: &str) -> Value {
    let (status, body) = server.get(&format!("/v1/resource/{resource}/history")).await;
    assert_eq!(status, 200, "{body}");
    body
}

fn events(history: &Value) -> Vec<String> {
    let entry = |entry: &Value| match entry["how"].as_str() {
        Some(how) => format!("{} {how}", entry["event"].as_str().unwrap_or_default()),
        None => entry["event"].as_str().unwrap_or_default().to_string(),
    };
    history["entries"].as_array().expect("a list").iter().map(entry).collect()
}

async fn operate(server: &Server, lease: &Value, act: &str) {
    let path = format!("/v1/leases/{}/{act}", lease["public_id"].as_str().expect("an id"));
    let (status, body) = server.post(&path, &[], "").await;
    assert_eq!(status, 200, "{body}");
}

#[tokio::test]
async fn the_history_of_a_key_has_every_change_with_epoch_and_token() {
    let clock = TestClock::default();
    let server = Server::start_by(&clock);
    let first = server.acquire(json!({"key": "k", "ttl_ms": 60_000})).await;
    let id = first["lease_id"].as_str().expect("a credential").to_string();
    let (status, _) = server.post("/v1/update_state?key=k", &[header("x-lease-id", &id)], "{}").await;
    assert_eq!(status, 200);
    server.post("/v1/acquire", &[], r#"{"key":"k"}"#).await;
    operate(&server, &first, "revoke").await;
    operate(&server, &first, "reclaim").await;
    clock.advance(1000);
    let second = server.acquire(json!({"key": "k", "ttl_ms": 1000, "on_expiry": {"hold_ms": 60_000}})).await;
    clock.advance(1500);
    // The deadline is noticed by the next command on the key.
    server.post("/v1/acquire", &[], r#"{"key":"k"}"#).await;
    let id = second["lease_id"].as_str().expect("a credential");
    let path = format!("/v1/leases/{}/rebind", second["public_id"].as_str().expect("an id"));
    let (status, rebound) = server.post(&path, &[], &json!({"lease_id": id}).to_string()).await;
    assert_eq!(status, 200, "{rebound}");

    let history = history(&server, "KEY:k").await;
    let happened = events(&history);
    let expected = [
        "granted",
        "committed",
        "contention refused",
        "revoked",
        "reclaimed",
        "granted",
        "expired held",
        "contention refused",
        "granted rebound",
    ];
    assert_eq!(happened, expected);
    let entries = history["entries"].as_array().expect("a list");
    let epochs: Vec<Option<u64>> = entries.iter().map(|entry| entry["lease_epoch"].as_u64()).collect();
    let epoch = Some;
    assert_eq!(epochs, [epoch(1), epoch(1), None, epoch(2), epoch(2), epoch(1), epoch(2), None, epoch(3)]);
    assert_eq!(entries[3]["fencing_token"], first["fencing_token"], "the token that was ended");
    assert_eq!(entries[8]["fencing_token"], rebound["fencing_token"]);
    assert_eq!(entries[1]["version"], 1);
    assert_eq!(entries[2]["blocked_by"], json!([first["public_id"]]));
    assert_eq!(history["limited_by"], "start");
    assert_eq!(entries[5]["at_unix_ms"].as_u64(), entries[0]["at_unix_ms"].as_u64().map(|ms| ms + 1000));
}

#[tokio::test]
async fn a_history_goes_back_one_hour_and_says_where_it_ends() {
    let clock = TestClock::default();
    let server = Server::start_by(&clock);
    let lease = server.acquire(json!({"key": "k"})).await;
    let begin = history(&server, "KEY:k").await;
    assert_eq!((events(&begin).len(), &begin["limited_by"]), (1, &json!("start")));
    operate(&server, &lease, "revoke").await;
    clock.advance(HOUR_MS - 1);
    assert_eq!(events(&history(&server, "KEY:k").await).len(), 2);
    clock.advance(2);
    let later = history(&server, "KEY:k").await;
    assert!(events(&later).is_empty(), "{later}");
    assert_eq!(later["limited_by"], "age");
    let (since, now) = (later["since_unix_ms"].as_u64(), later["now_unix_ms"].as_u64());
    assert_eq!(since.map(|since| since + HOUR_MS), now);
}

/// A bundle of 128 resources is one event in 128 histories; a hot key must not grow without bound.
#[tokio::test]
async fn a_history_is_bounded_in_bytes() {
    let server = Server::start();
    for _ in 0..1000 {
        let lease = server.acquire(json!({"key": "hot"})).await;
        let (status, _) =
            server.post("/v1/release", &[], &json!({"lease_id": lease["lease_id"]}).to_string()).await;
        assert_eq!(status, 200);
        if lease["fencing_token"].as_u64().is_some_and(|token| token % 100 == 0) {
            history(&server, "KEY:hot").await;
        }
    }
    let hot = history(&server, "KEY:hot").await;
    let kept = events(&hot).len();
    assert!((100..2000).contains(&kept), "{kept}");
    assert_eq!(hot["limited_by"], "size");
    let resources: Vec<Value> = (0..128).map(|n| json!({"kind": "FILE", "name": format!("/f{n}")})).collect();
    server.acquire(json!({ "resources": resources })).await;
    let file = history(&server, "FILE:%2Ff127").await;
    assert_eq!(
        (events(&file), &file["entries"][0]["member_count"]),
        (vec!["granted".to_string()], &json!(128))
    );
}

#[tokio::test]
async fn a_history_needs_the_right_to_read_and_is_of_one_namespace() {
    let server = Server::start();
    server.acquire(json!({"key": "k", "namespace": "a"})).await;
    let reader = server.worker("reader", "a:r");
    let path = "/v1/resource/KEY:k/history";
    assert_eq!(events(&reader.get(&format!("{path}?namespace=a")).await.1), ["granted"]);
    assert_eq!(reader.get(path).await.0, 403, "default");
    assert!(events(&history(&server, "KEY:k").await).is_empty(), "the same name in another namespace");
    let (status, body) = server.get("/v1/resource/nonsense/history").await;
    assert_eq!((status, &body["error"]), (400, &json!("invalid_key")));
}

#[tokio::test]
async fn clients_learn_their_own_rights() {
    let server = Server::start();
    let (_, me) = server.get("/v1/whoami").await;
    assert_eq!((&me["identity"], &me["role"]), (&json!("anonymous"), &json!("operator")));
    assert_eq!(me["rights"], json!([{"namespace": "*", "rights": "rwpm"}]));
    assert_eq!(me["version"], env!("CARGO_PKG_VERSION"));
    let (_, me) = server.worker("w", "b:rp a:w").get("/v1/whoami").await;
    assert_eq!(me["role"], "worker");
    assert_eq!(me["rights"], json!([{"namespace": "a", "rights": "w"}, {"namespace": "b", "rights": "rp"}]));
}

#[tokio::test]
async fn the_queue_of_one_resource_and_the_victims_of_wait_die_are_listed() {
    let server = Server::start();
    server.acquire(json!({"key": "a"})).await;
    server.acquire(json!({"key": "b"})).await;
    for key in ["a", "b", "b"] {
        let waiting = server.clone();
        tokio::spawn(async move {
            waiting.post("/v1/acquire", &[], &json!({"key": key, "block_seconds": 30}).to_string()).await
        });
    }
    let all_wait = |body: &Value| body["waiting"].as_array().is_some_and(|all| all.len() == 3);
    server.until("/v1/contention", all_wait).await;
    let (_, of_b) = server.get("/v1/contention?resource=KEY:b").await;
    let names: Vec<&Value> =
        of_b["waiting"].as_array().expect("a list").iter().map(|one| &one["resources"][0]["name"]).collect();
    assert_eq!(names, ["b", "b"]);
    assert_eq!(server.get("/v1/contention?resource=nonsense").await.0, 400);

    let intents = json!([{"predicate": "MUTATES", "object": "FILE:/x"}]);
    let manifest = |agent: &str| json!({"agent_id": agent, "session_id": agent, "intents": intents});
    server.ask("/v1/manifest", &manifest("first")).await;
    assert_eq!(server.ask("/v1/manifest", &manifest("late")).await["verdict"], "DIE");
    let (_, contention) = server.get("/v1/contention").await;
    let victim = &contention["victims"][0];
    assert_eq!((&victim["agent_id"], &victim["died"]), (&json!("late"), &json!(1)));
    assert_eq!(victim["resource"]["name"], "/x");
    let (_, agents) = server.get("/v1/agents").await;
    assert!(agents["agents"][0]["last_activity_unix_ms"].is_u64(), "{agents}");
}
