//! Namespaces, from the first use to their end, as those see them who may and those who may not.

use serde_json::{Value, json};
use server::testing::Hands;

use crate::support::{Server, within};

fn manifest(namespace: &str, agent: &str) -> Value {
    let intents = json!([{"predicate": "MUTATES", "object": "FILE:/secret-plan"}]);
    json!({"namespace": namespace, "agent_id": agent, "session_id": agent, "intents": intents})
}

async fn namespaces(server: &Server) -> Value {
    server.get("/v1/namespaces").await.1["namespaces"].clone()
}

async fn status(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let (status, told) = server.post(path, &[], &body.to_string()).await;
    (status, told["error"].clone())
}

/// What is in `a`: two leases, one of an agent, a document, somebody who met another in its way.
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

/// Nothing that bob may ask tells of anything in `a`.
async fn sees_nothing(bob: &Server, inside: &Inside) {
    for path in [
        "/v1/leases?namespace=a",
        "/v1/describe?namespace=a&key=orders",
        "/v1/fence?namespace=a&key=orders&token=1",
        "/v1/get_state?namespace=a&key=orders&public=1",
        "/v1/events?namespace=a",
        "/v1/contention?namespace=a",
        "/v1/agents?namespace=a",
        "/v1/resource/FILE:%2Fsecret-plan/state?namespace=a",
        "/v1/resource/KEY:orders/state?namespace=a",
    ] {
        assert_eq!(bob.get(path).await.0, 403, "{path}");
    }
    // Where no namespace is named, what may not be seen is left out.
    for path in ["/v1/leases", "/v1/contention", "/v1/namespaces"] {
        let (status, told) = bob.get(path).await;
        let text = told.to_string();
        assert_eq!(status, 200, "{path}");
        assert!(
            !text.contains("orders") && !text.contains("ada") && !text.contains(r#""a""#),
            "{path}: {text}"
        );
    }
    for lease in [&inside.key, &inside.file] {
        let public = lease["public_id"].as_str().expect("a name");
        let (status, told) = bob.get(&format!("/v1/leases/{public}")).await;
        let unknown = bob.get(&format!("/v1/leases/L-{}{}", "0".repeat(19), "f".repeat(13))).await;
        assert_eq!((status, told), unknown, "as if it had never been");
    }
}

/// Nor does anything that bob may do reach into it, with names or with credentials that leaked.
async fn reaches_nothing(bob: &Server, inside: &Inside) {
    let forbidden = (403, json!("forbidden"));
    assert_eq!(status(bob, "/v1/acquire", &json!({"namespace": "a", "key": "x"})).await, forbidden);
    assert_eq!(status(bob, "/v1/manifest", &manifest("a", "mine")).await, forbidden);
    let state = json!({"namespace": "a", "state": "DIE_RESTART"});
    assert_eq!(status(bob, "/v1/agents/coder/state", &state).await, forbidden);
    // An agent that is there and one that is not are the same: this once told them apart.
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
            let told = bob.ask(&format!("/v1/leases/{call}"), &body).await;
            let mut result = told["results"][0].clone();
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
            let (status, told) = bob.post(&format!("{path}?namespace=a&key=orders"), &headers, "{}").await;
            assert_eq!(status, 403, "{path}: {told}");
        }
    }
    let public = inside.key["public_id"].as_str().expect("a name");
    for call in ["revoke", "reclaim"] {
        assert_eq!(bob.post(&format!("/v1/leases/{public}/{call}"), &[], "").await.0, 403, "{call}");
    }
    assert_eq!(bob.raw("DELETE", "/v1/namespaces/a", &[], "").await.status, 403);
}

