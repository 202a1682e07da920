//! Attacks by a web page through a user's browser, against the real binary: with `--mtls=false`, where every client of
//! the machine is an operator, on the Unix socket, and over mTLS with a certificate in the browser.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::lockd::attacks::World;
use crate::lockd::serve::Running;

const DEADLINE: Duration = Duration::from_secs(60);

/// Sends a request on a connection of its own; the status and the body.
fn send(stream: impl Read + Write, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = stream;
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).expect("it listens");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("a response");
    let response = String::from_utf8(response).expect("text");
    let status = response.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = response.split_once("\r\n\r\n").map(|(_, body)| body.to_string());
    (status.expect("a status"), body.expect("a body"))
}

fn plain(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(&server.address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("an open socket");
    stream
}

/// Any web page could pause every client of a server without mTLS and revoke all leases with a form post, and read all of
/// it after its name was rebound to 127.0.0.1: neither `Host`, `Origin`, `Sec-Fetch-Site` nor the body's type was checked.
#[test]
fn a_web_page_cannot_use_a_server_without_mtls() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["--mtls=false", "--store", "mem://", "--allowed-hosts", "lockd.internal"];
    let server = Running::start(dir.path(), &args);
    let own = format!("host: {}\r\n", server.address);
    let port = server.address.rsplit(':').next().expect("a port");
    let json = "content-type: application/json\r\n";
    let pause = r#"{"identity":"anonymous","paused":true}"#;
    let ask = |method: &str, path: &str, headers: &str, body: &str| {
        send(plain(&server), method, path, headers, body)
    };
    let forged = "sec-fetch-site: cross-site\r\n";
    for (headers, status, hint) in [
        // Cross-site request forgery, as browsers of all ages send it.
        (
            format!("{own}origin: https://evil.example\r\ncontent-type: text/plain\r\n{forged}"),
            400,
            "Content-Type",
        ),
        (format!("{own}origin: https://evil.example\r\n{json}"), 403, "origin=https://evil.example"),
        (format!("{own}origin: null\r\n{json}"), 403, "origin=null"),
        (format!("{own}origin: http://localhost:1\r\n{json}"), 403, "origin=http://localhost:1"),
        (format!("{own}{forged}{json}"), 403, "cross-site"),
        (format!("{own}content-type: text/plain\r\n"), 400, "-H 'Content-Type: application/json'"),
        (format!("{own}content-type: application/x-www-form-urlencoded\r\n"), 400, "application/json"),
        (own.clone(), 400, "content_type=none"),
        // DNS rebinding: to the browser it is the same origin.
        (format!("host: evil.example\r\norigin: http://evil.example\r\n{json}"), 403, "host=evil.example"),
        (format!("host: evil.example:{port}\r\n{json}"), 403, "--allowed-hosts"),
        (format!("{own}host: evil.example\r\n{json}"), 403, "host=evil.example"),
    ] {
        let (got, text) = ask("POST", "/v1/pause", &headers, pause);
        assert!(got == status && text.contains(hint), "{headers}: {got} {text}");
    }
    for path in ["/v1/leases", "/v1/quotas", "/metrics", "/healthz"] {
        assert_eq!(ask("GET", path, "host: evil.example\r\n", "").0, 403, "{path}");
        assert_eq!(ask("GET", path, &format!("{own}{forged}"), "").0, 403, "{path}");
    }
    assert_eq!(ask("POST", "/v1/revoke", &format!("{own}{forged}"), "").0, 403, "without a body");
    // Nobody was paused, and programs on this machine are let in by any name of it.
    for host in [
        server.address.clone(),
        format!("localhost:{port}"),
        format!("[::1]:{port}"),
        "lockd.internal".to_string(),
        system::host_name(),
    ] {
        let headers = format!("host: {host}\r\ncontent-type: application/json; charset=utf-8\r\n");
        let body = format!(r#"{{"key":"{host}"}}"#);
        let (status, text) = ask("POST", "/v1/acquire", &headers, &body);
        assert_eq!(status, 200, "{host}: {text}");
    }
    let origin = format!("{own}origin: http://{}\r\nsec-fetch-site: same-origin\r\n{json}", server.address);
    assert_eq!(ask("POST", "/v1/acquire", &origin, r#"{"key":"own"}"#).0, 200, "its own page");
}

/// The same posts worked over mTLS from a browser with an operator's certificate, and would through a proxy to the socket.
#[test]
fn a_web_page_of_another_origin_is_refused_over_mtls_and_on_the_socket() {
    let world = World::start();
    let mut operator = world.client("boss", &["--role", "operator", "--namespace", "*:rw"]);
    let body = r#"{"identity":"boss"}"#;
    for headers in ["origin: https://evil.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"]
    {
        let (status, text) = operator.send("POST", "/v1/revoke", headers, body);
        assert!(status == 403 && text.contains("a web page of another"), "{headers}: {text}");
    }
    // curl sends a form's type, and that goes on working: a page cannot get this far.
    for headers in ["", "content-type: application/x-www-form-urlencoded\r\n", "origin: https://lockd\r\n"] {
        assert_eq!(operator.send("POST", "/v1/revoke", headers, body).0, 200, "{headers}");
    }

    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let args = ["--mtls=false", "--store", "mem://", "--unix", socket.to_str().expect("text")];
    let _server = Running::start(dir.path(), &args);
    let connect = || {
        let stream = UnixStream::connect(&socket).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("an open socket");
        stream
    };
    let foreign = "host: lockd\r\norigin: https://evil.example\r\n";
    assert_eq!(send(connect(), "POST", "/v1/revoke", foreign, body).0, 403);
    assert_eq!(send(connect(), "POST", "/v1/revoke", "host: lockd\r\n", body).0, 200, "as curl sends it");
}
