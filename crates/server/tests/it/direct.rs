//! The most frequent calls bypass the router. Clients must not see a difference.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::Request;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use identity::Role;
use lockd_server::backend::shards::RequestLimits;
use lockd_server::http::connection::ConnectionService;
use lockd_server::peer::Peer;
use lockd_server::testing::TestClock;
use serde_json::{Value, json};

use crate::support::{Server, header};

/// Two servers get the same requests, one of them mounted in another program: their responses are the same bytes.
#[tokio::test]
async fn direct_calls_return_the_same_bytes_as_the_router() {
    let direct = Server::start_by(&TestClock::default());
    let mounted = Server::start_by(&TestClock::default()).mounted();
    let both = async |path: &str, headers: &[(&str, &str)], body: &str| -> Value {
        let mut one = direct.raw("POST", path, headers, body).await;
        let mut other = mounted.raw("POST", path, headers, body).await;
        // Set by the router; without it, by hyper when the response is written.
        for answer in [&mut one, &mut other] {
            answer.headers.remove("content-length");
        }
        assert_eq!((one.status, &one.headers), (other.status, &other.headers), "{path} {body}");
        assert_eq!(one.body, other.body, "{path} {body}");
        serde_json::from_slice(&one.body).expect("JSON")
    };
    let named = [header("x-correlation-id", "a name"), header("x-idempotency-key", "once")];
    let asked = r#"{"key":"k","owner":"ada","session_id":"s"}"#;
    let granted = both("/v1/acquire", &named, asked).await;
    assert_eq!(granted, both("/v1/acquire", &named, asked).await, "a retry");
    assert_eq!(both("/v1/acquire", &named, r#"{"key":"l"}"#).await["error"], "idempotency_mismatch");
    assert_eq!(both("/v1/acquire", &[], r#"{"key":"k","owner":"eve"}"#).await["error"], "waiting");
    let held = json!({"lease_id": granted["lease_id"], "key": "k"}).to_string();
    assert_eq!(both("/v1/keepalive", &named[..1], &held).await["remaining_ms"], 60_000);
    assert_eq!(both("/v1/release", &named[..1], &held).await["released"], true);
    assert_eq!(both("/v1/release", &[], &held).await["released"], true, "again");
    assert_eq!(both("/v1/keepalive", &[], &held).await["error"], "not_held");
    let long = format!(r#"{{"key":"long"{}}}"#, " ".repeat(20_000));
    assert_eq!(both("/v1/acquire", &[], &long).await["key"], "long", "by the router, since it is long");
    let mut counted = Vec::new();
    for server in [&direct, &mounted] {
        let text = String::from_utf8(server.unchecked("GET", "/metrics", &[], "").await.body).expect("text");
        let of_calls =
            |line: &&str| line.contains("http_requests_total{path=\"/v1") || line.contains("_refusals");
        let mut lines: Vec<String> = text.lines().filter(of_calls).map(str::to_string).collect();
        lines.sort();
        counted.push(lines);
    }
    assert_eq!(counted[0], counted[1]);
    assert!(
        counted[0].contains(&r#"lockd_http_requests_total{path="/v1/release",status="200"} 2"#.to_string())
    );
}

/// A body of known length that arrives in frames; an empty frame stands for a broken connection.
struct Pieces(Vec<&'static str>, u64);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.0.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.0.remove(0);
        self.1 -= piece.len() as u64;
        Poll::Ready(Some(match piece {
            "" => Err(std::io::ErrorKind::ConnectionReset.into()),
            piece => Ok(Frame::data(Bytes::from_static(piece.as_bytes()))),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.1)
    }
}

#[tokio::test]
async fn a_body_may_arrive_in_frames_and_must_arrive_completely() {
    let backend = lockd_server::testing::backend(RequestLimits::default());
    let service = ConnectionService::unauthenticated(
        &backend,
        Peer::anonymous(Role::Operator),
        Duration::from_secs(30),
    );
    for (pieces, wanted) in [
        (vec![r#"{"key":"a"}"#], "\"key\":\"a\""),
        (vec![r#"{"ke"#, r#"y":"#, r#""b"}"#], "\"key\":\"b\""),
        (vec![], "\"error\":\"invalid_body\""),
        (vec![r#"{"key":"#, ""], "\"error\":\"invalid_body\""),
        (vec![r#"{"key":"c"}"#, ""], "\"error\":\"invalid_body\""),
    ] {
        let length = pieces.iter().map(|piece| piece.len() as u64).sum();
        let request = Request::post("/v1/acquire").body(Pieces(pieces.clone(), length));
        let answer = service.handle(request.expect("a valid request")).await;
        let body = answer.into_body().collect().await.expect("it is sent whole").to_bytes();
        let body = String::from_utf8_lossy(&body);
        assert!(body.contains(wanted), "{pieces:?}: {body}");
    }
}
