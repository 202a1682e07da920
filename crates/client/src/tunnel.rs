//! Connections for programs that forward requests of others with this client's identity, as a local proxy does.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::Client;
use crate::connect::Socket;
use crate::error::Error;

/// A connection to a server, with the client's identity: HTTP/1.1, unless the client was built for HTTP/2.
pub struct Tunnel {
    socket: Socket,
    server: String,
}

impl Tunnel {
    /// The server's address.
    pub fn server(&self) -> &str {
        &self.server
    }
}

impl Client {
    /// Opens a connection of its own to the first server that can be reached. The program speaks HTTP on it.
    pub async fn tunnel(&self) -> Result<Tunnel, Error> {
        let (socket, endpoint) = self.servers.connect().await?;
        Ok(Tunnel { socket, server: endpoint.to_string() })
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