#[tokio::test]
async fn a_namespace_begins_with_its_first_use_is_seen_by_its_own_and_ends_with_an_operator() {
    let hands = Hands::default();
    let operator = Server::start_by(&hands);
    let (ada, bob) = (operator.worker("ada", "a:rw"), operator.worker("bob", "b:rw"));
    let reader = operator.worker("rob", "a:r");
    assert_eq!(namespaces(&operator).await, json!([]));

    // Refused where the certificate does not allow it, and then there is none.
    for who in [&bob, &reader] {
        assert_eq!(status(who, "/v1/acquire", &json!({"namespace": "a", "key": "orders"})).await.0, 403);
        assert_eq!(status(who, "/v1/manifest", &manifest("a", "coder")).await.0, 403);
    }
    assert_eq!(namespaces(&operator).await, json!([]));

    // Created on first use where it does.
    let inside = fill(&ada).await;
    assert_eq!(namespaces(&ada).await, json!(["a"]));
    assert_eq!(namespaces(&reader).await, json!(["a"]));
    assert_eq!(namespaces(&bob).await, json!([]), "b is not there yet, and a is not his");

    // The same names in another are others.
    let theirs = bob.ask("/v1/manifest", &manifest("b", "coder")).await;
    assert_eq!(theirs["verdict"], json!("GRANTED"), "{theirs}");
    bob.acquire(json!({"namespace": "b", "key": "k"})).await;
    assert_eq!(namespaces(&operator).await, json!(["a", "b"]));
    assert_eq!(namespaces(&bob).await, json!(["b"]));

    sees_nothing(&bob, &inside).await;
    reaches_nothing(&bob, &inside).await;
    // Nor does an attempt's age go along.
    let mut body = manifest("b", "other");
    body["attempt_id"] = inside.file["attempt_id"].clone();
    assert_eq!(status(&bob, "/v1/manifest", &body).await, (400, json!("invalid_body")));

    // Whoever may read sees all of it.
    assert_eq!(reader.get("/v1/leases?namespace=a").await.1["leases"].as_array().map(Vec::len), Some(2));
    assert_eq!(reader.get("/v1/describe?namespace=a&key=orders").await.1["version"], json!(1));
    assert_eq!(reader.get("/v1/agents?namespace=a").await.1["agents"][0]["agent_id"], json!("coder"));
    let file = reader.get("/v1/resource/FILE:%2Fsecret-plan/state?namespace=a").await.1;
    assert_eq!(file["leases"][0]["public_id"], inside.file["public_id"]);
    let hot = reader.until("/v1/contention?namespace=a", |told| told["hotspots"] != json!([])).await;
    assert_eq!(hot["hotspots"][0]["name"], json!("/secret-plan"));

    // Deleted by an operator alone, and not while anybody holds something in it.
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
    let public = theirs["public_id"].as_str().expect("a name");
    assert_eq!(bob.get(&format!("/v1/leases/{public}")).await.1["state"], json!("active"), "b stands");
    // The next use makes it anew, and no version comes twice.
    let again = ada.acquire(json!({"namespace": "a", "key": "orders"})).await;
    assert!(again["version"].as_u64() > Some(1) && again["state_etag"] == json!(""), "{again}");
}

/// Events are followed, not asked for: whoever follows all that it may sees none of another's.
#[tokio::test]
async fn events_of_another_namespace_never_reach_who_may_not_read_it() {
    use http_body_util::BodyExt;
    let operator = Server::start();
    let (ada, bob) = (operator.worker("ada", "a:rw"), operator.worker("bob", "b:rw"));
    let mut body = bob.open("/v1/events", &[]).await.into_body();
    fill(&ada).await;
    let mine = bob.acquire(json!({"namespace": "b", "key": "k"})).await;
    let (mut text, public) = (String::new(), mine["public_id"].as_str().expect("a name"));
    // All that happened in `a` came before it.
    while !text.contains(public) {
        let frame =
            within("the next event", body.frame()).await.expect("it goes on").expect("it never fails");
        text.push_str(std::str::from_utf8(&frame.into_data().expect("no trailers")).expect("text"));
    }
    assert!(!text.contains("orders") && !text.contains("secret") && !text.contains("ada"), "{text}");
}
