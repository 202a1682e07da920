//! The SQL statements, against real databases.

mod postgres;
mod sqlite;

use lockd_fence::sql::Row;

/// `PRIMARY KEY` alone allows `NULL` in `SQLite`.
const TABLE: &str = "CREATE TABLE jobs (tenant TEXT NOT NULL, name TEXT NOT NULL, page TEXT, \
                     fencing_token BIGINT NOT NULL, PRIMARY KEY (tenant, name))";

fn row() -> Row {
    Row::new("jobs", &["tenant", "name"], &["page"]).expect("names")
}

/// Random tokens for racing writers. They grow with each round, and overlap with those of other writers.
fn tokens(seed: u64) -> impl Iterator<Item = u64> {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..40).map(move |round| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        1 + round + random % 20
    })
}
