//! `lockd serve` as a process: the first start, a kill, a revocation, a stop.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use identity::{ClientBundle, ClientTls, IdentityLocation};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::lockd::frame_client::{FrameClient, Protocol, Reply};
use crate::running::until;
use crate::terminal;

/// How long a test waits for the server before it fails.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Running {
    child: Child,
    pub(crate) log: LogLines,
    pub(crate) address: String,
}

impl Running {
    pub(crate) fn start(data: &Path, args: &[&str]) -> Running {
        Running::spawn(Command::new(assert_cmd::cargo::cargo_bin!("lockd")), data, args)
    }

    /// The server as a shell with that umask would start it.
    pub(crate) fn start_with_umask(umask: &str, data: &Path, args: &[&str]) -> Running {
        Running::start_after(&format!("umask {umask}"), data, args)
    }

    /// The server as a shell would start it after this command.
    pub(crate) fn start_after(prelude: &str, data: &Path, args: &[&str]) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{prelude}; exec \"$0\" \"$@\"")]);
        command.arg(assert_cmd::cargo::cargo_bin!("lockd"));
        Running::spawn(command, data, args)
    }

    /// The same in namespaces of its own.
    pub(crate) fn start_unshared(namespaces: &[&str], prelude: &str, data: &Path, args: &[&str]) -> Running {
        let mut command = Command::new("unshare");
        command.args(namespaces).args(["sh", "-c", &format!("{prelude}; exec \"$0\" \"$@\"")]);
        command.arg(assert_cmd::cargo::cargo_bin!("lockd"));
        Running::spawn(command, data, args)
    }

    fn spawn(mut command: Command, data: &Path, args: &[&str]) -> Running {
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data).args(args);
        // No file of the user who runs the tests is read.
        command.env("XDG_CONFIG_HOME", data).stdin(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program");
        let log = LogLines::new(child.stderr.take().expect("piped"));
        Running::serving(child, log)
    }

    /// The server as a person starts it.
    /// With colours allowed: a terminal is where `serve` once panicked in its logs, and tests had forbidden colours.
    pub(crate) fn start_on_terminal(data: &Path) -> Running {
        Running::start_on_terminal_with(data, &[])
    }

    pub(crate) fn start_on_terminal_with(data: &Path, flags: &[&str]) -> Running {
        let (reader, terminal) = terminal::open();
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data).args(flags);
        command.env("XDG_CONFIG_HOME", data).env_remove("NO_COLOR").stdin(Stdio::null());
        let child = command.stderr(terminal).spawn().expect("the program");
        drop(command);
        Running::serving(child, LogLines::new(reader))
    }

    fn serving(child: Child, mut log: LogLines) -> Running {
        let serving = log.wait_for("serving url=http");
        let address =
            serving.split("://").nth(1).and_then(|rest| rest.split(' ').next()).expect("an address");
        Running { address: address.to_string(), child, log }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).expect("it runs");
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn connect(&self, client: &Path) -> Connection {
        self.connect_with(&tls_config(client))
    }

    /// Resumes the session of an earlier connection with the same configuration, if there is one.
    pub(crate) fn connect_with(&self, config: &Arc<ClientConfig>) -> Connection {
        connect_to(&self.address, config)
    }

    /// Waits until the process ends.
    pub(crate) fn exit_status(&mut self) -> ExitStatus {
        let mut status = None;
        until("the server ends", || {
            status = self.child.try_wait().expect("a child process");
            status.is_some()
        });
        status.expect("it has ended")
    }
}

/// A connection to the server at this address.
pub(crate) fn connect_to(address: &str, config: &Arc<ClientConfig>) -> Connection {
    let name = ServerName::try_from("anything").expect("a name");
    let session = ClientConnection::new(Arc::clone(config), name).expect("sound");
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("an open socket");
    stream.set_read_timeout(Some(DEADLINE)).expect("an open socket");
    stream.set_write_timeout(Some(DEADLINE)).expect("an open socket");
    let mut stream = StreamOwned::new(session, stream);
    if config.alpn_protocols != [frames::ALPN] {
        return Connection(stream, None);
    }
    // A server that refuses the connection may close it before.
    let _ = stream.write_all(frames::PREFACE);
    let client = FrameClient::default();
    let (address, config) = (address.to_string(), Arc::clone(config));
    Connection(stream, Some(Box::new(Framed { client, address, config, http: None, is_over_http: false })))
}

