//! Certificates that are about to expire, have expired, and are renewed while server and clients run.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use crate::lockd::identities::{IdentityDir, server};
use crate::lockd::serve::Running;

fn health(socket: &Path) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["health", "--unix"]).arg(socket).output().expect("it runs")
}

fn metric(server: &Running, client: &Path, which: &str) -> i64 {
    let (_, text) = server.connect(client).ask("GET", "/metrics", "").expect("a response");
    let name = format!("lockd_certificate_expires_seconds{{which=\"{which}\"}} ");
    let line =
        text.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or_else(|| panic!("{which}: {text}"));
    line.parse().expect("a number")
}

/// A certificate was served until its last second and beyond: no warning, `ready`, and every client locked out.
#[test]
fn an_expiring_certificate_is_warned_of_and_an_expired_one_is_not_ready() {
    let dir = IdentityDir::new();
    dir.client("ada.pem", "ada");
    let file = dir.path("server.pem");
    fs::write(&file, dir.days_ago(345, server).to_pem().as_str()).expect("20 days are left");
    let socket = dir.path("socket");
    let args = [
        "--store",
        "mem://",
        "--bundle",
        file.to_str().expect("text"),
        "--unix",
        socket.to_str().expect("text"),
    ];
    let mut running = Running::start(&dir.path("data"), &args);
    let line = running.log.wait_for("which=\"server\"");
    assert!(
        line.contains("WARN")
            && line.contains("a certificate expires soon; renew it with `lockd auth renew --in"),
        "{line}"
    );
    assert!(line.contains("days=19") || line.contains("days=20"), "{line}");
    let day = 86_400;
    for (which, range) in
        [("server", 19 * day..20 * day), ("forwarding", 19 * day..20 * day), ("ca", 3649 * day..3650 * day)]
    {
        let left = metric(&running, &dir.path("ada.pem"), which);
        assert!(range.contains(&left) || left == range.end, "{which}: {left}");
    }
    assert!(health(&socket).status.success());
    drop(running);

    fs::write(&file, dir.days_ago(366, server).to_pem().as_str()).expect("it has expired");
    let mut running = Running::start(&dir.path("data"), &args);
    let line = running.log.wait_for("which=\"server\"");
    assert!(line.contains("ERROR") && line.contains("has expired"), "{line}");
    let unready = health(&socket);
    let said = String::from_utf8(unready.stderr).expect("text");
    assert_eq!(unready.status.code(), Some(13), "{said}");
    assert!(
        said.contains("the server certificate has expired; renew it with `lockd auth renew --in"),
        "{said}"
    );

    dir.auth("renew --in server.pem");
    running.signal(Signal::HUP);
    running.log.wait_for("reloaded identities");
    assert!(health(&socket).status.success(), "a renewal needs no restart");
    assert!(metric(&running, &dir.path("ada.pem"), "server") > 364 * day);
}

/// A renewed identity file was used after a restart only: a long job under `lockd run` lost its lease when its old
/// certificate ended.
#[test]
fn a_running_command_takes_over_its_renewed_identity() {
    let dir = IdentityDir::new();
    dir.client("ada.pem", "ada");
    let file = dir.path("server.pem");
    let mut running =
        Running::start(&dir.path("data"), &["--store", "mem://", "--bundle", file.to_str().expect("text")]);
    let (started, finish) = (dir.path("started"), dir.path("finish"));
    let script =
        format!("touch {}; until [ -e {} ]; do sleep 0.02; done", started.display(), finish.display());
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["run", "--server", &running.address, "--identity"]).arg(dir.path("ada.pem"));
    command.args(["--key", "jobs", "--ttl", "9s", "--", "sh", "-c", &script]);
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
    crate::running::until("the command has started", || started.exists());
    let old = dir.serial("ada.pem");
    dir.auth("renew --in ada.pem");
    dir.auth(&format!("revoke client --server-in server.pem {old}"));
    running.signal(Signal::HUP);
    running.log.wait_for("reloaded identities");
    // The old certificate is refused now, so a later deadline is due to the new one.
    let deadline = || {
        let described = running.connect(&dir.path("ada.pem")).ask("GET", "/v1/describe?key=jobs", "");
        let (_, body) = described.expect("a response");
        let described: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        described["expires_at_unix"].as_u64().expect("the lease is held")
    };
    let before = deadline();
    crate::running::until("the lease is renewed", || deadline() > before);
    fs::write(&finish, "").expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
