//! Sentences of `docs/guide/agents.md` that `agents.rs`, `klis.rs`, `events.rs` and `bulk.rs` do not test, each in a test
//! of its own.

use lockd_server::testing::TestClock;
use serde_json::{Value, json};

use crate::support::{Server, within};

fn with_clock() -> (TestClock, Server) {
    let clock = TestClock::default();
    let server = Server::start_by(&clock);
    (clock, server)
}

fn manifest(agent: &str, intents: &[(&str, &str)]) -> Value {
    let intent =
        |(predicate, name): &(&str, &str)| json!({"predicate": predicate, "object": format!("FILE:{name}")});
    let intents: Vec<Value> = intents.iter().map(intent).collect();
    json!({"agent_id": agent, "session_id": agent, "intents": intents})
}

async fn verdict(server: &Server, body: &Value) -> Value {
    server.ask("/v1/manifest", body).await["verdict"].clone()
}

/// "`intents`: at most 128."
#[tokio::test]
async fn a_manifest_has_128_intents_and_no_more() {
    let (_, server) = with_clock();
    let names: Vec<String> = (0..129).map(|n| format!("/f{n}")).collect();
    let intents: Vec<(&str, &str)> = names.iter().map(|name| ("MUTATES", name.as_str())).collect();
    let (status, reply) = server.post("/v1/manifest", &[], &manifest("a", &intents).to_string()).await;
    assert_eq!((status, &reply["error"]), (400, &json!("invalid_body")), "{reply}");
    let reply = server.ask("/v1/manifest", &manifest("a", &intents[..128])).await;
    assert_eq!(reply["resources"].as_array().map(Vec::len), Some(128));
}

/// "readers share, writers do not."
#[tokio::test]
async fn readers_share_and_writers_do_not() {
    let (clock, server) = with_clock();
    for (agent, predicate, wanted) in [
        ("a", "CONSUMES", "GRANTED"),
        ("b", "CONSUMES", "GRANTED"),
        ("c", "DEPENDS_ON", "GRANTED"),
        ("d", "PROVIDES", "GRANTED"),
        ("e", "PROVIDES", "DIE"),
        ("f", "MUTATES", "DIE"),
        ("g", "DELETES", "DIE"),
        ("h", "RENAMES", "DIE"),
    ] {
        clock.advance(1);
        assert_eq!(
            verdict(&server, &manifest(agent, &[(predicate, "/x")])).await,
            json!(wanted),
            "{predicate}"
        );
    }
}

/// "`FILE:/dir/*` is `/dir` and all beneath it."
#[tokio::test]
async fn a_star_is_the_directory_and_all_beneath_it() {
    let (clock, server) = with_clock();
    assert_eq!(verdict(&server, &manifest("a", &[("MUTATES", "/dir/*")])).await, json!("GRANTED"));
    clock.advance(1);
    for inside in ["/dir", "/dir/one", "/dir/deep/down", "/dir/deep/*", "/*"] {
        assert_eq!(verdict(&server, &manifest("b", &[("CONSUMES", inside)])).await, json!("DIE"), "{inside}");
    }
    for outside in ["/directory", "/other/dir", "/"] {
        let agent = manifest(outside, &[("MUTATES", outside)]);
        assert_eq!(verdict(&server, &agent).await, json!("GRANTED"), "{outside}");
    }
}

/// "`wait_ms`: At most the server's `acquire-block`", which is a minute here.
#[tokio::test]
async fn a_wait_is_at_most_the_servers_limit() {
    let (clock, server) = with_clock();
    let before = server.ask("/v1/manifest", &manifest("before", &[("MUTATES", "/x")])).await;
    clock.advance(1);
    let old = server.ask("/v1/manifest", &manifest("old", &[("MUTATES", "/x")])).await;
    server.release(&before).await;
    clock.advance(1);
    let held =
        server.acquire(json!({"resources": [{"kind": "FILE", "name": "/x"}], "ttl_ms": 300_000})).await;
    let mut body = manifest("old", &[("MUTATES", "/x")]);
    (body["attempt_id"], body["wait_ms"]) = (old["attempt_id"].clone(), json!(86_400_000));
    let waiter = {
        let server = server.clone();
        tokio::spawn(async move { verdict(&server, &body).await })
    };
    server.until("/v1/contention", |reply| reply["waiting"] != json!([])).await;
    // "how many wait", while it waits.
    let seen = server.get("/v1/resource/FILE:%2Fx/state").await.1;
    assert_eq!((&seen["waiters"], &seen["leases"][0]["public_id"]), (&json!(1), &held["public_id"]));
    clock.advance(59_999);
    let waiting = server.get("/v1/contention").await.1["waiting"].clone();
    assert_eq!(waiting.as_array().map(Vec::len), Some(1), "not yet");
    clock.advance(2);
    server.until("/v1/contention", |reply| reply["waiting"] == json!([])).await;
    assert_eq!(within("the waiter gets a reply", waiter).await.expect("a reply"), json!("WAIT"));
}

