//! PostgreSQL: a row per key, leased by a conditional upsert; and advisory locks, which are never written.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::{Config, NoTls, Statement};

use crate::server::version_of;
use crate::system::{Client, Durability, Environment, Error, Lease, Result, System};

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS lease (key text PRIMARY KEY, token bigint NOT NULL, deadline timestamptz NOT NULL) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS document (key text PRIMARY KEY, value bytea NOT NULL);
CREATE SEQUENCE IF NOT EXISTS token CACHE 100;
CREATE OR REPLACE FUNCTION lease_many(keys text[], ttl float8) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE fresh bigint := nextval('token'); granted bigint;
BEGIN
  INSERT INTO lease SELECT unnest(keys), fresh, now() + ttl * interval '1 second'
    ON CONFLICT (key) DO UPDATE SET token = excluded.token, deadline = excluded.deadline WHERE lease.deadline < now();
  GET DIAGNOSTICS granted = ROW_COUNT;
  IF granted < cardinality(keys) THEN RAISE EXCEPTION 'held'; END IF;
  RETURN fresh;
END $$;";
const ACQUIRE: &str = "INSERT INTO lease VALUES ($1, nextval('token'), now() + $2 * interval '1 second') \
    ON CONFLICT (key) DO UPDATE SET token = excluded.token, deadline = excluded.deadline WHERE lease.deadline < now() \
    RETURNING token";
const RELEASE: &str =
    "UPDATE lease SET deadline = '-infinity' WHERE key = ANY($1) AND token = $2 AND deadline > now()";
const RENEW: &str = "UPDATE lease SET deadline = now() + $2 * interval '1 second' \
    FROM unnest($1::text[], $3::bigint[]) AS mine(k, t) WHERE key = k AND token = t AND deadline > now()";
const UPDATE: &str = "INSERT INTO document SELECT key, $3 FROM lease WHERE key = $1 AND token = $2 AND deadline > now() \
    ON CONFLICT (key) DO UPDATE SET value = excluded.value";
/// Keys of one statement when many leases are acquired.
const MANY: usize = 5_000;
/// Connections beyond this would need more processes than a small machine should have.
pub(super) const MAX_CONNECTIONS: usize = 1_100;

/// The system, in one of two ways to lock.
pub(super) struct Postgres {
    advisory: bool,
}

impl Postgres {
    pub(super) fn row() -> Postgres {
        Postgres { advisory: false }
    }

    pub(super) fn advisory() -> Postgres {
        Postgres { advisory: true }
    }
}

/// The folder of the newest installed server.
fn programs() -> Result<std::path::PathBuf> {
    let installed =
        std::fs::read_dir("/usr/lib/postgresql").map_err(|_| Error::failed("no /usr/lib/postgresql"))?;
    let newest = installed.flatten().map(|entry| entry.path().join("bin")).max();
    newest.ok_or_else(|| Error::failed("no version in /usr/lib/postgresql"))
}

/// PostgreSQL refuses to run as root; the package has a user for it.
fn as_postgres(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig", "KILL"])
        .arg(program);
    command
}

#[async_trait]
impl System for Postgres {
    fn name(&self) -> &'static str {
        if self.advisory { "postgres-advisory" } else { "postgres-row" }
    }

    fn durability(&self) -> Durability {
        if self.advisory { Durability::Volatile } else { Durability::Flushed }
    }

    fn about(&self) -> &'static str {
        if self.advisory {
            "pg_advisory_lock of the connection: no lease, ends with the session; waits in the server's queue"
        } else {
            "a row per key, conditional upsert and update; clients that wait poll every 1 to 10 ms"
        }
    }

    fn version(&self, _environment: &Environment) -> Result<String> {
        version_of(&programs()?.join("postgres").to_string_lossy(), &["--version"])
    }

    fn prepare(&self, folder: &Path) -> Result<()> {
        if rustix::process::geteuid().is_root() {
            let status = Command::new("chown").arg("postgres").arg(folder).status()?;
            if !status.success() {
                return Err(Error::failed("chown postgres"));
            }
        }
        let mut command = as_postgres(&programs()?.join("initdb"));
        command
            .args(["--auth=trust", "--username=bench", "--no-instructions", "-D"])
            .arg(folder.join("data"));
        let output = command.stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::Failed(format!("initdb: {}", String::from_utf8_lossy(&output.stderr))))
    }

    fn command(&self, _environment: &Environment, folder: &Path, port: u16) -> Command {
        let mut command = as_postgres(&programs().unwrap_or_default().join("postgres"));
        command.arg("-D").arg(folder.join("data")).args([
            "-p",
            &port.to_string(),
            "-h",
            "127.0.0.1",
            "-k",
            "",
        ]);
        command.args(["-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB"]);
        command.args(["-c", &format!("max_connections={}", MAX_CONNECTIONS + 10)]);
        command
    }

    async fn set_up(&self, address: &str) -> Result<()> {
        open(address).await?.batch_execute(SCHEMA).await.map_err(failed)
    }

    async fn connect(&self, address: &str, _session: Duration) -> Result<Box<dyn Client>> {
        let client = open(address).await?;
        if self.advisory {
            let mut statements = Vec::new();
            for text in [
                "SELECT pg_try_advisory_lock(hashtextextended($1, 0))",
                "SELECT pg_advisory_unlock(hashtextextended($1, 0))",
                "SELECT pg_advisory_lock(hashtextextended($1, 0))",
            ] {
                statements.push(client.prepare(text).await.map_err(failed)?);
            }
            return Ok(Box::new(AdvisoryClient { client, statements }));
        }
        let mut statements = Vec::new();
        for text in [ACQUIRE, RELEASE, RENEW, UPDATE, "SELECT lease_many($1, $2)"] {
            statements.push(client.prepare(text).await.map_err(failed)?);
        }
        Ok(Box::new(RowClient { client, statements, random: super::client_number() }))
    }
}

