//! `SQLite`, which is linked into the tests.

use std::path::Path;
use std::time::Duration;

use lockd_fence::sql::{Placeholders, Row, check_rows_changed};
use lockd_fence::{Error, Token};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{TABLE, row, tokens};

const STALE: Result<(), Error> = Err(Error::Stale { current: None });

fn database() -> Connection {
    let database = Connection::open_in_memory().expect("memory");
    database.execute(TABLE, ()).expect("a table");
    database
}

fn write(database: &Connection, name: &str, page: &str, token: u64) -> Result<(), Error> {
    let token = i64::try_from(Token(token))?;
    let rows = database.execute(&row().write(Placeholders::Question), params!["us", name, page, token]);
    check_rows_changed(rows.expect("a valid statement") as u64)
}

fn claim(database: &Connection, name: &str, token: u64) -> Result<(), Error> {
    let token = i64::try_from(Token(token))?;
    let rows = database.execute(&row().claim(Placeholders::Question), params!["us", name, token]);
    check_rows_changed(rows.expect("a valid statement") as u64)
}

fn read(database: &Connection, name: &str) -> Option<(Option<String>, i64)> {
    let select = "SELECT page, fencing_token FROM jobs WHERE tenant = 'us' AND name = ?";
    database.query_row(select, [name], |row| Ok((row.get(0)?, row.get(1)?))).optional().expect("readable")
}

fn page(page: &str, token: i64) -> (Option<String>, i64) {
    (Some(page.to_string()), token)
}

#[test]
fn a_stale_writer_is_refused_and_leaves_no_trace() {
    let database = database();
    assert_eq!(write(&database, "a", "one", 5), Ok(()));
    assert_eq!(write(&database, "a", "two", 5), Ok(()), "the same holder");
    assert_eq!(write(&database, "a", "three", 6), Ok(()), "a newer one");
    assert_eq!(write(&database, "a", "late", 5), STALE);
    assert_eq!(claim(&database, "a", 5), STALE);
    assert_eq!(read(&database, "a"), Some(page("three", 6)));
    assert_eq!(write(&database, "b", "other", 1), Ok(()), "another row has tokens of its own");
    assert_eq!(write(&database, "a", "last", i64::MAX as u64), Ok(()));
    assert_eq!(write(&database, "a", "late", i64::MAX as u64 - 1), STALE);
    assert!(matches!(write(&database, "a", "no", 1 << 63), Err(Error::Invalid(_))));
}

#[test]
fn a_claim_may_precede_the_first_write_and_keeps_the_content() {
    let database = database();
    assert_eq!(claim(&database, "a", 6), Ok(()));
    assert_eq!(read(&database, "a"), Some((None, 6)));
    assert_eq!(write(&database, "a", "late", 5), STALE);
    assert_eq!(write(&database, "a", "six", 6), Ok(()));
    assert_eq!(claim(&database, "a", 7), Ok(()));
    assert_eq!(read(&database, "a"), Some(page("six", 7)));
}

#[test]
fn a_claim_guards_its_whole_transaction() {
    let mut database = database();
    database.execute("CREATE TABLE ledger (amount BIGINT)", ()).expect("a table");
    let mut pay = |token| {
        let transaction = database.transaction().expect("free");
        let claimed = claim(&transaction, "ledger", token);
        transaction.execute("INSERT INTO ledger VALUES (1)", ()).expect("valid");
        let ended = if claimed.is_ok() { transaction.commit() } else { transaction.rollback() };
        ended.expect("free");
        let count = database.query_row("SELECT count(*) FROM ledger", (), |row| row.get::<_, i64>(0));
        (claimed, count.expect("readable"))
    };
    assert_eq!(pay(6), (Ok(()), 1));
    assert_eq!(pay(5), (STALE, 1));
    assert_eq!(pay(6), (Ok(()), 2));
}

/// `SQLite` treats an unknown quoted name as a string literal. A condition on a literal would hold or fail for every row.
#[test]
fn a_table_without_the_column_or_a_unique_key_is_an_error_and_no_write() {
    let database = Connection::open_in_memory().expect("memory");
    for table in [
        "CREATE TABLE jobs (tenant TEXT, name TEXT, page TEXT, PRIMARY KEY (tenant, name))",
        "CREATE TABLE jobs (tenant TEXT, name TEXT, page TEXT, fencing_token BIGINT)",
    ] {
        database.execute_batch(&format!("DROP TABLE IF EXISTS jobs; {table}")).expect("a table");
        let (write, claim) = (row().write(Placeholders::Question), row().claim(Placeholders::Question));
        assert!(database.execute(&write, params!["us", "a", "x", 1]).is_err(), "{table}");
        assert!(database.execute(&claim, params!["us", "a", 1]).is_err(), "{table}");
    }
}

#[test]
fn keywords_and_schemas_are_valid_names() {
    let database = Connection::open_in_memory().expect("memory");
    let table = r#"CREATE TABLE "order" ("select" TEXT NOT NULL PRIMARY KEY, "From" TEXT, fencing_token BIGINT NOT NULL)"#;
    database.execute(table, ()).expect("a table");
    let statement =
        Row::new("main.order", &["select"], &["From"]).expect("names").write(Placeholders::Question);
    let write = |token: i64| database.execute(&statement, params!["k", "v", token]).expect("valid");
    assert_eq!((write(5), write(6), write(5)), (1, 1, 0));
}

/// Records each applied write, numbered inside its own transaction.
fn race(path: &Path, seed: u64) {
    let mut database = Connection::open(path).expect("it is there");
    database.busy_timeout(Duration::from_secs(60)).expect("a span");
    for token in tokens(seed) {
        let start = rusqlite::TransactionBehavior::Immediate;
        let transaction = database.transaction_with_behavior(start).expect("the database is free in time");
        if write(&transaction, "a", &format!("{token}"), token).is_ok() {
            transaction
                .execute("INSERT INTO applied (token) VALUES (?)", [token.cast_signed()])
                .expect("valid");
        }
        transaction.commit().expect("the database is free in time");
    }
}

#[test]
fn tokens_never_decrease_when_threads_race() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("database");
    let database = Connection::open(&path).expect("a new one");
    let tables =
        format!("{TABLE}; CREATE TABLE applied (number INTEGER PRIMARY KEY AUTOINCREMENT, token BIGINT)");
    database.execute_batch(&tables).expect("tables");
    let path = &path;
    std::thread::scope(|scope| {
        (1..=4).for_each(|seed| drop(scope.spawn(move || race(path, seed))));
    });
    let mut select = database.prepare("SELECT token FROM applied ORDER BY number").expect("valid");
    let applied: Vec<i64> =
        select.query_map((), |row| row.get(0)).expect("readable").map(|token| token.expect("one")).collect();
    assert!(applied.is_sorted(), "{applied:?}");
    let last = *applied.last().expect("some were applied");
    assert_eq!(read(&database, "a"), Some(page(&last.to_string(), last)));
    assert_eq!(Some(last.unsigned_abs()), (1..=4).flat_map(tokens).max());
}