/// "`reason`: at most 256 bytes."
#[tokio::test]
async fn a_reason_has_256_bytes_and_no_more() {
    let (_, server) = with_clock();
    let mut body = manifest("a", &[("MUTATES", "/x")]);
    body["reason"] = json!("r".repeat(257));
    assert_eq!(server.post("/v1/manifest", &[], &body.to_string()).await.0, 400);
    body["reason"] = json!("r".repeat(256));
    assert_eq!(verdict(&server, &body).await, json!("GRANTED"));
}

/// "It belongs to the identity that first used it in the namespace, until five minutes after its last lease."
#[tokio::test]
async fn an_agents_name_is_free_again_five_minutes_after_its_last_lease() {
    let (clock, server) = with_clock();
    let (ada, bob) = (server.worker("ada", "*:rw"), server.worker("bob", "*:rw"));
    let lease = ada.ask("/v1/manifest", &manifest("coder", &[("MUTATES", "/x")])).await;
    let asks =
        async || bob.post("/v1/manifest", &[], &manifest("coder", &[("MUTATES", "/y")]).to_string()).await;
    assert_eq!(asks().await.0, 403);
    let mut elsewhere = manifest("coder", &[("MUTATES", "/y")]);
    elsewhere["namespace"] = json!("elsewhere");
    assert_eq!(verdict(&bob, &elsewhere).await, json!("GRANTED"), "another namespace's is another");
    clock.advance(1_000);
    ada.release(&lease).await;
    clock.advance(299_000);
    assert_eq!(asks().await.0, 403, "not yet");
    clock.advance(1_001);
    let (status, reply) = asks().await;
    assert_eq!((status, &reply["verdict"]), (200, &json!("GRANTED")), "{reply}");
}

/// A changed manifest is a new attempt.
#[tokio::test]
async fn an_attempt_loses_its_age_when_its_intents_change() {
    let (clock, server) = with_clock();
    assert_eq!(verdict(&server, &manifest("holder", &[("MUTATES", "/x")])).await, json!("GRANTED"));
    clock.advance(1);
    let died = server.ask("/v1/manifest", &manifest("a", &[("MUTATES", "/x")])).await;
    assert_eq!(died["verdict"], json!("DIE"));
    clock.advance(1);
    assert_eq!(verdict(&server, &manifest("young", &[("MUTATES", "/y")])).await, json!("GRANTED"));
    clock.advance(1);
    let mut other = manifest("a", &[("CONSUMES", "/y"), ("MUTATES", "/z")]);
    assert_eq!(verdict(&server, &other).await, json!("DIE"), "anew, it is the youngest");
    other["attempt_id"] = died["attempt_id"].clone();
    let reply = server.ask("/v1/manifest", &other).await;
    assert_eq!(reply["verdict"], json!("DIE"), "{reply}");
}

/// "(an operator may say it too)", and "Any heartbeat, manifest or reconcile that names the agent makes it `ALIVE` again: what
/// runs out after that has no grace."
#[tokio::test]
async fn an_operator_announces_a_restart_and_any_request_of_the_agent_ends_it() {
    for call in ["heartbeat", "reconcile", "manifest"] {
        let (clock, server) = with_clock();
        let ada = server.worker("ada", "*:rw");
        let mut short = manifest("coder", &[("MUTATES", "/x")]);
        short["ttl_ms"] = json!(5_000);
        let lease = ada.ask("/v1/manifest", &short).await;
        let reply = server.ask("/v1/agents/coder/state", &json!({"state": "DIE_RESTART"})).await;
        assert_eq!((&reply["state"], &reply["identity"]), (&json!("DIE_RESTART"), &json!("ada")));
        if call == "manifest" {
            assert_eq!(verdict(&ada, &manifest("coder", &[("MUTATES", "/y")])).await, json!("GRANTED"));
        } else {
            let body = json!({"agent_id": "coder", "lease_ids": [lease["lease_id"]]});
            ada.ask(&format!("/v1/leases/{call}"), &body).await;
        }
        assert_eq!(server.get("/v1/agents").await.1["agents"][0]["state"], json!("ALIVE"), "{call}");
        clock.advance(5_001);
        let next = verdict(&server, &manifest("next", &[("MUTATES", "/x")])).await;
        assert_eq!(next, json!("GRANTED"), "{call}: no grace");
    }
}
