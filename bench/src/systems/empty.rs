//! A ceiling: an empty HTTP handler on the stack that lockd serves with, as a process of its own.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;

use crate::system::{Client, Durability, Environment, Error, Lease, Result, System};
use crate::wire::http1::Connection;

/// The subcommand of this program that serves.
pub const SUBCOMMAND: &str = "serve-empty";
/// As many bytes as a grant of lockd has.
const RESPONSE_BYTES: usize = 400;

/// The system.
pub(super) struct Empty;

/// Serves until the process is killed.
pub async fn serve(port: u16) -> Result<()> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let answer = async |_: Bytes| ([("content-type", "application/json")], "x".repeat(RESPONSE_BYTES));
    let app = Router::new().route("/v1/acquire", post(answer)).route("/v1/release", post(answer));
    let listener = axum::serve::ListenerExt::tap_io(listener, |tcp| drop(tcp.set_nodelay(true)));
    axum::serve(listener, app).await.map_err(Error::from)
}

#[async_trait]
impl System for Empty {
    fn name(&self) -> &'static str {
        "empty-http"
    }

    fn durability(&self) -> Durability {
        Durability::Ceiling
    }

    fn about(&self) -> &'static str {
        "reads a request of lockd's size and responds with as many bytes; decides and stores nothing"
    }

    fn version(&self, _environment: &Environment) -> Result<String> {
        Ok("axum 0.8".to_string())
    }

    fn command(&self, _environment: &Environment, _folder: &Path, port: u16) -> Command {
        let mut command = Command::new("/proc/self/exe");
        if let Ok(program) = std::env::current_exe() {
            command = Command::new(program);
        }
        command.args([SUBCOMMAND, &port.to_string()]);
        command
    }

    async fn set_up(&self, address: &str) -> Result<()> {
        Connection::open(address).await.map(drop)
    }

    async fn connect(&self, address: &str, _session: Duration) -> Result<Box<dyn Client>> {
        Ok(Box::new(EmptyClient { connection: Connection::open(address).await? }))
    }
}

struct EmptyClient {
    connection: Connection,
}

#[async_trait]
impl Client for EmptyClient {
    async fn acquire(&mut self, key: &str, ttl: Duration) -> Result<Lease> {
        let body = format!(r#"{{"key":"{key}","ttl_ms":{}}}"#, ttl.as_millis());
        let response = self.connection.post("/v1/acquire", "", body.as_bytes()).await?;
        if response.status != 200 || response.body.len() != RESPONSE_BYTES {
            return Err(Error::failed("unexpected response"));
        }
        Ok(Lease::new(key, "x".repeat(48), 0))
    }

    async fn release(&mut self, lease: Lease) -> Result<()> {
        let body = format!(r#"{{"lease_id":"{}"}}"#, lease.credential);
        match self.connection.post("/v1/release", "", body.as_bytes()).await?.status {
            200 => Ok(()),
            status => Err(Error::Failed(format!("status {status}"))),
        }
    }

    async fn acquire_many(&mut self, _keys: &[String], _ttl: Duration) -> Result<Vec<Lease>> {
        Err(Error::unsupported("stores nothing"))
    }
}
