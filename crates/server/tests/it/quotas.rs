//! Quotas stop clients that squat, acquire too often or hold too much, and no others. The test advances the clock.

use lockd_server::testing::TestClock;
use serde_json::{Value, json};

use crate::support::{Server, within};

fn with_clock() -> (TestClock, Server) {
    let clock = TestClock::default();
    let server = Server::start_by(&clock);
    (clock, server)
}

/// The scopes that cover `ada` in `default`.
fn scopes() -> [Value; 4] {
    [
        json!({"identity": "ada"}),
        json!({"namespace": "default"}),
        json!({"identity": "ada", "namespace": "default"}),
        json!({}),
    ]
}

async fn set(server: &Server, scope: &Value, quota: &Value) {
    let mut body = scope.clone();
    for (name, value) in quota.as_object().expect("an object") {
        body[name] = value.clone();
    }
    assert_eq!(server.raw("PUT", "/v1/quotas", &[], &body.to_string()).await.status, 200, "{body}");
}

fn manifest(agent: &str) -> Value {
    let intents = json!([{"predicate": "MUTATES", "object": "KEY:k"}]);
    json!({"agent_id": agent, "session_id": agent, "ttl_ms": 4_000, "intents": intents})
}

async fn beat(server: &Server, lease: &Value) -> Value {
    let body = json!({"lease_ids": [lease["lease_id"]], "agent_id": "squatter"});
    server.ask("/v1/leases/heartbeat", &body).await["results"][0].clone()
}

/// Refused by a quota, with the time to retry in the body and in `Retry-After`.
async fn refused(server: &Server, body: &Value) {
    let raw = server.raw("POST", "/v1/acquire", &[], &body.to_string()).await;
    let reply: Value = serde_json::from_slice(&raw.body).expect("JSON");
    assert_eq!((raw.status, &reply["error"]), (429, &json!("quota_exceeded")), "{reply}");
    assert_eq!((&reply["retry_after_seconds"], raw.header("retry-after")), (&json!(1), "1"));
}

/// It sends heartbeats in time, and does nothing else.
#[tokio::test]
async fn a_holder_that_only_sends_heartbeats_is_stopped_by_total_time_and_by_idleness() {
    for quota in [json!({"max_total_ms": 10_000}), json!({"idle_ms": 10_000})] {
        for scope in scopes() {
            let (clock, server) = with_clock();
            set(&server, &scope, &quota).await;
            let squatter = server.worker("ada", "default:rw");
            let lease = squatter.ask("/v1/manifest", &manifest("squatter")).await;
            for remaining_ms in [4_000, 4_000, 1_000] {
                clock.advance(3_000);
                let reply = beat(&squatter, &lease).await;
                assert_eq!(reply["remaining_ms"], json!(remaining_ms), "{quota} {scope}: {reply}");
            }
            clock.advance(1_000);
            assert_eq!(beat(&squatter, &lease).await["remaining_ms"], json!(0), "to the last millisecond");
            clock.advance(1);
            assert_eq!(beat(&squatter, &lease).await["error"], json!("lease_expired"), "{quota} {scope}");
            let next = server.worker("bob", "default:rw").ask("/v1/manifest", &manifest("next")).await;
            assert_eq!(next["verdict"], json!("GRANTED"), "{quota} {scope}");
        }
    }
}

/// A lease that a quota ended cannot be rebound after an announced restart, and goes to a waiter before the squatter can
/// acquire it again.
#[tokio::test]
async fn a_lease_that_a_quota_ended_cannot_be_rebound_and_goes_to_waiters_first() {
    for quota in [json!({"max_total_ms": 10_000}), json!({"idle_ms": 10_000})] {
        let (clock, server) = with_clock();
        set(&server, &json!({"identity": "ada"}), &quota).await;
        let (squatter, bob) = (server.worker("ada", "default:rw"), server.worker("bob", "default:rw"));
        let lease = squatter.ask("/v1/manifest", &manifest("squatter")).await;
        let waiter = {
            let bob = bob.clone();
            tokio::spawn(async move { bob.acquire(json!({"key": "k", "block_seconds": 20})).await })
        };
        server.until("/v1/contention", |reply| reply["waiting"] != json!([])).await;
        for _ in 0..3 {
            clock.advance(3_000);
            assert_eq!(beat(&squatter, &lease).await["ok"], json!(true));
        }
        squatter.ask("/v1/agents/squatter/state", &json!({"state": "DIE_RESTART"})).await;
        clock.advance(1_001);
        let body = json!({"lease_ids": [lease["lease_id"]], "agent_id": "squatter", "rebind": true});
        let back = squatter.ask("/v1/leases/reconcile", &body).await["results"][0].clone();
        assert_eq!((&back["valid"], &back["lease"]), (&json!(false), &Value::Null), "{quota}: {back}");
        let mut body = manifest("squatter");
        body["session_id"] = json!("again");
        // A lease that was held for the restart is free when the grace period ends.
        let verdict = squatter.ask("/v1/manifest", &body).await["verdict"].clone();
        assert_ne!(verdict, json!("GRANTED"), "{quota}");
        clock.advance(15_000);
        server.get("/v1/leases").await;
        let next = within("the waiter is granted", waiter).await.expect("a grant");
        let view = server.get("/v1/resource/KEY:k/state").await.1;
        assert_eq!(view["leases"][0]["public_id"], next["public_id"], "{quota}: {view}");
    }
}

