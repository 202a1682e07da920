//! Plain short calls are read without hyper, and everything else is left to it. A byte that the two understand differently
//! would be a way past a check: so the same bytes go to a server that does so and to one that leaves every request to hyper,
//! and the responses must be the same, byte for byte, but for the date and the order of headers.
//!
//! Every text ends with a request that closes the connection: where it is read as one, the texts before it ended where they
//! seem to. Both servers count their requests and refusals; the counters must be the same in the end.

mod texts;

use std::time::Duration;

use identity::Role;
use lockd_server::backend::shards::RequestLimits;
use lockd_server::http::listener::ConnectionLimits;
use lockd_server::settings::HostNames;
use lockd_server::testing::{Loopback, LoopbackOptions, TestClock, backend_with_clock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::within;

/// The timeouts of both servers: texts that are incomplete end with them.
const SHORT: Duration = Duration::from_millis(500);

/// The longest document, in bytes.
const DOCUMENT_MAX: u64 = 6000;

/// Texts are sent on so many pairs of servers at once, most of which wait for a timeout.
const LANES: usize = 8;

/// Two servers in the same state.
struct Pair {
    direct: Loopback,
    hyper: Loopback,
}

impl Pair {
    async fn start() -> Pair {
        let serve = async |only_hyper: bool| {
            let limits = RequestLimits { json_max: DOCUMENT_MAX, ..RequestLimits::default() };
            let backend = backend_with_clock(limits, &TestClock::default());
            let limits =
                ConnectionLimits { head_timeout: SHORT, stall_timeout: SHORT, ..ConnectionLimits::default() };
            let allowed_hosts = HostNames::default();
            let options = LoopbackOptions { role: Role::Worker, limits, allowed_hosts, only_hyper };
            Loopback::serving(backend, options).await
        };
        Pair { direct: serve(false).await, hyper: serve(true).await }
    }

    /// Sends the same to both, in these pieces to the first; returns the response.
    async fn compare(&self, pieces: &[&[u8]]) -> String {
        let whole = [&pieces.concat(), texts::LAST.as_bytes()].concat();
        let shown = String::from_utf8_lossy(&whole).into_owned();
        let (last, whole) = ([texts::LAST.as_bytes()], [whole.as_slice()]);
        let pieces_and_last = [pieces, &last].concat();
        let to_direct = responses(&self.direct, &pieces_and_last);
        let (one, other) = tokio::join!(to_direct, responses(&self.hyper, &whole));
        assert_eq!(
            one,
            other,
            "{shown:?} in pieces of {:?}",
            pieces.iter().map(|p| p.len()).collect::<Vec<_>>()
        );
        one
    }

    async fn assert_same_counters(&self) {
        let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let counters = async |server| {
            let text = responses(server, &[request]).await;
            let is_counter = |line: &&str| {
                let names = ["lockd_http_requests_total{", "lockd_refusals", "lockd_connections_"];
                names.iter().any(|name| line.starts_with(name))
            };
            text.lines().filter(is_counter).map(str::to_string).collect::<std::collections::BTreeSet<_>>()
        };
        let (one, other) = (counters(&self.direct).await, counters(&self.hyper).await);
        assert!(one.iter().any(|line| line.contains("/v1/acquire")), "{one:?}");
        assert_eq!(one, other);
    }
}

/// Everything that the server sends until it closes the connection, without dates, and with the headers in order.
async fn responses(server: &Loopback, pieces: &[&[u8]]) -> String {
    let mut stream = TcpStream::connect(server.address).await.expect("it listens");
    stream.set_nodelay(true).expect("a TCP socket");
    for (number, piece) in pieces.iter().enumerate() {
        if number > 0 && number + 1 < pieces.len() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // The server may close the connection before all of it is sent.
        let _ = stream.write_all(piece).await;
    }
    let mut bytes = Vec::new();
    let _ = within("the connection is closed", stream.read_to_end(&mut bytes)).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // Each part is the body of a response, and behind it the head of the next.
    let without_date = |part: &str| {
        let mut lines: Vec<&str> = part.split("\r\n").filter(|line| !line.starts_with("date: ")).collect();
        if let Some((_, headers)) = lines.split_first_mut() {
            headers.sort_unstable();
        }
        lines.join("\r\n")
    };
    text.split("\r\n\r\n").map(without_date).collect::<Vec<_>>().join("\r\n\r\n")
}

/// Runs the texts on all lanes.
async fn compare_all(texts: Vec<Vec<u8>>, cut: fn(&[u8]) -> Vec<&[u8]>) {
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..LANES {
        let texts: Vec<Vec<u8>> = texts.iter().skip(lane).step_by(LANES).cloned().collect();
        lanes.spawn(async move {
            let pair = Pair::start().await;
            for text in &texts {
                pair.compare(&cut(text)).await;
            }
            pair.compare(&[&texts::plain("counted")]).await;
            pair.assert_same_counters().await;
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane.expect("the same responses");
    }
}

fn whole(text: &[u8]) -> Vec<&[u8]> {
    vec![text]
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_sent_both_servers_answer_the_same() {
    compare_all(texts::all(), whole).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_calls_with_random_changes_are_answered_the_same() {
    compare_all(texts::changed_at_random(0x10cd, 600), whole).await;
}

/// What the responses are, where they decide something: that both are the same would not show that both are right.
#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_and_foreign_requests_are_refused_by_both() {
    let pair = Pair::start().await;
    for (to, wanted) in [
        ("content-length: 11\r\ncontent-length: 12\r\n", "HTTP/1.1 400"),
        ("content-length: +11\r\n", "HTTP/1.1 400"),
        ("content-length: 11\r\nhost : localhost\r\n", "HTTP/1.1 400"),
        ("content-length: 11\r\n folded\r\n", "HTTP/1.1 400"),
        ("content-length: 11\r\nhost: localhost\r\n", "more than once: header=host"),
        ("content-length: 11\r\nx-idempotency-key: a\r\nx-idempotency-key: b\r\n", "more than once"),
        ("content-length: 11\r\norigin: https://evil.example\r\n", "HTTP/1.1 403"),
        ("content-length: 11\r\nsec-fetch-site: cross-site\r\n", "HTTP/1.1 403"),
        ("content-length: 11\r\nx-correlation-id: \r\n", "HTTP/1.1 400"),
        ("content-length: 11\r\nx-correlation-id: c\r\n", "x-correlation-id: c\r\n"),
    ] {
        let text = texts::PLAIN.replace("content-length: 11\r\n", to);
        assert_ne!(text, texts::PLAIN);
        let response = pair.compare(&[text.as_bytes()]).await;
        assert!(response.contains(wanted), "{to:?}: {response}");
    }
    for (from, to) in [
        ("host: localhost\r\n", "host: evil.example\r\n"),
        ("content-type: application/json\r\n", "content-type: text/plain\r\n"),
        ("content-type: application/json\r\n", ""),
    ] {
        let response = pair.compare(&[texts::PLAIN.replace(from, to).as_bytes()]).await;
        assert!(response.starts_with("HTTP/1.1 40"), "{to:?}: {response}");
    }
}
