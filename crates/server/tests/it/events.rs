//! `/v1/events`: live events, and the events that a client gets when it reconnects.

use axum::body::Body;
use axum::http::Response;
use http_body_util::BodyExt;
use lockd_server::testing::TestClock;
use serde_json::{Value, json};

use crate::support::{Server, header, within};

/// A subscriber.
struct Reader {
    body: Body,
    text: String,
}

/// An event: its id, its name, its data.
type ReceivedEvent = (String, String, Value);

impl Reader {
    async fn open(server: &Server, path: &str, headers: &[(&str, &str)]) -> Reader {
        let response: Response<Body> = server.open(path, headers).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Reader { body: response.into_body(), text: String::new() }
    }

    /// The next event; `None` when the server has ended the stream.
    async fn next(&mut self) -> Option<ReceivedEvent> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                let field = |name: &str| {
                    let line = block.lines().find_map(|line| line.strip_prefix(name));
                    line.map(|value| value.trim_start_matches(": ").to_string()).unwrap_or_default()
                };
                if block.starts_with(':') {
                    continue;
                }
                let data = serde_json::from_str(&field("data")).expect("data is JSON");
                return Some((field("id"), field("event"), data));
            }
            let frame = within("the next event", self.body.frame()).await?.expect("it never fails");
            let bytes = frame.into_data().expect("no trailers");
            self.text.push_str(std::str::from_utf8(&bytes).expect("text"));
        }
    }

    async fn named(&mut self, event: &str) -> ReceivedEvent {
        let reply = self.next().await.expect("it goes on");
        assert_eq!(reply.1, event, "{reply:?}");
        reply
    }
}

fn intent(agent: &str, namespace: &str) -> Value {
    let intents = json!([{"predicate": "MUTATES", "object": "FILE:/x"}]);
    json!({"namespace": namespace, "agent_id": agent, "session_id": agent, "intents": intents})
}

#[tokio::test]
async fn every_event_has_its_namespace_and_resources() {
    let clock = TestClock::default();
    let server = Server::start_by(&clock);
    server.acquire(json!({"key": "before"})).await;
    let mut reader = Reader::open(&server, "/v1/events", &[]).await;
    let lease = server.ask("/v1/manifest", &intent("a", "default")).await;
    let (id, _, granted) = reader.named("granted").await;
    assert_eq!(
        (&granted["namespace"], &granted["public_id"]),
        (&json!("default"), &lease["public_id"]),
        "from now on"
    );
    assert_eq!((&granted["agent_id"], &granted["fencing_token"]), (&json!("a"), &lease["fencing_token"]));
    assert_eq!(granted["resources"], json!([{"kind": "FILE", "name": "/x", "predicate": "MUTATES"}]));
    assert!(id.starts_with(&format!("{}.0", lease["fencing_token"])), "{id}");
    assert!(!granted.to_string().contains(lease["lease_id"].as_str().expect("a credential")));

    let died = server.ask("/v1/manifest", &intent("b", "default")).await;
    assert_eq!(died["verdict"], json!("DIE"));
    let (_, _, contention) = reader.named("contention").await;
    assert_eq!((&contention["agent_id"], &contention["how"]), (&json!("b"), &json!("died")));
    assert_eq!(
        (&contention["blocked_by"], &contention["resources"][0]["name"]),
        (&json!([lease["public_id"]]), &json!("/x"))
    );

    server.release(&lease).await;
    assert_eq!(reader.named("released").await.2["public_id"], lease["public_id"]);

    let key = server.acquire(json!({"key": "k", "ttl_ms": 1000, "on_expiry": {"hold_ms": 1000}})).await;
    reader.named("granted").await;
    let id = key["lease_id"].as_str().expect("a credential");
    let (status, _) = server.post("/v1/update_state?key=k", &[header("x-lease-id", id)], "{}").await;
    assert_eq!(status, 200);
    let (_, _, committed) = reader.named("committed").await;
    assert_eq!((&committed["version"], &committed["resources"][0]["name"]), (&json!(1), &json!("k")));
    clock.advance(1001);
    server.get("/v1/leases").await;
    assert_eq!(reader.named("expired").await.2["how"], json!("held"));
    clock.advance(1000);
    server.get("/v1/leases").await;
    reader.named("reclaimed").await;
    let last = server.acquire(json!({"key": "k"})).await;
    reader.named("granted").await;
    server.post(&format!("/v1/leases/{}/revoke", last["public_id"].as_str().expect("a name")), &[], "").await;
    assert_eq!(reader.named("revoked").await.2["public_id"], last["public_id"]);
}