async fn open(address: &str) -> Result<tokio_postgres::Client> {
    let (host, port) = address.split_once(':').ok_or_else(|| Error::failed("an address"))?;
    let mut config = Config::new();
    config.host(host).port(port.parse().map_err(Error::failed)?).user("bench").dbname("postgres");
    let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
    tokio::spawn(connection);
    Ok(client)
}

fn failed(error: tokio_postgres::Error) -> Error {
    match error.as_db_error() {
        Some(db) if db.message() == "held" => Error::Held,
        Some(db) => Error::Failed(format!("{}: {}", db.severity(), db.message())),
        None => Error::failed(error),
    }
}

struct RowClient {
    client: tokio_postgres::Client,
    /// In the order in which `connect` prepares them.
    statements: Vec<Statement>,
    random: u64,
}

#[async_trait]
impl Client for RowClient {
    async fn acquire(&mut self, key: &str, ttl: Duration) -> Result<Lease> {
        let row = self.client.query_opt(&self.statements[0], &[&key, &ttl.as_secs_f64()]).await;
        let row = row.map_err(failed)?.ok_or(Error::Held)?;
        Ok(Lease::new(key, "", row.get(0)))
    }

    async fn release(&mut self, lease: Lease) -> Result<()> {
        let keys: Vec<&str> = std::iter::once(&lease.key).chain(&lease.rest).map(String::as_str).collect();
        let changed =
            self.client.execute(&self.statements[1], &[&keys, &lease.number]).await.map_err(failed)?;
        if changed == keys.len() as u64 { Ok(()) } else { Err(Error::failed("the lease is not held")) }
    }

    async fn acquire_waiting(&mut self, key: &str, ttl: Duration) -> Result<Lease> {
        loop {
            match self.acquire(key, ttl).await {
                Err(Error::Held) => tokio::time::sleep(super::poll_pause(&mut self.random)).await,
                other => return other,
            }
        }
    }

    async fn renew(&mut self, lease: &Lease, ttl: Duration) -> Result<()> {
        self.renew_many(std::slice::from_ref(lease), ttl).await
    }

    async fn renew_many(&mut self, leases: &[Lease], ttl: Duration) -> Result<()> {
        for part in leases.chunks(MANY) {
            let keys: Vec<&str> = part.iter().map(|lease| lease.key.as_str()).collect();
            let tokens: Vec<i64> = part.iter().map(|lease| lease.number).collect();
            let changed =
                self.client.execute(&self.statements[2], &[&keys, &ttl.as_secs_f64(), &tokens]).await;
            if changed.map_err(failed)? != part.len() as u64 {
                return Err(Error::failed("the lease is not held"));
            }
        }
        Ok(())
    }

    async fn acquire_many(&mut self, keys: &[String], ttl: Duration) -> Result<Vec<Lease>> {
        let mut leases = Vec::with_capacity(keys.len());
        for part in keys.chunks(MANY) {
            let bundle = self.acquire_bundle(part, ttl).await?;
            leases.extend(part.iter().map(|key| Lease::new(key, "", bundle.number)));
        }
        Ok(leases)
    }

    async fn acquire_bundle(&mut self, keys: &[String], ttl: Duration) -> Result<Lease> {
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        let row = self.client.query_one(&self.statements[4], &[&names, &ttl.as_secs_f64()]).await;
        Ok(Lease { rest: keys[1..].to_vec(), ..Lease::new(&keys[0], "", row.map_err(failed)?.get(0)) })
    }

    async fn update(&mut self, lease: &Lease, document: &[u8]) -> Result<()> {
        let changed = self.client.execute(&self.statements[3], &[&lease.key, &lease.number, &document]).await;
        if changed.map_err(failed)? == 1 { Ok(()) } else { Err(Error::failed("the lease is not held")) }
    }
}

struct AdvisoryClient {
    client: tokio_postgres::Client,
    /// Try, unlock, wait.
    statements: Vec<Statement>,
}

#[async_trait]
impl Client for AdvisoryClient {
    async fn acquire(&mut self, key: &str, _ttl: Duration) -> Result<Lease> {
        let row = self.client.query_one(&self.statements[0], &[&key]).await.map_err(failed)?;
        if row.get(0) { Ok(Lease::new(key, "", 0)) } else { Err(Error::Held) }
    }

    async fn release(&mut self, lease: Lease) -> Result<()> {
        let row = self.client.query_one(&self.statements[1], &[&lease.key]).await.map_err(failed)?;
        if row.get(0) { Ok(()) } else { Err(Error::failed("the lock is not held")) }
    }

    async fn acquire_waiting(&mut self, key: &str, _ttl: Duration) -> Result<Lease> {
        self.client.query_one(&self.statements[2], &[&key]).await.map_err(failed)?;
        Ok(Lease::new(key, "", 0))
    }

    async fn acquire_many(&mut self, _keys: &[String], _ttl: Duration) -> Result<Vec<Lease>> {
        Err(Error::unsupported("advisory locks have no TTL"))
    }
}
