//! The API over an engine in memory, call by call.

use identity::Role;
use serde_json::json;

use crate::support::{Server, header, within};

#[tokio::test]
async fn a_worker_acquires_reads_commits_and_releases() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "orders", "ttl_seconds": 30, "owner": "worker-1"})).await;
    assert_eq!((&lease["key"], &lease["owner"]), (&json!("orders"), &json!("worker-1")));
    assert_eq!(
        (&lease["version"], &lease["state_etag"], &lease["ttl_ms"]),
        (&json!(0), &json!(""), &json!(30_000))
    );
    assert!(lease["remaining_ms"].as_u64().expect("a number") <= 30_000);
    let id = lease["lease_id"].as_str().expect("a credential");

    let (status, _) = server.post("/v1/get_state?key=orders", &[header("x-lease-id", id)], "").await;
    assert_eq!(status, 204, "nothing yet");
    let body = "{ \"cursor\": 12345678901234567890, \"a\": [1, 2] }\n";
    let (status, reply) = server.post("/v1/update_state?key=orders", &[header("x-lease-id", id)], body).await;
    assert_eq!((status, &reply["new_version"], &reply["bytes"]), (200, &json!(1), &json!(41)));
    let etag = reply["new_state_etag"].as_str().expect("a hash").to_string();

    let raw = server.raw("POST", "/v1/get_state?key=orders", &[header("x-lease-id", id)], "").await;
    assert_eq!(raw.body, br#"{"cursor":12345678901234567890,"a":[1,2]}"#);
    assert_eq!(raw.header("x-key-version"), "1");
    assert_eq!(raw.header("etag"), format!("\"{etag}\""));

    let stale = [header("x-lease-id", id), header("x-if-version", "0")];
    let (status, reply) = server.post("/v1/update_state?key=orders", &stale, "{}").await;
    assert_eq!(
        (status, &reply["error"], &reply["current_version"]),
        (409, &json!("version_conflict"), &json!(1))
    );
    assert_eq!(reply["current_etag"], json!(etag));

    for _ in 0..2 {
        let (status, reply) = server.post("/v1/release", &[], &json!({"lease_id": id}).to_string()).await;
        assert_eq!((status, reply), (200, json!({"released": true})));
    }
    let (status, reply) = server.post("/v1/update_state?key=orders", &[header("x-lease-id", id)], "{}").await;
    assert_eq!((status, &reply["error"]), (403, &json!("not_held")));

    // The next worker takes over from the last committed state.
    let next = server.acquire_with("?include_state=1", json!({"key": "orders", "owner": "worker-2"})).await;
    assert_eq!((&next["version"], &next["state_etag"]), (&json!(1), &json!(etag)));
    assert_eq!(next["state"]["a"], json!([1, 2]));
    assert!(next["fencing_token"].as_u64() > lease["fencing_token"].as_u64());
}