/// The TLS of a client, with HTTP/1.1 only and sessions of its own.
pub(crate) fn tls_config(client: &Path) -> Arc<ClientConfig> {
    tls_config_for(client, Protocol::Http.alpn())
}

/// The same for another protocol.
pub(crate) fn tls_config_for(client: &Path, protocol: &str) -> Arc<ClientConfig> {
    let bundle = IdentityLocation::Path(client.to_path_buf()).read_client().expect("sound");
    let tls = ClientTls::new(&bundle, Arc::new(DefaultTimeProvider)).expect("sound");
    let mut config = (*tls.config()).clone();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Arc::new(config)
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The log of a server, which a thread reads line by line: so that every wait has a deadline.
pub(crate) struct LogLines {
    /// Behind a lock, so that threads can share a server.
    lines: Mutex<Receiver<String>>,
    /// All lines that were waited for or skipped.
    pub(crate) seen: String,
}

impl LogLines {
    pub(crate) fn new(stderr: impl Read + Send + 'static) -> LogLines {
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                // A terminal ends with an error when the program has ended.
                if line.map_or(true, |line| send.send(line).is_err()) {
                    return;
                }
            }
        });
        LogLines { lines: Mutex::new(lines), seen: String::new() }
    }

    /// All lines until the last that was waited for.
    pub(crate) fn seen(&self) -> &str {
        &self.seen
    }

    /// Waits for a line that contains this text.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        loop {
            let line = self.lines.get_mut().expect("not poisoned").recv_timeout(DEADLINE);
            let line = line.unwrap_or_else(|error| panic!("no line with {text:?}: {error}:\n{}", self.seen));
            self.seen.push_str(&line);
            self.seen.push('\n');
            if line.contains(text) {
                return line;
            }
        }
    }
}

/// A connection with HTTP/1.1; or with frames, if that is the only protocol in its TLS configuration: then it has one of
/// HTTP beside it for the requests that frames do not carry.
pub(crate) struct Connection(pub(crate) StreamOwned<ClientConnection, TcpStream>, Option<Box<Framed>>);

/// The state of a connection with frames.
struct Framed {
    client: FrameClient,
    address: String,
    config: Arc<ClientConfig>,
    http: Option<Connection>,
    /// The last request was sent over HTTP.
    is_over_http: bool,
}

impl Framed {
    fn http(&mut self) -> &mut Connection {
        self.is_over_http = true;
        self.http.get_or_insert_with(|| {
            let mut config = ClientConfig::clone(&self.config);
            config.alpn_protocols = vec![Protocol::Http.alpn().into()];
            connect_to(&self.address, &Arc::new(config))
        })
    }
}

impl Connection {
    /// The next frame of the server.
    pub(crate) fn receive(&mut self) -> Option<Reply> {
        let Connection(stream, framed) = self;
        framed.as_mut().expect("a connection with frames").client.receive(stream)
    }

    /// The number of the last request in a frame.
    pub(crate) fn last_id(&self) -> u32 {
        self.1.as_ref().expect("a connection with frames").client.last()
    }

    /// The next response.
    pub(crate) fn next_response(&mut self) -> Option<(u16, String)> {
        match &mut self.1 {
            None => self.response(Vec::new()),
            Some(framed) if framed.is_over_http => framed.http().next_response(),
            Some(_) => loop {
                match self.receive()? {
                    Reply::Pong(_) | Reply::GoAway(_) => {}
                    reply => return reply.response(),
                }
            },
        }
    }

