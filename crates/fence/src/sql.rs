//! Statements that write a row under its token, for `PostgreSQL` and `SQLite`.
//!
//! **Invariant.** The crate's. Check and write are one statement, and the database locks the row for it: `ON CONFLICT`
//! reads the newest version of the row, not the one in the transaction's snapshot. Under `REPEATABLE READ` and above,
//! `PostgreSQL` may fail it with a serialization error instead: nothing was applied, retry.
//!
//! **What would break it.** A `SELECT` of the token and then an `UPDATE`: another write may come between them, unless both
//! are in a transaction that locks the row. A nullable key: two `NULL`s never conflict, so every write inserts a row of its
//! own. A row that is deleted: its token is lost.
//!
//! **The table.** `fencing_token BIGINT NOT NULL`; key columns that are `NOT NULL` and unique together. For an existing
//! table: `ALTER TABLE … ADD COLUMN fencing_token BIGINT NOT NULL DEFAULT 0`.
//!
//! **More than one row.** Start the transaction with a claim on a row that stands for everything the lease protects;
//! [`check_rows_changed`] decides whether to continue or roll back. The row stays locked until the transaction ends, so newer tokens
//! wait for it and older ones are refused. In `SQLite` use `BEGIN IMMEDIATE`.
//!
//! **What is not covered.** Statements without the check; triggers and rules that write on their own; other databases:
//! `MySQL`'s `ON DUPLICATE KEY UPDATE` has no condition. A statement whose connection broke may be applied late, after
//! another of the same token: writes that must not be reordered need a sequence number of their own.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lockd_fence::{Error, Token, sql::{self, Placeholders, Row}};
//! use rusqlite::params;
//!
//! let database = rusqlite::Connection::open_in_memory()?;
//! database.execute(
//!     "CREATE TABLE jobs (name TEXT NOT NULL PRIMARY KEY, page BIGINT, fencing_token BIGINT NOT NULL)", ())?;
//!
//! let row = Row::new("jobs", &["name"], &["page"])?;
//! let write = |page: i64, token: Token| -> Result<(), Box<dyn std::error::Error>> {
//!     let rows = database.execute(&row.write(Placeholders::Question), params!["orders", page, i64::try_from(token)?])?;
//!     Ok(sql::check_rows_changed(rows as u64)?)
//! };
//! let (ours, newer) = (Token(41), Token(42)); // `Token(lease.fencing_token())`
//! write(1, ours)?;
//! write(2, newer)?;
//! let refused = write(3, ours).expect_err("a newer holder has written");
//! assert_eq!(refused.downcast_ref(), Some(&Error::Stale { current: None }));
//! # Ok(())
//! # }
//! ```

use crate::error::Error;

/// The column that holds the token.
pub const COLUMN: &str = "fencing_token";
/// `PostgreSQL` truncates longer names, so two could become the same.
const NAME_MAX: usize = 63;
/// Maximum number of columns of a row, keys included.
const COLUMNS_MAX: usize = 256;

/// The placeholder syntax of a statement's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholders {
    /// `$1`, `$2`: `PostgreSQL`.
    Dollar,
    /// `?`: `SQLite`, and drivers for several databases.
    Question,
}

/// A row of a table: its key columns and the columns that are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Quoted, with its schema.
    table: String,
    /// Quoted, without its schema: names the existing row in the condition.
    bare: String,
    keys: Vec<String>,
    columns: Vec<String>,
}

impl Row {
    /// A row of `table`, or `schema.table`. Names consist of letters, digits and `_`, and are quoted, so their case counts:
    /// `PostgreSQL` folds names to lower case if they were created unquoted.
    pub fn new(table: &str, keys: &[&str], columns: &[&str]) -> Result<Row, Error> {
        let parts = table.split('.').map(quoted).collect::<Result<Vec<_>, _>>()?;
        let bare = match parts.as_slice() {
            [bare] | [_, bare] => bare.clone(),
            _ => return Err(Error::Invalid(format!("expected table or schema.table: table={table:?}"))),
        };
        if keys.is_empty() {
            return Err(Error::Invalid(format!("a row needs at least one key column: table={table:?}")));
        }
        distinct(keys, columns)?;
        let all = |names: &[&str]| names.iter().map(|name| quoted(name)).collect::<Result<Vec<_>, _>>();
        Ok(Row { table: parts.join("."), bare, keys: all(keys)?, columns: all(columns)? })
    }

    /// Inserts or updates the row, unless a newer token has written. Parameters: the keys, the columns, the token.
    pub fn write(&self, marks: Placeholders) -> String {
        self.upsert(&self.columns, marks)
    }

    /// Raises the token and leaves the columns unchanged, unless a newer token has written. Parameters: the keys, the token.
    /// A missing row is inserted with defaults: read it in the same transaction.
    pub fn claim(&self, marks: Placeholders) -> String {
        self.upsert(&[], marks)
    }

