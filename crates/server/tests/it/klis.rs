//! The KLIS-3 lease protocol, one test for each sentence that says MUST, MUST NOT or SHOULD, named by its section.
//!
//! The requirements on agents (heartbeats in time, stopping when a lease may be lost, a conservative local expiry) are
//! tested in the client: `tests/leases.rs` and `digest.rs`. Here are the server's responses to agents that violate them.

use lockd_server::testing::TestClock;
use serde_json::{Value, json};

use crate::support::Server;

fn with_clock() -> (TestClock, Server) {
    let clock = TestClock::default();
    let server = Server::start_by(&clock);
    (clock, server)
}

async fn submit(server: &Server, agent: &str, fields: &[(&str, Value)]) -> Value {
    let intents = json!([{"predicate": "MUTATES", "object": "FILE:/path"}]);
    let mut body = json!({"agent_id": agent, "session_id": agent, "intents": intents});
    for (name, value) in fields {
        body[*name] = value.clone();
    }
    server.ask("/v1/manifest", &body).await
}

async fn granted(server: &Server, agent: &str, fields: &[(&str, Value)]) -> Value {
    let reply = submit(server, agent, fields).await;
    assert_eq!(reply["verdict"], json!("GRANTED"), "{reply}");
    reply
}

async fn one(server: &Server, what: &str, lease: &Value, rebind: bool) -> Value {
    let mut body = json!({"lease_ids": [lease["lease_id"]]});
    if rebind {
        body["rebind"] = json!(true);
    }
    server.ask(&format!("/v1/leases/{what}"), &body).await["results"][0].clone()
}

