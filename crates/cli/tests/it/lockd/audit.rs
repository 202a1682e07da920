//! `lockd serve --audit-log`: what is in the file, and what happens when the disk takes nothing.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use super::bucket::{object_server, post as post_to, serve};
use crate::lockd::serve::{Connection, Running};
use crate::lockd::support::lockd;
use crate::running::until;

/// Every line of the file; each must be whole.
fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("not whole: {line:?}"));
    text.lines().map(line).collect()
}

/// Waits for a line of this event, and returns the last one.
fn line_of(file: &Path, event: &str) -> Value {
    let mut found = None;
    until(event, || {
        found = lines(file).into_iter().rfind(|line| line["event"] == event);
        found.is_some()
    });
    found.expect("it was just found")
}

fn post(connection: &mut Connection, path: &str, headers: &str, body: &str) -> Value {
    let (status, reply) = connection.send("POST", path, headers, body).expect("a response");
    assert!(status < 500, "{status} {reply}");
    serde_json::from_str(&reply).expect("JSON")
}

/// Issues an identity file. Returns it, and the serial number of its certificate.
fn new_worker(data: &Path, name: &str) -> (PathBuf, String) {
    let (server, file) = (data.join("server.pem"), data.join(format!("{name}.pem")));
    let (server, out) = (server.to_str().expect("plain"), file.to_str().expect("plain"));
    let made = lockd(&["auth", "new", "client", "--server-in", server, "--out", out, "--cn", name]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let serial = made.stdout.lines().find_map(|line| line.trim().strip_prefix("serial: "));
    (file, serial.expect("a serial").to_string())
}

/// The operator took `orders` from ada at 02:13, and nothing but the store's log, of which 25 s of commits had left
/// nothing, said who it was.
#[test]
fn grants_ends_commits_and_acts_have_identity_serial_lease_key_and_outcome() {
    let data = tempfile::tempdir().expect("a directory");
    let file = data.path().join("audit.log");
    let server = Running::start(data.path(), &["--audit-log", file.to_str().expect("plain")]);
    let (ada, serial) = new_worker(data.path(), "ada");
    let mut worker = server.connect(&ada);
    let granted = post(
        &mut worker,
        "/v1/acquire",
        "x-correlation-id: job-4711\r\n",
        r#"{"key":"orders","owner":"pump"}"#,
    );
    let (credential, public) =
        (granted["lease_id"].as_str().expect("one"), granted["public_id"].as_str().expect("one"));
    let held = format!("x-lease-id: {credential}\r\n");
    post(&mut worker, "/v1/update_state?key=orders", &held, r#"{"cursor":7}"#);

    let mut operator = server.connect(&data.path().join("client.pem"));
    post(&mut operator, &format!("/v1/leases/{public}/revoke"), "", "");
    post(&mut operator, &format!("/v1/leases/{public}/reclaim"), "", "");
    post(&mut operator, &format!("/v1/leases/{public}/reclaim"), "x-correlation-id: again\r\n", "");
    post(&mut operator, "/v1/pause", "", r#"{"identity":"ada","paused":true}"#);

    let line = line_of(&file, "granted");
    assert_eq!(line["kind"], "grant");
    assert_eq!((line["identity"].as_str(), line["holder"].as_str()), (Some("ada"), Some("ada")));
    assert_eq!(line["serial"].as_str(), Some(serial.as_str()));
    assert_eq!((line["lease"].as_str(), line["correlation"].as_str()), (Some(public), Some("job-4711")));
    assert_eq!(line["members"][0]["resource"], "KEY:orders");
    assert_eq!((line["owner"].as_str(), line["outcome"].as_str()), (Some("pump"), Some("active")));
    assert!(
        line["time"].as_str().is_some_and(|time| time.starts_with("20") && time.ends_with('Z')),
        "{line}"
    );

    let line = line_of(&file, "committed");
    assert_eq!((line["key"].as_str(), line["version"].as_u64()), (Some("KEY:orders"), Some(1)), "{line}");
    assert_eq!((line["lease"].as_str(), line["bytes"].as_u64()), (Some(public), Some(12)));

    for (event, kind) in [("revoke", "act"), ("revoked", "end"), ("reclaimed", "end")] {
        let line = line_of(&file, event);
        assert_eq!((line["kind"].as_str(), line["lease"].as_str()), (Some(kind), Some(public)), "{line}");
        assert_eq!(line["identity"], "operator", "{line}");
    }
    let refused = line_of(&file, "reclaim_lease");
    assert_eq!(
        (refused["outcome"].as_str(), refused["code"].as_str()),
        (Some("refused"), Some("invalid_state"))
    );
    assert_eq!((refused["correlation"].as_str(), refused["lease"].as_str()), (Some("again"), Some(public)));
    let pause = line_of(&file, "pause");
    assert_eq!((pause["holder"].as_str(), pause["paused"].as_bool()), (Some("ada"), Some(true)), "{pause}");

    let text = std::fs::read_to_string(&file).expect("readable");
    assert!(!text.contains(credential), "a credential is in the audit log");
    assert!(!text.contains("cursor"), "a document is in the audit log");
    assert_eq!(file.metadata().expect("there").permissions().mode() & 0o777, 0o600);
}

/// An expiry has no request: its line has the holder, and no identity. The last lines are there after a stop.
#[test]
fn an_expiry_and_a_stop_are_in_the_file_and_a_start_says_whether_the_last_stop_was_clean() {
    let data = tempfile::tempdir().expect("a directory");
    let file = data.path().join("audit.log");
    let args = ["--audit-log", file.to_str().expect("plain"), "--sweeper-interval", "1ms"];
    let mut server = Running::start(data.path(), &args);
    let mut operator = server.connect(&data.path().join("client.pem"));
    post(&mut operator, "/v1/acquire", "", r#"{"key":"short","ttl_seconds":1}"#);
    let line = line_of(&file, "expired");
    assert_eq!((line["holder"].as_str(), line["identity"].as_str()), (Some("operator"), None), "{line}");
    assert!(line["deadline_unix_ms"].as_u64() <= line["unix_ms"].as_u64(), "{line}");
    server.signal(Signal::TERM);
    server.log.wait_for("stopped");
    assert_eq!(lines(&file).last().expect("lines")["event"], "stopped");
    drop(server);

    let server = Running::start(data.path(), &args);
    assert_eq!(line_of(&file, "started")["clean_stop"], true);
    let mut operator = server.connect(&data.path().join("client.pem"));
    post(&mut operator, "/v1/acquire", "", r#"{"key":"other"}"#);
    server.signal(Signal::KILL);
    drop(server);
    let before = lines(&file).len();
    let _server = Running::start(data.path(), &args);
    until("the third start", || lines(&file).len() > before);
    assert_eq!(lines(&file).last().expect("lines")["clean_stop"], false);
}

/// A server of a bucket wrote `"clean_stop":true` at every start, also after SIGKILL: it owns no shard yet, and so found none
/// that was not closed. An auditor took the file for complete.
#[test]
fn a_server_of_a_bucket_that_was_killed_says_at_its_next_start_that_entries_may_be_missing() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let file = dir.path().join("audit.log");
    let args = ["--takeover-silence", "1s", "--audit-log", file.to_str().expect("plain")];
    let start = || serve(&objects, &dir.path().join("data"), &args);
    let starts = || lines(&file).into_iter().filter(|line| line["event"] == "started").collect::<Vec<_>>();
    let server = start();
    assert_eq!(
        post_to(&server.address, "/v1/acquire", &serde_json::json!({"key": "k"})).expect("one").0,
        200
    );
    line_of(&file, "granted");
    // SIGKILL, in the middle of a line.
    drop(server);
    let torn = [std::fs::read(&file).expect("readable"), b"{\"event\":\"gra".to_vec()].concat();
    std::fs::write(&file, torn).expect("written");
    let mut server = start();
    until("the second start", || starts().len() == 2);
    assert!(server.log.seen().contains(r#"last_stop="unclean""#), "{}", server.log.seen());
    server.signal(Signal::TERM);
    server.log.wait_for("stopped");
    drop(server);
    let server = start();
    until("the third start", || starts().len() == 3);
    assert!(server.log.seen().contains(r#"last_stop="clean""#), "{}", server.log.seen());
    let clean: Vec<Value> = starts().iter().map(|line| line["clean_stop"].clone()).collect();
    assert_eq!(clean, [Value::Null, false.into(), true.into()], "of a new file nothing is known");
}

/// A limit on file sizes stands for a full disk: a write is cut short in the middle of a line, and the next ones fail. The
/// server goes on, no line is torn, and once there is space again nothing is missing.
#[test]
fn a_full_disk_stops_no_request_and_leaves_whole_lines() {
    let data = tempfile::tempdir().expect("a directory");
    let (file, moved) = (data.path().join("audit.log"), data.path().join("moved"));
    let args = ["--store", "mem://", "--audit-log", file.to_str().expect("plain")];
    let mut server = Running::start_after("trap '' XFSZ; ulimit -f 256", data.path(), &args);
    let mut client = server.connect(&data.path().join("client.pem"));
    let acquire = |client: &mut Connection, number: usize| {
        let body = format!(r#"{{"key":"key-{number}","owner":"{}"}}"#, "o".repeat(100));
        let reply = post(client, "/v1/acquire", "", &body);
        assert!(reply["lease_id"].is_string(), "{reply}");
    };
    (0..300).for_each(|number| acquire(&mut client, number));
    server.log.wait_for("the audit log cannot be written");
    (300..320).for_each(|number| acquire(&mut client, number));
    std::fs::rename(&file, &moved).expect("moved");
    server.log.wait_for("the audit log is written again");
    let granted = || {
        let all = lines(&moved).into_iter().chain(lines(&file));
        all.filter(|line| line["event"] == "granted").count()
    };
    until("every grant is in one of the files", || granted() == 320);
    let (_, metrics) = client.ask("GET", "/metrics", "").expect("metrics");
    assert!(metrics.contains("lockd_audit_entries_total{result=\"lost\"} 0"), "{metrics}");
}

#[test]
fn a_file_that_cannot_be_opened_is_refused_at_the_start() {
    let data = tempfile::tempdir().expect("a directory");
    let path = data.path().join("missing/audit.log");
    let data_dir = data.path().join("data");
    let (path, data_dir) = (path.to_str().expect("plain"), data_dir.to_str().expect("plain"));
    let ran = lockd(&[
        "serve",
        "--store",
        "mem://",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        data_dir,
        "--audit-log",
        path,
    ]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("the audit log cannot be opened") && ran.stderr.contains(path),
        "{}",
        ran.stderr
    );
}

/// Rotation was tested with a file of the test's own: nothing showed that the two settings reach it.
#[test]
fn the_file_is_rotated_by_the_size_and_kept_by_the_count_that_are_set() {
    let data = tempfile::tempdir().expect("a directory");
    let logs = tempfile::tempdir().expect("a directory");
    let logs = logs.path();
    let file = logs.join("audit.log");
    let size = 1_000_000;
    let args = ["--store", "mem://", "--audit-log", file.to_str().expect("plain"), "--audit-log-size", "1MB"];
    let server = Running::start(data.path(), &[&args[..], &["--audit-log-keep", "2"]].concat());
    let mut client = server.connect(&data.path().join("client.pem"));
    let owner = "o".repeat(200);
    let names = || {
        let entries = std::fs::read_dir(logs).expect("listed").map(|entry| entry.expect("readable"));
        entries
            .map(|entry| entry.file_name().into_string().expect("text"))
            .collect::<std::collections::BTreeSet<_>>()
    };
    let oldest = logs.join("audit.log.2");
    // Until the oldest file was replaced once.
    let (mut first, mut number) = (None, 0);
    until("a third rotation", || {
        for _ in 0..200 {
            number += 1;
            let body = format!(r#"{{"key":"key-{number}","owner":"{owner}"}}"#);
            let lease = post(&mut client, "/v1/acquire", "", &body)["lease_id"].clone();
            post(&mut client, "/v1/release", "", &serde_json::json!({"lease_id": lease}).to_string());
        }
        let begin = std::fs::read_to_string(&oldest).ok().map(|text| text[..100].to_string());
        first = first.take().or_else(|| begin.clone());
        begin.is_some() && begin != first
    });
    assert_eq!(names(), ["audit.log", "audit.log.1", "audit.log.2"].map(String::from).into());
    for name in ["audit.log", "audit.log.1", "audit.log.2"] {
        assert!(logs.join(name).metadata().expect("there").len() <= size, "{name}");
        assert!(name == "audit.log" || !lines(&logs.join(name)).is_empty(), "{name}");
    }
}
