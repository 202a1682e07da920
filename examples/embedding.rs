//! A program of its own that has lockd inside: its own pages, and lockd's API beside them on one port.
//!
//! `cargo run -p server --example embedding` starts it, takes a lease over HTTP as any client would, and stops.

use axum::routing::get;
use axum::{Extension, Router};
use identity::Role;
use server::peer::Peer;
use server::{Config, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A store in memory. `Config::in_folder("/var/lib/mine")` keeps it, and asks for certificates.
    let mut lockd = Server::new(Config::in_memory())?;

    // As a server of its own, on a port of its own:
    let address = lockd.start().await?;
    println!("lockd listens on its own port: {}", address.ip());

    // And as part of this program. Who is asking is for this program to say: here, everybody is one worker.
    let api = lockd.router().layer(Extension(Peer::anonymous(Role::Worker)));
    let app = Router::new().route("/", get(async || "my own page\n")).merge(api);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mine = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });

    println!("{}", ask(mine, "GET / HTTP/1.1", "").await?);
    println!("{}", ask(mine, "POST /v1/acquire HTTP/1.1", r#"{"key":"orders","ttl_seconds":30}"#).await?);
    // One store behind both: the other port knows the lease too.
    println!("{}", ask(address, "GET /v1/describe?key=orders HTTP/1.1", "").await?);

    lockd.shutdown().await;
    Ok(())
}

/// The first line and the last of an answer.
async fn ask(address: std::net::SocketAddr, line: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let head = format!("{line}\r\nhost: here\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let first = answer.lines().next().unwrap_or_default();
    Ok(format!("{line}: {first} {}", answer.lines().last().unwrap_or_default()))
}
