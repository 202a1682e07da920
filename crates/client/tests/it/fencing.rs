//! A holder that lost its lease is refused by the protected resource, with leases of a real server.

use std::sync::Mutex;
use std::time::Duration;

use identity::Role;
use lockd_client::fence::object::memory::MemoryObjects;
use lockd_client::fence::sql::{self, Placeholders, Row};
use lockd_client::fence::{Error, FencedFile, FencedObject, Token};
use lockd_client::{AcquireOptions, Client};
use lockd_server::testing::Loopback;

const KEY: &str = "orders";

fn waiting() -> AcquireOptions {
    AcquireOptions { block: Duration::from_secs(60), ..AcquireOptions::default() }
}

/// A has a lease and writes. Then it sleeps past the end of its lease, B takes over and writes, and A wakes up and
/// writes: once after its lease expired, once after an operator revoked it.
async fn a_late_holder_is_refused(write: impl AsyncFn(Token, &str) -> Result<(), Error>) {
    let server = Loopback::start(Role::Operator).await;
    let client = Client::builder().plain().endpoint(server.address.to_string()).build().expect("valid");

    let request = api::requests::Acquire { key: Some(KEY.into()), ttl_ms: Some(500), ..Default::default() };
    let sleepy = Token(client.grant(request, Duration::ZERO).await.expect("free").fencing_token);
    write(sleepy, "A, in time").await.expect("no other holder has written");
    let next = client.acquire(KEY, &waiting()).await.expect("the first lease expires");
    refuses(&write, sleepy, Token(next.fencing_token())).await;

    client.revoke(&next.granted().public_id).await.expect("an operator may");
    client.reclaim(&next.granted().public_id).await.expect("it is revoking");
    let last = client.acquire(KEY, &waiting()).await.expect("it was freed");
    refuses(&write, Token(next.fencing_token()), Token(last.fencing_token())).await;
}

async fn refuses(write: &impl AsyncFn(Token, &str) -> Result<(), Error>, old: Token, new: Token) {
    assert!(old < new, "tokens grow");
    write(new, "B").await.expect("the newest");
    let late = write(old, "A, late").await.expect_err("a newer one has written");
    assert!(
        matches!(late, Error::Stale { current: None }) || late == Error::Stale { current: Some(new) },
        "{late}"
    );
    write(new, "B again").await.expect("still the newest");
}

#[tokio::test]
async fn a_late_holder_is_refused_by_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = FencedFile::open(dir.path().join("checkpoint")).expect("a directory");
    a_late_holder_is_refused(async |token, text| file.write(token, text.as_bytes())).await;
    let found = file.read().expect("readable").expect("written");
    assert_eq!(found.content.as_deref(), Some(b"B again".as_slice()));
}

#[tokio::test]
async fn a_late_holder_is_refused_by_an_object() {
    let object = FencedObject::new(MemoryObjects::default(), "jobs/orders");
    a_late_holder_is_refused(async |token, text| object.write(token, text.as_bytes()).await).await;
    let found = object.read().await.expect("readable").expect("written");
    assert_eq!(found.content.as_deref(), Some(b"B again".as_slice()));
}

#[tokio::test]
async fn a_late_holder_is_refused_by_a_row() {
    let database = rusqlite::Connection::open_in_memory().expect("memory");
    let table =
        "CREATE TABLE jobs (name TEXT NOT NULL PRIMARY KEY, page TEXT, fencing_token BIGINT NOT NULL)";
    database.execute(table, ()).expect("valid");
    let statement = Row::new("jobs", &["name"], &["page"]).expect("names").write(Placeholders::Question);
    let database = Mutex::new(database);
    a_late_holder_is_refused(async |token, text| {
        let parameters = rusqlite::params![KEY, text, i64::try_from(token)?];
        let rows = database.lock().expect("no panic").execute(&statement, parameters).expect("valid");
        sql::check_rows_changed(rows as u64)
    })
    .await;
    let select = "SELECT page FROM jobs WHERE name = ?";
    let page = database.lock().expect("no panic").query_row(select, [KEY], |row| row.get::<_, String>(0));
    assert_eq!(page.expect("readable"), "B again");
}
