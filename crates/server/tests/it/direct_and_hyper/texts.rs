//! Requests: plain, unusual, ambiguous and malformed ones.

/// A plain call.
pub(super) const PLAIN: &str = "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
    content-length: 11\r\nuser-agent: x/1\r\n\r\n{\"key\":\"a\"}";

/// The last request of every connection.
pub(super) const LAST: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// A request for a key.
pub(super) fn plain(key: &str) -> Vec<u8> {
    call("/v1/acquire", "", &format!("{{\"key\":\"{key}\"}}")).into_bytes()
}

/// A call with headers and a body.
fn call(target: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {target} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// All texts.
pub(super) fn all() -> Vec<Vec<u8>> {
    let changed = CHANGES.iter().map(|(from, to)| {
        let text = PLAIN.replacen(from, to, 1);
        assert_ne!(text, PLAIN, "{from}");
        text
    });
    let headers =
        HEADERS.iter().map(|header| call("/v1/acquire", &format!("{header}\r\n"), r#"{"key":"h"}"#));
    let targets = TARGETS.iter().map(|target| call(target, "x-lease-id: L-0.1.x\r\n", "{}"));
    let bodies = BODIES.iter().map(|body| call("/v1/acquire", "", body));
    let raw = RAW.iter().map(ToString::to_string);
    let texts = changed.chain(headers).chain(targets).chain(bodies).chain(raw).chain(of_lengths());
    let mut texts: Vec<Vec<u8>> = texts.map(String::into_bytes).collect();
    for byte in [0, 0x01, b'\t', 0x0b, 0x1f, 0x7f, 0x80, 0xe9, 0xff] {
        for at in ["/v1/acq", "host: local", "x/1", "content-len", "\"a"] {
            let at = PLAIN.find(at).expect("it is there") + at.len();
            texts.push([&PLAIN.as_bytes()[..at], &[byte], &PLAIN.as_bytes()[at..]].concat());
        }
    }
    texts
}

/// Replaced in the plain call, once.
const CHANGES: [(&str, &str); 58] = [
    ("POST ", "GET "),
    ("POST ", "PUT "),
    ("POST ", "HEAD "),
    ("POST ", "OPTIONS "),
    ("POST ", "CONNECT "),
    ("POST ", "post "),
    ("POST ", "POST  "),
    ("POST ", "POST\t"),
    ("POST ", " POST "),
    ("POST ", "\r\nPOST "),
    ("POST ", "\nPOST "),
    ("POST ", "\u{feff}POST "),
    (" HTTP/1.1", "  HTTP/1.1"),
    (" HTTP/1.1", " HTTP/1.1 "),
    (" HTTP/1.1", " HTTP/1.0"),
    (" HTTP/1.1", " HTTP/1.2"),
    (" HTTP/1.1", " HTTP/2.0"),
    (" HTTP/1.1", " http/1.1"),
    (" HTTP/1.1", ""),
    ("HTTP/1.1\r\n", "HTTP/1.1\n"),
    ("HTTP/1.1\r\n", "HTTP/1.1\r\r\n"),
    ("HTTP/1.1\r\n", "HTTP/1.1\r"),
    ("HTTP/1.1\r\n", "HTTP/1.1\r\n\r\n"),
    ("HTTP/1.1\r\n", "HTTP/1.1\r\n x: 1\r\n"),
    ("host: localhost\r\n", ""),
    ("host: localhost\r\n", "host: localhost\n"),
    ("host: localhost\r\n", "host: localhost\r\n folded\r\n"),
    ("host: localhost\r\n", "host: localhost\r\n\tfolded\r\n"),
    ("host: localhost\r\n", "host : localhost\r\n"),
    ("host: localhost\r\n", "host\t: localhost\r\n"),
    ("host: localhost\r\n", " host: localhost\r\n"),
    ("host: localhost\r\n", "host:localhost\r\n"),
    ("host: localhost\r\n", "HOST:\t localhost \t\r\n"),
    ("host: localhost\r\n", "host localhost\r\n"),
    ("host: localhost\r\n", ": localhost\r\nhost: localhost\r\n"),
    ("host: localhost\r\n", "host:\r\n"),
    ("localhost", "evil.example"),
    ("localhost", "localhost:9341"),
    ("localhost", "evil@localhost"),
    ("localhost", "localhost evil.example"),
    ("localhost", "localhost, evil.example"),
    ("localhost\r\n", "localhost\r\nhost: evil.example\r\n"),
    ("localhost\r\n", "localhost\r\nhost: localhost\r\n"),
    ("application/json", "text/plain"),
    ("application/json", "application/json; charset=utf-8"),
    ("application/json", "APPLICATION/JSON"),
    ("application/json", ""),
    ("content-type: application/json\r\n", ""),
    ("length: 11", "length: 11\r\ncontent-length: 11"),
    ("length: 11", "length: 11\r\ncontent-length: 2"),
    ("length: 11", "length: 11, 11"),
    ("length: 11", "length: 0000000011"),
    ("length: 11", "length: +11"),
    ("length: 11", "length: 0xb"),
    ("length: 11", "length: 1 1"),
    ("length: 11", "length: 5"),
    ("length: 11", "length: 12"),
    ("length: 11", "length: 99999999999999999999"),
];

/// Added to a plain call.
const HEADERS: [&str; 53] = [
    "content-type: application/json",
    "content-type: text/plain",
    "origin: https://evil.example",
    "origin: null",
    "origin: http://localhost",
    "sec-fetch-site: cross-site",
    "sec-fetch-site: same-origin",
    "x-lockd-forwarded: a",
    "x-lockd-shard: 0",
    "forwarded: for=1.2.3.4",
    "expect: 100-continue",
    "expect: 100-Continue",
    "expect: something",
    "connection: close",
    "connection: Close",
    "connection: keep-alive",
    "connection: Keep-Alive, Upgrade",
    "connection: x-lease-id",
    "connection: keep-alive\r\nconnection: close",
    "keep-alive: timeout=1",
    "upgrade: h2c",
    "connection: upgrade\r\nupgrade: h2c",
    "te: trailers",
    "trailer: x-lease-id",
    "content-encoding: gzip",
    "transfer-encoding: chunked",
    "transfer-encoding: Chunked",
    "transfer-encoding: identity",
    "transfer-encoding: xchunked",
    "transfer-encoding: chunked, identity",
    "transfer-encoding:\tchunked",
    "transfer-encoding : chunked",
    "transfer-encoding: chunked\r\ntransfer-encoding: identity",
    "accept: */*",
    "accept: */*\r\naccept: text/html",
    "accept-encoding: gzip, zstd",
    "cookie: a=b",
    "authorization: Bearer x",
    "x-idempotency-key: once",
    "x-idempotency-key: once\r\nX-Idempotency-Key: twice",
    "x-idempotency-key:",
    "x-correlation-id: \u{e9}",
    "x-correlation-id: a b",
    "X-Correlation-ID: a\r\nx-correlation-id: a",
    "x-correlation-id:   ",
    "x-correlation-id: a\tb",
    "x-lease-id: L-0.1.x",
    "x-fencing-token: 1",
    "x-if-version: 1\r\nx-if-version: 2",
    "x-if-state-etag:",
    "x_idempotency_key: once",
    "last-event-id: 1\r\nlast-event-id: 2",
    "x(y): 1",
];

/// Targets of a call with a credential and an empty document.
const TARGETS: [&str; 38] = [
    "/v1/acquire",
    "/v1/keepalive",
    "/v1/release",
    "/v1/acquire?",
    "/v1/acquire?include_state=1",
    "/v1/acquire?x=1",
    "/v1/acquire#fragment",
    "/v1/acquire/",
    "/v1//acquire",
    "//v1/acquire",
    "/v1/./acquire",
    "/v1/../v1/acquire",
    "/v1/%61cquire",
    "/v1/acquire%00",
    "/v1/acquire%20",
    "/v1/ACQUIRE",
    "/v1/acquire;x",
    "/v1/nothing",
    "/V1/acquire",
    "http://localhost/v1/acquire",
    "http://evil.example/v1/acquire",
    "https://localhost/v1/acquire",
    "localhost/v1/acquire",
    "*",
    "/v1/update_state",
    "/v1/update_state?",
    "/v1/update_state?key=a",
    "/v1/update-state?key=a",
    "/v1/update_state?key=a&key=b",
    "/v1/update_state?key=a#fragment",
    "/v1/update_state?key=a?b",
    "/v1/update_state?key=%00",
    "/v1/update_state?key=%ff",
    "/v1/update_state?key=%2",
    "/v1/update_state?key=a%0d%0ax:y",
    "/v1/update_state?key=<>\"{}|\\^`",
    "/v1/update_state?key=a&namespace=other&release=1",
    "/v1/update_state?key=a&unknown=1",
];

/// Bodies of a plain call.
const BODIES: [&str; 9] = [
    "",
    "{",
    "null",
    "{\"key\":\"b\"} ",
    "{\"key\":\"b\"}{\"key\":\"c\"}",
    "{\"key\":\"b\",\"key\":\"c\"}",
    "{\"key\":\"b\",\"unknown\":1}",
    "{\"key\":\"\\ud800\"}",
    "{\"key\":\"b\",\"ttl_seconds\":1e3}",
];

/// Texts that are several requests, or none.
const RAW: [&str; 16] = [
    "",
    "\r\n",
    "\r\n\r\n",
    "hello\r\n\r\n",
    "POST /v1/acquire\r\n\r\n",
    "POST /v1/",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\u{16}\u{3}\u{1}\u{2}\u{0}",
    // The length says six bytes, the encoding none, and the rest is the beginning of another request.
    "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 6\r\n\
     transfer-encoding: chunked\r\n\r\n0\r\n\r\nG",
    "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
     transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\nb\r\n{\"key\":\"t\"}\r\n0\r\n\r\n",
    "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
     transfer-encoding: chunked\r\n\r\nb;x=y\r\n{\"key\":\"t\"}\r\n0\r\nx-lease-id: 1\r\n\r\n",
    "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
     transfer-encoding: chunked\r\n\r\nB\n{\"key\":\"t\"}\n0\n\n",
    "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 11\n\n\
     {\"key\":\"n\"}",
    "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n",
    // A plain call, an empty line, and another one.
    "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n\
     {\"key\":\"p\"}\r\nPOST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
     content-length: 11\r\n\r\n{\"key\":\"q\"}",
    // A plain call, and another one whose end it does not say.
    "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n\
     {\"key\":\"r\"}POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\r\n",
];

/// Heads and bodies about as long as each limit, and many headers.
fn of_lengths() -> impl Iterator<Item = String> {
    let heads = [3000, 3960, 3968, 3976, 3984, 3992, 4000, 4096, 5000, 60_000].map(|length| {
        let header = format!("user-agent: {}\r\n", "x".repeat(length));
        call("/v1/acquire", &header, r#"{"key":"l"}"#)
    });
    let bodies = [16_383, 16_384, 16_385, 70_000].map(|length: usize| {
        let object = r#"{"key":"m"}"#;
        let body = format!("{object}{}", " ".repeat(length - object.len()));
        call("/v1/acquire", "", &body)
    });
    // Longer than a document may be, but for the spaces, which do not count.
    let documents = [5999, 6000, 6001, 16_000].map(|length| {
        let body = format!("{:length$}", "{}");
        call("/v1/update_state?key=a", "x-lease-id: L-0.1.x\r\n", &body)
    });
    let both =
        call("/v1/acquire", &format!("user-agent: {}\r\n", "x".repeat(3950)), &format!("{:16384}", "{}"));
    let many = [99, 100, 101].map(|count| call("/v1/acquire", &"x: 1\r\n".repeat(count), r#"{"key":"n"}"#));
    let long = [256, 257].map(|length| {
        let header = format!("x-correlation-id: {}\r\n", "c".repeat(length));
        call("/v1/acquire", &header, r#"{"key":"o"}"#)
    });
    let several: String = (0..30).map(|n| call("/v1/acquire", "", &format!(r#"{{"key":"s{n}"}}"#))).collect();
    heads.into_iter().chain(bodies).chain(documents).chain([both, several]).chain(many).chain(long)
}

/// Plain calls in which a few bytes are removed, replaced or added, or lines repeated or exchanged.
pub(super) fn changed_at_random(seed: u64, count: usize) -> Vec<Vec<u8>> {
    let mut random = Random(seed);
    (0..count)
        .map(|number| {
            let mut text = plain(&format!("r{number}"));
            for _ in 0..=random.below(3) {
                random.change(&mut text);
            }
            text
        })
        .collect()
}

/// The same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }

    fn change(&mut self, text: &mut Vec<u8>) {
        const BYTES: &[u8] = b"\r\n\t :;,/?#%=&\0\x7f\x80\xff019aAzZ-_.{}\"";
        const PARTS: [&str; 8] = [
            "\r\n",
            "\r\n\r\n",
            "\n",
            "content-length: 3\r\n",
            "transfer-encoding: chunked\r\n",
            "x-lease-id: a\r\n",
            "host: localhost\r\n",
            "GET /healthz HTTP/1.1\r\n",
        ];
        let at = self.below(text.len());
        match self.below(5) {
            0 => drop(text.remove(at)),
            1 => text[at] = BYTES[self.below(BYTES.len())],
            2 => text.insert(at, BYTES[self.below(BYTES.len())]),
            3 => drop(text.splice(at..at, PARTS[self.below(PARTS.len())].bytes())),
            _ => {
                let mut lines: Vec<Vec<u8>> =
                    text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
                let (one, other) = (self.below(lines.len()), self.below(lines.len()));
                lines.insert(one, lines[other].clone());
                *text = lines.concat();
            }
        }
    }
}
