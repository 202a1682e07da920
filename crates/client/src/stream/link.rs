//! The stream connection to one server.
//!
//! **Invariant.** At most one connection is opened at a time, by a task of its own: a caller that stops waiting for it does not
//! take it from the others. Nothing of a request is sent before the server has sent its settings.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::watch;

use super::connection::{Connection, KeepAlive};
use super::{Reply, StreamFailure};
use crate::clock::BootTime;
use crate::connect::Connector;

/// For how long a server that speaks only HTTP is sent nothing else.
const HTTP_ONLY: Duration = Duration::from_secs(60);

/// The connection to a server, or what is known about that.
pub(crate) struct StreamLink {
    connector: Connector,
    timeout: Duration,
    state: Mutex<LinkState>,
}

enum LinkState {
    Closed,
    Opening(watch::Receiver<Option<Opened>>),
    Open(Connection),
    /// The server does not offer the protocol. It is offered again after this moment.
    HttpOnly(BootTime),
}

/// `None` if the server speaks only HTTP.
type Opened = Result<Option<Connection>, Arc<io::Error>>;

/// What a caller does.
enum Step {
    Use(Connection),
    Await(watch::Receiver<Option<Opened>>),
    UseHttp,
}

impl StreamLink {
    pub(crate) fn new(connector: Connector, timeout: Duration) -> Arc<StreamLink> {
        Arc::new(StreamLink { connector, timeout, state: Mutex::new(LinkState::Closed) })
    }

    /// Sends a request. `None` if it has to be sent over HTTP: nothing of it was sent.
    pub(crate) async fn exchange(self: &Arc<Self>, frame: &Bytes) -> Result<Option<Reply>, StreamFailure> {
        let mut is_repeated = false;
        loop {
            let Some(connection) = self.connection().await? else { return Ok(None) };
            match connection.exchange(frame).await {
                // As HTTP sends a request again whose connection was closed while it was idle.
                Err(StreamFailure::NotBegun) if !is_repeated => is_repeated = true,
                outcome => return outcome,
            }
        }
    }

    /// An open connection. `None` if the server speaks only HTTP.
    async fn connection(self: &Arc<Self>) -> Result<Option<Connection>, StreamFailure> {
        loop {
            let mut opening = match self.step() {
                Step::Use(connection) => return Ok(Some(connection)),
                Step::UseHttp => return Ok(None),
                Step::Await(opening) => opening,
            };
            // Without a result the task ended with its runtime: this caller has another one.
            if let Ok(opened) = opening.wait_for(Option::is_some).await {
                let opened = opened.clone().expect("it was waited for");
                return opened.map_err(StreamFailure::Connect);
            }
        }
    }

    fn step(self: &Arc<Self>) -> Step {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            LinkState::Open(connection) if connection.is_usable() => return Step::Use(connection.clone()),
            LinkState::HttpOnly(until) if !until.remaining().is_zero() => return Step::UseHttp,
            LinkState::Opening(opening) if opening.has_changed().is_ok() => {
                return Step::Await(opening.clone());
            }
            _ => {}
        }
        let (sender, opening) = watch::channel(None);
        *state = LinkState::Opening(opening.clone());
        let link = Arc::clone(self);
        tokio::spawn(async move {
            let opened = link.open().await;
            link.opened(&opened);
            sender.send_replace(Some(opened));
        });
        Step::Await(opening)
    }

    fn opened(&self, opened: &Opened) {
        let state = match opened {
            Ok(Some(connection)) => LinkState::Open(connection.clone()),
            Ok(None) => LinkState::HttpOnly(BootTime::now().after(HTTP_ONLY)),
            Err(_) => LinkState::Closed,
        };
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    async fn open(&self) -> Opened {
        let mut socket = self.connector.clone().open().await.map_err(Arc::new)?.into_inner();
        if self.connector.is_tls() && !socket.is_stream() {
            return Ok(None);
        }
        let greeting = tokio::time::timeout(self.timeout, super::connection::greet(&mut socket)).await;
        match greeting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(Some(greeting)) => {
                Ok(Some(Connection::start(socket.into_stream(), greeting, KeepAlive::DEFAULT)))
            }
            Err(error) if self.connector.is_tls() => Err(Arc::new(error)),
            // A server of HTTP may close the connection, or wait for the rest of a request.
            Ok(None) | Err(_) => Ok(None),
        }
    }
}