/// The values of `how` in docs/guide/agents.md.
#[tokio::test]
async fn an_event_says_how_it_happened() {
    let clock = TestClock::default();
    let server = Server::start_by(&clock);
    let mut reader = Reader::open(&server, "/v1/events", &[]).await;
    let lease = server.ask("/v1/manifest", &intent("a", "default")).await;
    assert_eq!(reader.named("granted").await.2.get("how"), None);
    server.ask("/v1/agents/a/state", &json!({"state": "DIE_RESTART"})).await;
    clock.advance(60_001);
    server.get("/v1/leases").await;
    assert_eq!(reader.named("expired").await.2["how"], json!("held"));
    let body = json!({"lease_ids": [lease["lease_id"]], "agent_id": "a", "rebind": true});
    server.ask("/v1/leases/reconcile", &body).await;
    let (_, _, rebound) = reader.named("granted").await;
    assert_eq!((&rebound["how"], &rebound["public_id"]), (&json!("rebound"), &lease["public_id"]));

    let key = server.acquire(json!({"key": "k", "ttl_ms": 300_000})).await;
    reader.named("granted").await;
    let id = [header("x-lease-id", key["lease_id"].as_str().expect("a credential"))];
    server.post("/v1/update_state?key=k", &id, "{}").await;
    assert_eq!(reader.named("committed").await.2.get("how"), None);
    server.post("/v1/remove_state?key=k", &id, "").await;
    assert_eq!(reader.named("committed").await.2["how"], json!("removed"));

    assert_eq!(server.post("/v1/acquire", &[], r#"{"key":"k"}"#).await.0, 409);
    let (_, _, refused) = reader.named("contention").await;
    assert_eq!((&refused["how"], &refused["blocked_by"]), (&json!("refused"), &json!([key["public_id"]])));
    let waiter = {
        let server = server.clone();
        tokio::spawn(
            async move { server.post("/v1/acquire", &[], r#"{"key":"k","block_seconds":2}"#).await.0 },
        )
    };
    assert_eq!(reader.named("contention").await.2["how"], json!("waits"));
    clock.advance(2_001);
    server.until("/v1/contention", |reply| reply["waiting"] == json!([])).await;
    assert_eq!(reader.named("contention").await.2["how"], json!("timed_out"));
    assert_eq!(within("the waiter is refused", waiter).await.expect("a reply"), 409);
}

/// The event of a new waiter is sent at once: with the next record, it might come late or never.
#[tokio::test]
async fn a_new_waiter_is_an_event_at_once() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k"})).await;
    let mut reader = Reader::open(&server, "/v1/events", &[]).await;
    let waiting = server.clone();
    let waiter = tokio::spawn(async move { waiting.acquire(json!({"key": "k", "block_seconds": 30})).await });
    let (_, _, reply) = reader.named("contention").await;
    assert_eq!((&reply["how"], &reply["blocked_by"]), (&json!("waits"), &json!([lease["public_id"]])));
    server.release(&lease).await;
    within("the waiter is granted", waiter).await.expect("a grant");
    reader.named("released").await;
    reader.named("granted").await;
}

#[tokio::test]
async fn a_subscriber_that_reconnects_gets_the_events_that_it_missed() {
    let server = Server::start();
    let mut reader = Reader::open(&server, "/v1/events", &[]).await;
    // In both shards: each numbers its own records.
    let mut names = Vec::new();
    for n in 0..8 {
        let lease = server.acquire(json!({"key": "k", "namespace": format!("space-{n}")})).await;
        names.push(lease["public_id"].clone());
    }
    let mut ids = Vec::new();
    for name in &names {
        let (id, _, reply) = reader.named("granted").await;
        assert_eq!(reply["public_id"], *name);
        ids.push(id);
    }
    drop(reader);
    for (place, id) in ids.iter().enumerate().take(7) {
        let mut again = Reader::open(&server, "/v1/events", &[header("last-event-id", id)]).await;
        assert_eq!(again.named("granted").await.2["public_id"], names[place + 1], "after {id}");
    }
}

#[tokio::test]
async fn a_subscriber_whose_position_was_overwritten_gets_reset_and_then_new_events() {
    let server = Server::start();
    server.acquire(json!({"key": "before"})).await;
    let mut reader = Reader::open(&server, "/v1/events", &[header("last-event-id", "5.0")]).await;
    reader.named("reset").await;
    let lease = server.acquire(json!({"key": "k"})).await;
    assert_eq!(reader.named("granted").await.2["public_id"], lease["public_id"]);
}

/// Clients store the last id in a string that is empty at first, and some send that: they were refused.
#[tokio::test]
async fn an_empty_last_event_id_is_accepted() {
    let server = Server::start();
    let mut reader = Reader::open(&server, "/v1/events", &[header("last-event-id", "")]).await;
    let lease = server.acquire(json!({"key": "k"})).await;
    assert_eq!(reader.named("granted").await.2["public_id"], lease["public_id"]);
}

/// A client that does not read must not cost memory: it loses its connection, and gets `reset` when it reconnects.
#[tokio::test]
async fn a_subscriber_that_cannot_keep_up_loses_its_connection() {
    let server = Server::start();
    let mut reader = Reader::open(&server, "/v1/events", &[]).await;
    let first = server.acquire(json!({"key": "first"})).await;
    let (id, _, reply) = reader.named("granted").await;
    assert_eq!(reply["public_id"], first["public_id"]);
    // Each event is long, and there are twice as many as the buffer holds.
    let name = "n".repeat(500);
    for _ in 0..4200 {
        let lease = server.acquire(json!({"key": name})).await;
        server.release(&lease).await;
    }
    let mut reply = 0;
    while reader.next().await.is_some() {
        reply += 1;
    }
    assert!(reply < 8400, "{reply}");
    let mut again = Reader::open(&server, "/v1/events", &[header("last-event-id", &id)]).await;
    again.named("reset").await;
}

#[tokio::test]
async fn a_subscriber_sees_the_namespaces_that_it_may_read_and_requested() {
    let server = Server::start();
    let eve = server.worker("eve", "open:r also:r");
    let mut some = Reader::open(&eve, "/v1/events", &[]).await;
    let mut one = Reader::open(&eve, "/v1/events?namespace=also", &[]).await;
    for namespace in ["secret", "open", "also"] {
        server.ask("/v1/manifest", &intent("a", namespace)).await;
        server.ask("/v1/manifest", &intent("b", namespace)).await;
    }
    for namespace in ["open", "also"] {
        assert_eq!(some.named("granted").await.2["namespace"], json!(namespace));
        assert_eq!(some.named("contention").await.2["namespace"], json!(namespace));
    }
    assert_eq!(one.named("granted").await.2["namespace"], json!("also"));
    assert_eq!(eve.raw("GET", "/v1/events?namespace=secret", &[], "").await.status, 403);
}

#[tokio::test]
async fn subscriptions_are_limited_and_end_when_the_server_drains() {
    let server = Server::start();
    let mut readers = Vec::new();
    for _ in 0..100 {
        readers.push(Reader::open(&server, "/v1/events", &[]).await);
    }
    let raw = server.raw("GET", "/v1/events", &[], "").await;
    assert_eq!(raw.status, 429, "as one identity");
    let refusal = String::from_utf8_lossy(&raw.body);
    assert!(refusal.contains("limit=subscriptions_per_identity_max max=100"), "{refusal}");
    let mut other = Reader::open(&server.worker("bob", "*:r"), "/v1/events", &[]).await;
    drop(readers);
    let again = async {
        loop {
            let response = server.open("/v1/events", &[]).await;
            if response.status() == 200 {
                return response;
            }
            tokio::task::yield_now().await;
        }
    };
    let again = within("a subscription is freed", again).await;
    let mut again = Reader { body: again.into_body(), text: String::new() };
    server.drain();
    assert!(again.next().await.is_none() && other.next().await.is_none());
    assert_eq!(server.raw("GET", "/v1/events", &[], "").await.status, 503);
}
