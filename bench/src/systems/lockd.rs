//! lockd: the real program without TLS, called in three ways: by HTTP/1.1 and by the stream protocol with a connection per
//! client, and by the stream protocol with one connection for all clients.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;

use crate::server::version_of;
use crate::system::{Client, Durability, Environment, Error, Lease, Result, System};
use crate::wire::shared::Sharing;
use crate::wire::{Response, http1, stream};

/// Leases renewed by one request: the credentials of so many fit into the largest body.
const HEARTBEAT: usize = 5_000;

/// The system, called in one of three ways.
pub(super) struct Lockd {
    name: &'static str,
    about: &'static str,
    protocol: Protocol,
}

enum Protocol {
    Http,
    Stream,
    OneConnection(Sharing<stream::ByNumber>),
}

impl Lockd {
    pub(super) fn http() -> Lockd {
        Lockd {
            name: "lockd",
            about: "POST /v1/acquire, /v1/release; plain HTTP/1.1; waits in the server's queue; many renewals by /v1/leases/heartbeat",
            protocol: Protocol::Http,
        }
    }

    pub(super) fn frames() -> Lockd {
        Lockd {
            name: "lockd-frames",
            about: "the calls of lockd over its stream protocol, a connection per client; documents above 16 KiB over HTTP",
            protocol: Protocol::Stream,
        }
    }

    pub(super) fn one_connection() -> Lockd {
        Lockd {
            name: "lockd-one-connection",
            about: "as lockd-frames, but all clients share one connection, each with one request in flight; writes are coalesced",
            protocol: Protocol::OneConnection(Sharing::default()),
        }
    }
}

#[async_trait]
impl System for Lockd {
    fn name(&self) -> &'static str {
        self.name
    }

    fn durability(&self) -> Durability {
        Durability::Flushed
    }

    fn about(&self) -> &'static str {
        self.about
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
        // Rows of leases that are due leave the tables this late; nothing honours them meanwhile.
        command.args(["--sweeper-interval", "100ms"]);
        command
            .args(["--acquire-block", "10m", "--json-max", "200MB", "--data-dir"])
            .arg(folder.join("data"));
        command.env("XDG_CONFIG_HOME", folder);
        command
    }

    async fn set_up(&self, address: &str) -> Result<()> {
        let mut connection = http1::Connection::open(address).await?;
        match connection.get("/readyz").await?.status {
            200 => Ok(()),
            status => Err(Error::Failed(format!("not ready: {status}"))),
        }
    }

    async fn connect(&self, address: &str, _session: Duration) -> Result<Box<dyn Client>> {
        Ok(match &self.protocol {
            Protocol::Http => LockdClient::boxed(http1::Connection::open(address).await?, address),
            Protocol::Stream => LockdClient::boxed(stream::Connection::open(address).await?, address),
            Protocol::OneConnection(sharing) => {
                let connection = stream::SharedConnection::new(sharing.caller(address).await?);
                LockdClient::boxed(connection, address)
            }
        })
    }
}

/// Sends calls with a JSON body, one at a time.
trait Calls: Send + 'static {
    /// The longest body.
    const BODY_MAX: usize;

    /// Calls `target`, under this lease if the call needs one.
    fn call(
        &mut self,
        target: &str,
        lease: Option<&str>,
        body: &[u8],
    ) -> impl Future<Output = Result<Response<'_>>> + Send;
}

impl Calls for http1::Connection {
    const BODY_MAX: usize = usize::MAX;

    async fn call(&mut self, target: &str, lease: Option<&str>, body: &[u8]) -> Result<Response<'_>> {
        let header = lease.map(|lease| format!("x-lease-id: {lease}\r\n")).unwrap_or_default();
        self.post(target, &header, body).await
    }
}

impl Calls for stream::Connection {
    const BODY_MAX: usize = frames::BODY_MAX;

    async fn call(&mut self, target: &str, lease: Option<&str>, body: &[u8]) -> Result<Response<'_>> {
        self.post(target, lease, body).await
    }
}

impl Calls for stream::SharedConnection {
    const BODY_MAX: usize = frames::BODY_MAX;

    async fn call(&mut self, target: &str, lease: Option<&str>, body: &[u8]) -> Result<Response<'_>> {
        self.post(target, lease, body).await
    }
}

struct LockdClient<C> {
    calls: C,
    address: String,
    /// For what `calls` does not carry; opened when it is first needed.
    http: Option<http1::Connection>,
}

