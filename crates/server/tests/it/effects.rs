//! Settings of the store take effect: each of them could be ignored, and no test failed.

use std::path::Path;
use std::time::Duration;

use axum::{Extension, Router};
use identity::Role;
use lockd_server::backend::store::StoreUrl;
use lockd_server::peer::Peer;
use lockd_server::{Config, Server};
use serde_json::{Value, json};

use crate::embedding::ask;
use crate::support::within;

/// Long enough for anything that would happen at once.
const A_WHILE: Duration = Duration::from_millis(300);
const AN_HOUR: Duration = Duration::from_secs(3600);

struct Mounted {
    router: Router,
    _server: Server,
}

fn mounted(config: Config) -> Mounted {
    let server = Server::new(config).expect("a store");
    Mounted { router: server.router().layer(Extension(Peer::anonymous(Role::Operator))), _server: server }
}

impl Mounted {
    async fn acquire(&self, key: &str, ttl_ms: u64) -> Value {
        let (status, lease) =
            ask(&self.router, "POST", "/v1/acquire", &json!({"key": key, "ttl_ms": ttl_ms})).await;
        assert_eq!(status, 200, "{lease}");
        lease
    }

    async fn end(&self, lease: &Value) {
        let body = json!({"lease_id": lease["lease_id"]});
        assert_eq!(ask(&self.router, "POST", "/v1/release", &body).await.0, 200);
    }

    async fn look(&self, lease: &Value) -> (u16, Value) {
        let path = format!("/v1/leases/{}", lease["public_id"].as_str().expect("text"));
        ask(&self.router, "GET", &path, &Value::Null).await
    }
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(what, poll).await;
}

#[tokio::test]
async fn abandoned_uploads_are_collected_as_often_as_configured() {
    let abandoned = |dir: &Path| dir.join("store/blob/by-name/document/0/0000000000000000-0000000000000009");
    let start = |dir: &Path, gc_temps_interval| {
        let store = StoreUrl::disk(dir.join("store"));
        let server = mounted(Config { mtls: false, store, gc_temps_interval, ..Config::in_directory(dir) });
        let path = abandoned(dir);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("writable");
        (server, path)
    };
    let (often, seldom) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
    let (_often_server, collected) = start(often.path(), Duration::from_millis(20));
    let (_seldom_server, kept) = start(seldom.path(), AN_HOUR);
    // Not before the collection at the start is over.
    tokio::time::sleep(A_WHILE).await;
    std::fs::write(&collected, b"[]").expect("writable");
    std::fs::write(&kept, b"[]").expect("writable");
    until("it is collected", async || !collected.exists()).await;
    tokio::time::sleep(A_WHILE).await;
    assert!(kept.exists(), "it was collected an hour early");
}

#[tokio::test]
async fn the_expiry_of_an_uncontended_lease_is_logged_after_the_sweeper_interval() {
    let with = |sweeper_interval| mounted(Config { sweeper_interval, ..Config::in_memory() });
    let (soon, late) = (with(Duration::ZERO), with(AN_HOUR));
    let (logged, unlogged) = (soon.acquire("k", 20).await, late.acquire("k", 20).await);
    until("the expiry is logged", async || soon.look(&logged).await.1["ended_lsn"] != Value::Null).await;
    tokio::time::sleep(A_WHILE).await;
    let (_, view) = late.look(&unlogged).await;
    assert_eq!((&view["state"], &view["ended_lsn"]), (&json!("expired"), &Value::Null), "{view}");
}

#[tokio::test]
async fn as_many_ended_leases_are_kept_as_configured() {
    let server = mounted(Config { history_max: 2, ..Config::in_memory() });
    let mut leases = Vec::new();
    for key in ["a", "b", "c"] {
        let lease = server.acquire(key, 60_000).await;
        server.end(&lease).await;
        leases.push(lease);
    }
    // Retired by the next command.
    server.acquire("d", 60_000).await;
    let (status, reply) = server.look(&leases[0]).await;
    assert_eq!((status, &reply["error"]), (410, &json!("retired")), "{reply}");
    for lease in &leases[1..] {
        assert_eq!(server.look(lease).await.0, 200);
    }
}

#[tokio::test]
async fn ended_leases_are_kept_as_long_as_configured() {
    let with = |history_window| mounted(Config { history_window, ..Config::in_memory() });
    let (short, long) = (with(Duration::from_millis(20)), with(AN_HOUR));
    let (retired, kept) = (short.acquire("k", 60_000).await, long.acquire("k", 60_000).await);
    short.end(&retired).await;
    long.end(&kept).await;
    until("it is retired", async || {
        // Retired by the next command.
        let other = short.acquire("other", 60_000).await;
        short.end(&other).await;
        short.look(&retired).await.0 == 410
    })
    .await;
    let other = long.acquire("other", 60_000).await;
    long.end(&other).await;
    assert_eq!(long.look(&kept).await.0, 200);
}

/// More ended leases than the default number of their members: a larger `history-max` was silently capped by that.
#[test]
fn a_large_history_is_not_capped_by_its_members() {
    let usual = Config { memory_max: 64 << 30, ..Config::in_memory() };
    let config = Config { history_max: 1_000_000, ..usual.clone() };
    let limits = config.limits();
    assert_eq!(limits.history_max, 1_000_000);
    assert!(limits.history_members_max >= limits.history_max, "{}", limits.history_members_max);
    assert_eq!(usual.limits(), kernel::Limits::default());
    // Little memory lowers the default, and not what an operator has set.
    let small = Config { memory_max: 64 << 20, ..Config::in_memory() };
    assert!(small.limits().history_max < kernel::Limits::default().history_max);
    assert_eq!(Config { history_max: 1_000_000, ..small }.limits().history_max, 1_000_000);
}