    /// Sends bytes as they are. Nothing if the server hung up.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Option<()> {
        self.0.write_all(bytes).ok()
    }

    /// The status and the body; nothing if the server hung up.
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        self.send(method, path, "", body)
    }

    /// The same with more headers, each of which ends in `\r\n`.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Option<(u16, String)> {
        self.begin(method, path, headers, body)?;
        self.next_response()
    }

    /// Sends a request, and does not read the response. Nothing if the server hung up.
    pub(crate) fn begin(&mut self, method: &str, path: &str, headers: &str, body: &str) -> Option<()> {
        if let Some(framed) = &mut self.1 {
            let Some(frame) = framed.client.request(method, path, headers, body) else {
                return framed.http().begin(method, path, headers, body);
            };
            framed.is_over_http = false;
            return self.0.write_all(&frame).ok();
        }
        let headers = format!("{headers}content-length: {}\r\n", body.len());
        self.begin_body(method, path, &headers, body)
    }

    /// Sends the head of a request, and the first part of its body.
    pub(crate) fn begin_body(&mut self, method: &str, path: &str, headers: &str, part: &str) -> Option<()> {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: lockd\r\n{headers}\r\n{part}");
        self.0.write_all(request.as_bytes()).ok()
    }

    /// The response, if it begins within this time.
    pub(crate) fn response_within(&mut self, timeout: Duration) -> Option<(u16, String)> {
        if let Some(framed) = self.1.as_mut().filter(|framed| framed.is_over_http) {
            return framed.http().response_within(timeout);
        }
        self.0.sock.set_read_timeout(Some(timeout)).expect("an open socket");
        if self.1.is_some() {
            let response = self.next_response();
            self.0.sock.set_read_timeout(Some(DEADLINE)).expect("an open socket");
            return response;
        }
        let mut first = [0];
        let read = self.0.read_exact(&mut first);
        self.0.sock.set_read_timeout(Some(DEADLINE)).expect("an open socket");
        read.ok()?;
        self.response(first.to_vec())
    }

    fn read_until(&mut self, text: &mut Vec<u8>, end: &[u8]) -> Option<()> {
        while !text.ends_with(end) {
            let mut byte = [0];
            self.0.read_exact(&mut byte).ok()?;
            text.push(byte[0]);
        }
        Some(())
    }

    /// Reads a body of unknown length.
    fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut line = Vec::new();
            self.read_until(&mut line, b"\r\n")?;
            let line = String::from_utf8(line).expect("text");
            let length = usize::from_str_radix(line.trim(), 16).expect("a length");
            let mut chunk = vec![0; length + 2];
            self.0.read_exact(&mut chunk).ok()?;
            body.extend_from_slice(&chunk[..length]);
            if length == 0 {
                return Some(body);
            }
        }
    }

    /// Reads a response of which `head` was read already.
    fn response(&mut self, mut head: Vec<u8>) -> Option<(u16, String)> {
        self.read_until(&mut head, b"\r\n\r\n")?;
        let head = String::from_utf8(head).expect("text").to_lowercase();
        let number = |text: &str| text.trim().parse::<usize>().expect("a number");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).map_or(0, number);
        let body = if head.contains("transfer-encoding: chunked") {
            self.chunks()?
        } else {
            let mut body = vec![0; length];
            self.0.read_exact(&mut body).ok()?;
            body
        };
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        Some((status, String::from_utf8(body).expect("text")))
    }
}

