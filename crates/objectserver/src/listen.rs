//! Listening on both loopback addresses, accepting connections, and ending all of it at once.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, mpsc};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::serve::{Ends, Shared, serve};

/// How often another free port is tried if the one found is taken on the other address.
const ATTEMPTS: usize = 16;

/// Listens on `127.0.0.1` and, where the machine has it, `[::1]`, at the same port.
pub(crate) fn bind_loopback(port: u16) -> io::Result<Vec<StdListener>> {
    let mut attempt = 0;
    loop {
        let first = StdListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let chosen = first.local_addr()?.port();
        match StdListener::bind((Ipv6Addr::LOCALHOST, chosen)) {
            Ok(second) => return Ok(vec![first, second]),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                attempt += 1;
                if port != 0 || attempt == ATTEMPTS {
                    return Err(error);
                }
            }
            Err(_) => return Ok(vec![first]),
        }
    }
}

/// Listens on addresses that were in use before.
pub(crate) fn bind_again(addresses: &[SocketAddr]) -> io::Result<Vec<StdListener>> {
    addresses.iter().map(StdListener::bind).collect()
}

/// Accepting connections. Ends, with all connections, when it is stopped.
#[derive(Debug)]
pub(crate) struct Listening {
    stop: watch::Sender<()>,
    /// Disconnected once the last listener is closed.
    closed: mpsc::Receiver<()>,
}

impl Listening {
    pub(crate) fn start(
        runtime: &Handle,
        shared: &Arc<Shared>,
        listeners: Vec<StdListener>,
    ) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(());
        let (open, closed) = mpsc::channel();
        let _guard = runtime.enter();
        for listener in listeners {
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            runtime.spawn(accept(Arc::clone(shared), listener, stopped.clone(), open.clone()));
        }
        Ok(Self { stop, closed })
    }

    /// Closes the listeners and all connections. Returns when new connections are refused.
    pub(crate) fn stop(self) {
        drop(self.stop);
        let _ = self.closed.recv();
    }
}

async fn accept(
    shared: Arc<Shared>,
    listener: TcpListener,
    mut stopped: watch::Receiver<()>,
    open: mpsc::Sender<()>,
) {
    let address = listener.local_addr().unwrap_or((IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0).into());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => break,
        };
        // An error concerns one connection that its client has already given up.
        if let Ok((stream, client)) = accepted {
            let connection =
                connection(Arc::clone(&shared), stream, Ends { client, address }, stopped.clone());
            tokio::spawn(connection);
        }
    }
    drop(listener);
    drop(open);
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, ends: Ends, mut stopped: watch::Receiver<()>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| serve(Arc::clone(&shared), ends, request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // An error is a client that went away, or a response that is withheld on purpose.
    tokio::select! {
        _ = connection => {}
        _ = stopped.changed() => {}
    }
}
