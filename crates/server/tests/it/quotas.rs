//! Quotas stop who squats, asks too often or holds too much; and only them. Time passes when a test says so.

use serde_json::{Value, json};
use server::testing::Hands;

use crate::support::Server;

fn world() -> (Hands, Server) {
    let hands = Hands::default();
    let server = Server::start_by(&hands);
    (hands, server)
}

/// The scopes that cover what `ada` does in `default`.
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

/// Refused for a quota, and told when to come again: in the body, and as HTTP says it.
async fn refused(server: &Server, body: &Value) {
    let raw = server.raw("POST", "/v1/acquire", &[], &body.to_string()).await;
    let told: Value = serde_json::from_slice(&raw.body).expect("JSON");
    assert_eq!((raw.status, &told["error"]), (429, &json!("quota_exceeded")), "{told}");
    assert_eq!((&told["retry_after_seconds"], raw.header("retry-after")), (&json!(1), "1"));
}

/// It sends its heartbeats in time, and does nothing else.
#[tokio::test]
async fn whoever_only_sends_heartbeats_is_stopped_by_total_time_and_by_idleness() {
    for quota in [json!({"max_total_ms": 10_000}), json!({"idle_ms": 10_000})] {
        for scope in scopes() {
            let (hands, server) = world();
            set(&server, &scope, &quota).await;
            let squatter = server.worker("ada", "default:rw");
            let lease = squatter.ask("/v1/manifest", &manifest("squatter")).await;
            for remaining_ms in [4_000, 4_000, 1_000] {
                hands.pass(3_000);
                let told = beat(&squatter, &lease).await;
                assert_eq!(told["remaining_ms"], json!(remaining_ms), "{quota} {scope}: {told}");
            }
            hands.pass(1_000);
            assert_eq!(beat(&squatter, &lease).await["remaining_ms"], json!(0), "to the last millisecond");
            hands.pass(1);
            assert_eq!(beat(&squatter, &lease).await["error"], json!("lease_expired"), "{quota} {scope}");
            let next = server.worker("bob", "default:rw").ask("/v1/manifest", &manifest("next")).await;
            assert_eq!(next["verdict"], json!("GRANTED"), "{quota} {scope}");
        }
    }
}

/// What ended by a quota is not had back by announcing a restart, and whoever waited has it before the squatter has asked again.
#[tokio::test]
async fn what_a_quota_ended_cannot_be_taken_back_nor_had_before_those_who_waited() {
    for quota in [json!({"max_total_ms": 10_000}), json!({"idle_ms": 10_000})] {
        let (hands, server) = world();
        set(&server, &json!({"identity": "ada"}), &quota).await;
        let (squatter, bob) = (server.worker("ada", "default:rw"), server.worker("bob", "default:rw"));
        let lease = squatter.ask("/v1/manifest", &manifest("squatter")).await;
        let waiter = {
            let bob = bob.clone();
            tokio::spawn(async move { bob.acquire(json!({"key": "k", "block_seconds": 20})).await })
        };
        server.until("/v1/contention", |told| told["waiting"] != json!([])).await;
        for _ in 0..3 {
            hands.pass(3_000);
            assert_eq!(beat(&squatter, &lease).await["ok"], json!(true));
        }
        squatter.ask("/v1/agents/squatter/state", &json!({"state": "DIE_RESTART"})).await;
        hands.pass(1_001);
        let body = json!({"lease_ids": [lease["lease_id"]], "agent_id": "squatter", "rebind": true});
        let back = squatter.ask("/v1/leases/reconcile", &body).await["results"][0].clone();
        assert_eq!((&back["valid"], &back["lease"]), (&json!(false), &Value::Null), "{quota}: {back}");
        // At once, and with the attempt that it had: it is older than who has it now, and may wait; no more.
        let again = json!({"attempt_id": lease["attempt_id"], "session_id": "again"});
        let mut body = manifest("squatter");
        for (name, value) in again.as_object().expect("an object") {
            body[name] = value.clone();
        }
        // Where it was held for the restart it is given free when that is over.
        let verdict = squatter.ask("/v1/manifest", &body).await["verdict"].clone();
        assert_ne!(verdict, json!("GRANTED"), "{quota}");
        hands.pass(15_000);
        server.get("/v1/leases").await;
        let next = waiter.await.expect("its turn");
        let view = server.get("/v1/resource/KEY:k/state").await.1;
        assert_eq!(view["leases"][0]["public_id"], next["public_id"], "{quota}: {view}");
    }
}

