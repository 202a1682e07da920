//! Reserved leases, and expiry policies that need a right of their own.

use lockd_server::testing::TestClock;
use serde_json::{Value, json};

use crate::support::{Server, header, within};

/// `reserve` could be ignored, and no test failed.
#[tokio::test]
async fn a_reserved_lease_blocks_others_and_is_not_written_under_until_it_is_activated() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k", "reserve": true})).await;
    let path = format!("/v1/leases/{}", lease["public_id"].as_str().expect("text"));
    assert_eq!(server.get(&path).await.1["state"], json!("reserved"));
    let (status, reply) = server.post("/v1/acquire", &[], r#"{"key":"k"}"#).await;
    assert_eq!((status, &reply["error"]), (409, &json!("waiting")));
    let credential = lease["lease_id"].as_str().expect("text");
    let write = async || {
        server.post("/v1/update_state?key=k", &[header("x-lease-id", credential)], r#"{"a":1}"#).await
    };
    let (status, reply) = write().await;
    assert_eq!((status, &reply["error"]), (409, &json!("invalid_state")), "{reply}");
    let (status, reply) =
        server.post("/v1/keepalive", &[], &json!({"lease_id": credential}).to_string()).await;
    assert_eq!((status, &reply["error"]), (409, &json!("invalid_state")), "{reply}");
    server.ask("/v1/activate", &json!({"lease_id": credential})).await;
    assert_eq!(server.get(&path).await.1["state"], json!("active"));
    assert_eq!(write().await.0, 200);
}

/// A reserved resource was shown as `held`, like an active one.
#[tokio::test]
async fn a_resource_is_available_reserved_active_or_revoking() {
    let server = Server::start();
    let state = async || server.get("/v1/resource/KEY:k/state").await.1["state"].clone();
    let shared = |reserve: bool| {
        let resources = json!([{"kind": "KEY", "name": "k", "predicate": "CONSUMES"}]);
        json!({"resources": resources, "reserve": reserve})
    };
    let end = async |call: &str, lease: &Value| {
        let path = format!("/v1/leases/{}/{call}", lease["public_id"].as_str().expect("text"));
        assert_eq!(server.post(&path, &[], "").await.0, 200, "{path}");
    };
    assert_eq!(state().await, json!("available"));
    let reserved = server.acquire(shared(true)).await;
    assert_eq!(state().await, json!("reserved"));
    let active = server.acquire(shared(false)).await;
    assert_eq!(state().await, json!("active"), "an active lease beside a reserved one");
    end("revoke", &active).await;
    assert_eq!(state().await, json!("reserved"), "a reserved lease beside one without authority");
    server.release(&reserved).await;
    assert_eq!(state().await, json!("revoking"));
    end("reclaim", &active).await;
    assert_eq!(state().await, json!("available"));
}

/// A client without the right `m` could block a resource for ever, and no test failed.
#[tokio::test]
async fn a_manual_hold_and_one_over_five_minutes_need_a_right_of_their_own() {
    let server = Server::start();
    let (plain, entitled) = (server.worker("ada", "default:rw"), server.worker("bob", "default:rwm"));
    let body = |key: &str, policy: &Value| json!({"key": key, "on_expiry": policy}).to_string();
    for (key, policy, status_without) in [
        ("a", json!("free"), 200),
        ("b", json!({"hold_ms": 300_000}), 200),
        ("c", json!({"hold_ms": 300_001}), 403),
        ("d", json!("manual"), 403),
    ] {
        let (status, reply) = plain.post("/v1/acquire", &[], &body(key, &policy)).await;
        assert_eq!(status, status_without, "{policy}: {reply}");
        if status == 403 {
            assert_eq!(reply["error"], json!("forbidden"), "{policy}");
        }
        let other = format!("{key}-entitled");
        assert_eq!(entitled.post("/v1/acquire", &[], &body(&other, &policy)).await.0, 200, "{policy}");
    }
}

/// A plain acquire could wait longer than `acquire-block`, a minute here, and no test failed.
#[tokio::test]
async fn a_plain_acquire_waits_at_most_as_long_as_the_server_allows() {
    let clock = TestClock::default();
    let server = Server::start_by(&clock);
    server.acquire(json!({"key": "k", "ttl_ms": 300_000})).await;
    let waiter = {
        let server = server.clone();
        tokio::spawn(
            async move { server.post("/v1/acquire", &[], r#"{"key":"k","block_seconds":86400}"#).await },
        )
    };
    server.until("/v1/contention", |reply| reply["waiting"] != json!([])).await;
    clock.advance(59_999);
    let waiting = server.get("/v1/contention").await.1["waiting"].clone();
    assert_eq!(waiting.as_array().map(Vec::len), Some(1), "not yet");
    clock.advance(2);
    server.until("/v1/contention", |reply| reply["waiting"] == json!([])).await;
    let (status, reply) = within("the waiter gets a reply", waiter).await.expect("a reply");
    assert_eq!((status, &reply["error"]), (409, &json!("waiting")), "{reply}");
}
