//! lockd: the real program, plain HTTP/1.1, one connection per client.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;

use crate::server::version_of;
use crate::system::{Client, Durability, Environment, Error, Lease, Result, System};
use crate::wire::http1::{Connection, field};

/// Leases renewed by one request: the credentials of so many fit into the largest body.
const HEARTBEAT: usize = 5_000;

/// The system.
pub(super) struct Lockd;

#[async_trait]
impl System for Lockd {
    fn name(&self) -> &'static str {
        "lockd"
    }

    fn durability(&self) -> Durability {
        Durability::Flushed
    }

    fn about(&self) -> &'static str {
        "POST /v1/acquire, /v1/release; plain HTTP/1.1; waits in the server's queue; many renewals by /v1/leases/heartbeat"
    }

    fn version(&self, environment: &Environment) -> Result<String> {
        version_of(&environment.lockd.to_string_lossy(), &["--version"])
    }

    fn command(&self, environment: &Environment, folder: &Path, port: u16) -> Command {
        let mut command = Command::new(&environment.lockd);
        command.args([
            "serve",
            "--mtls=false",
            "--log-level",
            "warn",
            "--listen",
            &format!("127.0.0.1:{port}"),
        ]);
        // Limits above what the workloads need, so that none of them is measured.
        command.args(["--max-connections", "50000", "--max-connections-per-identity", "25000"]);
        command.args(["--max-leases-per-identity", "4000000", "--memory-max", "12GiB", "--max-ttl", "1h"]);
        command
            .args(["--acquire-block", "10m", "--json-max", "200MB", "--data-dir"])
            .arg(folder.join("data"));
        command.env("XDG_CONFIG_HOME", folder);
        command
    }

    async fn set_up(&self, address: &str) -> Result<()> {
        let mut connection = Connection::open(address).await?;
        match connection.get("/readyz").await?.status {
            200 => Ok(()),
            status => Err(Error::Failed(format!("not ready: {status}"))),
        }
    }

    async fn connect(&self, address: &str, _session: Duration) -> Result<Box<dyn Client>> {
        Ok(Box::new(LockdClient { connection: Connection::open(address).await? }))
    }
}

struct LockdClient {
    connection: Connection,
}

impl LockdClient {
    async fn post(&mut self, path: &str, headers: &str, body: &[u8]) -> Result<&[u8]> {
        let response = self.connection.post(path, headers, body).await?;
        match response.status {
            200 => Ok(response.body),
            409 if field(response.body, "error").is_ok_and(|error| error == "waiting") => Err(Error::Held),
            status => {
                Err(Error::Failed(format!("{path}: {status} {}", String::from_utf8_lossy(response.body))))
            }
        }
    }

    async fn grant(&mut self, key: &str, body: &str) -> Result<Lease> {
        let granted = self.post("/v1/acquire", "", body.as_bytes()).await?;
        Ok(Lease::new(key, field(granted, "lease_id")?, 0))
    }
}

#[async_trait]
impl Client for LockdClient {
    async fn acquire(&mut self, key: &str, ttl: Duration) -> Result<Lease> {
        self.grant(key, &format!(r#"{{"key":"{key}","ttl_ms":{}}}"#, ttl.as_millis())).await
    }

    async fn release(&mut self, lease: Lease) -> Result<()> {
        let body = format!(r#"{{"lease_id":"{}"}}"#, lease.credential);
        self.post("/v1/release", "", body.as_bytes()).await.map(drop)
    }

    async fn acquire_waiting(&mut self, key: &str, ttl: Duration) -> Result<Lease> {
        let body = format!(r#"{{"key":"{key}","ttl_ms":{},"block_seconds":600}}"#, ttl.as_millis());
        self.grant(key, &body).await
    }

    async fn renew(&mut self, lease: &Lease, ttl: Duration) -> Result<()> {
        let body = format!(r#"{{"lease_id":"{}","ttl_ms":{}}}"#, lease.credential, ttl.as_millis());
        self.post("/v1/keepalive", "", body.as_bytes()).await.map(drop)
    }

    async fn renew_many(&mut self, leases: &[Lease], _ttl: Duration) -> Result<()> {
        for part in leases.chunks(HEARTBEAT) {
            let ids: Vec<String> = part.iter().map(|lease| format!("\"{}\"", lease.credential)).collect();
            let body = format!(r#"{{"lease_ids":[{}]}}"#, ids.join(","));
            let results = self.post("/v1/leases/heartbeat", "", body.as_bytes()).await?;
            let text = String::from_utf8_lossy(results);
            if let Some(at) = text.find("\"ok\":false") {
                return Err(Error::Failed(format!("heartbeat: {}", &text[at.saturating_sub(100)..at + 10])));
            }
        }
        Ok(())
    }

    async fn acquire_bundle(&mut self, keys: &[String], ttl: Duration) -> Result<Lease> {
        let resources: Vec<String> =
            keys.iter().map(|key| format!(r#"{{"kind":"KEY","name":"{key}"}}"#)).collect();
        let body = format!(r#"{{"resources":[{}],"ttl_ms":{}}}"#, resources.join(","), ttl.as_millis());
        self.grant(&keys[0], &body).await
    }

    async fn update(&mut self, lease: &Lease, document: &[u8]) -> Result<()> {
        let path = format!("/v1/update_state?key={}", lease.key);
        let header = format!("x-lease-id: {}\r\n", lease.credential);
        self.post(&path, &header, document).await.map(drop)
    }

    async fn live(&mut self) -> Result<u64> {
        let response = self.connection.get("/metrics").await?;
        let text = String::from_utf8_lossy(response.body);
        let figure = text.lines().find_map(|line| line.strip_prefix("lockd_leases "));
        figure.and_then(|figure| figure.trim().parse().ok()).ok_or_else(|| Error::failed("no lockd_leases"))
    }
}