#[tokio::test]
async fn the_holder_of_a_conflicting_lease_is_named_and_a_wait_ends_with_the_grant() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k", "ttl_ms": 60_000, "owner": "ada"})).await;
    let (status, reply) = server.post("/v1/acquire", &[], r#"{"key":"k"}"#).await;
    assert_eq!((status, &reply["error"], &reply["owner"]), (409, &json!("waiting"), &json!("ada")));
    assert_eq!((&reply["position"], &reply["leases"]), (&json!(0), &json!([lease["public_id"]])));

    let waiting = server.clone();
    let waiter = tokio::spawn(async move {
        waiting.post("/v1/acquire", &[], r#"{"key":"k","block_seconds":30,"owner":"bob"}"#).await
    });
    server.until("/v1/describe?key=k", |view| view["waiters"] == json!(1)).await;
    server.release(&lease).await;
    let (status, next) = within("the waiter gets a reply", waiter).await.expect("a reply");
    assert_eq!((status, &next["owner"]), (200, &json!("bob")));
    let described = server.get("/v1/describe?key=k").await.1;
    assert_eq!((&described["owner"], &described["state"]), (&json!("bob"), &json!("active")));
    assert_eq!(described["lease"]["lease_id"], next["public_id"]);
    assert!(!described.to_string().contains(next["lease_id"].as_str().expect("a credential")));
}

/// The connection of a waiter breaks: requests behind it must not wait for it.
#[tokio::test]
async fn a_waiter_whose_request_is_dropped_leaves_the_queue() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k"})).await;
    let waiting = server.clone();
    let waiter =
        tokio::spawn(
            async move { waiting.post("/v1/acquire", &[], r#"{"key":"k","block_seconds":30}"#).await },
        );
    server.until("/v1/describe?key=k", |view| view["waiters"] == json!(1)).await;
    waiter.abort();
    server.until("/v1/describe?key=k", |view| view["waiters"] == json!(0)).await;
    server.release(&lease).await;
    server.acquire(json!({"key": "k"})).await;
}

/// The response to a grant was never read: the key stayed held until the TTL, without a holder.
#[tokio::test]
async fn a_grant_whose_response_is_never_read_is_undone() {
    let server = Server::start();
    let response = server.unread("/v1/acquire", r#"{"key":"k"}"#).await;
    assert_eq!(response.status(), 200);
    let (status, _) = server.post("/v1/acquire", &[], r#"{"key":"k"}"#).await;
    assert_eq!(status, 409, "it may still be read");
    drop(response);
    server.acquire(json!({"key": "k"})).await;
}

/// A response was slow to leave: its client retried under the same idempotency key on a second connection, and got the
/// lease. Then the first connection broke, and the grant was undone. Another client was granted the same key, and both
/// held a 200 for it.
#[tokio::test]
async fn a_grant_stands_while_one_response_that_carries_it_was_sent_or_may_be() {
    let server = Server::start();
    let key = [header("x-idempotency-key", "abc")];
    let body = r#"{"key":"k"}"#;
    let first = server.unread_with("/v1/acquire", &key, body).await;
    let (status, replay) = server.post("/v1/acquire", &key, body).await;
    assert_eq!(status, 200, "{replay}");
    drop(first);
    let (status, refusal) = server.post("/v1/acquire", &[], body).await;
    assert_eq!((status, &refusal["error"]), (409, &json!("waiting")), "the replay was sent");
    let held = json!({"lease_id": replay["lease_id"]}).to_string();
    assert_eq!(server.post("/v1/keepalive", &[], &held).await.0, 200);
    server.release(&replay).await;

    let first = server.unread_with("/v1/acquire", &[header("x-idempotency-key", "def")], body).await;
    let replay = server.unread_with("/v1/acquire", &[header("x-idempotency-key", "def")], body).await;
    assert_eq!((first.status().as_u16(), replay.status().as_u16()), (200, 200));
    drop(first);
    assert_eq!(server.post("/v1/acquire", &[], body).await.0, 409, "the replay may still be sent");
    drop(replay);
    server.acquire(json!({"key": "k"})).await;
}

/// The same with a manifest.
#[tokio::test]
async fn a_manifests_grant_stands_while_its_replay_was_sent() {
    let server = Server::start();
    let key = [header("x-idempotency-key", "abc")];
    let body = r#"{"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"KEY:k"}]}"#;
    let first = server.unread_with("/v1/manifest", &key, body).await;
    let (status, replay) = server.post("/v1/manifest", &key, body).await;
    assert_eq!((status, &replay["verdict"]), (200, &json!("GRANTED")), "{replay}");
    drop(first);
    assert_eq!(server.post("/v1/acquire", &[], r#"{"key":"k"}"#).await.0, 409);
}

#[tokio::test]
async fn a_retry_with_the_same_key_gets_the_same_lease_and_another_request_is_refused() {
    let server = Server::start();
    let key = [header("x-idempotency-key", "abc")];
    let (_, first) = server.post("/v1/acquire", &key, r#"{"key":"k"}"#).await;
    let (status, again) = server.post("/v1/acquire", &key, r#"{"key":"k"}"#).await;
    assert_eq!((status, &again["lease_id"]), (200, &first["lease_id"]));
    let (status, reply) = server.post("/v1/acquire", &key, r#"{"key":"other"}"#).await;
    assert_eq!((status, &reply["error"]), (422, &json!("idempotency_mismatch")));
}

#[tokio::test]
async fn an_operator_revokes_a_lease_and_its_holder_is_refused() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k"})).await;
    let id = lease["public_id"].as_str().expect("a name");
    let (status, view) = server.post(&format!("/v1/leases/{id}/revoke"), &[], "").await;
    assert_eq!((status, &view["state"]), (200, &json!("revoking")));
    let body = json!({"lease_id": lease["lease_id"]}).to_string();
    let (status, reply) = server.post("/v1/keepalive", &[], &body).await;
    assert_eq!((status, &reply["error"]), (403, &json!("lease_revoked")));
    let (status, _) = server.post("/v1/acquire", &[], r#"{"key":"k"}"#).await;
    assert_eq!(status, 409, "not free before it is reclaimed");
    let (status, view) = server.post(&format!("/v1/leases/{id}/reclaim"), &[], "").await;
    assert_eq!((status, &view["state"]), (200, &json!("revoked")));
    server.acquire(json!({"key": "k"})).await;
}

#[tokio::test]
async fn a_long_document_streams_in_and_out() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k"})).await;
    let id = lease["lease_id"].as_str().expect("a credential");
    let numbers: Vec<String> = (0..200_000).map(|n| n.to_string()).collect();
    let body = format!("[ {} ]", numbers.join(" , "));
    let (status, reply) = server.post("/v1/update_state?key=k", &[header("x-lease-id", id)], &body).await;
    assert_eq!(status, 200, "{reply}");
    let raw = server.raw("GET", "/v1/get_state?key=k", &[header("x-lease-id", id)], "").await;
    let compact = format!("[{}]", numbers.join(","));
    assert_eq!(raw.body.len(), compact.len());
    assert_eq!(raw.body, compact.as_bytes());
    assert_eq!(reply["bytes"], json!(compact.len()));
    let cut = &body[..body.len() - 1];
    let (status, reply) = server.post("/v1/update_state?key=k", &[header("x-lease-id", id)], cut).await;
    assert_eq!((status, &reply["error"]), (400, &json!("invalid_json")));
    let too_long = format!("\"{}\"", "x".repeat(2_000_000));
    let (status, reply) = server.post("/v1/update_state?key=k", &[header("x-lease-id", id)], &too_long).await;
    assert_eq!((status, &reply["error"]), (413, &json!("document_too_large")));
    let described = server.get("/v1/describe?key=k").await.1;
    assert_eq!(described["version"], json!(1), "nothing of it was stored");
    // The test's wall clock stands still.
    let updated = described["updated_at_unix"].as_u64().expect("a moment");
    assert!((1_799_999_000..=1_800_000_000).contains(&updated), "{updated}");
}

/// A retry with another condition got the replay of the first request.
#[tokio::test]
async fn an_idempotency_key_is_bound_to_the_conditions_of_a_write() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k"})).await;
    let id = lease["lease_id"].as_str().expect("a credential");
    let asked = |version| {
        [header("x-lease-id", id), header("x-idempotency-key", "w"), header("x-if-version", version)]
    };
    for _ in 0..2 {
        let (status, reply) = server.post("/v1/update_state?key=k", &asked("0"), "{}").await;
        assert_eq!((status, &reply["new_version"]), (200, &json!(1)));
    }
    let (status, reply) = server.post("/v1/update_state?key=k", &asked("1"), "{}").await;
    assert_eq!((status, &reply["error"]), (422, &json!("idempotency_mismatch")));
    let path = format!("/v1/leases/{}/revoke", lease["public_id"].as_str().expect("a name"));
    for _ in 0..2 {
        let (status, view) = server.post(&path, &[header("x-idempotency-key", "r")], "").await;
        assert_eq!((status, &view["state"]), (200, &json!("revoking")), "{view}");
    }
}

/// A worker's documents are gone for all clients, and its versions and etags no longer match.
#[tokio::test]
async fn an_operator_deletes_a_namespace_with_its_contents() {
    let server = Server::start();
    let lease = server.acquire(json!({"namespace": "old", "key": "k"})).await;
    let id = lease["lease_id"].as_str().expect("a credential");
    let path = "/v1/update_state?namespace=old&key=k";
    assert_eq!(server.post(path, &[header("x-lease-id", id)], "{}").await.0, 200);
    let delete = || server.raw("DELETE", "/v1/namespaces/old", &[], "");
    assert_eq!(delete().await.status, 409, "a lease stands");
    server.release(&lease).await;
    for _ in 0..2 {
        assert_eq!(delete().await.status, 200, "again and again");
    }
    assert_eq!(server.get("/v1/namespaces").await.1["namespaces"], json!([]));
    let public = lease["public_id"].as_str().expect("a name");
    assert_eq!(server.get(&format!("/v1/leases/{public}")).await.0, 410);
    assert_eq!(server.get("/v1/describe?namespace=old&key=k").await.0, 404);
    let again = server.acquire(json!({"namespace": "old", "key": "k"})).await;
    assert_eq!((&again["version"], &again["state_etag"]), (&json!(2), &json!("")));
}

#[tokio::test]
async fn a_worker_may_not_delete_a_namespace() {
    let server = Server::start_as(Role::Worker);
    let raw = server.raw("DELETE", "/v1/namespaces/default", &[], "").await;
    let reply: serde_json::Value = serde_json::from_slice(&raw.body).expect("JSON");
    assert_eq!((raw.status, &reply["error"]), (403, &json!("forbidden")));
}