fn short(ms: u64) -> [(&'static str, Value); 1] {
    [("ttl_ms", json!(ms))]
}

/// "The Control Plane grants leases only if NO conflicts exist."
#[tokio::test]
async fn s3_1_leases_are_granted_only_without_conflicts() {
    let (clock, server) = with_clock();
    let lease = granted(&server, "a", &[]).await;
    clock.advance(1);
    assert_eq!(submit(&server, "b", &[]).await["verdict"], json!("DIE"));
    server.release(&lease).await;
    granted(&server, "b", &[]).await;
}

/// "Default TTL: Implementations SHOULD default to 60 seconds."
#[tokio::test]
async fn s3_1_the_default_ttl_is_60_seconds() {
    let (_, server) = with_clock();
    assert_eq!(granted(&server, "a", &[]).await["ttl_ms"], json!(60_000));
}

/// "Max TTL: Implementations MUST cap the maximum TTL (e.g., 5 minutes) to prevent `DoS`."
#[tokio::test]
async fn s3_1_the_ttl_is_capped_at_5_minutes() {
    let (_, server) = with_clock();
    let intents = json!([{"predicate": "MUTATES", "object": "FILE:/path"}]);
    let body = json!({"agent_id": "a", "session_id": "a", "intents": intents, "ttl_ms": 300_001});
    let (status, reply) = server.post("/v1/manifest", &[], &body.to_string()).await;
    assert_eq!((status, &reply["error"]), (400, &json!("invalid_ttl")));
    let lease = granted(&server, "a", &short(300_000)).await;
    let body = json!({"lease_id": lease["lease_id"], "ttl_ms": 300_001}).to_string();
    assert_eq!(server.post("/v1/keepalive", &[], &body).await.0, 400, "nor by a renewal");
}

/// "If an agent process restarts, the Kernel SHOULD grant a 15-second Grace Period where the lease is held even if a
/// heartbeat is missed, provided the agent is in a `DIE_RESTART` state."
#[tokio::test]
async fn s3_1_only_a_restarting_agents_lease_is_held_for_15_seconds() {
    for (announced, held) in [(true, true), (false, false)] {
        let (clock, server) = with_clock();
        granted(&server, "a", &short(1_000)).await;
        if announced {
            server.ask("/v1/agents/a/state", &json!({"state": "DIE_RESTART"})).await;
        }
        clock.advance(1_000 + 15_000);
        let verdict = submit(&server, "b", &[]).await["verdict"].clone();
        assert_eq!(verdict == json!("DIE"), held, "announced={announced}: {verdict}");
        clock.advance(1);
        if held {
            granted(&server, "b", &[]).await;
        }
    }
}

/// "The agent's timestamp (priority) MUST NOT change during the acquisition attempt."
#[tokio::test]
async fn s3_1_an_attempts_timestamp_does_not_change() {
    let (clock, server) = with_clock();
    granted(&server, "holder", &[]).await;
    let mut attempt = Value::Null;
    for _ in 0..5 {
        clock.advance(1_000);
        let fields: Vec<(&str, Value)> =
            attempt.is_string().then(|| ("attempt_id", attempt.clone())).into_iter().collect();
        let reply = submit(&server, "a", &fields).await;
        assert_eq!(reply["verdict"], json!("DIE"));
        // The rest of the text tells when the response was sent.
        let first_try = |attempt: &Value| attempt.as_str().map(|text| text[..44].to_string());
        let (now, before) = (first_try(&reply["attempt_id"]), first_try(&attempt));
        assert!(before.is_none() || now == before, "{reply}");
        attempt = reply["attempt_id"].clone();
    }
}

/// "If a higher priority is needed, the agent MUST abort the current request and restart with a new, fresher timestamp":
/// taken literally it would starve, since in wait-die the older attempt wins. A request without `attempt_id` gets a new
/// timestamp, and that is never a higher priority.
#[tokio::test]
async fn s3_1_a_fresh_timestamp_takes_a_new_attempt_and_is_never_older() {
    let (clock, server) = with_clock();
    let lease = granted(&server, "holder", &[]).await;
    clock.advance(1);
    let old = submit(&server, "a", &[]).await;
    clock.advance(1);
    let fresh = submit(&server, "a", &[]).await;
    assert_ne!(old["attempt_id"], fresh["attempt_id"]);
    server.release(&lease).await;
    clock.advance(1);
    // The old attempt is older than the current holder. So is a new one from before that grant; one from after it is not.
    granted(&server, "next", &[]).await;
    clock.advance(1);
    assert_eq!(
        submit(&server, "a", &[("attempt_id", old["attempt_id"].clone())]).await["verdict"],
        json!("WAIT")
    );
    assert_eq!(submit(&server, "a", &[]).await["verdict"], json!("DIE"));
}

/// "Agents MUST send a Heartbeat signal for all active leases before `expires_at`": without one, the lease expires.
/// "Control Plane extends `expires_at` by TTL from the current time."
#[tokio::test]
async fn s3_2_a_heartbeat_extends_by_the_ttl_from_now_and_without_one_the_lease_is_gone() {
    let (clock, server) = with_clock();
    let lease = granted(&server, "a", &short(3_000)).await;
    for _ in 0..5 {
        clock.advance(1_000);
        let beaten = one(&server, "heartbeat", &lease, false).await;
        assert_eq!((&beaten["ok"], &beaten["remaining_ms"]), (&json!(true), &json!(3_000)));
    }
    clock.advance(3_001);
    granted(&server, "b", &[]).await;
}

/// "Control Plane MUST reject heartbeats for leases that are already expired or released."
#[tokio::test]
async fn s3_2_heartbeats_for_expired_and_released_leases_are_rejected() {
    let (clock, server) = with_clock();
    let lease = granted(&server, "a", &short(1_000)).await;
    clock.advance(1_001);
    assert_eq!(one(&server, "heartbeat", &lease, false).await["error"], json!("lease_expired"));
    let lease = granted(&server, "a", &short(1_000)).await;
    server.release(&lease).await;
    assert_eq!(one(&server, "heartbeat", &lease, false).await["error"], json!("not_held"));
}

/// "If now > `expires_at`, the Control Plane automatically revokes the lease."
#[tokio::test]
async fn s3_3_a_lease_ends_at_its_deadline_without_a_request() {
    let (clock, server) = with_clock();
    let lease = granted(&server, "a", &short(1_000)).await;
    let path = format!("/v1/leases/{}", lease["public_id"].as_str().expect("a name"));
    clock.advance(1_000);
    assert_eq!(server.get(&path).await.1["state"], json!("active"), "now = expires_at");
    clock.advance(1);
    assert_eq!(server.get(&path).await.1["state"], json!("expired"), "now > expires_at");
}

/// "Upon resurrection, an agent MUST perform a `VERIFY_ALL` call. The Kernel MUST return the current global state of those
/// specific leases."
#[tokio::test]
async fn s3_4_verify_all_returns_the_current_state_of_each_lease() {
    let (clock, server) = with_clock();
    let lease = granted(&server, "a", &short(1_000)).await;
    let seen = one(&server, "reconcile", &lease, false).await;
    assert_eq!(
        (&seen["valid"], &seen["state"], &seen["holder"]),
        (&json!(true), &json!("active"), &json!("anonymous"))
    );
    clock.advance(1_001);
    let other = granted(&server, "b", &[]).await;
    let seen = one(&server, "reconcile", &lease, true).await;
    assert_eq!(
        (&seen["valid"], &seen["state"]),
        (&json!(false), &json!("expired")),
        "not even by asking for it"
    );
    let revoke = format!("/v1/leases/{}/revoke", other["public_id"].as_str().expect("a name"));
    server.post(&revoke, &[], "").await;
    assert_eq!(one(&server, "reconcile", &other, true).await["state"], json!("revoking"));
}

/// The transitions: RELEASED and EXPIRED are final.
#[tokio::test]
async fn s4_released_and_expired_are_terminal() {
    let (clock, server) = with_clock();
    let released = granted(&server, "a", &short(1_000)).await;
    server.release(&released).await;
    let expired = granted(&server, "a", &short(1_000)).await;
    clock.advance(1_001);
    for (lease, state) in [(&released, "released"), (&expired, "expired")] {
        assert_eq!(one(&server, "heartbeat", lease, false).await["ok"], json!(false));
        let rebind = format!("/v1/leases/{}/rebind", lease["public_id"].as_str().expect("a name"));
        let body = json!({"lease_id": lease["lease_id"]}).to_string();
        assert_eq!(server.post(&rebind, &[], &body).await.0, 403);
        server.release(lease).await;
        assert_eq!(one(&server, "reconcile", lease, true).await["state"], json!(state));
    }
}

/// "Implementations MUST NOT honor a lease past its expiry time, even by milliseconds."
#[tokio::test]
async fn s5_a_lease_is_not_honoured_a_millisecond_past_its_expiry() {
    let (clock, server) = with_clock();
    let lease = server.acquire(json!({"key": "k", "ttl_ms": 1_000})).await;
    let headers = [("x-lease-id", lease["lease_id"].as_str().expect("a credential"))];
    clock.advance(1_000);
    assert_eq!(server.post("/v1/update_state?key=k", &headers, "{}").await.0, 200, "to the last millisecond");
    clock.advance(1);
    let (status, reply) = server.post("/v1/update_state?key=k", &headers, "{}").await;
    assert_eq!((status, &reply["error"]), (403, &json!("lease_expired")));
    assert_eq!(one(&server, "heartbeat", &lease, false).await["error"], json!("lease_expired"));
}

/// "The Control Plane's clock is the Source of Truth. Agents MUST account for network latency": responses carry the
/// remaining time, which agents count from before their request; no request carries an agent's clock.
#[tokio::test]
async fn s5_responses_carry_the_remaining_time_by_the_servers_clock() {
    let (clock, server) = with_clock();
    let lease = granted(&server, "a", &short(10_000)).await;
    clock.advance(4_000);
    let seen = one(&server, "reconcile", &lease, false).await;
    assert_eq!(
        (&seen["remaining_ms"], &seen["expires_at_unix_ms"]),
        (&json!(6_000), &lease["expires_at_unix_ms"])
    );
}

/// "RELEASE operations MUST be idempotent. Releasing an already released/expired lease is a no-op (HTTP 200 OK)."
#[tokio::test]
async fn s5_a_release_is_idempotent() {
    let (clock, server) = with_clock();
    let released = granted(&server, "a", &short(1_000)).await;
    for _ in 0..3 {
        server.release(&released).await;
        assert_eq!(one(&server, "release", &released, false).await["ok"], json!(true));
    }
    let expired = granted(&server, "a", &short(1_000)).await;
    clock.advance(1_001);
    let next = granted(&server, "b", &[]).await;
    server.release(&expired).await;
    assert_eq!(one(&server, "release", &expired, false).await["ok"], json!(true));
    assert_eq!(
        one(&server, "reconcile", &next, false).await["valid"],
        json!(true),
        "a no-op: the next holder keeps it"
    );
}

/// "If an agent cannot reach the Control Plane to heartbeat, its leases WILL expire." Every later request under the old
/// lease is refused; "Continuing simply because I grabbed it earlier is a protocol violation."
#[tokio::test]
async fn s6_1_an_agent_back_from_a_partition_has_lost_its_lease_and_must_reacquire() {
    let (clock, server) = with_clock();
    let lease = granted(&server, "a", &short(1_000)).await;
    clock.advance(60_000);
    granted(&server, "b", &[]).await;
    assert_eq!(one(&server, "heartbeat", &lease, false).await["error"], json!("lease_expired"));
    assert_eq!(one(&server, "reconcile", &lease, true).await["valid"], json!(false));
    clock.advance(1);
    let again = submit(&server, "a", &[]).await;
    assert_eq!(again["verdict"], json!("DIE"), "a new attempt: the earlier one ended with its grant");
}

/// "Agents SHOULD use a conservative local expiry": the response carries the exact
/// remaining time, from which an agent subtracts its margin.
#[tokio::test]
async fn s6_2_the_remaining_time_is_never_overstated() {
    let (clock, server) = with_clock();
    let lease = granted(&server, "a", &short(1_000)).await;
    clock.advance(lease["remaining_ms"].as_u64().expect("a number"));
    assert_eq!(one(&server, "reconcile", &lease, false).await["valid"], json!(true));
}

/// "Control Planes MAY enforce Total Lease Time quotas or Idle Detection."
#[tokio::test]
async fn s7_squatters_are_stopped_by_quotas() {
    for quota in [json!({"max_total_ms": 5_000}), json!({"idle_ms": 5_000})] {
        let (clock, server) = with_clock();
        assert_eq!(server.raw("PUT", "/v1/quotas", &[], &quota.to_string()).await.status, 200);
        let lease = granted(&server, "squatter", &short(4_000)).await;
        clock.advance(3_000);
        assert_eq!(one(&server, "heartbeat", &lease, false).await["remaining_ms"], json!(2_000), "{quota}");
        clock.advance(2_001);
        assert_eq!(one(&server, "heartbeat", &lease, false).await["error"], json!("lease_expired"));
        granted(&server, "other", &[]).await;
    }
}
