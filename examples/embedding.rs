//! Embeds lockd in another program: the program's own routes and lockd's API on one port.
//!
//! `cargo run -p lockd-server --example embedding` starts it, acquires a lease over HTTP, and stops.

use axum::routing::get;
use axum::{Extension, Router};
use identity::Role;
use lockd_server::peer::Peer;
use lockd_server::{Config, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // An in-memory store. `Config::in_directory("/var/lib/mine")` is durable, and requires certificates.
    let mut lockd = Server::new(Config::in_memory())?;

    // As a separate server on its own port:
    let address = lockd.start().await?;
    println!("lockd listens on its own port: {}", address.ip());

    // And as part of this program, which authenticates the callers: here, every caller is the same worker.
    let api = lockd.router().layer(Extension(Peer::anonymous(Role::Worker)));
    let app = Router::new().route("/", get(async || "the program's own page\n")).merge(api);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mine = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });

    println!("{}", send(mine, "GET / HTTP/1.1", "").await?);
    println!("{}", send(mine, "POST /v1/acquire HTTP/1.1", r#"{"key":"orders","ttl_seconds":30}"#).await?);
    // Both share one store: the other port shows the same lease.
    println!("{}", send(address, "GET /v1/describe?key=orders HTTP/1.1", "").await?);

    lockd.shutdown().await?;
    Ok(())
}

/// Sends a request, and returns the first and the last line of the response.
async fn send(address: std::net::SocketAddr, line: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let head = format!("{line}\r\nhost: here\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(head.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let first = response.lines().next().unwrap_or_default();
    Ok(format!("{line}: {first} {}", response.lines().last().unwrap_or_default()))
}
