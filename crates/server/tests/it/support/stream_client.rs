//! A client of the stream protocol, which sends what a test says and reads what comes.

use frames::{Field, Message, Method, RequestId};
use lockd_server::testing::Loopback;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::within;

pub(crate) struct StreamClient {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
    last_id: u32,
}

/// A frame of the server.
#[derive(Debug, PartialEq)]
pub(crate) enum Reply {
    Response {
        id: u32,
        status: u16,
        fields: Vec<(Field, String)>,
        body: Value,
    },
    Aborted(u32),
    GoAway(u32),
    Pong(u32),
    Settings {
        in_flight_max: u32,
    },
    /// The connection is closed.
    Closed,
}

impl Reply {
    /// The number and the body of a response with this status.
    pub(crate) fn expect(self, expected: u16) -> (u32, Value) {
        match self {
            Reply::Response { id, status, body, .. } if status == expected => (id, body),
            other => panic!("not a response with {expected}: {other:?}"),
        }
    }
}

impl StreamClient {
    /// Connects, and reads the preface and the settings of the server.
    pub(crate) async fn connect(server: &Loopback) -> StreamClient {
        let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
        stream.set_nodelay(true).expect("a TCP socket");
        stream.write_all(frames::PREFACE).await.expect("the server reads");
        let mut preface = [0; frames::PREFACE.len()];
        within("a preface", stream.read_exact(&mut preface)).await.expect("it is sent");
        assert_eq!(&preface, frames::PREFACE);
        let mut client = StreamClient { stream, received: Vec::new(), last_id: 0 };
        assert_eq!(client.receive().await, Reply::Settings { in_flight_max: frames::IN_FLIGHT_MAX });
        client
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the server reads");
    }

    pub(crate) async fn control(&mut self, message: Message<'_>) {
        let mut out = Vec::new();
        frames::encode_control(&mut out, &message);
        self.send(&out).await;
    }

    /// Sends a request, and returns its number.
    pub(crate) async fn post(&mut self, target: &str, body: &Value) -> u32 {
        self.request(Method::Post, target, &[], &body.to_string()).await
    }

    pub(crate) async fn request(
        &mut self,
        method: Method,
        target: &str,
        fields: &[(Field, &str)],
        body: &str,
    ) -> u32 {
        self.last_id += 1;
        let mut out = Vec::new();
        let fields = fields.iter().map(|(field, value)| (*field, value.as_bytes()));
        let id = RequestId(self.last_id);
        frames::encode_request(&mut out, id, method, target, fields, body.as_bytes()).expect("short");
        self.send(&out).await;
        self.last_id
    }

    /// Sends a request, and reads the next reply.
    pub(crate) async fn call(&mut self, target: &str, body: &Value) -> Reply {
        self.post(target, body).await;
        self.receive().await
    }

    /// The next frame of the server.
    pub(crate) async fn receive(&mut self) -> Reply {
        let reading = async {
            loop {
                if let Some(reply) = self.take() {
                    return reply;
                }
                if self.stream.read_buf(&mut self.received).await.unwrap_or(0) == 0 {
                    return Reply::Closed;
                }
            }
        };
        within("a frame", reading).await
    }

    fn take(&mut self) -> Option<Reply> {
        let (message, length) = frames::parse(&self.received).expect("a frame")?;
        let reply = match message {
            Message::Response(response) => Reply::Response {
                id: response.id.0,
                status: response.status,
                fields: response.fields.into_iter().map(|(field, value)| (field, text(value))).collect(),
                body: serde_json::from_slice(response.body).unwrap_or(Value::Null),
            },
            Message::Aborted(id) => Reply::Aborted(id.0),
            Message::GoAway(id) => Reply::GoAway(id.0),
            Message::Pong(number) => Reply::Pong(number),
            Message::Settings(settings) => Reply::Settings { in_flight_max: settings.in_flight_max },
            other @ (Message::Request(_) | Message::Cancel(_) | Message::Ping(_)) => {
                panic!("a server does not send this: {other:?}")
            }
        };
        self.received.drain(..length);
        Some(reply)
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8(value.to_vec()).expect("visible ASCII")
}
