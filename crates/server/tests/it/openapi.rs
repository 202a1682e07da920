//! `/openapi.json` is true and complete.

use serde_json::json;

use crate::support::Server;

const METHODS: [&str; 8] = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];

#[tokio::test]
async fn every_authenticated_client_gets_the_document() {
    let server = Server::start();
    let raw = server.raw("GET", "/openapi.json", &[], "").await;
    assert_eq!((raw.status, raw.header("content-type")), (200, "application/json"));
    let whole = server.document().await.whole();
    assert_eq!(whole["openapi"], "3.1.0");
    assert_eq!(whole["info"]["title"], "lockd");
}

/// Every declared method exists, and every other method is refused with a list of the declared ones.
#[tokio::test]
async fn every_path_accepts_exactly_its_declared_methods() {
    let server = Server::start();
    let paths = server.document().await.paths();
    assert!(paths.len() > 20, "{paths:?}");
    for (path, declared) in paths {
        let path = path.replace("{id}", "L-00000000000000000000000000000001");
        for method in METHODS {
            // A stream of events would never end.
            let raw = server.raw(method, &path, &[("last-event-id", "nonsense")], "").await;
            let is_declared = declared.contains(&method.to_lowercase());
            assert_eq!(raw.status != 405, is_declared, "{method} {path}: {}", raw.status);
            let reply = String::from_utf8_lossy(&raw.body).into_owned();
            assert!(!reply.contains("no such path"), "{method} {path}: {reply}");
            if !is_declared {
                let mut allowed: Vec<String> =
                    raw.header("allow").split(',').map(str::to_lowercase).collect();
                allowed.retain(|method| method != "head");
                allowed.sort();
                assert_eq!(allowed, declared, "{method} {path}");
            }
        }
    }
}

/// The API uses the kernel's names: a new predicate or state must be described.
#[tokio::test]
async fn the_names_of_the_kernel_are_described() {
    let server = Server::start();
    let schemas = &server.document().await.whole()["components"]["schemas"];
    let words = |name: &str| -> Vec<String> {
        let list = schemas[name]["enum"].as_array().expect("a list of words");
        list.iter().map(|word| word.as_str().expect("a word").to_string()).collect()
    };
    let predicates = kernel::Predicate::ALL.map(|predicate| predicate.as_str().to_string());
    assert_eq!(words("Predicate").len(), predicates.len());
    assert!(predicates.iter().all(|predicate| words("Predicate").contains(predicate)));
    for state in ["reserved", "active", "released", "expired", "revoking", "revoked"] {
        assert!(words("State").contains(&state.to_string()), "{state}");
    }
    assert_eq!(words("Code").len(), api::Code::ALL.len());
}

/// Every reference resolves, and names are unique.
#[tokio::test]
async fn every_reference_resolves_and_every_call_has_a_unique_id() {
    let server = Server::start();
    let whole = server.document().await.whole();
    let text = whole.to_string();
    for part in text.split("\"$ref\":\"#").skip(1) {
        let pointer = part.split('"').next().expect("there is always a first");
        assert!(whole.pointer(pointer).is_some(), "{pointer}");
    }
    let mut names: Vec<&str> =
        text.split("\"operationId\":\"").skip(1).filter_map(|part| part.split('"').next()).collect();
    // Links refer to calls by their operation id.
    names.sort_unstable();
    names.dedup();
    let calls: usize = server.document().await.paths().iter().map(|(_, methods)| methods.len()).sum();
    assert_eq!(names.len(), calls, "{names:?}");
}

/// Query parameters were documented as nullable: `limit=null` is refused.
#[tokio::test]
async fn no_parameter_can_be_null() {
    let server = Server::start();
    let whole = server.document().await.whole();
    let paths = whole["paths"].as_object().expect("by path").values();
    let calls = paths.flat_map(|path| path.as_object().expect("by method").values());
    for parameter in calls.flat_map(|call| call["parameters"].as_array().expect("each has some")) {
        assert!(!parameter.to_string().contains("null"), "{parameter}");
    }
    let limit = &whole["paths"]["/v1/leases"]["get"]["parameters"][3];
    assert_eq!((&limit["name"], &limit["schema"]["type"]), (&json!("limit"), &json!("integer")));
}

/// The document shows the limits of this server's settings.
#[tokio::test]
async fn the_documented_limits_are_those_of_this_server() {
    let server = Server::start();
    let schemas = &server.document().await.whole()["components"]["schemas"];
    assert_eq!(schemas["Acquire"]["properties"]["ttl_ms"]["maximum"], 300_000);
    assert_eq!(schemas["Keepalive"]["properties"]["ttl_seconds"]["maximum"], 300);
}