/// Touches and commits reset the idle time, and do not extend the total time.
#[tokio::test]
async fn an_active_holder_is_never_idle_and_still_limited_by_total_time() {
    let (clock, server) = with_clock();
    set(&server, &json!({"identity": "ada"}), &json!({"idle_ms": 5_000, "max_total_ms": 20_000})).await;
    let ada = server.worker("ada", "default:rw");
    let lease = ada.ask("/v1/manifest", &manifest("squatter")).await;
    let (id, public) = (&lease["lease_id"], lease["public_id"].as_str().expect("a name"));
    for n in 0..6 {
        clock.advance(3_000);
        assert_eq!(beat(&ada, &lease).await["ok"], json!(true), "{n}");
        if n % 2 == 0 {
            ada.ask(&format!("/v1/leases/{public}/touch"), &json!({"lease_id": id})).await;
        } else {
            let headers = [("x-lease-id", id.as_str().expect("a credential"))];
            assert_eq!(ada.post("/v1/update_state?key=k", &headers, "{}").await.0, 200);
        }
    }
    clock.advance(2_000);
    assert_eq!(beat(&ada, &lease).await["ok"], json!(true), "20 s");
    clock.advance(1);
    assert_eq!(beat(&ada, &lease).await["error"], json!("lease_expired"));
}

#[tokio::test]
async fn acquires_above_the_rate_quota_are_refused_with_retry_after() {
    for scope in scopes() {
        let (clock, server) = with_clock();
        set(&server, &scope, &json!({"acquires_per_second": 2})).await;
        let ada = server.worker("ada", "*:rw");
        for n in 0..3 {
            ada.acquire(json!({"key": format!("a{n}")})).await;
            ada.acquire(json!({"key": format!("b{n}")})).await;
            refused(&ada, &json!({"key": "c"})).await;
            let reply = ada.ask("/v1/manifest", &manifest("squatter")).await;
            assert_eq!(reply["verdict"], json!("PAUSED"), "{reply}");
            assert!(reply["backoff_ms"].as_u64() > Some(0), "{reply}");
            clock.advance(1_000);
        }
        // The rate is counted per identity and namespace.
        let bob = server.worker("bob", "*:rw");
        ada.acquire(json!({"key": "d"})).await;
        ada.acquire(json!({"key": "e"})).await;
        bob.acquire(json!({"key": "f"})).await;
        ada.acquire(json!({"namespace": "far", "key": "g"})).await;
    }
}

#[tokio::test]
async fn a_holder_at_its_lease_quota_gets_another_lease_after_a_release() {
    for scope in scopes() {
        let (clock, server) = with_clock();
        set(&server, &scope, &json!({"max_leases": 2})).await;
        let (ada, bob) = (server.worker("ada", "*:rw"), server.worker("bob", "*:rw"));
        let first = ada.acquire(json!({"key": "a"})).await;
        ada.acquire(json!({"key": "b", "ttl_ms": 1_000})).await;
        refused(&ada, &json!({"key": "c"})).await;
        let reply = ada.ask("/v1/manifest", &manifest("squatter")).await;
        assert_eq!(reply["verdict"], json!("PAUSED"), "{reply}");
        // The quota is per identity and namespace.
        bob.acquire(json!({"key": "d"})).await;
        ada.acquire(json!({"namespace": "far", "key": "a"})).await;
        ada.release(&first).await;
        ada.acquire(json!({"key": "c"})).await;
        refused(&ada, &json!({"key": "e"})).await;
        clock.advance(1_001);
        ada.acquire(json!({"key": "e"})).await;
    }
}

/// `GET /v1/quotas` showed `paused`, which `PUT` refused as unknown: what it showed could not be put back.
#[tokio::test]
async fn the_quotas_that_are_shown_can_be_put_back() {
    let (_, server) = with_clock();
    for scope in scopes() {
        set(&server, &scope, &json!({"max_leases": 7, "idle_ms": 5_000})).await;
    }
    server.ask("/v1/pause", &json!({"identity": "ada", "paused": true})).await;
    let (_, shown) = server.get("/v1/quotas").await;
    let quotas = shown["quotas"].as_array().expect("a list").clone();
    assert!(quotas.iter().any(|quota| quota["paused"] == json!(true)), "{shown}");
    server.ask("/v1/pause", &json!({"identity": "ada", "paused": false})).await;
    for quota in &quotas {
        let mut scope = quota.clone();
        scope
            .as_object_mut()
            .expect("an object")
            .retain(|name, _| ["namespace", "identity"].contains(&&**name));
        set(&server, &scope, &json!({"max_leases": 1, "paused": false})).await;
    }
    assert_ne!(server.get("/v1/quotas").await.1, shown);
    for quota in &quotas {
        set(&server, quota, &json!({})).await;
    }
    assert_eq!(server.get("/v1/quotas").await.1, shown);
    let (status, reply) = server.worker("ada", "*:rw").post("/v1/acquire", &[], r#"{"key":"a"}"#).await;
    assert_eq!((status, &reply["error"]), (429, &json!("quota_exceeded")), "the pause was put back: {reply}");
}

#[tokio::test]
async fn the_narrower_scope_wins_and_only_operators_set_quotas() {
    let (_, server) = with_clock();
    let ada = server.worker("ada", "*:rw");
    set(&server, &json!({}), &json!({"max_leases": 1})).await;
    ada.acquire(json!({"key": "a"})).await;
    refused(&ada, &json!({"key": "b"})).await;
    set(&server, &json!({"identity": "ada"}), &json!({"max_leases": 2})).await;
    ada.acquire(json!({"key": "b"})).await;
    refused(&ada, &json!({"key": "c"})).await;
    let quota = json!({"identity": "ada", "max_leases": 100}).to_string();
    assert_eq!(ada.raw("PUT", "/v1/quotas", &[], &quota).await.status, 403);
    assert_eq!(ada.get("/v1/quotas").await.0, 403);
}
