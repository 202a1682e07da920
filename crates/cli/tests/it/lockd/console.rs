//! `lockc console`, `lockc top` and `lockd auth export`, against a real server with certificates on both sides.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::lockd::attacks::World;
use crate::terminal;

const DEADLINE: Duration = Duration::from_secs(60);

/// A running `lockc console`.
struct Proxy {
    child: Child,
    address: String,
    token: String,
}

impl Proxy {
    fn start(world: &World, identity: &Path) -> Proxy {
        Proxy::of(&mut lockc(world, identity, &["console", "--output", "json"]))
    }

    fn of(command: &mut Command) -> Proxy {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let printed: Value = serde_json::from_str(&line).expect(&line);
        let url = printed["url"].as_str().expect("a link").strip_prefix("http://").expect("plain HTTP");
        let (address, token) = url.split_once("/ui/#token=").expect("the token is in the fragment");
        Proxy { child, address: address.to_string(), token: token.to_string() }
    }

    /// Status, head and body of the response to a request on a connection of its own.
    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("an open socket");
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).expect("it listens");
        let mut response = Vec::new();
        stream.read_to_end(&mut response).expect("a response");
        let response = String::from_utf8_lossy(&response).into_owned();
        let status = response.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        (status, head.to_ascii_lowercase(), body.to_string())
    }

    fn host(&self) -> String {
        format!("host: {}\r\n", self.address)
    }

    /// Exchanges the token: the header of the session.
    fn session(&self) -> String {
        let (status, _, body) =
            self.send("POST", "/session", &format!("{}x-console-token: {}\r\n", self.host(), self.token), "");
        assert_eq!(status, 200, "{body}");
        let session: Value = serde_json::from_str(&body).expect("JSON");
        format!("x-console-session: {}\r\n", session["session"].as_str().expect("a session"))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lockc(world: &World, identity: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockc"));
    command.args(args).arg("-s").arg(&world.server.address).arg("-i").arg(identity);
    command.env("XDG_STATE_HOME", world.directory()).env_remove("LOCKD_CLIENT_SERVER");
    command
}

#[test]
fn the_proxy_lends_the_callers_identity_to_its_session_only() {
    let world = World::start();
    let identity = world.issue("ada.pem", "ada", &["--role", "operator", "--namespace", "*:rwp"]);
    let proxy = Proxy::start(&world, &identity);
    let own = proxy.host();
    let (status, head, body) = proxy.send("GET", "/ui/", &own, "");
    assert!(status == 200 && body.starts_with("<!doctype html>"), "{head}");
    assert!(head.contains("content-security-policy: default-src 'self'"), "{head}");
    assert_eq!(proxy.send("GET", "/v1/whoami", &own, "").0, 401);
    let session = proxy.session();
    let (status, _, body) = proxy.send("GET", "/v1/whoami", &format!("{own}{session}"), "");
    let me: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, &me["identity"], &me["role"]), (200, &Value::from("ada"), &Value::from("operator")));
    let page = format!("origin: http://{}\r\nsec-fetch-site: same-origin\r\n", proxy.address);
    let json = "content-type: application/json\r\n";
    let acquire = |headers: &str| proxy.send("POST", "/v1/acquire", headers, r#"{"key":"k"}"#);
    assert_eq!(acquire(&format!("{own}{session}{page}{json}")).0, 200, "as the page sends it");

    // The link was used; another browser gets no session with it.
    let again = format!("{own}x-console-token: {}\r\n", proxy.token);
    let (status, _, body) = proxy.send("POST", "/session", &again, "");
    assert!(status == 401 && body.contains("used before"), "{body}");
}