impl<C: Calls> LockdClient<C> {
    fn boxed(calls: C, address: &str) -> Box<dyn Client> {
        Box::new(LockdClient { calls, address: address.to_string(), http: None })
    }

    async fn http(&mut self) -> Result<&mut http1::Connection> {
        let connection = match self.http.take() {
            Some(connection) => connection,
            None => http1::Connection::open(&self.address).await?,
        };
        Ok(self.http.insert(connection))
    }

    async fn post(&mut self, target: &str, body: &str) -> Result<&[u8]> {
        granted(target, &self.calls.call(target, None, body.as_bytes()).await?)
    }

    async fn grant(&mut self, key: &str, body: &str) -> Result<Lease> {
        let granted = self.post("/v1/acquire", body).await?;
        Ok(Lease::new(key, http1::field(granted, "lease_id")?, 0))
    }
}

/// The body of a response that is no refusal.
fn granted<'a>(target: &str, response: &Response<'a>) -> Result<&'a [u8]> {
    match response.status {
        200 => Ok(response.body),
        409 if http1::field(response.body, "error").is_ok_and(|error| error == "waiting") => Err(Error::Held),
        status => {
            Err(Error::Failed(format!("{target}: {status} {}", String::from_utf8_lossy(response.body))))
        }
    }
}

/// How many of these leases one heartbeat names: their credentials, quoted, and the rest of its body.
fn heartbeat_leases(leases: &[Lease], body_max: usize) -> usize {
    let longest = leases.iter().map(|lease| lease.credential.len() + 3).max().unwrap_or(1);
    ((body_max - 32) / longest).clamp(1, HEARTBEAT)
}

#[async_trait]
impl<C: Calls> Client for LockdClient<C> {
    async fn acquire(&mut self, key: &str, ttl: Duration) -> Result<Lease> {
        self.grant(key, &format!(r#"{{"key":"{key}","ttl_ms":{}}}"#, ttl.as_millis())).await
    }

    async fn release(&mut self, lease: Lease) -> Result<()> {
        let body = format!(r#"{{"lease_id":"{}"}}"#, lease.credential);
        self.post("/v1/release", &body).await.map(drop)
    }

    async fn acquire_waiting(&mut self, key: &str, ttl: Duration) -> Result<Lease> {
        let body = format!(r#"{{"key":"{key}","ttl_ms":{},"block_seconds":600}}"#, ttl.as_millis());
        self.grant(key, &body).await
    }

    async fn renew(&mut self, lease: &Lease, ttl: Duration) -> Result<()> {
        let body = format!(r#"{{"lease_id":"{}","ttl_ms":{}}}"#, lease.credential, ttl.as_millis());
        self.post("/v1/keepalive", &body).await.map(drop)
    }

    async fn renew_many(&mut self, leases: &[Lease], _ttl: Duration) -> Result<()> {
        for part in leases.chunks(heartbeat_leases(leases, C::BODY_MAX)) {
            let ids: Vec<String> = part.iter().map(|lease| format!("\"{}\"", lease.credential)).collect();
            let body = format!(r#"{{"lease_ids":[{}]}}"#, ids.join(","));
            let results = self.post("/v1/leases/heartbeat", &body).await?;
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
        let (target, id) = (format!("/v1/update_state?key={}", lease.key), Some(lease.credential.as_str()));
        let response = if document.len() > C::BODY_MAX {
            self.http().await?.call(&target, id, document).await?
        } else {
            self.calls.call(&target, id, document).await?
        };
        granted(&target, &response).map(drop)
    }

    async fn live(&mut self) -> Result<u64> {
        let response = self.http().await?.get("/metrics").await?;
        let text = String::from_utf8_lossy(response.body);
        let figure = text.lines().find_map(|line| line.strip_prefix("lockd_leases "));
        figure.and_then(|figure| figure.trim().parse().ok()).ok_or_else(|| Error::failed("no lockd_leases"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_fits_into_a_frame() {
        let leases = vec![Lease::new("key", "c".repeat(48), 0); 10_000];
        let count = heartbeat_leases(&leases, frames::BODY_MAX);
        let body =
            format!(r#"{{"lease_ids":[{}]}}"#, vec![format!("\"{}\"", "c".repeat(48)); count].join(","));
        assert!(body.len() <= frames::BODY_MAX && body.len() > frames::BODY_MAX - 100, "{}", body.len());
        assert_eq!(heartbeat_leases(&leases, usize::MAX), HEARTBEAT);
        assert_eq!(heartbeat_leases(&[], frames::BODY_MAX), HEARTBEAT);
    }
}