#[test]
fn from_nothing_to_a_lease_that_survives_a_kill() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut server = Running::start_on_terminal(&data);
    let client = data.join("client.pem");
    let mut connection = server.connect(&client);
    // The line that says what to type next works as it stands.
    let next = server.log.wait_for("try it: ");
    let line = next.split("try it: ").nth(1).expect("a command").trim();
    let (code, said) = shell(&server, dir.path(), line);
    assert_eq!(code, Some(0), "{line}: {said}");
    assert_eq!(said, "it is mine\n", "{line}");
    let (status, told) = connection
        .ask("POST", "/v1/acquire", r#"{"key":"jobs","ttl_seconds":300,"owner":"worker-1"}"#)
        .expect("an answer");
    assert_eq!(status, 200, "{told}");
    let lease: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    drop(server);

    let server = Running::start(&data, &[]);
    // A start after a crash said nothing about what it had found.
    let recovered = server.log.seen().lines().find(|line| line.contains("recovered the store"));
    let recovered = recovered.unwrap_or_else(|| panic!("{}", server.log.seen()));
    for field in
        ["version=", "shard=0", "records=", "leases=1", "documents=0", "ms=", "last_stop=\"unclean\""]
    {
        assert!(recovered.contains(field), "{field}: {recovered}");
    }
    assert!(server.log.seen().contains("opening the store version="), "{}", server.log.seen());
    let mut connection = server.connect(&client);
    let (status, told) = connection.ask("GET", "/v1/describe?key=jobs", "").expect("an answer");
    let described: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((status, &described["owner"]), (200, &serde_json::json!("worker-1")));
    assert_eq!(described["lease_id"], lease["public_id"]);
    let body = serde_json::json!({"lease_id": lease["lease_id"]}).to_string();
    let (status, told) = connection.ask("POST", "/v1/release", &body).expect("an answer");
    assert_eq!(
        (status, told.as_str()),
        (200, r#"{"released":true}"#),
        "its credential is good across the kill"
    );
}

/// A batch that a crash had interrupted was cut off, and the log did not mention it.
#[test]
fn a_torn_tail_is_cut_at_the_start_and_logged_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let server = Running::start(&data, &[]);
    let mut connection = server.connect(&data.join("client.pem"));
    // Several sectors long, so that one of them can be missing.
    let member =
        |n: usize| format!(r#"{{"kind":"KEY","name":"{n}{}","predicate":"MUTATES"}}"#, "x".repeat(500));
    let body = format!(r#"{{"resources":[{},{},{}]}}"#, member(1), member(2), member(3));
    assert_eq!(connection.ask("POST", "/v1/acquire", &body).expect("an answer").0, 200);
    drop(server);
    let segments = std::fs::read_dir(data.join("store/log/0")).expect("the log of shard 0");
    let segments = segments.map(|entry| entry.expect("readable").path());
    let segments = segments.map(|path| (std::fs::read(&path).expect("readable"), path));
    // The next segment may have been preallocated: it is all zeros.
    let written = segments.filter(|(bytes, _)| bytes.iter().any(|byte| *byte != 0));
    let (mut bytes, segment) = written.max_by_key(|(_, path)| path.clone()).expect("a segment");
    let last = bytes.iter().rposition(|byte| *byte != 0).expect("a frame");
    let sector = last / 512 * 512;
    bytes[sector..sector + 512].fill(0);
    std::fs::write(&segment, bytes).expect("writable");

    let server = Running::start(&data, &[]);
    let torn = server.log.seen.lines().find(|line| line.contains("torn tail cut")).expect("it is logged");
    assert!(torn.contains("WARN") && torn.contains("shard=0") && torn.contains("lsns="), "{torn}");
    assert!(torn.contains(&format!("file={}", segment.display())), "{torn}");
    drop(server);
    let server = Running::start(&data, &[]);
    assert!(!server.log.seen.contains("torn tail"), "{}", server.log.seen);
}

#[test]
fn a_revoked_client_is_cut_off_on_its_open_connection_after_a_reload() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut server = Running::start(&data, &[]);
    let (bundle, client) = (data.join("server.pem"), data.join("client.pem"));
    let mut connection = server.connect(&client);
    assert_eq!(connection.ask("GET", "/v1/leases", "").expect("an answer").0, 200);
    let parsed = ClientBundle::parse(&std::fs::read_to_string(&client).expect("made")).expect("sound");
    let serial = parsed.identity().serial.to_string();
    let mut revoke = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    revoke
        .args(["auth", "revoke", "client", "--server-in"])
        .arg(&bundle)
        .arg("--out")
        .arg(&bundle)
        .arg(&serial);
    assert!(revoke.output().expect("it runs").status.success());
    server.signal(rustix::process::Signal::HUP);
    server.log.wait_for("reloaded");
    assert!(connection.ask("GET", "/v1/leases", "").is_none(), "the connection is closed");
    assert!(server.connect(&client).ask("GET", "/v1/leases", "").is_none(), "nor on a new one");
}

#[test]
fn on_sigterm_waiters_are_refused_and_the_server_exits_with_success() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut server = Running::start(&data, &[]);
    let client = data.join("client.pem");
    let mut holder = server.connect(&client);
    assert_eq!(holder.ask("POST", "/v1/acquire", r#"{"key":"k"}"#).expect("an answer").0, 200);
    let mut waiting = server.connect(&client);
    let waiter =
        std::thread::spawn(move || waiting.ask("POST", "/v1/acquire", r#"{"key":"k","block_seconds":60}"#));
    until("the waiter is queued", || {
        holder.ask("GET", "/v1/describe?key=k", "").expect("an answer").1.contains(r#""waiters":1"#)
    });
    server.signal(rustix::process::Signal::TERM);
    let (status, told) = waiter.join().expect("it is answered").expect("an answer");
    assert_eq!(status, 503, "{told}");
    assert!(told.contains("draining"), "{told}");
    server.log.wait_for("stopped");
    assert!(server.exit_status().success());
}

#[test]
fn without_mtls_it_listens_on_this_machine_unless_insisted() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["serve", "--mtls=false", "--store", "mem://", "--listen", "0.0.0.0:0", "--data-dir"]);
    let output = command.arg(dir.path()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--insecure-listen"), "{said}");
    for (args, code, wanted) in [
        (["--store", "ftp://bucket"], 2, "disk:///path"),
        (["--listen", "nonsense"], 2, "host:port"),
        (["--default-ttl", "1h"], 2, "setting=--default-ttl"),
        (["--bundle", "/nonexistent.pem"], 1, "/nonexistent.pem"),
    ] {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        let output =
            command.args(["serve", "--data-dir"]).arg(dir.path()).args(args).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(wanted), "{args:?}: {said}");
    }
}

#[test]
fn config_shows_every_setting_and_where_it_comes_from() {
    let dir = tempfile::tempdir().expect("a directory");
    let folder = dir.path().join("lockd");
    std::fs::create_dir(&folder).expect("room");
    std::fs::write(folder.join("lockd.toml"), "shards = 2\nmax-ttl = \"10m\"\n").expect("room");
    let show = |args: &[&str]| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        command.env("XDG_CONFIG_HOME", dir.path()).env("LOCKD_SHARDS", "3").env("LOCKD_JSON_MAX", "1MB");
        let output = command.arg("config").args(args).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let shown = show(&["--json-max", "2MB", "--output", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown["json-max"], serde_json::json!({"value": 2_000_000, "source": "flag"}));
    assert_eq!(shown["shards"], serde_json::json!({"value": 3, "source": "variable LOCKD_SHARDS"}));
    let file = format!("file {}", folder.join("lockd.toml").display());
    assert_eq!(shown["max-ttl"], serde_json::json!({"value": "10m", "source": file}));
    assert_eq!(shown["listen"], serde_json::json!({"value": ":9341", "source": "default"}));

    let text = show(&["--data-dir", "/tmp/x"]);
    assert!(
        text.lines().any(|line| line.starts_with("shards = 3 ") && line.ends_with("# variable LOCKD_SHARDS"))
    );
    // A file that says the same.
    let copy = dir.path().join("copy.toml");
    std::fs::write(&copy, &text).expect("room");
    let again = show(&["--config", copy.to_str().expect("text")]);
    let settings = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(" # ").next().unwrap_or_default().trim().to_string()).collect()
    };
    assert_eq!(settings(&text), settings(&again));
}

/// Whoever collects logs reads them line by line: none may be for people only.
#[test]
fn in_json_every_line_is_an_object_and_debug_has_every_request() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let log = dir.path().join("log");
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--log-level", "debug"]);
    command.args(["--data-dir"]).arg(&data).env("XDG_CONFIG_HOME", &data);
    command.stderr(std::fs::File::create(&log).expect("room")).stdin(Stdio::null());
    let child = command.spawn().expect("the program");
    let lines = || -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&log).expect("text");
        // The last may be on its way.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    };
    let said = |what: &str| lines().into_iter().find(|line| line["message"] == what);
    let wait_for = |message: &str| {
        until(message, || said(message).is_some());
        said(message).expect("it was found")
    };
    let serving = wait_for("serving");
    let address = serving["url"].as_str().and_then(|url| url.strip_prefix("https://")).expect("a URL");
    let server = Running { address: address.to_string(), child, log: LogLines::new(std::io::empty()) };
    let mut connection = server.connect(&data.join("client.pem"));
    assert_eq!(connection.ask("POST", "/v1/acquire", r#"{"key":"jobs"}"#).expect("an answer").0, 200);
    let answered = wait_for("responded");
    assert_eq!(
        (&answered["status"], &answered["level"]),
        (&serde_json::json!(200), &serde_json::json!("DEBUG"))
    );
    let span = &answered["span"];
    assert_eq!(
        (&span["path"], &span["identity"]),
        (&serde_json::json!("/v1/acquire"), &serde_json::json!("operator"))
    );
    let all = std::fs::read_to_string(&log).expect("text");
    assert!(!all.contains("lease_id"), "secrets are not logged: {all}");
}

#[cfg(not(feature = "otel"))]
#[test]
fn a_build_without_opentelemetry_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["serve", "--otlp-endpoint", "http://127.0.0.1:1/", "--data-dir"]).arg(dir.path());
    let output = command.output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--features otel"));
}