    fn upsert(&self, columns: &[String], marks: Placeholders) -> String {
        let token = format!("\"{COLUMN}\"");
        let written: Vec<&str> = columns.iter().chain([&token]).map(String::as_str).collect();
        let all: Vec<&str> = self.keys.iter().map(String::as_str).chain(written.iter().copied()).collect();
        let values: Vec<String> = (1..=all.len()).map(|number| marks.mark(number)).collect();
        let set: Vec<String> = written.iter().map(|name| format!("{name} = excluded.{name}")).collect();
        format!(
            "INSERT INTO {table} ({all}) VALUES ({values}) ON CONFLICT ({keys}) DO UPDATE SET {set} \
             WHERE {bare}.{token} <= excluded.{token}",
            table = self.table,
            all = all.join(", "),
            values = values.join(", "),
            keys = self.keys.join(", "),
            set = set.join(", "),
            bare = self.bare,
        )
    }
}

impl Placeholders {
    fn mark(self, number: usize) -> String {
        match self {
            Placeholders::Dollar => format!("${number}"),
            Placeholders::Question => "?".to_string(),
        }
    }
}

/// Checks the number of rows that a statement changed. On an error, roll back.
pub fn check_rows_changed(rows: u64) -> Result<(), Error> {
    match rows {
        0 => Err(Error::Stale { current: None }),
        1 => Ok(()),
        _ => Err(Error::Invalid(format!("more than one row was changed; roll back: rows={rows}"))),
    }
}

/// A quoted name that needs no escaping.
fn quoted(name: &str) -> Result<String, Error> {
    let fits =
        (1..=NAME_MAX).contains(&name.len()) && !name.starts_with(|first: char| first.is_ascii_digit());
    if fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Ok(format!("\"{name}\""));
    }
    let rule = "names are 1 to 63 letters, digits and _, and do not begin with a digit";
    Err(Error::Invalid(format!("{rule}: name={name:?}")))
}

/// Refuses duplicate names. `SQLite` compares names without case.
fn distinct(keys: &[&str], columns: &[&str]) -> Result<(), Error> {
    let mut names: Vec<String> = keys.iter().chain(columns).map(|name| name.to_ascii_lowercase()).collect();
    if names.len() > COLUMNS_MAX {
        return Err(Error::Invalid(format!("too many columns: columns={} max={COLUMNS_MAX}", names.len())));
    }
    names.push(COLUMN.to_string());
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::Invalid(format!("duplicate column: name={:?}", pair[0]))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_as_they_are() {
        let row = Row::new("work.jobs", &["tenant", "name"], &["page"]).expect("names");
        assert_eq!(
            row.write(Placeholders::Dollar),
            r#"INSERT INTO "work"."jobs" ("tenant", "name", "page", "fencing_token") VALUES ($1, $2, $3, $4) ON CONFLICT ("tenant", "name") DO UPDATE SET "page" = excluded."page", "fencing_token" = excluded."fencing_token" WHERE "jobs"."fencing_token" <= excluded."fencing_token""#
        );
        assert_eq!(
            row.claim(Placeholders::Question),
            r#"INSERT INTO "work"."jobs" ("tenant", "name", "fencing_token") VALUES (?, ?, ?) ON CONFLICT ("tenant", "name") DO UPDATE SET "fencing_token" = excluded."fencing_token" WHERE "jobs"."fencing_token" <= excluded."fencing_token""#
        );
    }

    #[test]
    fn a_name_that_needs_escaping_is_refused() {
        let long = "x".repeat(64);
        for name in ["", "a b", "a\"b", "a;b", "1a", "ä", "a-b", "a\0", &long] {
            assert!(matches!(Row::new(name, &["k"], &[]), Err(Error::Invalid(_))), "{name:?}");
            assert!(matches!(Row::new("t", &[name], &[]), Err(Error::Invalid(_))), "{name:?}");
            assert!(matches!(Row::new("t", &["k"], &[name]), Err(Error::Invalid(_))), "{name:?}");
        }
        assert!(Row::new(&long[1..], &["select"], &["_", "A1"]).is_ok());
    }

    #[test]
    fn a_row_has_a_key_and_no_column_twice() {
        let refused = |table: &str, keys: &[&str], columns: &[&str]| {
            assert!(
                matches!(Row::new(table, keys, columns), Err(Error::Invalid(_))),
                "{table} {keys:?} {columns:?}"
            );
        };
        refused("t", &[], &["a"]);
        refused("a.b.c", &["k"], &[]);
        refused("t.", &["k"], &[]);
        refused("t", &["k", "K"], &[]);
        refused("t", &["k"], &["k"]);
        refused("t", &["k"], &["Fencing_Token"]);
        refused("t", &["fencing_token"], &[]);
        let names: Vec<String> = (0..256).map(|number| format!("c{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        refused("t", &["k"], &names);
        assert!(Row::new("t", &["k"], &names[1..]).is_ok());
    }

    #[test]
    fn only_one_changed_row_is_a_write() {
        assert_eq!(check_rows_changed(0), Err(Error::Stale { current: None }));
        assert_eq!(check_rows_changed(1), Ok(()));
        assert!(matches!(check_rows_changed(2), Err(Error::Invalid(_))));
    }
}
