//! `PostgreSQL`, if installed: a temporary server on a Unix socket in a temporary directory.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lockd_fence::sql::{Placeholders, check_rows_changed};
use lockd_fence::{Error, Token};
use tempfile::TempDir;

use super::{TABLE, row, tokens};

/// `PostgreSQL` refuses to run as root: root starts it as the user `nobody`.
const NOBODY: u32 = 65534;

struct Postgres {
    programs: PathBuf,
    dir: TempDir,
}

impl Postgres {
    /// `None`, with a message on stderr, if it is not installed.
    fn start() -> Option<Postgres> {
        let Some(programs) = programs() else {
            // Not `eprintln`, which the test harness captures.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: PostgreSQL is not installed; its statements were not tried"
            );
            return None;
        };
        let postgres = Postgres { programs, dir: tempfile::tempdir().expect("a directory") };
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(postgres.dir.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
        }
        postgres.run(&["initdb", "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8", "-D", "data"]);
        let options = format!("-c listen_addresses= -c fsync=off -k {}", postgres.dir.path().display());
        postgres.run(&["pg_ctl", "start", "-w", "-t", "120", "-D", "data", "-l", "log", "-o", &options]);
        Some(postgres)
    }

    /// Runs one of its programs in its directory and waits for it.
    fn run(&self, words: &[&str]) {
        let mut command = Command::new(self.programs.join(words[0]));
        command.args(&words[1..]).current_dir(self.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).env("LC_ALL", "C");
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let status = command.status().expect("it starts");
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        assert!(status.success(), "{words:?}: {status}; {log}");
    }

    fn psql(&self, script: &str) -> Child {
        let mut child = Command::new(self.programs.join("psql"))
            .args(["-X", "-A", "-t", "-U", "postgres", "-d", "postgres", "-h"])
            .arg(self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        child.stdin.take().expect("piped").write_all(script.as_bytes()).expect("psql reads to the end");
        child
    }

    /// The output of a script; each statement prints its tag, as in `INSERT 0 1`.
    fn output(&self, script: &str) -> Vec<String> {
        let output = self.psql(script).wait_with_output().expect("it ends");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.dir.path().join("data/postmaster.pid").exists() {
            self.run(&["pg_ctl", "stop", "-m", "immediate", "-w", "-D", "data"]);
        }
    }
}

fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|version| version.path().join("bin"));
    let has_all = |dir: &Path| ["initdb", "pg_ctl", "psql"].iter().all(|name| dir.join(name).is_file());
    std::env::split_paths(&path).chain(debian).find(|dir| has_all(dir))
}

/// Prepares the statements for a session.
fn prepared() -> String {
    let (write, claim) = (row().write(Placeholders::Dollar), row().claim(Placeholders::Dollar));
    format!(
        "PREPARE write (text, text, text, bigint) AS {write};\nPREPARE claim (text, text, bigint) AS {claim};\n"
    )
}

/// The result that a statement's tag means.
fn result_of(tag: &str) -> Result<(), Error> {
    check_rows_changed(
        tag.strip_prefix("INSERT 0 ").and_then(|rows| rows.parse().ok()).expect("an insert's tag"),
    )
}

fn a_stale_writer_is_refused(postgres: &Postgres) {
    let write = |page: &str, token: u64| {
        let token = i64::try_from(Token(token)).expect("it fits");
        let output = postgres.output(&format!("{}EXECUTE write('us', 'a', '{page}', {token});", prepared()));
        result_of(output.last().expect("a tag"))
    };
    let claim = |token: u64| {
        let output = postgres.output(&format!("{}EXECUTE claim('us', 'a', {token});", prepared()));
        result_of(output.last().expect("a tag"))
    };
    let stale = Err(Error::Stale { current: None });
    assert_eq!((write("one", 5), write("two", 5), write("three", 6)), (Ok(()), Ok(()), Ok(())));
    assert_eq!((write("late", 5), claim(5)), (stale.clone(), stale.clone()));
    assert_eq!((claim(7), write("late", 6)), (Ok(()), stale.clone()));
    assert_eq!(postgres.output("SELECT page, fencing_token FROM jobs"), ["three|7"]);
    assert_eq!((write("last", i64::MAX as u64), claim(8)), (Ok(()), stale));
}

/// Writers with single statements, with transactions that lock the row, and one with an old snapshot of it.
fn tokens_never_decrease(postgres: &Postgres) {
    let script = |seed: u64| {
        let isolation = if seed == 4 { "repeatable read" } else { "read committed" };
        let set = format!("SET default_transaction_isolation = '{isolation}';\n");
        let writes = tokens(seed).map(|token| match seed % 2 {
            0 => format!(
                "BEGIN; SELECT 1 FROM jobs; EXECUTE claim('us', 'b', {token}); SELECT pg_sleep(0.002); \
                 EXECUTE write('us', 'b', '{token}', {token}); COMMIT;\n"
            ),
            _ => format!("EXECUTE write('us', 'b', '{token}', {token});\n"),
        });
        [prepared(), set].into_iter().chain(writes).collect::<String>()
    };
    // The trigger runs while the row is locked: its numbers are the order in which writes were applied.
    postgres.output(
        "CREATE TABLE applied (number BIGSERIAL, token BIGINT);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN INSERT INTO applied (token) VALUES (NEW.fencing_token); RETURN NULL; END';
         CREATE TRIGGER noted AFTER INSERT OR UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION note();",
    );
    let racers: Vec<Child> = (1..=4).map(|seed| postgres.psql(&script(seed))).collect();
    for racer in racers {
        let output = racer.wait_with_output().expect("it ends");
        let errors = String::from_utf8(output.stderr).expect("text");
        let expected =
            |line: &str| line.contains("could not serialize") || line.contains("transaction is aborted");
        assert!(errors.lines().filter(|line| line.contains("ERROR")).all(expected), "{errors}");
    }
    let applied = postgres.output("SELECT token FROM applied ORDER BY number");
    let applied: Vec<u64> = applied.iter().map(|token| token.parse().expect("a number")).collect();
    assert!(applied.is_sorted(), "{applied:?}");
    let last = *applied.last().expect("some were applied");
    assert_eq!(
        postgres.output("SELECT page, fencing_token FROM jobs WHERE name = 'b'"),
        [format!("{last}|{last}")]
    );
}

#[test]
fn the_statements_guard_a_row_of_postgresql() {
    let Some(postgres) = Postgres::start() else { return };
    postgres.output(TABLE);
    a_stale_writer_is_refused(&postgres);
    tokens_never_decrease(&postgres);
}