/// A collector that takes one batch of traces, and remembers it.
#[cfg(feature = "otel")]
#[test]
fn every_request_is_a_span_at_the_collector() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let endpoint = format!("http://{}/v1/traces", listener.local_addr().expect("bound"));
    let collector = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the server connects");
        stream.set_read_timeout(Some(DEADLINE)).expect("an open socket");
        let (mut seen, mut part) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&seen).contains("/v1/acquire") {
            let read = stream.read(&mut part).expect("bytes");
            assert_ne!(read, 0, "it hung up: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&part[..read]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("taken");
        String::from_utf8_lossy(&seen).into_owned()
    });
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut server = Running::start(&data, &["--otlp-endpoint", &endpoint]);
    let mut connection = server.connect(&data.join("client.pem"));
    assert_eq!(connection.ask("POST", "/v1/acquire", r#"{"key":"jobs"}"#).expect("an answer").0, 200);
    // The remaining spans are sent at the end.
    server.signal(rustix::process::Signal::TERM);
    assert!(server.exit_status().success());
    let seen = collector.join().expect("traces");
    assert!(seen.starts_with("POST /v1/traces") && seen.contains("operator"), "{seen}");
}

/// The command lines of the lockd service specification, as they are written there, over mutual TLS.
const FLOW: &str = r#"
set -e
eval "$(lockd client acquire --server "$SERVER" --owner worker-1 --ttl 30s orders)"
test -n "$LOCKD_CLIENT_LEASE_ID"
lockd client keepalive --ttl 45s orders
echo '{"status":{"counter":1}}' | lockd client update orders
lockd client get orders -o - \
  | lockd client edit status.counter++ \
  | lockd client update orders
lockd client set orders progress.step=fetch progress.count++ time:progress.updated=NOW
lockd client get orders -o checkpoint.json
lockd client edit --file checkpoint.json progress.step="done" progress.count=+5
lockd client get orders -o -
echo
cat checkpoint.json
echo
lockd client why --server "$SERVER" orders
lockd client release orders
"#;

fn shell(server: &Running, data: &Path, script: &str) -> (Option<i32>, String) {
    let binary = assert_cmd::cargo::cargo_bin!("lockd");
    let path = format!(
        "{}:{}",
        binary.parent().expect("a folder").display(),
        std::env::var("PATH").expect("a path")
    );
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(data).env("PATH", path).env("SERVER", &server.address);
    // Clients find the identity that the server made if its data directory is `lockd` in there.
    command.env("XDG_DATA_HOME", data.parent().expect("a parent"));
    let output = command.output().expect("a shell");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn the_specifications_own_command_lines_work_over_mutual_tls() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("lockd");
    let server = Running::start(&data, &[]);
    let (code, said) = shell(&server, &data, FLOW);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(r#""status":{"counter":2}"#), "{said}");
    assert!(said.contains(r#""step":"fetch","count":1"#), "{said}");
    assert!(said.contains(r#""step":"done","count":6"#), "{said}");
    assert!(said.contains("worker-1"), "{said}");
}

/// The first worker is killed with its lease; the second goes on from the last committed state.
#[test]
fn the_next_worker_takes_over_from_the_last_committed_state() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("lockd");
    let server = Running::start(&data, &[]);
    let first = r#"
        eval "$(lockd client acquire --server "$SERVER" --owner worker-1 --ttl 2s orders)"
        echo '{"cursor":41}' | lockd client update orders
        kill -9 $$
    "#;
    assert_eq!(shell(&server, &data, first).0, None, "killed");
    let second = r#"
        set -e
        eval "$(lockd client acquire --server "$SERVER" --owner worker-2 --block 60s --ttl 60s orders)"
        lockd client set orders cursor++
        lockd client get orders -o -
        lockd client release orders
    "#;
    let (code, said) = shell(&server, &data, second);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(r#"{"cursor":42}"#), "{said}");
}

/// A container was restarted in a time namespace whose boot clock was 9000 s ahead, within the same boot: every lease
/// had ended, and was granted to the next worker while its holder still worked.
#[test]
fn a_restart_in_another_time_namespace_ends_no_lease() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut server = Running::start(&data, &[]);
    let client = data.join("client.pem");
    let acquire = r#"{"key":"jobs","ttl_seconds":300}"#;
    let (status, lease) = server.connect(&client).ask("POST", "/v1/acquire", acquire).expect("an answer");
    assert_eq!(status, 200, "{lease}");
    for offset in ["9000", "-5", "0"] {
        drop(server);
        // `unshare` ends before the server that it started.
        let lock = std::fs::File::open(data.join("store/lock")).expect("a store");
        until("the store is unlocked", || lock.try_lock().is_ok());
        // Not only closed: a process that another test is starting may have inherited the descriptor.
        lock.unlock().expect("locked here");
        let mut command = Command::new("unshare");
        command.args(["--time", "--boottime", offset, "--fork", "--kill-child"]);
        let probe = Command::new("unshare").args(["--time", "--boottime", offset, "true"]).status();
        if !probe.is_ok_and(|status| status.success()) {
            // Not permitted here, or below the boot of the machine.
            server = Running::start(&data, &[]);
            continue;
        }
        command.arg(assert_cmd::cargo::cargo_bin!("lockd"));
        server = Running::spawn(command, &data, &[]);
        let (status, told) = server.connect(&client).ask("POST", "/v1/acquire", acquire).expect("an answer");
        assert_eq!(status, 409, "{offset}: {told}");
        let lease: serde_json::Value = serde_json::from_str(&lease).expect("JSON");
        let body = serde_json::json!({"lease_id": lease["lease_id"]}).to_string();
        let (status, told) = server.connect(&client).ask("POST", "/v1/keepalive", &body).expect("an answer");
        assert_eq!(status, 200, "{offset}: {told}");
    }
}

/// After `stopped`, the process stayed for up to two seconds: a supervisor that restarted it found the store locked.
#[test]
fn a_stopped_process_is_gone_within_a_second() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Running::start(&dir.path().join("data"), &[]);
    let mut connection = server.connect(&dir.path().join("data/client.pem"));
    for key in 0..20 {
        let body = format!(r#"{{"key":"k{key}"}}"#);
        assert_eq!(connection.ask("POST", "/v1/acquire", &body).expect("an answer").0, 200);
    }
    server.signal(rustix::process::Signal::TERM);
    server.log.wait_for("stopped");
    let stopped = cli::times::now_unix_ms();
    server.exit_status();
    let took_ms = cli::times::now_unix_ms() - stopped;
    assert!(took_ms < 1000, "{took_ms}");
}
