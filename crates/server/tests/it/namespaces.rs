//! Namespaces from their first use to their deletion, as seen by clients with and without rights.

use lockd_server::testing::TestClock;
use serde_json::{Value, json};

use crate::support::{Server, within};

fn manifest(namespace: &str, agent: &str) -> Value {
    let intents = json!([{"predicate": "MUTATES", "object": "FILE:/secret-plan"}]);
    json!({"namespace": namespace, "agent_id": agent, "session_id": agent, "intents": intents})
}

async fn namespaces(server: &Server) -> Value {
    let mut names = server.get("/v1/namespaces").await.1["namespaces"].clone();
    names.as_array_mut().expect("a list").sort_by_key(Value::to_string);
    names
}

async fn status(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (status, reply) = server.post(path, &[], &body.to_string()).await;
    (status, reply["error"].clone())
}

/// The contents of `a`: two leases, one of them of an agent, a document, and a contention.
struct Inside {
    key: Value,
    file: Value,
}

async fn fill(ada: &Server) -> Inside {
    let key = ada.acquire(json!({"namespace": "a", "key": "orders"})).await;
    let headers = [("x-lease-id", key["lease_id"].as_str().expect("a credential"))];
    let path = "/v1/update_state?namespace=a&key=orders";
    assert_eq!(ada.post(path, &headers, r#"{"secret":1}"#).await.0, 200);
    let file = ada.ask("/v1/manifest", &manifest("a", "coder")).await;
    assert_eq!(file["verdict"], json!("GRANTED"));
    assert_eq!(ada.ask("/v1/manifest", &manifest("a", "other")).await["verdict"], json!("DIE"));
    Inside { key, file }
}

/// No view of bob's shows anything in `a`.
async fn sees_nothing(bob: &Server, inside: &Inside) {
    for path in [
        "/v1/leases?namespace=a",
        "/v1/describe?namespace=a&key=orders",
        "/v1/fence?namespace=a&key=orders&token=1",
        "/v1/get_state?namespace=a&key=orders&public=1",
        "/v1/events?namespace=a",
        "/v1/contention?namespace=a",
        "/v1/agents?namespace=a",
        "/v1/keys?namespace=a",
        "/v1/resource/FILE:%2Fsecret-plan/state?namespace=a",
        "/v1/resource/KEY:orders/state?namespace=a",
    ] {
        assert_eq!(bob.get(path).await.0, 403, "{path}");
    }
    // Without a namespace, a view omits what bob may not read.
    for path in ["/v1/leases", "/v1/contention", "/v1/namespaces"] {
        let (status, reply) = bob.get(path).await;
        let text = reply.to_string();
        assert_eq!(status, 200, "{path}");
        assert!(
            !text.contains("orders") && !text.contains("ada") && !text.contains(r#""a""#),
            "{path}: {text}"
        );
    }
    for lease in [&inside.key, &inside.file] {
        let public = lease["public_id"].as_str().expect("a name");
        let (status, reply) = bob.get(&format!("/v1/leases/{public}")).await;
        let unknown = bob.get(&format!("/v1/leases/{}{:016x}", &public[..18], 1)).await;
        assert_eq!((status, reply), unknown, "as if it had never been");
    }
}

/// Nor does any command of bob's reach into it, by names or by leaked credentials.
async fn reaches_nothing(bob: &Server, inside: &Inside) {
    let forbidden = (403, json!("forbidden"));
    assert_eq!(status(bob, "/v1/acquire", &json!({"namespace": "a", "key": "x"})).await, forbidden);
    assert_eq!(status(bob, "/v1/manifest", &manifest("a", "mine")).await, forbidden);
    let state = json!({"namespace": "a", "state": "DIE_RESTART"});
    assert_eq!(status(bob, "/v1/agents/coder/state", &state).await, forbidden);
    // The response must not reveal whether the agent exists: it once did.
    for agent in ["coder", "nobody"] {
        for call in ["heartbeat", "release", "reconcile"] {
            let body = json!({"namespace": "a", "agent_id": agent, "lease_ids": [inside.file["lease_id"]]});
            assert_eq!(status(bob, &format!("/v1/leases/{call}"), &body).await, forbidden, "{call} {agent}");
        }
    }
    for lease in [&inside.key, &inside.file] {
        let id = &lease["lease_id"];
        for call in ["heartbeat", "release", "reconcile"] {
            let mut body = json!({"lease_ids": [id]});
            if call == "reconcile" {
                body["rebind"] = json!(true);
            }
            let reply = bob.ask(&format!("/v1/leases/{call}"), &body).await;
            let mut result = reply["results"][0].clone();
            assert_eq!((&result["ok"], &result["error"]), (&json!(false), &json!("not_held")), "{call}");
            result["lease_id"].take();
            let text = result.to_string();
            assert!(!text.contains("orders") && !text.contains("secret") && !text.contains("ada"), "{text}");
        }
        let body = json!({"lease_id": id});
        for path in ["/v1/keepalive", "/v1/release"] {
            assert_eq!(status(bob, path, &body).await, (403, json!("not_held")), "{path}");
        }
        let headers = [("x-lease-id", id.as_str().expect("a credential"))];
        for path in ["/v1/get_state", "/v1/update_state", "/v1/remove_state"] {
            let (status, reply) = bob.post(&format!("{path}?namespace=a&key=orders"), &headers, "{}").await;
            assert_eq!(status, 403, "{path}: {reply}");
        }
    }
    let public = inside.key["public_id"].as_str().expect("a name");
    for call in ["revoke", "reclaim"] {
        assert_eq!(bob.post(&format!("/v1/leases/{public}/{call}"), &[], "").await.0, 403, "{call}");
    }
    assert_eq!(bob.raw("DELETE", "/v1/namespaces/a", &[], "").await.status, 403);
}

#[tokio::test]
async fn a_namespace_begins_with_its_first_use_is_visible_to_its_readers_and_is_deleted_by_an_operator() {
    let clock = TestClock::default();
    let operator = Server::start_by(&clock);
    let (ada, bob) = (operator.worker("ada", "a:rw"), operator.worker("bob", "b:rw"));
    let reader = operator.worker("rob", "a:r");
    assert_eq!(namespaces(&operator).await, json!([]));

    // Without the right, the request is refused and creates no namespace.
    for who in [&bob, &reader] {
        assert_eq!(status(who, "/v1/acquire", &json!({"namespace": "a", "key": "orders"})).await.0, 403);
        assert_eq!(status(who, "/v1/manifest", &manifest("a", "coder")).await.0, 403);
    }
    assert_eq!(namespaces(&operator).await, json!([]));

    // With the right, the first use creates it.
    let inside = fill(&ada).await;
    assert_eq!(namespaces(&ada).await, json!(["a"]));
    assert_eq!(namespaces(&reader).await, json!(["a"]));
    assert_eq!(namespaces(&bob).await, json!([]), "b is not there yet, and a is not his");

    // The same names in another namespace are independent.
    let theirs = bob.ask("/v1/manifest", &manifest("b", "coder")).await;
    assert_eq!(theirs["verdict"], json!("GRANTED"), "{theirs}");
    bob.acquire(json!({"namespace": "b", "key": "k"})).await;
    assert_eq!(namespaces(&operator).await, json!(["a", "b"]));
    assert_eq!(namespaces(&bob).await, json!(["b"]));

    sees_nothing(&bob, &inside).await;
    reaches_nothing(&bob, &inside).await;
    // A client with the right to read sees all of it.
    assert_eq!(reader.get("/v1/leases?namespace=a").await.1["leases"].as_array().map(Vec::len), Some(2));
    assert_eq!(reader.get("/v1/describe?namespace=a&key=orders").await.1["version"], json!(1));
    assert_eq!(reader.get("/v1/keys?namespace=a").await.1["keys"][0]["key"], json!("orders"));
    assert_eq!(reader.get("/v1/agents?namespace=a").await.1["agents"][0]["agent_id"], json!("coder"));
    let file = reader.get("/v1/resource/FILE:%2Fsecret-plan/state?namespace=a").await.1;
    assert_eq!(file["leases"][0]["public_id"], inside.file["public_id"]);
    let hot = reader.until("/v1/contention?namespace=a", |reply| reply["hotspots"] != json!([])).await;
    assert_eq!(hot["hotspots"][0]["name"], json!("/secret-plan"));

    // Only an operator deletes it, and not while there are leases in it.
    let delete = || operator.raw("DELETE", "/v1/namespaces/a", &[], "");
    assert_eq!(ada.raw("DELETE", "/v1/namespaces/a", &[], "").await.status, 403);
    assert_eq!(delete().await.status, 409);
    ada.release(&inside.key).await;
    ada.release(&inside.file).await;
    assert_eq!(delete().await.status, 200);
    assert_eq!(namespaces(&operator).await, json!(["b"]));
    assert_eq!(namespaces(&ada).await, json!([]));
    assert_eq!(ada.get("/v1/describe?namespace=a&key=orders").await.0, 404);
    assert_eq!(ada.get("/v1/agents?namespace=a").await.1["agents"], json!([]));
    assert_eq!(ada.get("/v1/keys?namespace=a").await.1["keys"], json!([]));
    let public = theirs["public_id"].as_str().expect("a name");
    assert_eq!(bob.get(&format!("/v1/leases/{public}")).await.1["state"], json!("active"), "b stands");
    // The next use creates it again, and no version number repeats.
    let again = ada.acquire(json!({"namespace": "a", "key": "orders"})).await;
    assert!(again["version"].as_u64() > Some(1) && again["state_etag"] == json!(""), "{again}");
}

/// A subscription without a namespace must not include events of namespaces that the client may not read.
#[tokio::test]
async fn events_of_a_namespace_reach_only_subscribers_that_may_read_it() {
    use http_body_util::BodyExt;
    let operator = Server::start();
    let (ada, bob) = (operator.worker("ada", "a:rw"), operator.worker("bob", "b:rw"));
    let mut body = bob.open("/v1/events", &[]).await.into_body();
    fill(&ada).await;
    let mine = bob.acquire(json!({"namespace": "b", "key": "k"})).await;
    let (mut text, public) = (String::new(), mine["public_id"].as_str().expect("a name"));
    // All events of `a` came before it.
    while !text.contains(public) {
        let frame =
            within("the next event", body.frame()).await.expect("it goes on").expect("it never fails");
        text.push_str(std::str::from_utf8(&frame.into_data().expect("no trailers")).expect("text"));
    }
    assert!(!text.contains("orders") && !text.contains("secret") && !text.contains("ada"), "{text}");
}