/// Any page of any site can send requests to 127.0.0.1, and a name can be made to resolve to it.
#[test]
fn the_proxy_refuses_other_hosts_and_other_pages() {
    let world = World::start();
    let identity = world.issue("ada.pem", "ada", &["--role", "operator", "--namespace", "*:rwp"]);
    let proxy = Proxy::start(&world, &identity);
    let (own, session) = (proxy.host(), proxy.session());
    let port = proxy.address.rsplit(':').next().expect("a port");
    for headers in [
        format!("host: evil.example:{port}\r\n{session}"),
        format!("host: 127.0.0.1\r\n{session}"),
        session.clone(),
        format!("{own}{session}origin: http://evil.example\r\n"),
        format!("{own}{session}origin: null\r\n"),
        format!("{own}{session}sec-fetch-site: cross-site\r\n"),
    ] {
        let (status, _, body) = proxy.send("POST", "/v1/revoke", &headers, r#"{"identity":"ada"}"#);
        assert!(status == 403 || status == 400, "{headers}: {status} {body}");
    }
    assert_eq!(proxy.send("GET", "/v1/whoami", &format!("{own}{session}"), "").0, 200);
}

/// The stream of events must arrive event by event, and a server that is gone must be said to be gone.
#[test]
fn the_proxy_streams_and_says_when_the_server_is_gone() {
    let world = World::start();
    let identity = world.issue("ada.pem", "ada", &["--namespace", "*:rw"]);
    let proxy = Proxy::start(&world, &identity);
    let (own, session) = (proxy.host(), proxy.session());
    let mut stream = TcpStream::connect(&proxy.address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("an open socket");
    stream
        .write_all(format!("GET /v1/events HTTP/1.1\r\n{own}{session}\r\n").as_bytes())
        .expect("it listens");
    let mut lines = BufReader::new(stream).lines();
    let mut next = |wanted: &str| {
        let mut all = lines.by_ref().map_while(Result::ok);
        assert!(all.any(|line| line.contains(wanted)), "{wanted}");
    };
    next("200 OK");
    next(":");
    world.connect(&identity).send("POST", "/v1/acquire", "", r#"{"key":"streamed"}"#);
    next("streamed");
    world.server.signal(rustix::process::Signal::KILL);
    let (status, _, body) = proxy.send("GET", "/v1/whoami", &format!("{own}{session}"), "");
    assert!(status == 503 && body.contains("\"unavailable\""), "{status} {body}");
}

#[test]
fn a_server_without_the_console_is_reported() {
    let world = World::start_with(&["--store", "mem://", "--ui=false"]);
    let identity = world.issue("ada.pem", "ada", &[]);
    let ran = lockc(&world, &identity, &["console"]).output().expect("the program");
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(2) && stderr.contains("--ui is false"), "{stderr}");
    let mut client = world.connect(&identity);
    assert_eq!(client.send("GET", "/ui/", "", "").0, 404);
    assert_eq!(client.send("GET", "/v1/whoami", "", "").0, 200);
}

/// The proxy named the host `lockd`, which a server without mTLS refuses: it is no name of its machine.
#[test]
fn the_proxy_works_without_mtls() {
    let world = World::start_with(&["--store", "mem://", "--mtls=false"]);
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockc"));
    command.args(["console", "--output", "json", "-s"]).arg(format!("http://{}", world.server.address));
    let proxy = Proxy::of(command.env("XDG_STATE_HOME", world.directory()));
    let (own, session) = (proxy.host(), proxy.session());
    let json = "content-type: application/json\r\n";
    let (status, _, body) =
        proxy.send("POST", "/v1/acquire", &format!("{own}{session}{json}"), r#"{"key":"k"}"#);
    assert_eq!(status, 200, "{body}");
}

#[test]
fn top_prints_once_for_programs_and_pipes() {
    let world = World::start();
    let identity = world.issue("ada.pem", "ada", &["--namespace", "*:rw"]);
    let mut client = world.connect(&identity);
    for key in ["orders", "billing"] {
        client.send("POST", "/v1/acquire", "", &format!(r#"{{"key":"{key}","ttl_seconds":300}}"#));
    }
    let ran = lockc(&world, &identity, &["top", "--output", "json"]).output().expect("the program");
    let printed: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let names: Vec<&Value> =
        printed["leases"].as_array().expect("a list").iter().map(|row| &row["resource"]).collect();
    assert_eq!(names, ["billing", "orders"]);
    assert_eq!(printed["leases"][0]["holder"], "ada");
    let ran = lockc(&world, &identity, &["top", "--filter", "ord"]).output().expect("the program");
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(text.starts_with("RESOURCE") && text.contains("orders") && !text.contains("billing"), "{text}");
}

/// Reads a terminal until a text appears.
fn wait_for(reader: &mut File, wanted: &str) -> String {
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    while !seen.contains(wanted) {
        let length = reader.read(&mut buffer).expect("the terminal is open");
        assert!(length > 0, "{wanted}: {seen}");
        seen += &String::from_utf8_lossy(&buffer[..length]);
    }
    seen
}

#[test]
fn top_is_live_and_one_key_acts_after_a_confirmation() {
    let world = World::start();
    let identity = world.issue("boss.pem", "boss", &["--role", "operator", "--namespace", "*:rw"]);
    let mut client = world.connect(&identity);
    let (mut reader, terminal) = terminal::open();
    let copy = || Stdio::from(terminal.try_clone().expect("a terminal"));
    let mut command = lockc(&world, &identity, &["top"]);
    let mut top = command.stdin(copy()).stdout(copy()).stderr(copy()).spawn().expect("the program");
    drop(command);
    wait_for(&mut reader, "q quit");
    let (_, granted) = client.send("POST", "/v1/acquire", "", r#"{"key":"live-key","ttl_seconds":300}"#);
    let granted: Value = serde_json::from_str(&granted).expect("JSON");
    wait_for(&mut reader, "live-key");
    reader.write_all(b"r").expect("the terminal is open");
    wait_for(&mut reader, &format!("revoke token {}", granted["fencing_token"]));
    reader.write_all(b"y").expect("the terminal is open");
    wait_for(&mut reader, "revoking");
    reader.write_all(b"q").expect("the terminal is open");
    let seen = wait_for(&mut reader, "\x1b[?1049l");
    assert!(seen.contains("\x1b[?25h"), "the cursor is back");
    assert!(top.wait().expect("it ends").success());
}

#[test]
fn an_exported_identity_is_pkcs12_with_certificate_key_and_ca() {
    let world = World::start();
    let identity = world.issue("ada.pem", "ada \u{e9}", &[]);
    let (out, pass) = (world.directory().join("ada.p12"), world.directory().join("pass"));
    std::fs::write(&pass, "correct horse \u{e9}\n").expect("a file");
    let export = |mode: u32, more: &[&str]| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&pass, std::fs::Permissions::from_mode(mode)).expect("our own");
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        command.args(["auth", "export", "--in"]).arg(&identity).arg("--p12").arg(&out);
        command.arg("--pass-file").arg(&pass).args(more).output().expect("the program")
    };
    let readable = export(0o644, &[]);
    assert!(!readable.status.success() && String::from_utf8_lossy(&readable.stderr).contains("chmod 600"));
    let made = export(0o600, &[]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let again = export(0o600, &[]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists"), "it overwrites nothing");
    assert!(export(0o600, &["--force"]).status.success());
    let bytes = std::fs::read(&out).expect("the file");
    assert_eq!(bytes[..2], [0x30, 0x82], "DER");
    let key = std::fs::read_to_string(&identity).expect("the identity");
    assert!(!key.is_empty() && !String::from_utf8_lossy(&bytes).contains("PRIVATE KEY"));
    // Another implementation reads it, where there is one.
    let openssl = |pass: &str| {
        let mut command = Command::new("openssl");
        command.args(["pkcs12", "-nodes", "-info", "-passin", pass, "-in"]).arg(&out).output()
    };
    let Ok(read) = openssl("pass:correct horse \u{e9}") else { return };
    let text = format!("{}{}", String::from_utf8_lossy(&read.stdout), String::from_utf8_lossy(&read.stderr));
    assert!(read.status.success(), "{text}");
    assert_eq!(text.matches("BEGIN CERTIFICATE").count(), 2, "its own and the CA's: {text}");
    assert!(text.contains("BEGIN PRIVATE KEY") && text.contains("AES-256-CBC"), "{text}");
    assert!(!openssl("pass:wrong").expect("it ran before").status.success());
}
