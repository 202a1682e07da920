//! The stream protocol: when it is used, and which retry follows each failure. Against a server that follows a script.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use frames::{Field, Message, PREFACE, RequestId, Settings, encode_control, encode_response, parse};
use identity::{Denylist, Role, ServerBundle, ServerTls, SharedDenylist};
use lockd_client::{AcquireOptions, Client, Kind, StreamProtocol};
use lockd_server::testing::Loopback;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;

use crate::common::{MtlsServer, Protocol, until_waiters, unused_address};

use Reply::{Abort, Break, GoAway, Hold, Malformed, Refuse, Respond};

const RELEASED: &str = r#"{"released":true}"#;

/// What the server does with one request in a frame.
#[derive(Clone, Copy, Debug)]
enum Reply {
    Respond,
    Refuse(u16, &'static str),
    Abort,
    /// Closes the connection.
    Break,
    /// Goes away without beginning the request.
    GoAway,
    Malformed,
    /// No reply, and the connection stays open.
    Hold,
}

/// A server of frames and HTTP without TLS.
struct Scripted {
    address: SocketAddr,
    state: Arc<ScriptedState>,
}

struct ScriptedState {
    script: Mutex<VecDeque<Reply>>,
    in_flight_max: u32,
    speaks_frames: bool,
    /// The idempotency keys of the requests in frames.
    keys: Mutex<Vec<String>>,
    /// How many connections began with the preface, and how many requests were sent over HTTP.
    prefaces: AtomicUsize,
    over_http: AtomicUsize,
}

impl Scripted {
    /// When the script is at its end, each request is carried out.
    async fn start(script: &[Reply]) -> Scripted {
        Scripted::with(script, Settings::DEFAULT.in_flight_max, true).await
    }

    async fn with(script: &[Reply], in_flight_max: u32, speaks_frames: bool) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(ScriptedState {
            script: Mutex::new(script.to_vec().into()),
            in_flight_max,
            speaks_frames,
            keys: Mutex::default(),
            prefaces: AtomicUsize::new(0),
            over_http: AtomicUsize::new(0),
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                tokio::spawn(async move { state.serve(socket).await });
            }
        });
        Scripted { address, state }
    }

    fn client(&self, protocol: StreamProtocol) -> Client {
        let builder = Client::builder().plain().endpoint(self.address.to_string()).stream(protocol);
        builder.build().expect("valid")
    }

    fn keys(&self) -> Vec<String> {
        self.state.keys.lock().expect("no panic").clone()
    }

    /// Connections with a preface, and requests over HTTP.
    fn counts(&self) -> (usize, usize) {
        let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        (count(&self.state.prefaces), count(&self.state.over_http))
    }
}

impl ScriptedState {
    async fn serve(&self, mut socket: TcpStream) -> Option<()> {
        let mut first = [0; 8];
        socket.read_exact(&mut first).await.ok()?;
        if first != *PREFACE {
            return self.serve_http(socket, first.to_vec()).await;
        }
        self.prefaces.fetch_add(1, Ordering::SeqCst);
        if !self.speaks_frames {
            return socket.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").await.ok();
        }
        let mut out = PREFACE.to_vec();
        let settings = Settings { in_flight_max: self.in_flight_max, ..Settings::DEFAULT };
        encode_control(&mut out, &Message::Settings(settings));
        socket.write_all(&out).await.ok()?;
        let mut input = Vec::new();
        loop {
            let mut out = Vec::new();
            while let Some((message, length)) = parse(&input).expect("well-formed") {
                if let Message::Request(request) = message {
                    let key = request.fields.get(Field::IdempotencyKey).unwrap_or_default();
                    self.keys.lock().expect("no panic").push(String::from_utf8_lossy(key).into_owned());
                    self.reply(request.id, &mut out)?;
                }
                input.drain(..length);
            }
            socket.write_all(&out).await.ok()?;
            socket.read_buf(&mut input).await.ok().filter(|read| *read > 0)?;
        }
    }

