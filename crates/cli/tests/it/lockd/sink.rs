//! A server for control runs: it accepts every request over mutual TLS, and does nothing for it.
//!
//! An attacker that talks to it uses the machine as it does during an attack: its threads, its handshakes, its requests
//! and bytes. A well-behaved client of another server then shows what the attacker's use of the processor alone costs.
//!
//! **What is absent.** Leases, a disk, limits. Every request is granted the same lease; a request that would wait gets no
//! response.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use frames::{Message, Settings};
use identity::{Denylist, ServerBundle, ServerTls, SharedDenylist};
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::exhaustion::http2;

/// The response to every request.
const GRANTED: &str = r#"{"lease_id":"L-00000000000000000000000000000001.1.AAAAAAAAAAAAAAAAAAAAAA"}"#;

/// A longer body gets its response after this many bytes, as one that the server refuses.
const BODY_MAX: u64 = 64 << 10;

/// A listening sink. Its threads end with their connections, and with the process of the test.
pub(crate) struct Sink {
    pub(crate) address: String,
}

impl Sink {
    /// Listens with the identity of a server.
    pub(crate) fn start(server_file: &Path) -> Sink {
        let text = std::fs::read_to_string(server_file).expect("made by the server");
        let bundle = ServerBundle::parse(&text).expect("sound");
        let denylist = Arc::new(SharedDenylist::new(Denylist::default()));
        let tls = ServerTls::new(&bundle, denylist, Arc::new(DefaultTimeProvider)).expect("sound");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut config = (*tls.config()).clone();
                config.alpn_protocols.clear();
                let config = Arc::new(config);
                std::thread::spawn(move || drop(answer(stream, config)));
            }
        });
        Sink { address }
    }
}

/// Serves one connection until its client closes it.
fn answer(stream: TcpStream, config: Arc<ServerConfig>) -> std::io::Result<()> {
    // The small writes of a handshake and a response would wait for each other, and the attacker with them.
    stream.set_nodelay(true)?;
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    if stream.fill_buf()?.starts_with(&frames::PREFACE[..1]) {
        return answer_frames(&mut stream);
    }
    loop {
        let Some(length) = read_head(&mut stream)? else {
            return http2::respond(&mut WithBuffer(&mut stream));
        };
        let mut body = String::new();
        (&mut stream).take(length.min(BODY_MAX)).read_to_string(&mut body)?;
        if !is_blocking(body.as_bytes()) {
            let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{GRANTED}", GRANTED.len());
            stream.get_mut().write_all(response.as_bytes())?;
        }
    }
}

/// The same for a connection with frames. A cancelled request that would wait is aborted.
fn answer_frames<S: Read + Write>(stream: &mut BufReader<S>) -> std::io::Result<()> {
    let mut received = Vec::new();
    let mut output = frames::PREFACE.to_vec();
    frames::encode_control(&mut output, &Message::Settings(Settings::DEFAULT));
    let mut waiting = BTreeSet::new();
    stream.read_exact(&mut [0; frames::PREFACE.len()])?;
    loop {
        while let Some((message, length)) = frames::parse(&received).map_err(std::io::Error::other)? {
            match message {
                Message::Request(request) if is_blocking(request.body) => {
                    waiting.insert(request.id);
                }
                Message::Request(request) => {
                    let encoded =
                        frames::encode_response(&mut output, request.id, 200, [], GRANTED.as_bytes());
                    encoded.map_err(std::io::Error::other)?;
                }
                Message::Cancel(id) if waiting.remove(&id) => {
                    frames::encode_control(&mut output, &Message::Aborted(id));
                }
                Message::Ping(number) => frames::encode_control(&mut output, &Message::Pong(number)),
                _ => {}
            }
            received.drain(..length);
        }
        stream.get_mut().write_all(&output)?;
        output.clear();
        let read = stream.fill_buf()?;
        if read.is_empty() {
            return Ok(());
        }
        let length = read.len();
        received.extend_from_slice(read);
        stream.consume(length);
    }
}

/// Whether a request would wait.
fn is_blocking(body: &[u8]) -> bool {
    const FIELD: &[u8] = b"block_seconds";
    body.windows(FIELD.len()).any(|part| part == FIELD)
}

/// Reads the head of a request. Returns the length of its body; nothing for HTTP/2.
fn read_head(stream: &mut impl BufRead) -> std::io::Result<Option<u64>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if line.starts_with("PRI ") {
            return Ok(None);
        }
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().map_err(std::io::Error::other)?;
        }
        if line == "\r\n" {
            return Ok(Some(length));
        }
    }
}

/// Reads what is buffered, and writes to the connection.
struct WithBuffer<'a, S>(&'a mut BufReader<S>);

impl<S: Read> Read for WithBuffer<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl<S: Read + Write> Write for WithBuffer<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.get_mut().flush()
    }
}