/// Idleness is not working. Touches and commits are work, and total time takes no account of them.
#[tokio::test]
async fn whoever_works_is_never_idle_and_has_its_total_time_all_the_same() {
    let (hands, server) = world();
    set(&server, &json!({"identity": "ada"}), &json!({"idle_ms": 5_000, "max_total_ms": 20_000})).await;
    let ada = server.worker("ada", "default:rw");
    let lease = ada.ask("/v1/manifest", &manifest("squatter")).await;
    let (id, public) = (&lease["lease_id"], lease["public_id"].as_str().expect("a name"));
    for n in 0..6 {
        hands.pass(3_000);
        assert_eq!(beat(&ada, &lease).await["ok"], json!(true), "{n}");
        if n % 2 == 0 {
            ada.ask(&format!("/v1/leases/{public}/touch"), &json!({"lease_id": id})).await;
        } else {
            let headers = [("x-lease-id", id.as_str().expect("a credential"))];
            assert_eq!(ada.post("/v1/update_state?key=k", &headers, "{}").await.0, 200);
        }
    }
    hands.pass(2_000);
    assert_eq!(beat(&ada, &lease).await["ok"], json!(true), "20 s");
    hands.pass(1);
    assert_eq!(beat(&ada, &lease).await["error"], json!("lease_expired"));
}

#[tokio::test]
async fn who_asks_too_often_is_told_when_to_come_again() {
    for scope in scopes() {
        let (hands, server) = world();
        set(&server, &scope, &json!({"acquires_per_second": 2})).await;
        let ada = server.worker("ada", "*:rw");
        for n in 0..3 {
            ada.acquire(json!({"key": format!("a{n}")})).await;
            ada.acquire(json!({"key": format!("b{n}")})).await;
            refused(&ada, &json!({"key": "c"})).await;
            let told = ada.ask("/v1/manifest", &manifest("squatter")).await;
            assert_eq!(told["verdict"], json!("PAUSED"), "{told}");
            assert!(told["backoff_ms"].as_u64() > Some(0), "{told}");
            hands.pass(1_000);
        }
        // It is counted for each, and in each namespace.
        let bob = server.worker("bob", "*:rw");
        ada.acquire(json!({"key": "d"})).await;
        ada.acquire(json!({"key": "e"})).await;
        bob.acquire(json!({"key": "f"})).await;
        ada.acquire(json!({"namespace": "far", "key": "g"})).await;
    }
}

#[tokio::test]
async fn who_holds_as_much_as_it_may_gets_more_when_it_gives_something_back() {
    for scope in scopes() {
        let (hands, server) = world();
        set(&server, &scope, &json!({"max_leases": 2})).await;
        let (ada, bob) = (server.worker("ada", "*:rw"), server.worker("bob", "*:rw"));
        let first = ada.acquire(json!({"key": "a"})).await;
        ada.acquire(json!({"key": "b", "ttl_ms": 1_000})).await;
        refused(&ada, &json!({"key": "c"})).await;
        let told = ada.ask("/v1/manifest", &manifest("squatter")).await;
        assert_eq!(told["verdict"], json!("PAUSED"), "{told}");
        // Each identity in each namespace has its own.
        bob.acquire(json!({"key": "d"})).await;
        ada.acquire(json!({"namespace": "far", "key": "a"})).await;
        ada.release(&first).await;
        ada.acquire(json!({"key": "c"})).await;
        refused(&ada, &json!({"key": "e"})).await;
        hands.pass(1_001);
        ada.acquire(json!({"key": "e"})).await;
    }
}

#[tokio::test]
async fn the_narrower_scope_wins_and_only_operators_set_quotas() {
    let (_, server) = world();
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
