//! `/metrics` after some requests.

use serde_json::json;

use crate::support::{Server, header, within};

/// The value of a series in the text.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.rsplit_once(' ').is_some_and(|(name, _)| name == series))?;
    line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok())
}

async fn text(server: &Server) -> String {
    let raw = server.raw("GET", "/metrics", &[], "").await;
    assert!(raw.header("content-type").starts_with("application/openmetrics-text"));
    String::from_utf8(raw.body).expect("text")
}

#[tokio::test]
async fn metrics_count_grants_refusals_and_waiters() {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k", "ttl_seconds": 60})).await;
    let blocked = server.post("/v1/acquire", &[], r#"{"key": "k", "ttl_seconds": 5}"#).await;
    assert_eq!(blocked.0, 409);
    let waiting = {
        let server = server.clone();
        tokio::spawn(async move {
            server.acquire(json!({"key": "k", "ttl_seconds": 5, "block_seconds": 60})).await
        })
    };
    let text = within("a waiter is counted", async {
        loop {
            let text = text(&server).await;
            if value(&text, "lockd_waiters") == Some(1.0) {
                return text;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(value(&text, "lockd_grants_total"), Some(1.0), "{text}");
    assert_eq!(value(&text, "lockd_leases"), Some(1.0));
    assert_eq!(value(&text, r#"lockd_refusals_total{code="waiting"}"#), Some(1.0));
    assert_eq!(
        value(&text, r#"lockd_refusals_total{code="not_held"}"#),
        Some(0.0),
        "there before it happens"
    );
    assert_eq!(value(&text, r#"lockd_http_requests_total{path="/v1/acquire",status="409"}"#), Some(1.0));
    assert_eq!(value(&text, "lockd_handoff_seconds_count"), Some(0.0));

    let credential = header("x-lease-id", lease["lease_id"].as_str().expect("text"));
    assert_eq!(server.post("/v1/update_state?key=k", &[credential], "{}").await.0, 200);
    server.release(&lease).await;
    within("the waiter is granted", waiting).await.expect("a grant");
    let text = self::text(&server).await;
    assert_eq!(value(&text, "lockd_handoff_seconds_count"), Some(1.0), "{text}");
    assert_eq!(value(&text, "lockd_grants_total"), Some(2.0));
    assert_eq!(value(&text, r#"lockd_lease_ends_total{reason="released"}"#), Some(1.0));
    assert_eq!(value(&text, "lockd_commits_total"), Some(1.0));
    assert_eq!(value(&text, "lockd_documents"), Some(1.0));
    assert_eq!(value(&text, "lockd_waiters"), Some(0.0));
    assert!(value(&text, "lockd_log_append_seconds_count").is_some_and(|appends| appends >= 4.0));
    assert!(value(&text, "lockd_log_appended_bytes_total").is_some_and(|bytes| bytes > 0.0));
    assert!(value(&text, r#"lockd_log_next_batch{shard="0"}"#).is_some());
    assert!(value(&text, "process_resident_memory_bytes").is_some_and(|bytes| bytes > 1e6));
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn unknown_paths_create_no_series() {
    let server = Server::start();
    for n in 0..20 {
        assert_eq!(server.get(&format!("/v1/nothing/{n}")).await.0, 404);
        assert_eq!(server.get(&format!("/v1/leases/L-{n}")).await.0 / 100, 4);
    }
    let text = text(&server).await;
    let series = text.lines().filter(|line| line.starts_with("lockd_http_requests_total")).count();
    assert!(series <= 4, "{text}");
    assert_eq!(value(&text, r#"lockd_http_requests_total{path="unknown",status="404"}"#), Some(20.0));
}
