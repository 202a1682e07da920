//! Bulk calls at their limits, and just above.

use serde_json::{Value, json};

use crate::support::Server;

const MANY: usize = 10_000;

/// Leases of one holder, alternating between two namespaces in different shards.
async fn acquire_many(server: &Server) -> Vec<Value> {
    let mut leases = Vec::with_capacity(MANY);
    for n in 0..MANY {
        let namespace = ["default", "far"][n % 2];
        let body = json!({"namespace": namespace, "key": format!("k{n}"), "ttl_ms": 300_000}).to_string();
        let raw = server.unchecked("POST", "/v1/acquire", &[], &body).await;
        assert_eq!(raw.status, 200);
        leases.push(serde_json::from_slice::<Value>(&raw.body).expect("JSON")["lease_id"].clone());
    }
    leases
}

async fn bulk(server: &Server, what: &str, ids: &[Value]) -> Vec<Value> {
    let reply = server.ask(&format!("/v1/leases/{what}"), &json!({"lease_ids": ids})).await;
    let results = reply["results"].as_array().expect("a list").clone();
    let asked: Vec<&Value> = results.iter().map(|result| &result["lease_id"]).collect();
    assert!(asked.into_iter().eq(ids), "one for each, in order");
    results
}

/// Ten thousand releases were submitted at once: the shard's queue has capacity for 4096, and the others were refused. A
/// heartbeat of as many was refused by the server, although the engine splits it.
#[tokio::test]
async fn ten_thousand_leases_each_get_a_result() {
    let server = Server::start();
    let mut ids = acquire_many(&server).await;
    ids[17] = json!("nonsense");
    ids[9_999] = json!(ids[9_999].as_str().expect("text").replace(".1.", ".3."));
    let wrong = [(17, json!("invalid_body")), (9_999, json!("not_held"))];
    for what in ["heartbeat", "reconcile", "release", "release"] {
        let results = bulk(&server, what, &ids).await;
        for (n, result) in results.iter().enumerate() {
            match wrong.iter().find(|(place, _)| *place == n) {
                Some((_, error)) => assert_eq!(&result["error"], error, "{what} {n}"),
                None => assert_eq!(result["ok"], json!(true), "{what} {n}: {result}"),
            }
            if what == "reconcile" {
                assert_eq!(result["valid"] == json!(true), result["ok"] == json!(true), "{n}: {result}");
            }
        }
    }
    let left = server.get("/v1/leases?limit=10").await.1;
    assert_eq!(
        left["leases"].as_array().map(Vec::len),
        Some(2),
        "all but the two that were asked for wrongly"
    );

    ids.push(ids[0].clone());
    for what in ["heartbeat", "release", "reconcile"] {
        let body = json!({"lease_ids": ids}).to_string();
        let (status, reply) = server.post(&format!("/v1/leases/{what}"), &[], &body).await;
        assert_eq!((status, &reply["error"]), (400, &json!("invalid_body")));
        assert!(reply["detail"].as_str().expect("text").ends_with("max=10000"), "{reply}");
    }
}

#[tokio::test]
async fn the_longest_credentials_fit_with_white_space_and_a_longer_body_is_refused_with_the_limit() {
    let server = Server::start();
    let longest = format!("L-{}.{}.{}", "f".repeat(32), u64::MAX, "A".repeat(22));
    let ids = vec![longest; MANY];
    let body = serde_json::to_string_pretty(&json!({"lease_ids": ids})).expect("JSON");
    for what in ["heartbeat", "release", "reconcile"] {
        let path = format!("/v1/leases/{what}");
        let (status, reply) = server.post(&path, &[], &body).await;
        assert_eq!((status, reply["results"].as_array().map(Vec::len)), (200, Some(MANY)));
        let padded = format!("{body}{}", " ".repeat((2 << 20) - body.len()));
        assert_eq!(server.post(&path, &[], &padded).await.0, 200, "to the last byte");
        let (status, reply) = server.post(&path, &[], &format!("{padded} ")).await;
        assert_eq!((status, &reply["error"]), (413, &json!("document_too_large")));
        assert!(reply["detail"].as_str().expect("text").ends_with("max=2097152"), "{reply}");
    }
    let document = server.get("/openapi.json").await.1;
    let call = document["paths"]["/v1/leases/heartbeat"]["post"]["description"].as_str().expect("text");
    assert!(call.contains("10,000 credentials") && call.contains("2 MiB"), "{call}");
    assert_eq!(document["components"]["schemas"]["Bulk"]["properties"]["lease_ids"]["maxItems"], json!(MANY));
}

/// One of the largest leases, named ten thousand times, made a response of hundreds of megabytes from a request of less
/// than one.
#[tokio::test]
async fn a_response_has_about_a_thousand_leases_of_many_resources() {
    let server = Server::start();
    let resources: Vec<Value> = (0..128).map(|n| json!({"kind": "FILE", "name": format!("/f{n}")})).collect();
    let lease = server.acquire(json!({"resources": resources})).await;
    let small = server.acquire(json!({"key": "k"})).await;
    let mut ids = vec![lease["lease_id"].clone(); 1_501];
    ids.push(small["lease_id"].clone());
    let results = bulk(&server, "reconcile", &ids).await;
    assert!(results[..1_000].iter().all(|result| result["valid"] == json!(true)));
    for result in &results[1_500..1_501] {
        assert_eq!((&result["ok"], &result["error"]), (&json!(false), &json!("throttled")), "{result}");
    }
    let again = bulk(&server, "reconcile", &ids[1_000..]).await;
    assert!(again.iter().all(|result| result["valid"] == json!(true)), "among fewer");
}
