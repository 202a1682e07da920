//! Lists in pages: bounded by count and by bytes, complete by following cursors.

use serde_json::{Value, json};

use crate::support::Server;

/// More than two pages.
const MANY: usize = 2500;
const PAGE_MAX: usize = 1000;
/// The most bytes of a page of names.
const PAGE_BYTES: usize = 1 << 20;

const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];

/// A name of the greatest length, which needs the most bytes in JSON.
fn long_name(n: usize, bytes: usize) -> String {
    format!("{}{n:06}", "\"".repeat(bytes - 6))
}

fn encode(text: &str) -> String {
    text.bytes().flat_map(|byte| ['%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]).collect()
}

/// All rows of a list, page by page.
async fn rows(server: &Server, path: &str, field: &str) -> Vec<Value> {
    let (mut rows, mut next): (Vec<Value>, String) = (Vec::new(), path.to_string());
    loop {
        let raw = server.raw("GET", &next, &[], "").await;
        assert_eq!(raw.status, 200, "{next}");
        assert!(raw.body.len() <= PAGE_BYTES, "{next}: {} bytes", raw.body.len());
        let page: Value = serde_json::from_slice(&raw.body).expect("JSON");
        let part = page[field].as_array().expect("a list").clone();
        assert!(part.len() <= PAGE_MAX, "{next}");
        rows.extend(part);
        let Some(cursor) = page["cursor"].as_str() else { return rows };
        let separator = if path.contains('?') { '&' } else { '?' };
        next = format!("{path}{separator}cursor={}", encode(cursor));
    }
}

async fn check_bad_pages(server: &Server, path: &str) {
    for bad in
        ["cursor=", "cursor=x", "cursor=9.9", "cursor=1%3a", "limit=0", "limit=1001", "limit=x", "after=1"]
    {
        let (status, reply) = server.get(&format!("{path}?{bad}")).await;
        assert_eq!((status, &reply["error"]), (400, &json!("invalid_body")), "{path} {bad}: {reply}");
    }
}

/// The list of namespaces was one response, however many there were.
#[tokio::test]
async fn all_namespaces_of_the_longest_names_are_found_page_by_page() {
    let server = Server::start();
    let mut expected = Vec::new();
    for n in 0..MANY {
        let name = long_name(n, 128);
        server.acquire(json!({"namespace": name, "key": "k"})).await;
        expected.push(json!(name));
    }
    let mut found = rows(&server, "/v1/namespaces", "namespaces").await;
    found.sort_by_key(Value::to_string);
    assert_eq!(found, expected);
    check_bad_pages(&server, "/v1/namespaces").await;
    // Rows that a caller may not see are left out, and do not end the list.
    let reader = server.worker("ada", "other:rw");
    reader.acquire(json!({"namespace": "other", "key": "k"})).await;
    assert_eq!(rows(&reader, "/v1/namespaces", "namespaces").await, [json!("other")]);
    let (_, page) = server.get("/v1/namespaces?limit=1").await;
    assert_eq!(page["namespaces"].as_array().map(Vec::len), Some(1), "{page}");
    assert!(page["cursor"].is_string(), "{page}");
}

/// So was the list of quotas.
#[tokio::test]
async fn all_quotas_of_the_longest_names_are_found_page_by_page() {
    let server = Server::start();
    let mut expected = Vec::new();
    for n in 0..MANY {
        // Every tenth is of all namespaces, and so in every shard.
        let namespace = (n % 10 > 0).then(|| long_name(n % 7, 128));
        let quota = json!({
            "namespace": namespace, "identity": long_name(n, 256), "paused": false, "max_leases": u32::MAX,
            "max_total_ms": u64::MAX, "idle_ms": u64::MAX, "acquires_per_second": u32::MAX,
        });
        let mut body = quota.clone();
        body.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        assert_eq!(server.raw("PUT", "/v1/quotas", &[], &body.to_string()).await.status, 200, "{body}");
        expected.push(quota);
    }
    let mut found = rows(&server, "/v1/quotas", "quotas").await;
    found.sort_by_key(|quota| quota["identity"].to_string());
    assert_eq!(found, expected);
    check_bad_pages(&server, "/v1/quotas").await;
}

/// Commits a document of two bytes.
async fn store(server: &Server, namespace: &str, key: &str) {
    let lease = server.acquire(json!({"namespace": namespace, "key": key})).await;
    let headers = [("x-lease-id", lease["lease_id"].as_str().expect("a credential"))];
    let path = format!("/v1/update_state?namespace={namespace}&key={}", encode(key));
    assert_eq!(server.post(&path, &headers, "{}").await.0, 200, "{key}");
    server.release(&lease).await;
}

fn names(page: &Value) -> Vec<&str> {
    page["keys"].as_array().expect("a list").iter().filter_map(|key| key["key"].as_str()).collect()
}

#[tokio::test]
async fn keys_are_listed_by_prefix_to_identities_that_may_read_their_namespace() {
    let server = Server::start();
    for key in ["orders/b", "orders/a", "orders/c", "order", "other", "ä &?"] {
        store(&server, "default", key).await;
    }
    store(&server, "team", "orders/x").await;
    // Held, and without a document.
    server.acquire(json!({"key": "orders/held"})).await;

    let (_, all) = server.get("/v1/keys").await;
    assert_eq!(names(&all), ["order", "orders/a", "orders/b", "orders/c", "other", "ä &?"]);
    assert_eq!(all.get("cursor"), None);
    let (_, described) = server.get("/v1/describe?key=orders/b").await;
    for field in ["key", "version", "state_etag", "state_bytes", "updated_at_unix"] {
        assert_eq!((&all["keys"][2][field], all["keys"][2][field].is_null()), (&described[field], false));
    }

    let (_, first) = server.get("/v1/keys?prefix=orders/&limit=2").await;
    assert_eq!((names(&first), &first["cursor"]), (vec!["orders/a", "orders/b"], &json!("orders/b")));
    let (_, last) = server.get("/v1/keys?prefix=orders/&limit=2&cursor=orders/b").await;
    assert_eq!((names(&last), last.get("cursor")), (vec!["orders/c"], None));
    let (_, exact) = server.get("/v1/keys?prefix=orders/&limit=3").await;
    assert_eq!((names(&exact).len(), exact.get("cursor")), (3, None), "a full page may be the last");
    let (_, encoded) = server.get(&format!("/v1/keys?prefix={}", encode("ä &"))).await;
    assert_eq!(names(&encoded), ["ä &?"]);
    for (path, count) in [("prefix=", 6), ("prefix=no", 0), ("namespace=team", 1), ("namespace=unused", 0)] {
        assert_eq!(names(&server.get(&format!("/v1/keys?{path}")).await.1).len(), count, "{path}");
    }

    let reader = server.worker("rob", "team:r");
    assert_eq!(names(&reader.get("/v1/keys?namespace=team").await.1), ["orders/x"]);
    let writer = server.worker("wendy", "default:w");
    for (who, path) in [(&reader, "/v1/keys"), (&writer, "/v1/keys"), (&writer, "/v1/keys?namespace=team")] {
        let (status, reply) = who.get(path).await;
        assert_eq!((status, &reply["error"]), (403, &json!("forbidden")), "{path}");
    }
}

#[tokio::test]
async fn all_keys_of_the_longest_names_are_found_page_by_page() {
    let server = Server::start();
    // More than fit into the bytes of a page, though not more than its rows.
    let expected: Vec<String> = (0..PAGE_MAX).map(|n| long_name(n, 512)).collect();
    for key in &expected {
        store(&server, "default", key).await;
    }
    let found = rows(&server, "/v1/keys", "keys").await;
    assert_eq!(found.iter().filter_map(|key| key["key"].as_str()).collect::<Vec<_>>(), expected);
    let (_, page) = server.get("/v1/keys").await;
    assert!((700..PAGE_MAX).contains(&names(&page).len()), "{}", names(&page).len());
}

/// A page of agents was bounded by their number alone, and of the longest names longer than all other pages.
#[tokio::test]
async fn all_agents_of_the_longest_names_are_found_page_by_page() {
    let namespace = long_name(0, 128);
    let server = Server::start().worker(&long_name(0, 256), "*:rw");
    let mut expected = Vec::new();
    for n in 0..=PAGE_MAX {
        let agent = long_name(n, 256);
        let intents = json!([{"predicate": "MUTATES", "object": format!("KEY:{n}")}]);
        let manifest =
            json!({"namespace": namespace, "agent_id": agent, "session_id": "s", "intents": intents});
        server.ask("/v1/manifest", &manifest).await;
        expected.push(json!(agent));
    }
    let path = format!("/v1/agents?namespace={}", encode(&namespace));
    let found = rows(&server, &path, "agents").await;
    let mut names: Vec<Value> = found.iter().map(|agent| agent["agent_id"].clone()).collect();
    names.sort_by_key(Value::to_string);
    assert_eq!(names, expected);
    let (_, page) = server.get(&path).await;
    let count = page["agents"].as_array().expect("a list").len();
    assert!((500..PAGE_MAX).contains(&count), "{count}");
    let (_, page) = server.get(&format!("{path}&limit=10")).await;
    assert_eq!(page["agents"].as_array().map(Vec::len), Some(10));
    assert_eq!(page["cursor"], expected[9]);
}
