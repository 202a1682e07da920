//! Malformed requests of every call: each is refused with a status and a code, and changes nothing.

use serde_json::{Value, json};

use crate::support::Server;

/// Method, path, headers; body; status and code. `ID` is the credential of a live lease, `OTHER` a credential that was
/// never issued, `LONG` a name that is too long, `MANY` more credentials than one request may name.
const CASES: &str = r#"
POST /v1/acquire | | 400 invalid_body
POST /v1/acquire | not json | 400 invalid_body
POST /v1/acquire | {} | 400 missing_key
POST /v1/acquire | {"key":5} | 400 invalid_body
POST /v1/acquire | {"key":"k","colour":"red"} | 400 invalid_body
POST /v1/acquire | {"key":""} | 400 invalid_key
POST /v1/acquire | {"key":"LONG"} | 400 invalid_key
POST /v1/acquire | {"key":"a\u0000b"} | 400 invalid_key
POST /v1/acquire | {"key":"k","namespace":""} | 400 invalid_key
POST /v1/acquire | {"key":"k","ttl_seconds":0} | 400 invalid_ttl
POST /v1/acquire | {"key":"k","ttl_seconds":-5} | 400 invalid_ttl
POST /v1/acquire | {"key":"k","ttl_seconds":301} | 400 invalid_ttl
POST /v1/acquire | {"key":"k","ttl_seconds":9223372036854775807} | 400 invalid_ttl
POST /v1/acquire | {"key":"k","ttl_seconds":1,"ttl_ms":1} | 400 invalid_body
POST /v1/acquire | {"key":"k","resources":[]} | 400 invalid_body
POST /v1/acquire | {"resources":[]} | 400 invalid_body
POST /v1/acquire | {"resources":[{"kind":"KEY","name":"k","predicate":"EATS"}]} | 400 invalid_body
POST /v1/acquire | {"resources":[{"kind":"FILE","name":"/../x"}]} | 400 invalid_key
POST /v1/acquire | {"key":"k","on_expiry":"never"} | 400 invalid_body
POST /v1/acquire x-idempotency-key= | {"key":"k"} | 400 invalid_body
POST /v1/acquire?what=1 | {"key":"k"} | 400 invalid_body
POST /v1/acquire?include_state=2 | {"key":"k"} | 400 invalid_body
POST /v1/acquire | [] | 400 invalid_body
POST /v1/acquire | ["default","k"] | 400 invalid_body
POST /v1/acquire | {"resources":[["KEY","k"]]} | 400 invalid_body
POST /v1/acquire | {"key":"k","on_expiry":{"free":null}} | 400 invalid_body
POST /v1/acquire | {"key":"k","on_expiry":{"hold_ms":1,"more":2}} | 400 invalid_body
POST /v1/acquire | {"key":"k","on_expiry":{"hold_ms":86400001}} | 400 invalid_body
POST /v1/acquire | {"key":"k","block_seconds":-2} | 400 invalid_body
POST /v1/acquire | {"key":"k","ttl_ms":450.5} | 400 invalid_body
POST /v1/acquire x-correlation-id= | {"key":"k"} | 400 invalid_body
GET /v1/acquire | | 405 method_not_allowed
POST /v1/keepalive | {} | 400 invalid_body
POST /v1/keepalive | {"lease_id":"L-1"} | 400 invalid_body
POST /v1/keepalive | {"lease_id":"OTHER"} | 403 not_held
POST /v1/keepalive | {"lease_id":"ID","ttl_ms":0} | 400 invalid_ttl
POST /v1/keepalive | {"lease_id":"ID","key":"another"} | 403 not_held
POST /v1/release?dry_run=1 | {"lease_id":"ID"} | 400 invalid_body
POST /v1/release | {"lease_id":"OTHER"} | 403 not_held
POST /v1/release | {"lease_id":"ID","key":""} | 400 invalid_key
POST /v1/release | {"lease_id":"ID","key":"another"} | 403 not_held
POST /v1/activate | {"lease_id":"ID"} | 409 invalid_state
POST /v1/get_state x-lease-id=ID | | 400 missing_key
POST /v1/get_state?key=held | | 400 missing_lease_id
POST /v1/get_state?key=held&public=2 | | 400 invalid_body
POST /v1/get_state?key=held&public=yes | | 400 invalid_body
POST /v1/get_state?key=%ff x-lease-id=ID | | 400 invalid_body
POST /v1/get_state?key=held x-lease-id=OTHER | | 403 not_held
POST /v1/get_state?key=another x-lease-id=ID | | 403 not_held
POST /v1/update_state?key=held x-lease-id=ID | | 400 invalid_json
POST /v1/update_state?key=held x-lease-id=ID | {] | 400 invalid_json
POST /v1/update_state?key=held | {} | 400 missing_lease_id
POST /v1/update_state?key=another x-lease-id=ID | {} | 403 not_held
POST /v1/update_state?key=held x-lease-id=ID x-fencing-token=1 | {} | 403 fencing_mismatch
POST /v1/update_state?key=held x-lease-id=ID x-if-version=x | {} | 400 invalid_body
POST /v1/update_state?key=held x-lease-id=ID x-if-version=+0 | {} | 400 invalid_body
POST /v1/update_state?key=held x-lease-id=ID x-if-state-etag=""" | {} | 409 etag_mismatch
POST /v1/update_state?key=held x-lease-id=ID x-if-state-etag=abc123 | {} | 409 etag_mismatch
POST /v1/update_state?key=held x-lease-id=ID x-if-state-etag="abc123" | {} | 409 etag_mismatch
POST /v1/update_state?key=held x-lease-id=ID x-if-state-etag=* | {} | 409 etag_mismatch
POST /v1/update_state?key=held x-lease-id=ID x-if-state-etag=LONG | {} | 409 etag_mismatch
POST /v1/update_state?key=held x-lease-id=ID x-if-state-etag=ä | {} | 409 etag_mismatch
POST /v1/update_state?key=held x-lease-id=OTHER x-if-state-etag=zz | {} | 403 not_held
POST /v1/remove_state?key=held x-lease-id=ID x-if-state-etag=abc123 | | 409 etag_mismatch
POST /v1/remove_state?key=another x-lease-id=ID | | 403 not_held
GET /v1/describe | | 400 missing_key
GET /v1/describe?key=never | | 404 not_found
GET /v1/leases/nonsense | | 400 invalid_body
GET /v1/leases/L-00000000000000000000000000000001 | | 410 retired
GET /v1/leases?cursor=x | | 400 invalid_body
GET /v1/leases?limit=0 | | 400 invalid_body
GET /v1/leases?limit=1001 | | 400 invalid_body
GET /v1/leases x-correlation-id= | | 400 invalid_body
GET /healthz?what=1 | | 400 invalid_body
POST /v1/leases/L-00000000000000000000000000000001/rebind | {"lease_id":"ID"} | 403 not_held
POST /v1/leases/L-00000000000000000000000000000001/touch | {"lease_id":"ID"} | 403 not_held
POST /v1/leases/L-00000000000000000000000000000001/revoke | | 410 retired
GET /v1/fence?key=held | | 400 invalid_body
POST /v1/revoke | {} | 400 invalid_body
POST /v1/pause | {"identity":"a","agent_id":"b","paused":true} | 400 invalid_body
PUT /v1/quotas | {"max_leases":-1} | 400 invalid_body
PUT /v1/quotas | [] | 400 invalid_body
DELETE /v1/namespaces/LONG | | 400 invalid_key
DELETE /v1/namespaces/a%00b | | 400 invalid_key
DELETE /v1/namespaces/default | | 409 invalid_state
GET /v1/namespaces/default | | 405 method_not_allowed
POST /v1/manifest | {} | 400 invalid_body
POST /v1/manifest | {"agent_id":"a","session_id":"s"} | 400 invalid_body
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[]} | 400 invalid_body
POST /v1/manifest | {"agent_id":"","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:/a"}]} | 400 invalid_body
POST /v1/manifest | {"agent_id":"a","session_id":"","intents":[{"predicate":"MUTATES","object":"FILE:/a"}]} | 400 invalid_body
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"EATS","object":"FILE:/a"}]} | 400 invalid_body
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"object":"FILE:/a"}]} | 400 invalid_body
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"/a"}]} | 400 invalid_key
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:a"}]} | 400 invalid_key
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:/a/*/b"}]} | 400 invalid_key
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:../b"}],"root":"/a"} | 400 invalid_key
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:/b"}],"root":"a"} | 400 invalid_key
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:."}],"root":"/a/*"} | 400 invalid_key
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:/a"}],"attempt_id":"A-1"} | 400 invalid_body
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:/a"}],"ttl_ms":0} | 400 invalid_ttl
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:/a"}],"ttl_ms":300001} | 400 invalid_ttl
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:/a"}],"wait_ms":-1} | 400 invalid_body
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:/a"}],"reason":"LONG"} | 400 invalid_body
POST /v1/manifest | {"agent_id":"a","session_id":"s","intents":[{"predicate":"MUTATES","object":"FILE:/a"}],"hurry":true} | 400 invalid_body
GET /v1/manifest | | 405 method_not_allowed
POST /v1/leases/heartbeat | {} | 400 invalid_body
POST /v1/leases/heartbeat | {"lease_ids":[]} | 400 invalid_body
POST /v1/leases/heartbeat | {"lease_ids":[MANY]} | 400 invalid_body
POST /v1/leases/heartbeat | {"lease_ids":["ID"],"rebind":true} | 400 invalid_body
POST /v1/leases/heartbeat | {"lease_ids":["ID"],"agent_id":""} | 400 invalid_body
POST /v1/leases/release | {"lease_ids":"ID"} | 400 invalid_body
POST /v1/leases/release | {"lease_ids":[MANY]} | 400 invalid_body
POST /v1/leases/reconcile | {"lease_ids":[]} | 400 invalid_body
POST /v1/leases/reconcile | {"lease_ids":["ID"],"rebind":"yes"} | 400 invalid_body
POST /v1/leases/reconcile | {"lease_ids":["ID"],"namespace":""} | 400 invalid_key
GET /v1/keys?namespace= | | 400 invalid_key
GET /v1/keys?prefix=LONG | | 400 invalid_key
GET /v1/keys?prefix=a%00b | | 400 invalid_key
GET /v1/keys?cursor= | | 400 invalid_body
GET /v1/keys?cursor=LONG | | 400 invalid_body
GET /v1/keys?prefix=b&cursor=a | | 400 invalid_body
GET /v1/keys?limit=0 | | 400 invalid_body
GET /v1/keys?limit=1001 | | 400 invalid_body
GET /v1/keys?colour=red | | 400 invalid_body
POST /v1/keys | {} | 405 method_not_allowed
GET /v1/agents?namespace= | | 400 invalid_key
GET /v1/agents?cursor= | | 400 invalid_body
GET /v1/agents?colour=red | | 400 invalid_body
POST /v1/agents/nobody/state | {"state":"ALIVE"} | 404 not_found
POST /v1/agents/nobody/state | {"state":"PAUSED"} | 404 not_found
POST /v1/agents/nobody/state | {"state":"SLEEPING"} | 400 invalid_body
POST /v1/agents/nobody/state | {} | 400 invalid_body
POST /v1/agents/nobody/state x-idempotency-key= | {"state":"ALIVE"} | 400 invalid_body
GET /v1/agents/nobody/state | | 405 method_not_allowed
GET /v1/resource/nonsense/state | | 400 invalid_key
GET /v1/resource/FILE:relative/state | | 400 invalid_key
GET /v1/resource/FILE:%2Fa%2F..%2F..%2Fb/state | | 400 invalid_key
GET /v1/resource/FILE:/a/state | | 404 not_found
GET /v1/resource/KEY:k/state?what=1 | | 400 invalid_body
GET /v1/contention?namespace= | | 400 invalid_key
GET /v1/contention?what=1 | | 400 invalid_body
GET /v1/events last-event-id=x | | 400 invalid_body
GET /v1/events?namespace= | | 400 invalid_key
POST /v1/events | | 405 method_not_allowed
GET /v1/nonsense | | 404 not_found
DELETE /v1/leases | | 405 method_not_allowed
"#;

#[tokio::test]
async fn bad_input_is_refused_with_the_documented_status_and_code() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "held"})).await;
    let id = lease["lease_id"].as_str().expect("a credential");
    let (other, long) = (id.replace(".1.", ".3."), "k".repeat(513));
    let many = vec![format!("\"{id}\""); api::agents::Bulk::MAX + 1].join(",");
    for case in CASES.lines().filter(|line| !line.is_empty()) {
        let whole =
            case.replace("OTHER", &other).replace("ID", id).replace("LONG", &long).replace("MANY", &many);
        let mut parts = whole.split('|').map(str::trim);
        let (request, body, wanted) = (parts.next(), parts.next(), parts.next());
        let mut words = request.expect("a request").split_whitespace();
        let (method, path) = (words.next().expect("a method"), words.next().expect("a path"));
        let headers: Vec<(&str, &str)> = words.filter_map(|word| word.split_once('=')).collect();
        let raw = server.raw(method, path, &headers, body.expect("a body")).await;
        let reply: Value = serde_json::from_slice(&raw.body).unwrap_or(Value::Null);
        // Some calls bypass the router.
        let mounted = server.mounted().raw(method, path, &headers, body.expect("a body")).await;
        let by_router: Value = serde_json::from_slice(&mounted.body).unwrap_or(Value::Null);
        assert_eq!((raw.status, &reply), (mounted.status, &by_router), "{case}");
        let got = format!("{} {}", raw.status, reply["error"].as_str().unwrap_or_default());
        assert_eq!(got, wanted.expect("what is wanted"), "{case}: {reply}");
        assert!(reply["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{case}: {reply}");
    }
    let leases = server.get("/v1/leases").await.1;
    assert_eq!(leases["leases"].as_array().expect("a list").len(), 1, "nothing happened");
}

/// 32 digits `f` are a well-formed public id, of a lease that does not exist: it was refused as malformed.
#[tokio::test]
async fn a_public_id_that_no_lease_can_have_is_not_found() {
    let server = Server::start();
    for (id, status) in [
        (format!("L-{}", "f".repeat(32)), 404),
        (format!("L-{}", "F".repeat(32)), 400),
        (format!("L-{}", "f".repeat(31)), 400),
        ("f".repeat(34), 400),
    ] {
        let (found, reply) = server.get(&format!("/v1/leases/{id}")).await;
        assert_eq!(found, status, "{id}: {reply}");
        let (found, reply) = server.post(&format!("/v1/leases/{id}/revoke"), &[], "").await;
        assert_eq!(found, status, "{id}: {reply}");
    }
}
