//! A revocation reaches everything that a revoked client has under way, without anything else to do.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio_rustls::rustls::HandshakeKind;

use crate::lockd::frame_client::Protocol;
use crate::lockd::reload::{auth, serial, text};
use crate::lockd::serve::{Connection, Running, tls_config_for};
use crate::lockd::support::lockd;

/// A server with its Unix socket, and the identities of clients.
pub(crate) struct World {
    pub(crate) server: Running,
    pub(crate) dir: tempfile::TempDir,
}

impl World {
    pub(crate) fn new(args: &[&str]) -> World {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let server = Running::start(&dir.path().join("data"), &[&["--unix", text(&socket)], args].concat());
        World { server, dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn bundle(&self) -> PathBuf {
        self.path("data/server.pem")
    }

    /// Creates the identity of a worker on the namespace `default`.
    pub(crate) fn client(&self, name: &str) -> PathBuf {
        let out = self.path(&format!("{name}.pem"));
        auth(&["new", "client", "--cn", name, "--server-in", text(&self.bundle()), "--out", text(&out)]);
        out
    }

    /// Only edits the file.
    pub(crate) fn revoke(&self, client: &Path) {
        auth(&["revoke", "client", "--server-in", text(&self.bundle()), &serial(client)]);
    }

    /// Returns when the files are in force; the exit code and the output.
    fn reload(&self) -> (i32, String) {
        let ran = lockd(&["reload", "--unix", text(&self.path("s"))]);
        (ran.code, ran.stdout + &ran.stderr)
    }

    fn lets_in(&self, client: &Path) -> bool {
        let response = self.server.connect(client).ask("GET", "/v1/leases", "");
        response.is_some_and(|(status, _)| status == 200)
    }
}

/// A field of a JSON response.
fn field(body: &str, name: &str) -> String {
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    body[name].as_str().unwrap_or_else(|| panic!("no {name}: {body}")).to_string()
}

pub(crate) fn acquire(connection: &mut Connection, body: &str) -> String {
    let (status, body) = connection.ask("POST", "/v1/acquire", body).expect("a response");
    assert_eq!(status, 200, "{body}");
    field(&body, "lease_id")
}

pub(crate) fn release(connection: &mut Connection, lease: &str) {
    let body = format!(r#"{{"lease_id":"{lease}"}}"#);
    assert_eq!(connection.ask("POST", "/v1/release", &body).expect("a response").0, 200);
}

/// Everything that the server still sends on a connection until it closes it.
pub(crate) fn rest(connection: &mut Connection) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match connection.0.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("it is not closed: {bytes:?}"),
            // A closed TLS connection without a farewell is an error, and closed as well.
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The start of an HTTP/2 connection: the preface and empty settings.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

/// `auth revoke` changed nothing on a running server until it got SIGHUP, which nothing said, and which nothing in a
/// container could send. Idle connections of the revoked client stayed open even then.
#[test]
fn auth_revoke_alone_closes_idle_connections_and_refuses_new_ones() {
    let mut world = World::new(&[]);
    let [revoked, good] = ["revoked", "good"].map(|name| world.client(name));
    let mut kept = world.server.connect(&good);
    assert_eq!(kept.ask("GET", "/v1/leases", "").expect("a response").0, 200);
    let mut http1 = world.server.connect(&revoked);
    assert_eq!(http1.ask("GET", "/v1/leases", "").expect("a response").0, 200);
    let mut http2 = world.server.connect(&revoked);
    http2.0.write_all(HTTP2).expect("sent");
    http2.0.flush().expect("sent");
    let with_frames = tls_config_for(&revoked, Protocol::Frames.alpn());
    let mut framed = world.server.connect_with(&with_frames);
    assert_eq!(framed.ask("GET", "/v1/whoami", "").expect("a response").0, 200);
    world.revoke(&revoked);
    let line = world.server.log.wait_for("reloaded identities");
    assert!(line.contains("revoked=1") && line.contains("closed=3"), "{line}");
    for mut closed in [http1, http2, framed] {
        rest(&mut closed);
    }
    assert!(!world.lets_in(&revoked));
    assert_eq!(world.server.connect_with(&with_frames).ask("GET", "/v1/whoami", ""), None);
    assert_eq!(kept.ask("GET", "/v1/leases", "").expect("a response").0, 200, "others stay connected");
}

/// No verifier runs when a session is resumed.
#[test]
fn a_revoked_client_cannot_resume_its_session() {
    for protocol in Protocol::BOTH {
        let world = World::new(&[]);
        let revoked = world.client("revoked");
        let config = tls_config_for(&revoked, protocol.alpn());
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let mut connection = world.server.connect_with(&config);
            assert_eq!(connection.ask("GET", "/v1/whoami", "").expect("a response").0, 200);
            assert_eq!(connection.0.conn.handshake_kind(), Some(kind));
        }
        world.revoke(&revoked);
        assert_eq!(world.reload().0, 0);
        let mut connection = world.server.connect_with(&config);
        let response = connection.ask("GET", "/v1/whoami", "");
        let kind = connection.0.conn.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Resumed), "the verifier did not run");
        assert_eq!(response, None);
        rest(&mut connection);
    }
}