    /// `None` closes the connection.
    fn reply(&self, id: RequestId, out: &mut Vec<u8>) -> Option<()> {
        let reply = self.script.lock().expect("no panic").pop_front().unwrap_or(Respond);
        let respond = |out: &mut Vec<u8>, status: u16, body: &str| {
            encode_response(out, id, status, [], body.as_bytes()).expect("short");
        };
        match reply {
            Respond => respond(out, 200, RELEASED),
            Refuse(status, code) => {
                respond(out, status, &format!(r#"{{"error":"{code}","detail":""}}"#));
            }
            Abort => encode_control(out, &Message::Aborted(id)),
            Break => return None,
            GoAway => encode_control(out, &Message::GoAway(RequestId(id.0 - 1))),
            Malformed => out.extend_from_slice(b"HTTP/1.1 200 OK\r\n"),
            Hold => {}
        }
        Some(())
    }

    async fn serve_http(&self, mut socket: TcpStream, mut input: Vec<u8>) -> Option<()> {
        loop {
            let text = String::from_utf8_lossy(&input).into_owned();
            let whole = text.split_once("\r\n\r\n").filter(|(head, body)| {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                length.is_none_or(|length| body.len() >= length.parse().expect("a number"))
            });
            if whole.is_some() {
                self.over_http.fetch_add(1, Ordering::SeqCst);
                input.clear();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", RELEASED.len());
                socket.write_all(format!("{head}{RELEASED}").as_bytes()).await.ok()?;
            }
            socket.read_buf(&mut input).await.ok().filter(|read| *read > 0)?;
        }
    }
}

#[tokio::test]
async fn short_calls_share_one_connection_and_the_others_are_sent_over_http() {
    let server = Scripted::start(&[]).await;
    let client = server.client(StreamProtocol::Always);
    for _ in 0..3 {
        client.release("L-1.x").await.expect("released");
    }
    assert_eq!(server.counts(), (1, 0));
    let _ = client.leases(None, None).await;
    assert_eq!(server.counts(), (1, 1), "a list");
}

/// Without TLS nothing is offered: the client has to choose it.
#[tokio::test]
async fn without_tls_http_is_the_default() {
    for protocol in [StreamProtocol::IfOffered, StreamProtocol::Never] {
        let server = Scripted::start(&[]).await;
        server.client(protocol).release("L-1.x").await.expect("released");
        assert_eq!(server.counts(), (0, 1));
    }
}

#[tokio::test]
async fn a_server_that_refuses_the_preface_is_sent_http_and_not_asked_again() {
    let server = Scripted::with(&[], 200, false).await;
    let client = server.client(StreamProtocol::Always);
    for _ in 0..3 {
        client.release("L-1.x").await.expect("over HTTP");
    }
    assert_eq!(server.counts(), (1, 3));
}

/// Whether the request was carried out is not known after all but the last two: it keeps its key.
#[tokio::test]
async fn a_request_without_a_response_is_retried_under_its_key() {
    for failure in [Abort, Break, Malformed, Refuse(503, "draining"), GoAway] {
        let server = Scripted::start(&[failure]).await;
        server.client(StreamProtocol::Always).release("L-1.x").await.expect("the second attempt");
        let keys = server.keys();
        assert_eq!((keys.len(), &keys[0]), (2, &keys[1]), "{failure:?}");
        assert!(!keys[0].is_empty());
    }
}

#[tokio::test]
async fn a_change_without_a_response_is_indeterminate_unless_it_was_not_begun() {
    for (failure, kind) in
        [(Abort, Kind::Indeterminate), (Break, Kind::Indeterminate), (GoAway, Kind::Unavailable)]
    {
        let server = Scripted::start(&[failure; 20]).await;
        let error = server.client(StreamProtocol::Always).release("L-1.x").await.expect_err("no response");
        assert_eq!(error.kind(), kind, "{failure:?}: {error}");
        let server = Scripted::start(&[failure; 20]).await;
        let error = server.client(StreamProtocol::Always).fence("a", None, 1).await.expect_err("no response");
        assert_eq!(error.kind(), Kind::Unavailable, "a read changes nothing: {failure:?}: {error}");
    }
}

#[tokio::test]
async fn a_refusal_is_that_of_http() {
    let server = Scripted::start(&[Refuse(409, "not_held"), Refuse(403, "forbidden")]).await;
    let client = server.client(StreamProtocol::Always);
    for kind in [Kind::Fenced, Kind::Denied] {
        assert_eq!(client.release("L-1.x").await.expect_err("refused").kind(), kind);
    }
    assert_eq!(server.keys().len(), 2, "a refusal is final");
}

#[tokio::test]
async fn a_request_beyond_those_in_flight_goes_over_http_and_a_timeout_is_indeterminate() {
    let server = Scripted::with(&[Hold, Hold], 3, true).await;
    let builder = Client::builder().plain().endpoint(server.address.to_string()).tries(1);
    let builder = builder.answer_timeout(Duration::from_millis(400));
    let builder = builder.connect_timeout(Duration::from_millis(400)).stream(StreamProtocol::Always);
    let client = builder.build().expect("valid");
    let waiting = [0, 1].map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.release("L-1.x").await })
    });
    while server.keys().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.release("L-2.x").await.expect("over HTTP");
    assert_eq!(server.counts(), (1, 1));
    for waiting in waiting {
        let error = waiting.await.expect("no panic").expect_err("no response");
        assert_eq!(error.kind(), Kind::Indeterminate, "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_gone_is_unavailable() {
    let address = unused_address().await;
    let builder = Client::builder().plain().endpoint(address.to_string()).stream(StreamProtocol::Always);
    let error = builder.build().expect("valid").release("L-1.x").await.expect_err("no server");
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("no server listens there"), "{error}");
}

