//! The agents' protocol, call by call, on a clock that the test advances.

use lockd_server::testing::TestClock;
use serde_json::{Value, json};

use crate::support::{Server, header, within};

/// A manifest of an agent, in a session of the same name, that writes these paths.
fn manifest(agent: &str, paths: &[&str]) -> Value {
    let intents: Vec<Value> =
        paths.iter().map(|path| json!({"predicate": "MUTATES", "object": format!("FILE:{path}")})).collect();
    json!({"agent_id": agent, "session_id": agent, "intents": intents})
}

fn with(mut body: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

async fn submit(server: &Server, body: &Value, verdict: &str) -> Value {
    let reply = server.ask("/v1/manifest", body).await;
    assert_eq!(reply["verdict"], json!(verdict), "{reply}");
    reply
}

fn with_clock() -> (TestClock, Server) {
    let clock = TestClock::default();
    let server = Server::start_by(&clock);
    (clock, server)
}

async fn bulk(server: &Server, what: &str, leases: &[&Value], fields: Value) -> Vec<Value> {
    let ids: Vec<&Value> = leases.iter().map(|lease| &lease["lease_id"]).collect();
    let reply = server.ask(&format!("/v1/leases/{what}"), &with(fields, &json!({"lease_ids": ids}))).await;
    let results = reply["results"].as_array().expect("a list").clone();
    assert_eq!(results.len(), ids.len());
    for (result, id) in results.iter().zip(ids) {
        assert_eq!(&result["lease_id"], id, "in order, as it was asked for");
    }
    results
}

#[tokio::test]
async fn a_manifest_is_granted_as_one_lease_over_all_of_it() {
    let (_, server) = with_clock();
    let body = json!({
        "agent_id": "coder", "session_id": "run-1", "root": "/repo", "ttl_ms": 30_000, "reason": "rename a field",
        "intents": [
            {"predicate": "CONSUMES", "object": "FILE:src/./a.rs"},
            {"predicate": "MUTATES", "object": "FILE:/repo//src/a.rs"},
            {"predicate": "CONSUMES", "object": "FILE:docs/*"},
            {"predicate": "DEPENDS_ON", "object": "TABLE:orders"},
        ],
    });
    let reply = submit(&server, &body, "GRANTED").await;
    assert_eq!(
        reply["resources"],
        json!([
            {"kind": "FILE", "name": "/repo/src/a.rs", "predicate": "MUTATES"},
            {"kind": "FILE", "name": "/repo/docs/*", "predicate": "CONSUMES"},
            {"kind": "TABLE", "name": "orders", "predicate": "DEPENDS_ON"},
        ]),
        "equal objects are one, and what covers both"
    );
    assert_eq!(
        (&reply["ttl_ms"], &reply["remaining_ms"], &reply["lease_epoch"]),
        (&json!(30_000), &json!(30_000), &json!(1))
    );
    assert!(reply.get("attempt_id").is_none(), "an attempt ends with its grant");
    let view = server.get(&format!("/v1/leases/{}", reply["public_id"].as_str().expect("a name"))).await.1;
    assert_eq!((&view["agent_id"], &view["member_count"]), (&json!("coder"), &json!(3)));

    // The session already holds it: it must not wait for itself.
    let (status, again) = server.post("/v1/manifest", &[], &body.to_string()).await;
    assert_eq!(
        (status, &again["error"], &again["lease"]),
        (409, &json!("already_held"), &reply["public_id"])
    );
}

#[tokio::test]
async fn a_manifest_is_granted_completely_or_not_at_all() {
    let (_, server) = with_clock();
    submit(&server, &manifest("a", &["/x"]), "GRANTED").await;
    submit(&server, &manifest("b", &["/w", "/x", "/y"]), "DIE").await;
    for free in ["/w", "/y"] {
        let seen = server.get(&format!("/v1/resource/FILE:{}/state", free.replace('/', "%2F"))).await.1;
        assert_eq!((&seen["state"], &seen["leases"]), (&json!("available"), &json!([])), "{seen}");
    }
    submit(&server, &manifest("c", &["/w", "/y"]), "GRANTED").await;
}

/// An older attempt may wait for a younger holder; a younger one dies, and retries with the same age.
#[tokio::test]
async fn an_older_attempt_waits_and_a_younger_one_dies_and_keeps_its_age() {
    let (clock, server) = with_clock();
    let holder =
        submit(&server, &with(manifest("first", &["/x"]), &json!({"reason": "because"})), "GRANTED").await;
    clock.advance(10);
    let died = submit(&server, &manifest("old", &["/x"]), "DIE").await;
    let in_the_way = &died["holders"][0];
    assert_eq!((&in_the_way["public_id"], &in_the_way["agent_id"]), (&holder["public_id"], &json!("first")));
    assert_eq!((&in_the_way["reason"], &in_the_way["state"]), (&json!("because"), &json!("active")));
    let backoff = died["backoff_ms"].as_u64().expect("a number");
    assert!((50..=100).contains(&backoff), "{backoff}");
    clock.advance(10);
    server.release(&holder).await;
    let young = submit(&server, &manifest("young", &["/x"]), "GRANTED").await;
    clock.advance(10);
    // A new attempt is younger than the holder; the old one is older.
    submit(&server, &manifest("other", &["/x"]), "DIE").await;
    let back = with(manifest("old", &["/x"]), &json!({"attempt_id": died["attempt_id"]}));
    let waits = submit(&server, &back, "WAIT").await;
    assert_eq!((&waits["position"], &waits["holders"][0]["public_id"]), (&json!(0), &young["public_id"]));
    assert!(is_same_attempt(&waits, &died), "{waits}");
    // The verdict was advice: nothing is queued.
    assert_eq!(server.get("/v1/contention").await.1["waiting"], json!([]));

    let queued = with(back, &json!({"wait_ms": 30_000}));
    let waiter = {
        let (server, queued) = (server.clone(), queued);
        tokio::spawn(async move { submit(&server, &queued, "GRANTED").await })
    };
    server.until("/v1/contention", |reply| reply["waiting"][0]["agent_id"] == json!("old")).await;
    server.release(&young).await;
    let granted = within("the waiter gets a reply", waiter).await.expect("a reply");
    assert!(granted["fencing_token"].as_u64() > young["fencing_token"].as_u64());
}

/// Whether two responses are of one attempt. The rest of the text tells when each was sent.
fn is_same_attempt(one: &Value, other: &Value) -> bool {
    let first_try = |reply: &Value| reply["attempt_id"].as_str().map(|text| text[..44].to_string());
    first_try(one).is_some() && first_try(one) == first_try(other)
}

/// The response to a manifest that died, and is older than everything that is granted from now on.
async fn older(server: &Server, clock: &TestClock, body: &Value) -> Value {
    let agent = format!("before-{}", body["agent_id"].as_str().expect("a name"));
    let before = with(body.clone(), &json!({"agent_id": agent, "session_id": "before"}));
    let before = submit(server, &before, "GRANTED").await;
    clock.advance(1);
    let died = submit(server, body, "DIE").await;
    clock.advance(1);
    server.release(&before).await;
    died
}

#[tokio::test]
async fn a_wait_that_times_out_returns_a_verdict() {
    let (clock, server) = with_clock();
    let first = older(&server, &clock, &manifest("old", &["/x"])).await;
    submit(&server, &manifest("young", &["/x"]), "GRANTED").await;
    let body = with(manifest("old", &["/x"]), &json!({"attempt_id": first["attempt_id"], "wait_ms": 2_000}));
    let waiter = {
        let server = server.clone();
        tokio::spawn(async move { submit(&server, &body, "WAIT").await })
    };
    server.until("/v1/contention", |reply| reply["waiting"][0]["agent_id"] == json!("old")).await;
    clock.advance(2_001);
    let reply = server.until("/v1/contention", |reply| reply["waiting"] == json!([])).await;
    let told_last = within("the waiter gets a reply", waiter).await.expect("a reply");
    assert_eq!((&told_last["position"], &told_last["holders"][0]["agent_id"]), (&json!(0), &json!("young")));
    assert!(is_same_attempt(&told_last, &first), "{told_last}");
    assert_eq!(
        (&reply["timeouts"][0]["agent_id"], &reply["timeouts"][0]["waits"]),
        (&json!("old"), &json!(1))
    );
    assert_eq!(
        reply["hotspots"],
        json!([{"namespace": "default", "kind": "FILE", "name": "/x", "blocked": 2, "timed_out": 1}])
    );
}

/// Two sessions want each other's lease: the request that would close the cycle dies, with the leases to release.
#[tokio::test]
async fn an_attempt_that_would_close_a_deadlock_cycle_dies_and_gets_the_leases_to_release() {
    let (clock, server) = with_clock();
    let a = older(&server, &clock, &manifest("a", &["/b"])).await;
    let second = older(&server, &clock, &manifest("b", &["/a"])).await;
    submit(&server, &manifest("a", &["/a"]), "GRANTED").await;
    clock.advance(1);
    let b = submit(&server, &manifest("b", &["/b"]), "GRANTED").await;
    let body = with(manifest("a", &["/b"]), &json!({"attempt_id": a["attempt_id"], "wait_ms": 30_000}));
    let waiter = {
        let server = server.clone();
        tokio::spawn(async move { submit(&server, &body, "GRANTED").await })
    };
    server.until("/v1/contention", |reply| reply["waiting"][0]["agent_id"] == json!("a")).await;
    let body = with(manifest("b", &["/a"]), &json!({"attempt_id": second["attempt_id"], "wait_ms": 30_000}));
    let died = submit(&server, &body, "DIE").await;
    assert_eq!(died["release"], json!([b["public_id"]]));
    server.release(&b).await;
    within("the waiter is granted", waiter).await.expect("a grant");
    let reply = server.get("/v1/contention").await.1;
    assert_eq!(reply["waiting"], json!([]));
}

/// The response to a first try was lost; its retry, under the same key, was refused as another request, because the
/// server had given it another age.
#[tokio::test]
async fn a_retry_of_a_waiting_manifest_takes_its_queue_position() {
    let (clock, server) = with_clock();
    // A lease on a hold that cannot be rebound is younger than every attempt: new attempts may wait for it.
    let lease = server.acquire(json!({"resources": [{"kind": "FILE", "name": "/x"}], "ttl_ms": 1000})).await;
    server
        .post(&format!("/v1/leases/{}/revoke", lease["public_id"].as_str().expect("a name")), &[], "")
        .await;
    let body = with(manifest("a", &["/x"]), &json!({"wait_ms": 30_000})).to_string();
    let key = [header("x-idempotency-key", "once")];
    let first = {
        let (server, body) = (server.clone(), body.clone());
        tokio::spawn(async move {
            server.post("/v1/manifest", &[header("x-idempotency-key", "once")], &body).await
        })
    };
    server.until("/v1/contention", |reply| reply["waiting"][0]["agent_id"] == json!("a")).await;
    clock.advance(50);
    let second = {
        let (server, body) = (server.clone(), body.clone());
        tokio::spawn(async move {
            server.post("/v1/manifest", &[header("x-idempotency-key", "once")], &body).await
        })
    };
    let (status, reply) = first.await.expect("an answer");
    assert_eq!(
        (status, &reply["error"]),
        (503, &json!("unavailable")),
        "another waits in its place: {reply}"
    );
    server
        .post(&format!("/v1/leases/{}/reclaim", lease["public_id"].as_str().expect("a name")), &[], "")
        .await;
    let (status, granted) = within("the second request gets a reply", second).await.expect("a reply");
    assert_eq!((status, &granted["verdict"]), (200, &json!("GRANTED")), "{granted}");
    let (_, again) = server.post("/v1/manifest", &key, &body).await;
    assert_eq!(again["lease_id"], granted["lease_id"]);
}

#[tokio::test]
async fn an_attempt_id_counts_for_its_request_alone_and_for_an_hour() {
    let (clock, server) = with_clock();
    let holder = submit(&server, &manifest("holder", &["/x"]), "GRANTED").await;
    clock.advance(5);
    let first = submit(&server, &manifest("a", &["/x"]), "DIE").await;
    let back = with(manifest("a", &["/x"]), &json!({"attempt_id": first["attempt_id"]}));
    // Another namespace, agent, session, and other intents: a new attempt.
    let elsewhere = with(back.clone(), &json!({"namespace": "elsewhere"}));
    submit(&server, &elsewhere, "GRANTED").await;
    let changed = [
        with(back.clone(), &json!({"agent_id": "b"})),
        with(back.clone(), &json!({"session_id": "other"})),
        with(manifest("a", &["/x", "/y"]), &json!({"attempt_id": first["attempt_id"]})),
    ];
    for body in changed {
        let reply = submit(&server, &body, "DIE").await;
        assert!(!is_same_attempt(&reply, &first), "{body}");
    }
    // As long as it retries, it keeps its place, for an hour.
    let mut last = first.clone();
    for minute in 1..60 {
        clock.advance(30_000);
        bulk(&server, "heartbeat", &[&holder], json!({})).await;
        clock.advance(30_000);
        bulk(&server, "heartbeat", &[&holder], json!({})).await;
        last = submit(&server, &with(back.clone(), &json!({"attempt_id": last["attempt_id"]})), "DIE").await;
        assert!(is_same_attempt(&last, &first), "after {minute} minutes: {last}");
    }
    clock.advance(30_000);
    bulk(&server, "heartbeat", &[&holder], json!({})).await;
    clock.advance(30_001);
    let late = submit(&server, &with(back.clone(), &json!({"attempt_id": last["attempt_id"]})), "DIE").await;
    assert!(!is_same_attempt(&late, &first), "{late}");
}

/// A client collects tokens for later: unless it retries soon after each response, they lapse.
#[tokio::test]
async fn an_attempt_id_lapses_unless_it_is_retried() {
    let (clock, server) = with_clock();
    let held = server.acquire(json!({"key": "k", "ttl_ms": 300_000})).await;
    let (_, first) = server.post("/v1/acquire", &[], &json!({"key": "k"}).to_string()).await;
    // The server's `acquire-block` of a minute, and 15 s.
    clock.advance(75_000);
    let body = json!({"key": "k", "attempt_id": first["attempt_id"]}).to_string();
    let (_, second) = server.post("/v1/acquire", &[], &body).await;
    assert!(is_same_attempt(&second, &first), "{second}");
    clock.advance(75_001);
    let body = json!({"key": "k", "attempt_id": second["attempt_id"]}).to_string();
    let (_, third) = server.post("/v1/acquire", &[], &body).await;
    assert!(!is_same_attempt(&third, &first), "{third}");
    server.release(&held).await;
}

/// A token that was copied from another client, used for another key, altered, or kept after its grant would put its bearer
/// before waiters that came first.
#[tokio::test]
async fn an_attempt_id_is_neither_forged_nor_shared_nor_used_for_another_key_or_after_its_grant() {
    let (_, server) = with_clock();
    let (ada, bob) = (server.worker("ada", "default:rw"), server.worker("bob", "default:rw"));
    let held = server.acquire(json!({"key": "k", "ttl_ms": 300_000})).await;
    server.acquire(json!({"key": "other", "ttl_ms": 300_000})).await;
    let (_, first) = ada.post("/v1/acquire", &[], &json!({"key": "k"}).to_string()).await;
    let text = first["attempt_id"].as_str().expect("a token").to_string();
    let retry = |key: &str, attempt_id: &str| json!({"key": key, "attempt_id": attempt_id}).to_string();
    let (_, same) = ada.post("/v1/acquire", &[], &retry("k", &text)).await;
    assert!(is_same_attempt(&same, &first), "its own: {same}");
    let (status, shared) = bob.post("/v1/acquire", &[], &retry("k", &text)).await;
    assert!(status == 409 && !is_same_attempt(&shared, &first), "of another identity: {shared}");
    let (status, elsewhere) = ada.post("/v1/acquire", &[], &retry("other", &text)).await;
    assert!(status == 409 && !is_same_attempt(&elsewhere, &first), "for another key: {elsewhere}");
    let altered = if text.ends_with('A') { "B" } else { "A" };
    for forged in [format!("{}{altered}", &text[..text.len() - 1]), text.replacen("A-A", "A-B", 1)] {
        let (status, refused) = ada.post("/v1/acquire", &[], &retry("k", &forged)).await;
        assert_eq!((status, &refused["error"]), (400, &json!("invalid_body")), "{refused}");
    }
    server.release(&held).await;
    let (status, granted) = ada.post("/v1/acquire", &[], &retry("k", &text)).await;
    assert_eq!(status, 200, "{granted}");
    let (status, used) = ada.post("/v1/acquire", &[], &retry("k", &text)).await;
    assert!(status == 409 && !is_same_attempt(&used, &first), "after its grant: {used}");
}

#[tokio::test]
async fn an_agent_belongs_to_the_identity_that_first_used_it() {
    let (_, server) = with_clock();
    let (ada, bob) = (server.worker("ada", "default:rw"), server.worker("bob", "default:rw"));
    let lease = submit(&ada, &manifest("coder", &["/x"]), "GRANTED").await;
    for (path, body) in [
        ("/v1/manifest", manifest("coder", &["/y"])),
        ("/v1/agents/coder/state", json!({"state": "DIE_RESTART"})),
        ("/v1/leases/heartbeat", json!({"agent_id": "coder", "lease_ids": [lease["lease_id"]]})),
    ] {
        let (status, reply) = bob.post(path, &[], &body.to_string()).await;
        assert_eq!((status, &reply["error"]), (403, &json!("forbidden")), "{path}: {reply}");
    }
    let (status, _) = ada.post("/v1/agents/coder/state", &[], r#"{"state":"PAUSED"}"#).await;
    assert_eq!(status, 403, "a pause is an operator's");
    let (status, _) =
        server.worker("eve", "other:rw").post("/v1/manifest", &[], &manifest("e", &["/z"]).to_string()).await;
    assert_eq!(status, 403, "no right there");
}

#[tokio::test]
async fn a_paused_agent_gets_no_grants_until_it_is_resumed() {
    let (_, server) = with_clock();
    let ada = server.worker("ada", "default:rw");
    let lease = submit(&ada, &manifest("coder", &["/x"]), "GRANTED").await;
    let agent = server.ask("/v1/agents/coder/state", &json!({"state": "PAUSED"})).await;
    assert_eq!(
        (&agent["state"], &agent["identity"], &agent["leases"]),
        (&json!("PAUSED"), &json!("ada"), &json!(1))
    );
    let reply = submit(&ada, &manifest("coder", &["/y"]), "PAUSED").await;
    assert!(reply["backoff_ms"].is_number() && reply["detail"].is_string(), "{reply}");
    assert!(reply.get("lease_id").is_none(), "{reply}");
    // It keeps its leases, and announcing that it is alive does not resume its grants.
    assert_eq!(bulk(&ada, "heartbeat", &[&lease], json!({})).await[0]["ok"], json!(true));
    let agent = ada.ask("/v1/agents/coder/state", &json!({"state": "ALIVE"})).await;
    assert_eq!(agent["state"], json!("PAUSED"));
    let agent = server.ask("/v1/agents/coder/state", &json!({"state": "ALIVE"})).await;
    assert_eq!(agent["state"], json!("ALIVE"));
    submit(&ada, &manifest("coder", &["/y"]), "GRANTED").await;

    let quota = json!({"identity": "ada", "max_leases": 2});
    assert_eq!(server.raw("PUT", "/v1/quotas", &[], &quota.to_string()).await.status, 200);
    submit(&ada, &manifest("coder", &["/z"]), "PAUSED").await;
}

/// The quota was stored and never enforced: a client in a loop was not limited.
#[tokio::test]
async fn acquires_above_the_rate_quota_are_refused_with_retry_after_one_second() {
    let (clock, server) = with_clock();
    let ada = server.worker("ada", "default:rw");
    let quota = json!({"identity": "ada", "acquires_per_second": 2}).to_string();
    assert_eq!(server.raw("PUT", "/v1/quotas", &[], &quota).await.status, 200);
    for _ in 0..2 {
        let key = [header("x-idempotency-key", "once")];
        let (status, _) = ada.post("/v1/acquire", &key, r#"{"key":"k"}"#).await;
        assert_eq!(status, 200, "a retry asks for nothing new");
    }
    assert_eq!(ada.post("/v1/acquire", &[], r#"{"key":"k"}"#).await.0, 409, "what is refused counts too");
    let (status, reply) = ada.post("/v1/acquire", &[], r#"{"key":"other"}"#).await;
    assert_eq!(
        (status, &reply["error"], &reply["retry_after_seconds"]),
        (429, &json!("quota_exceeded"), &json!(1))
    );
    submit(&ada, &manifest("a", &["/x"]), "PAUSED").await;
    submit(&server, &manifest("b", &["/x"]), "GRANTED").await;
    clock.advance(1_000);
    submit(&ada, &manifest("a", &["/y"]), "GRANTED").await;
}

#[tokio::test]
async fn bulk_calls_return_a_result_for_each_lease_in_order() {
    let (clock, server) = with_clock();
    let ada = server.worker("ada", "*:rw");
    let mine = submit(&ada, &manifest("a", &["/1"]), "GRANTED").await;
    let elsewhere = with(manifest("a", &["/1"]), &json!({"namespace": "far"}));
    let far = submit(&ada, &elsewhere, "GRANTED").await;
    let short = with(manifest("a", &["/2"]), &json!({"ttl_ms": 1_000, "session_id": "s"}));
    let short = submit(&ada, &short, "GRANTED").await;
    let theirs = submit(&server.worker("bob", "*:rw"), &manifest("b", &["/3"]), "GRANTED").await;
    let forged = json!({"lease_id": mine["lease_id"].as_str().expect("text").replace(".1.", ".3.")});
    let nonsense = json!({"lease_id": "nonsense"});
    clock.advance(1_001);
    let all = [&mine, &nonsense, &short, &theirs, &forged, &far];
    let beaten = bulk(&ada, "heartbeat", &all, json!({})).await;
    let errors: Vec<&Value> = beaten.iter().map(|result| &result["error"]).collect();
    let wanted = [
        Value::Null,
        json!("invalid_body"),
        json!("lease_expired"),
        json!("not_held"),
        json!("not_held"),
        Value::Null,
    ];
    assert_eq!(errors, wanted.iter().collect::<Vec<_>>(), "{beaten:?}");
    assert_eq!(
        (&beaten[0]["ok"], &beaten[0]["remaining_ms"]),
        (&json!(true), &json!(60_000)),
        "its ttl, from now"
    );
    assert_eq!(beaten[5]["expires_at_unix_ms"], json!(1_800_000_001_001_u64 + 60_000));

    let seen = bulk(&ada, "reconcile", &all, json!({})).await;
    let valid: Vec<&Value> = seen.iter().map(|result| &result["valid"]).collect();
    assert_eq!(
        valid,
        [&json!(true), &json!(false), &json!(false), &json!(false), &json!(false), &json!(true)],
        "{seen:?}"
    );
    assert_eq!(
        (&seen[0]["state"], &seen[0]["agent_id"], &seen[5]["namespace"]),
        (&json!("active"), &json!("a"), &json!("far"))
    );
    assert_eq!(
        (&seen[2]["ok"], &seen[2]["state"], &seen[2]["resources"][0]["name"]),
        (&json!(true), &json!("expired"), &json!("/2"))
    );
    assert!(seen[3].get("state").is_none(), "another's lease is not shown: {}", seen[3]);

    for _ in 0..2 {
        let released = bulk(&ada, "release", &all, json!({})).await;
        let ok: Vec<&Value> = released.iter().map(|result| &result["ok"]).collect();
        assert_eq!(
            ok,
            [&json!(true), &json!(false), &json!(true), &json!(false), &json!(false), &json!(true)],
            "{released:?}"
        );
    }
    assert_eq!(bulk(&ada, "heartbeat", &[&mine], json!({})).await[0]["error"], json!("not_held"));
}

#[tokio::test]
async fn agents_are_listed_page_by_page() {
    let (clock, server) = with_clock();
    for agent in ["c", "a", "b"] {
        submit(&server, &manifest(agent, &[&format!("/{agent}")]), "GRANTED").await;
    }
    let first = server.get("/v1/agents?limit=2").await.1;
    let names = |reply: &Value| {
        reply["agents"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|agent| agent["agent_id"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!((names(&first), &first["cursor"]), (vec![json!("a"), json!("b")], &json!("b")));
    let second = server.get("/v1/agents?limit=2&cursor=b").await.1;
    assert_eq!((names(&second), second.get("cursor")), (vec![json!("c")], None));
    assert_eq!(server.get("/v1/agents?namespace=other").await.1["agents"], json!([]));
    assert_eq!(server.worker("eve", "other:r").get("/v1/agents").await.0, 403);
    // Agents are deleted five minutes after their last lease.
    clock.advance(60_001);
    server.post("/v1/acquire", &[], r#"{"key":"k"}"#).await;
    clock.advance(300_001);
    assert_eq!(server.get("/v1/agents").await.1["agents"], json!([]));
}

/// The idempotency key was ignored: a late retry announced the restart again, long after the agent was back.
#[tokio::test]
async fn an_announcement_with_an_idempotency_key_is_applied_once() {
    let (_, server) = with_clock();
    submit(&server, &manifest("coder", &["/x"]), "GRANTED").await;
    let once = [header("x-idempotency-key", "restart-1")];
    let restarts = r#"{"state":"DIE_RESTART"}"#;
    let state = "/v1/agents/coder/state";
    assert_eq!(server.post(state, &once, restarts).await.1["state"], "DIE_RESTART");
    assert_eq!(server.ask(state, &json!({"state": "ALIVE"})).await["state"], "ALIVE");
    assert_eq!(
        server.post(state, &once, restarts).await,
        (200, server.get("/v1/agents").await.1["agents"][0].clone())
    );
    assert_eq!(server.get("/v1/agents").await.1["agents"][0]["state"], "ALIVE");
    let (status, reply) = server.post(state, &once, r#"{"state":"PAUSED"}"#).await;
    assert_eq!((status, &reply["error"]), (422, &json!("idempotency_mismatch")));
}

/// A lease of an agent that announced its restart is held for 15 s past its deadline, for that agent only.
#[tokio::test]
async fn a_restarting_agent_rebinds_its_leases_under_a_new_epoch_and_token() {
    let (clock, server) = with_clock();
    let short = with(manifest("coder", &["/x"]), &json!({"ttl_ms": 5_000}));
    let lease = submit(&server, &short, "GRANTED").await;
    let agent = server.ask("/v1/agents/coder/state", &json!({"state": "DIE_RESTART"})).await;
    assert_eq!(agent["state"], json!("DIE_RESTART"));
    clock.advance(5_001);
    // The agent has no authority, and no other client has the lease.
    assert_eq!(bulk(&server, "heartbeat", &[&lease], json!({})).await[0]["error"], json!("lease_expired"));
    clock.advance(14_000);
    submit(&server, &manifest("other", &["/x"]), "DIE").await;
    let state = server.get("/v1/resource/FILE:%2Fx/state").await.1;
    assert_eq!(
        (&state["state"], &state["leases"][0]["public_id"]),
        (&json!("revoking"), &lease["public_id"])
    );

    let asked = json!({"agent_id": "coder"});
    let seen = bulk(&server, "reconcile", &[&lease], asked.clone()).await;
    assert_eq!(
        (&seen[0]["ok"], &seen[0]["valid"], &seen[0]["state"]),
        (&json!(true), &json!(false), &json!("revoking"))
    );
    assert_eq!(server.get("/v1/agents").await.1["agents"][0]["state"], json!("ALIVE"), "it was heard of");
    let body = with(asked, &json!({"lease_ids": [lease["lease_id"]], "rebind": true})).to_string();
    let key = [header("x-idempotency-key", "boot")];
    let (_, back) = server.post("/v1/leases/reconcile", &key, &body).await;
    let back = back["results"][0].clone();
    assert_eq!(
        (&back["valid"], &back["state"], &back["lease"]["lease_epoch"]),
        (&json!(true), &json!("active"), &json!(3))
    );
    assert!(back["lease"]["fencing_token"].as_u64() > lease["fencing_token"].as_u64());
    assert_eq!(back["lease"]["remaining_ms"], json!(5_000));
    // The response was lost: a retry under the same key returns the same credential.
    let (_, again) = server.post("/v1/leases/reconcile", &key, &body).await;
    assert_eq!(again["results"][0]["lease"]["lease_id"], back["lease"]["lease_id"], "{again}");
    // The old credential is invalid; the new one is valid.
    assert_eq!(bulk(&server, "heartbeat", &[&lease], json!({})).await[0]["error"], json!("stale_epoch"));
    assert_eq!(
        bulk(&server, "reconcile", &[&lease], json!({"rebind": true})).await[0]["valid"],
        json!(false)
    );
    assert_eq!(bulk(&server, "heartbeat", &[&back["lease"]], json!({})).await[0]["ok"], json!(true));
    // The agent is back: leases that expire from here on have no grace period.
    clock.advance(5_001);
    submit(&server, &manifest("other", &["/x"]), "GRANTED").await;
    assert_eq!(
        bulk(&server, "reconcile", &[&back["lease"]], json!({"rebind": true})).await[0]["state"],
        json!("expired")
    );
}

#[tokio::test]
async fn leases_that_a_restarting_agent_does_not_rebind_are_free_after_the_grace_period() {
    let (clock, server) = with_clock();
    let lease =
        submit(&server, &with(manifest("coder", &["/x"]), &json!({"ttl_ms": 5_000})), "GRANTED").await;
    server.ask("/v1/agents/coder/state", &json!({"state": "DIE_RESTART"})).await;
    clock.advance(5_000 + 15_000);
    submit(&server, &manifest("other", &["/x"]), "DIE").await;
    assert_eq!(bulk(&server, "reconcile", &[&lease], json!({})).await[0]["valid"], json!(false));
    clock.advance(1);
    submit(&server, &manifest("other", &["/x"]), "GRANTED").await;
    let late = bulk(&server, "reconcile", &[&lease], json!({"rebind": true})).await;
    assert_eq!((&late[0]["valid"], &late[0]["state"]), (&json!(false), &json!("expired")));
}

/// A manifest proves that its agent runs, so it ends the announced restart, even if the verdict is DIE.
#[tokio::test]
async fn a_manifest_makes_its_agent_alive_even_if_the_verdict_is_die() {
    let (clock, server) = with_clock();
    submit(&server, &manifest("coder", &["/x"]), "GRANTED").await;
    submit(&server, &manifest("other", &["/y"]), "GRANTED").await;
    server.ask("/v1/agents/coder/state", &json!({"state": "DIE_RESTART"})).await;
    clock.advance(1);
    submit(&server, &with(manifest("coder", &["/y"]), &json!({"session_id": "again"})), "DIE").await;
    assert_eq!(server.get("/v1/agents").await.1["agents"][0]["state"], json!("ALIVE"));
}

#[tokio::test]
async fn a_resource_shows_conflicting_leases_on_it_and_beneath_it() {
    let (clock, server) = with_clock();
    submit(&server, &manifest("a", &["/dir/one"]), "GRANTED").await;
    clock.advance(1);
    let key = server.acquire(json!({"key": "k"})).await;
    let names = |reply: &Value| {
        reply["leases"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|lease| lease["agent_id"].clone())
            .collect::<Vec<_>>()
    };
    let tree = server.get("/v1/resource/FILE:%2Fdir%2F*/state").await.1;
    assert_eq!(
        (names(&tree), &tree["name"], &tree["state"]),
        (vec![json!("a")], &json!("/dir/*"), &json!("active"))
    );
    let file = server.get("/v1/resource/FILE:%2Fdir%2F.%2Fone/state").await.1;
    assert_eq!((names(&file).len(), &file["name"]), (1, &json!("/dir/one")));
    assert_eq!(server.get("/v1/resource/FILE:%2Fdir%2Ftwo/state").await.1["state"], json!("available"));
    let seen = server.get("/v1/resource/KEY:k/state").await.1;
    assert_eq!(seen["leases"][0]["public_id"], key["public_id"]);
    assert!(!seen.to_string().contains(key["lease_id"].as_str().expect("a credential")));
    assert_eq!(server.worker("eve", "other:r").get("/v1/resource/KEY:k/state").await.0, 403);
}

#[tokio::test]
async fn contention_shows_only_readable_namespaces() {
    let (clock, server) = with_clock();
    for namespace in ["open", "secret"] {
        let place = json!({"namespace": namespace, "ttl_ms": 1_000});
        submit(&server, &with(manifest("a", &["/x"]), &place), "GRANTED").await;
        submit(&server, &with(manifest("b", &["/x"]), &place), "DIE").await;
    }
    clock.advance(1_001);
    server.get("/v1/leases").await;
    let eve = server.worker("eve", "open:r");
    let reply = eve.until("/v1/contention", |reply| reply["timeouts"] != json!([])).await;
    assert!(!reply.to_string().contains("secret"), "{reply}");
    assert_eq!((&reply["hotspots"][0]["name"], &reply["hotspots"][0]["blocked"]), (&json!("/x"), &json!(1)));
    assert_eq!(
        (&reply["timeouts"][0]["agent_id"], &reply["timeouts"][0]["leases"]),
        (&json!("a"), &json!(1))
    );
    assert_eq!(eve.get("/v1/contention?namespace=secret").await.0, 403);
    let all = server.get("/v1/contention?namespace=secret").await.1;
    assert_eq!(all["hotspots"].as_array().map(Vec::len), Some(1));
}

/// Without mTLS all clients are `anonymous`: holders were told apart by their owner, waiters were not.
#[tokio::test]
async fn contention_names_holders_and_waiters_by_identity_and_owner() {
    let (_, server) = with_clock();
    for (key, owner, shown) in [("a", Some("wendy"), "wendy"), ("b", None, "anonymous")] {
        server.acquire(json!({"key": key, "owner": "harry"})).await;
        let waiter = server.clone();
        let body = json!({"key": key, "owner": owner, "block_seconds": 20}).to_string();
        tokio::spawn(async move { waiter.post("/v1/acquire", &[], &body).await });
        let of_key = move |reply: &Value| {
            let waiting = reply["waiting"].as_array().expect("a list");
            waiting.iter().find(|waiter| waiter["resources"][0]["name"] == json!(key)).cloned()
        };
        let reply = server.until("/v1/contention", move |reply| of_key(reply).is_some()).await;
        let waiter = of_key(&reply).expect("it waits");
        assert_eq!((&waiter["identity"], &waiter["owner"]), (&json!("anonymous"), &json!(shown)), "{waiter}");
        let holder = &waiter["blocked_by"][0];
        assert_eq!((&holder["holder"], &holder["owner"]), (&json!("anonymous"), &json!("harry")), "{holder}");
    }
}

/// `limit=0` returned a page of one, and a limit above the largest page was silently capped.
#[tokio::test]
async fn a_page_has_at_least_one_agent_and_at_most_a_thousand() {
    let server = Server::start();
    for limit in ["0", "1001"] {
        let (status, reply) = server.get(&format!("/v1/agents?limit={limit}")).await;
        assert_eq!((status, &reply["error"]), (400, &json!("invalid_body")), "{limit}");
    }
}