/// A revoked client that waited for a lease was granted it when the holder released it, for its whole TTL.
#[test]
fn waiters_of_a_revoked_client_are_dismissed_and_granted_nothing() {
    for protocol in Protocol::BOTH {
        dismiss_waiters(protocol);
    }
}

fn dismiss_waiters(protocol: Protocol) {
    let world = World::new(&[]);
    let [revoked, good] = ["revoked", "good"].map(|name| world.client(name));
    let mut holder = world.server.connect(&good);
    let manifest = |more: &str| {
        let intents = r#"[{"predicate":"MUTATES","object":"KEY:l"}]"#;
        format!(r#"{{"agent_id":"a","session_id":"s","intents":{intents}{more}}}"#)
    };
    // An attempt that is older than the holder may wait for it.
    let first = acquire(&mut holder, r#"{"key":"l"}"#);
    let (_, verdict) =
        world.server.connect(&revoked).ask("POST", "/v1/manifest", &manifest("")).expect("a response");
    let attempt = format!(r#","wait_ms":50000,"attempt_id":"{}""#, field(&verdict, "attempt_id"));
    release(&mut holder, &first);
    let leases = ["k", "l"].map(|key| acquire(&mut holder, &format!(r#"{{"key":"{key}"}}"#)));
    let requests = [
        ("/v1/acquire", r#"{"key":"k","block_seconds":50}"#.to_string()),
        ("/v1/manifest", manifest(&attempt)),
    ];
    let waiters = requests.map(|(path, body)| {
        let mut waiter = world.server.connect_with(&tls_config_for(&revoked, protocol.alpn()));
        std::thread::spawn(move || waiter.ask("POST", path, &body).expect("a response"))
    });
    crate::running::until("both wait", || {
        ["k", "l"].iter().all(|key| {
            let path = format!("/v1/describe?key={key}");
            holder.ask("GET", &path, "").expect("a response").1.contains(r#""waiters":1"#)
        })
    });
    world.revoke(&revoked);
    let (code, output) = world.reload();
    assert_eq!(code, 0, "{output}");
    for lease in leases {
        release(&mut holder, &lease);
    }
    for waiter in waiters {
        let (status, body) = waiter.join().expect("it ends");
        assert_eq!(status, 401, "{body}");
        assert!(body.contains("unauthenticated"), "{body}");
    }
    for key in ["k", "l"] {
        let mut other = world.server.connect(&good);
        acquire(&mut other, &format!(r#"{{"key":"{key}"}}"#));
    }
}

/// A certificate that is refused is 14, not the 12 of an expired lease: renewing or waiting does not help.
#[test]
fn a_run_of_a_revoked_client_ends_its_command_and_is_denied() {
    let world = World::new(&[]);
    let revoked = world.client("revoked");
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["run", "--key", "k", "--ttl", "4s", "--grace", "500ms"]);
    command.args(["--server", &world.server.address, "--identity", text(&revoked)]);
    let started = world.path("started");
    command.args(["--", "sh", "-c", "touch \"$0\"; exec sleep 60", text(&started)]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it runs");
    for _ in 0..1000 {
        if started.exists() {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    assert!(started.exists(), "the command runs");
    world.revoke(&revoked);
    let (code, said) = world.reload();
    assert_eq!(code, 0, "{said}");
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert_eq!(child.wait().expect("ours").code(), Some(14), "{said}");
    assert!(said.contains("the lease was lost while the command ran") && said.contains("revoked"), "{said}");
}

/// An upload that had begun before its client was revoked was committed after it.
#[test]
fn uploads_and_event_streams_of_a_revoked_client_end() {
    let world = World::new(&[]);
    let [revoked, good] = ["revoked", "good"].map(|name| world.client(name));
    let lease = acquire(&mut world.server.connect(&revoked), r#"{"key":"k","ttl_seconds":60}"#);
    let mut upload = world.server.connect(&revoked);
    let head = format!(
        "POST /v1/update_state?key=k HTTP/1.1\r\nhost: h\r\nx-lease-id: {lease}\r\ncontent-length: 40\r\n\r\n"
    );
    upload.0.write_all(format!("{head}{{\"written\":\"before").as_bytes()).expect("sent");
    let mut events = world.server.connect(&revoked);
    events.0.write_all(b"GET /v1/events HTTP/1.1\r\nhost: h\r\n\r\n").expect("sent");
    let mut begun = [0; 12];
    events.0.read_exact(&mut begun).expect("a response");
    assert_eq!(&begun, b"HTTP/1.1 200");
    // Read up to here: the body of the upload, as far as it was sent, is at the server.
    assert_eq!(world.server.connect(&revoked).ask("GET", "/v1/leases", "").expect("a response").0, 200);
    world.revoke(&revoked);
    assert_eq!(world.reload().0, 0);
    let _ = upload.0.write_all(b" and after\"          }");
    let response = rest(&mut upload);
    assert!(!response.contains("200 OK") && !response.contains("new_version"), "{response}");
    rest(&mut events);
    let (status, body) =
        world.server.connect(&good).ask("GET", "/v1/describe?key=k", "").expect("a response");
    assert!(status == 200 && body.contains(r#""version":0"#), "nothing was committed: {body}");
}

/// In Kubernetes the file is a symbolic link into a directory that is swapped as a whole: neither the link nor its time
/// changes.
#[test]
fn a_swapped_directory_behind_a_symbolic_link_is_noticed() {
    let dir = tempfile::tempdir().expect("a directory");
    let [old, new, data] = ["old", "new", "data"].map(|name| dir.path().join(name));
    for made in [&old, &new] {
        std::fs::create_dir(made).expect("made");
    }
    std::fs::write(old.join("denylist"), "# none\n").expect("written");
    symlink(&old, dir.path().join("..data")).expect("made");
    symlink("..data/denylist", dir.path().join("denylist")).expect("made");
    let mut server = Running::start(&data, &["--denylist-path", text(&dir.path().join("denylist"))]);
    let client = data.join("client.pem");
    let mut connection = server.connect(&client);
    assert_eq!(connection.ask("GET", "/v1/leases", "").expect("a response").0, 200);
    std::fs::write(new.join("denylist"), format!("{}\n", serial(&client))).expect("written");
    symlink(&new, dir.path().join("..next")).expect("made");
    std::fs::rename(dir.path().join("..next"), dir.path().join("..data")).expect("swapped");
    server.log.wait_for("reloaded identities");
    rest(&mut connection);
}

/// The manifest for Kubernetes mounts the identity file from a Secret: behind two links, read-only, readable by the group.
/// The kubelet replaces the directory between them.
#[test]
fn the_secret_of_the_manifest_is_taken_over_when_the_kubelet_replaces_it() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let (made, client, mount) = (path("server.pem"), path("client1.pem"), path("identity"));
    auth(&["new", "server", "--out", text(&made), "--cn", "lockd", "--hosts", "lockd,localhost"]);
    auth(&["new", "client", "--server-in", text(&made), "--out", text(&client), "--cn", "worker-1"]);
    let publish = |version: &str| {
        let version_dir = mount.join(version);
        std::fs::create_dir_all(&version_dir).expect("made");
        let file = version_dir.join("server.pem");
        std::fs::copy(&made, &file).expect("copied");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o440)).expect("its owner");
        symlink(version, mount.join("..data_tmp")).expect("made");
        std::fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("swapped");
    };
    publish("..2026_01");
    symlink("..data/server.pem", mount.join("server.pem")).expect("made");
    let mut server = Running::start(&path("data"), &["--bundle", text(&mount.join("server.pem"))]);
    let mut connection = server.connect(&client);
    assert_eq!(connection.ask("GET", "/v1/leases", "").expect("a response").0, 200);
    auth(&["revoke", "client", "--server-in", text(&made), &serial(&client)]);
    publish("..2026_02");
    let line = server.log.wait_for("reloaded identities");
    assert!(line.contains("revoked=1") && line.contains("closed=1"), "{line}");
    rest(&mut connection);
}

/// An emptied denylist un-revoked every client.
#[test]
fn a_denylist_that_lost_serials_is_refused_once_and_changes_nothing() {
    let mut world = World::new(&[]);
    let revoked = world.client("revoked");
    let without = std::fs::read_to_string(world.bundle()).expect("made");
    world.revoke(&revoked);
    assert_eq!(world.reload().0, 0);
    world.server.log.wait_for("reloaded identities");
    std::fs::write(world.bundle(), &without).expect("written");
    let line = world.server.log.wait_for("reload failed");
    assert!(line.contains("ERROR") && line.contains(&serial(&revoked)), "{line}");
    let (code, output) = world.reload();
    assert!(
        code == 1 && output.contains("lockd auth unrevoke") && output.contains(&serial(&revoked)),
        "{output}"
    );
    assert!(!world.lets_in(&revoked));
    let (_, metrics) =
        world.server.connect(&world.path("data/client.pem")).ask("GET", "/metrics", "").expect("it");
    assert!(metrics.contains(r#"lockd_reloads_total{result="refused"} 2"#), "{metrics}");
    auth(&["unrevoke", "client", "--server-in", text(&world.bundle()), &serial(&revoked)]);
    world.server.log.wait_for("un-revoked");
    assert!(world.lets_in(&revoked));
}

#[test]
fn reload_says_why_it_was_refused_and_works_only_on_the_unix_socket() {
    let world = World::new(&[]);
    let bundle = std::fs::read_to_string(world.bundle()).expect("made");
    std::fs::write(world.bundle(), "not an identity file").expect("written");
    let (code, output) = world.reload();
    assert!(code == 1 && output.contains("nothing was changed") && output.contains("server.pem"), "{output}");
    std::fs::write(world.bundle(), bundle).expect("written");
    let (code, output) = world.reload();
    assert_eq!((code, output.as_str()), (0, "reloaded: revoked=0 unrevoked=0 connections_closed=0\n"));
    let mut operator = world.server.connect(&world.path("data/client.pem"));
    let (status, body) = operator.ask("POST", "/v1/reload", "").expect("a response");
    assert!(status == 403 && body.contains("Unix socket"), "{status} {body}");
    let ran = lockd(&["reload", "--unix", text(&world.path("none"))]);
    assert_eq!(ran.code, 13, "{}", ran.stderr);
}

/// At the default level an attack left nothing in the log but counters.
#[test]
fn refused_handshakes_and_operators_acts_are_logged_with_serial_and_address() {
    let mut world = World::new(&[]);
    let revoked = world.client("revoked");
    world.revoke(&revoked);
    assert_eq!(world.reload().0, 0);
    assert!(!world.lets_in(&revoked));
    let line = world.server.log.wait_for("handshake refused");
    assert!(
        line.contains("INFO") && line.contains("127.0.0.1:") && line.contains(&serial(&revoked)),
        "{line}"
    );
    let operator = world.path("data/client.pem");
    let body = r#"{"identity":"ada","paused":true}"#;
    let (status, body) = world.server.connect(&operator).ask("POST", "/v1/pause", body).expect("a response");
    assert_eq!(status, 200, "{body}");
    let line = world.server.log.wait_for("operator's act");
    for wanted in
        ["INFO", "127.0.0.1:", &serial(&operator), "identity=\"operator\"", "/v1/pause", "status=200"]
    {
        assert!(line.contains(wanted), "{wanted}: {line}");
    }
}

/// The log said that an operator had revoked, paused or set something, and not whose.
#[test]
fn operators_acts_are_logged_with_their_target() {
    let mut world = World::new(&[]);
    let mut operator = world.server.connect(&world.path("data/client.pem"));
    let body = r#"{"namespace":"team","agent_id":"coder","session_id":"s","intents":[
        {"predicate":"MUTATES","object":"FILE:/a"},{"predicate":"MUTATES","object":"FILE:/b"}]}"#;
    let (status, granted) = operator.ask("POST", "/v1/manifest", body).expect("a response");
    assert_eq!(status, 200, "{granted}");
    let granted: serde_json::Value = serde_json::from_str(&granted).expect("JSON");
    let lease = granted["public_id"].as_str().expect("an id");
    let of_lease = [
        format!("target.lease={lease}"),
        r#"target.namespace="team""#.into(),
        r#"target.identity="operator""#.into(),
        r#"target.agent="coder""#.into(),
        r#"target.resource="FILE:/a""#.into(),
        "target.resources=2".into(),
    ];
    let of_lease: Vec<&str> = of_lease.iter().map(String::as_str).collect();
    let never = "L-000000000000000000000000000000ff";
    let acts: &[(&str, String, &str, &[&str])] = &[
        (
            "POST",
            "/v1/pause".into(),
            r#"{"identity":"ada","paused":true}"#,
            &[r#"target.namespace="*""#, r#"target.identity="ada""#, "target.paused=true"],
        ),
        (
            "POST",
            "/v1/pause".into(),
            r#"{"namespace":"team","agent_id":"coder","paused":false}"#,
            &[r#"target.namespace="team""#, r#"target.agent="coder""#, "target.paused=false"],
        ),
        (
            "POST",
            "/v1/agents/coder/state".into(),
            r#"{"namespace":"team","state":"PAUSED"}"#,
            &[r#"target.namespace="team""#, r#"target.agent="coder""#, "target.paused=true"],
        ),
        (
            "PUT",
            "/v1/quotas".into(),
            r#"{"namespace":"team","max_leases":7}"#,
            &[r#"target.namespace="team""#, r#"target.identity="*""#],
        ),
        ("POST", format!("/v1/leases/{lease}/revoke"), "", &of_lease),
        ("POST", format!("/v1/leases/{lease}/reclaim"), "", &of_lease),
        (
            "POST",
            format!("/v1/leases/{never}/revoke"),
            "",
            &["target.lease=L-000000000000000000000000000000ff"],
        ),
        (
            "POST",
            "/v1/revoke".into(),
            r#"{"namespace":"team","identity":"ada"}"#,
            &[r#"target.namespace="team""#, r#"target.identity="ada""#],
        ),
        ("DELETE", "/v1/namespaces/team".into(), "", &[r#"target.namespace="team""#]),
    ];
    for (method, path, body, wanted) in acts {
        let (status, reply) = operator.ask(method, path, body).expect("a response");
        assert_eq!(status, if path.contains(never) { 410 } else { 200 }, "{path}: {reply}");
        let line = world.server.log.wait_for("operator's act");
        for part in wanted.iter().chain(&[path.as_str()]) {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

/// A client that tried what it may not do left a line only at the level `debug`.
#[test]
fn refused_requests_are_logged_and_ended_leases_do_not_suppress_them() {
    let mut world = World::new(&[]);
    let worker = world.client("worker");
    let mut connection = world.server.connect(&worker);
    let (_, lease) = connection.ask("POST", "/v1/acquire", r#"{"key":"k"}"#).expect("a response");
    let lease: serde_json::Value = serde_json::from_str(&lease).expect("JSON");
    let lease_id = lease["lease_id"].as_str().expect("a credential");
    let headers = format!("x-lease-id: {lease_id}\r\nx-fencing-token: 1\r\n");
    for _ in 0..20 {
        let (status, reply) =
            connection.send("POST", "/v1/update_state?key=k", &headers, "{}").expect("a response");
        assert_eq!(status, 403, "{reply}");
    }
    let (status, reply) = connection.ask("GET", "/v1/quotas?limit=17", "").expect("a response");
    assert_eq!(status, 403, "{reply}");
    let line = world.server.log.wait_for(r#"path="/v1/quotas""#);
    for part in [
        "INFO",
        "request refused",
        r#"identity="worker""#,
        &format!("serial={}", serial(&worker)),
        "address=127.0.0.1:",
        "method=GET",
        "status=403",
        r#"code="forbidden""#,
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!line.contains("limit"), "the query is not logged: {line}");
    let seen = world.server.log.seen();
    assert!(seen.contains(r#"code="fencing_mismatch""#), "{seen}");
    assert!(!seen.contains(lease_id), "no credential is logged: {seen}");
}