/// TLS of a lockd that knows no stream protocol, before a server of HTTP. Counts connections.
async fn only_http(server: &MtlsServer) -> (SocketAddr, Arc<AtomicUsize>, Loopback) {
    let identity = server.identity_file().with_file_name("server.pem");
    let bundle = ServerBundle::parse(&std::fs::read_to_string(identity).expect("made by the server"));
    let denylist = Arc::new(SharedDenylist::new(Denylist::default()));
    let tls = ServerTls::new(&bundle.expect("sound"), denylist, Arc::new(DefaultTimeProvider));
    let mut config = (*tls.expect("sound").config()).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let (acceptor, plain) = (TlsAcceptor::from(Arc::new(config)), Loopback::start(Role::Operator).await);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let (address, upstream) = (listener.local_addr().expect("bound"), plain.address);
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut near = acceptor.accept(socket).await.ok()?;
                let mut far = TcpStream::connect(upstream).await.expect("the server listens");
                tokio::io::copy_bidirectional(&mut near, &mut far).await.ok()
            });
        }
    });
    (address, connections, plain)
}

#[tokio::test]
async fn a_server_that_does_not_offer_it_is_sent_http_and_not_asked_again() {
    let server = MtlsServer::start(Protocol::Stream).await;
    let (address, connections, _plain) = only_http(&server).await;
    let client = server.client_at(address);
    for _ in 0..3 {
        client.whoami().await.expect("over HTTP");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 2, "one that offers the protocol, one of HTTP");
}

/// More callers than a connection takes: none waits for another, and all are cancelled when they are dropped.
#[tokio::test]
async fn a_renewal_does_not_wait_behind_hundreds_of_waiters() {
    const EACH: u64 = 77;
    let server = MtlsServer::start(Protocol::Stream).await;
    let (client, observer) = (server.client(), server.client());
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for key in ["a", "b", "c"] {
        held.push(observer.acquire(key, &AcquireOptions::default()).await.expect("free"));
        let options = AcquireOptions { block: Duration::from_secs(60), ..AcquireOptions::default() };
        for _ in 0..EACH {
            let (client, options) = (client.clone(), options.clone());
            waiting.push(tokio::spawn(async move { client.acquire(key, &options).await.map(drop) }));
        }
    }
    for key in ["a", "b", "c"] {
        until_waiters(&observer, key, EACH).await;
    }
    client.keepalive(held[0].credential(), None).await.expect("it does not wait behind the waiters");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    for key in ["a", "b", "c"] {
        until_waiters(&observer, key, 0).await;
    }
    client.whoami().await.expect("the connection goes on");
}