/// Calls without parameters ignored the query: `POST /v1/release?dry_run=1` released.
#[tokio::test]
async fn a_query_on_a_call_without_parameters_is_refused() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k"})).await;
    let body = json!({"lease_id": lease["lease_id"]}).to_string();
    let (status, reply) = server.post("/v1/release?dry_run=1", &[], &body).await;
    assert_eq!((status, &reply["error"]), (400, &json!("invalid_body")));
    let view = server.get(&format!("/v1/leases/{}", lease["public_id"].as_str().expect("a name"))).await.1;
    assert_eq!(view["state"], json!("active"));
}

/// A public read needs no credential, so it ignored an invalid one.
#[tokio::test]
async fn a_credential_that_is_not_needed_is_still_checked() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k"})).await;
    let good = lease["lease_id"].as_str().expect("a credential");
    let wrong = good.replace(".1.", ".3.");
    for (shown, status) in [("H)=-", 400), (wrong.as_str(), 403), (good, 204)] {
        let raw = server.raw("GET", "/v1/get_state?key=k&public=1", &[("x-lease-id", shown)], "").await;
        assert_eq!(raw.status, status, "{shown}");
    }
    assert_eq!(server.raw("GET", "/v1/get_state?key=k&public=1", &[], "").await.status, 204);
}

/// Touch and rebind accepted `key` and ignored it: a key that the lease does not cover was not refused.
#[tokio::test]
async fn a_key_that_the_lease_does_not_cover_is_refused_by_touch_and_rebind() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k", "ttl_ms": 1, "on_expiry": {"hold_ms": 60_000}})).await;
    let held = server.acquire(json!({"key": "l"})).await;
    let view = format!("/v1/leases/{}", lease["public_id"].as_str().expect("a name"));
    server.until(&view, |view| view["state"] != json!("active")).await;
    for (lease, call, covered) in [(&held, "touch", "l"), (&lease, "rebind", "k")] {
        let path = format!("/v1/leases/{}/{call}", lease["public_id"].as_str().expect("a name"));
        for (key, status) in [("another", 403), ("", 400), (covered, 200)] {
            let body = json!({"lease_id": lease["lease_id"], "key": key}).to_string();
            let (got, reply) = server.post(&path, &[], &body).await;
            assert_eq!(got, status, "{call} {key}: {reply}");
        }
    }
}

/// Only commands checked the correlation id; views echoed any text of any length.
#[tokio::test]
async fn a_correlation_id_is_checked_on_every_call_and_echoed() {
    let server = Server::start();
    let named = server.raw("GET", "/v1/leases", &[("x-correlation-id", "a b")], "").await;
    assert_eq!((named.status, named.header("x-correlation-id")), (200, "a b"));
    let refused = server.raw("GET", "/v1/nonsense", &[("x-correlation-id", "a b")], "").await;
    assert_eq!((refused.status, refused.header("x-correlation-id")), (404, "a b"));
    for bad in ["x".repeat(257).as_str(), "a\tb", ""] {
        let raw = server.raw("GET", "/v1/leases", &[("x-correlation-id", bad)], "").await;
        assert_eq!((raw.status, raw.header("x-correlation-id")), (400, ""), "{bad:?}");
    }
}

/// The test of the tests: a response that is not declared is found.
#[tokio::test]
async fn the_response_check_finds_undeclared_responses() {
    let server = Server::start();
    let document = server.document().await;
    let json = "application/json";
    let check =
        |status, kind, body: &str| document.check("POST", "/v1/release", status, kind, body.as_bytes());
    assert_eq!(check(200, json, r#"{"released":true}"#), Ok(()));
    assert_eq!(check(200, json, r#"{"released":true,"new":1}"#), Ok(()), "answers may grow");
    for (status, kind, body) in [
        (201, json, r#"{"released":true}"#),
        (200, "text/html", "<p>"),
        (200, json, "{}"),
        (200, json, r#"{"released":"yes"}"#),
        (403, json, r#"{"error":"not_held"}"#),
        (403, json, r#"{"error":"waiting","detail":"of another status"}"#),
        (403, json, r#"{"error":"forbidden","detail":"of other calls"}"#),
    ] {
        assert!(check(status, kind, body).is_err(), "{status} {kind} {body}");
    }
    assert!(document.check("POST", "/v1/nothing", 200, json, b"{}").is_err());
    let described = |lease: &str| {
        let body = format!(
            r#"{{"key":"k","namespace":"n","lease":{lease},"version":1,"state_etag":"","waiters":0}}"#
        );
        document.check("GET", "/v1/describe", 200, json, body.as_bytes())
    };
    assert_eq!(described("null"), Ok(()));
    assert!(described("5").is_err());
    assert!(described(r#"{"lease_id":"L-1","owner":"o","expires_at_unix":1}"#).is_err());
}
