//! `lockd client watch`: the lines it prints, and when it ends.

use std::io::{BufRead, BufReader, Lines};
use std::process::{ChildStdout, Stdio};

use identity::Role;
use serde_json::Value;

use crate::lockd::server::{Server, sh};
use crate::running::Running;

/// A running watch and its output lines.
fn watch(server: &Server, args: &[&str]) -> (Running, Lines<BufReader<ChildStdout>>) {
    let mut command = server.lockd(&[&["client", "watch", "orders", "--every", "100ms"], args].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    (Running::new(child), lines)
}

fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    lines.next().expect("the watch still runs").expect("text")
}

#[test]
fn every_change_is_a_line_and_a_renewal_is_none() {
    let server = Server::start(Role::Operator);
    let (_running, mut lines) = watch(&server, &[]);
    let line = next(&mut lines);
    assert!(line.ends_with("Z free, never used: key=orders"), "{line}");
    let acquire = "lockd client acquire --owner ada --ttl 300s orders";
    let exports = server.sh(acquire).stdout;
    assert!(next(&mut lines).contains(" held key=orders holder=anonymous owner=\"ada\" public_id=L-"));
    server.sh(&format!(
        "{exports}\nlockd client keepalive; lockd client keepalive; echo 1 | lockd client update"
    ));
    let line = next(&mut lines);
    assert!(line.contains(" state=active version=1 waiters=0"), "the next thing is the commit: {line}");
    server.sh(&format!("{exports}\nlockd client release"));
    let line = next(&mut lines);
    assert!(line.ends_with(" free key=orders version=1 waiters=0"), "{line}");
}

#[test]
fn json_is_one_object_a_line() {
    let server = Server::start(Role::Operator);
    let (_running, mut lines) = watch(&server, &["--output", "json"]);
    let json = |line: &str| serde_json::from_str::<Value>(line).expect("an object");
    let first = json(&next(&mut lines));
    assert_eq!(
        (&first["held"], &first["known"], &first["owner"]),
        (&false.into(), &false.into(), &Value::Null)
    );
    server.sh("lockd client acquire --owner ada --ttl 300s orders");
    let held = json(&next(&mut lines));
    assert_eq!(
        (&held["held"], &held["key"], &held["state"]),
        (&true.into(), &"orders".into(), &"active".into())
    );
    assert!(held["time"].as_str().is_some_and(|time| time.ends_with('Z')) && held["fencing_token"].is_u64());
    assert!(held.get("lease_id").is_none(), "no credential: {held}");
}

#[test]
fn it_ends_when_the_until_condition_holds() {
    let server = Server::start(Role::Operator);
    let ran = server.sh("lockd client watch orders --until free");
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, 1), "{}", ran.stderr);
    let (held, mut held_lines) = watch(&server, &["--until", "held"]);
    let (changed, mut changed_lines) = watch(&server, &["--until", "changed"]);
    assert!(next(&mut held_lines).contains("free") && next(&mut changed_lines).contains("free"));
    let exports = server.sh("lockd client acquire --ttl 300s orders").stdout;
    assert_eq!((held.ended().0, changed.ended().0), (Some(0), Some(0)));
    let (free, mut lines) = watch(&server, &["--until", "free"]);
    assert!(next(&mut lines).contains("held"));
    server.sh(&format!("{exports}\nlockd client release"));
    assert_eq!(free.ended().0, Some(0));
}

#[test]
fn it_ends_at_its_timeout() {
    let server = Server::start(Role::Operator);
    let cases = [
        (0, "lockd client watch orders --timeout 3s"),
        (0, "lockd client --timeout 3s watch orders"),
        (0, "LOCKD_CLIENT_TIMEOUT=3s lockd client watch orders"),
        (0, "lockd client watch --prefix orders --timeout 3s"),
        (0, "lockd client --timeout 3s events"),
        (1, "lockd client watch orders --timeout 3s --until held"),
        (1, "lockd client watch orders --timeout 3s --until changed"),
        (2, "lockd client watch orders --every 99ms"),
        (2, "lockd client watch orders --until never"),
        (2, "lockd client watch ''"),
    ];
    let address = server.address.to_string();
    std::thread::scope(|scope| {
        for (code, script) in cases {
            let address = &address;
            scope.spawn(move || {
                let ran = sh(address, script);
                assert_eq!(ran.code, code, "{script}: {}", ran.stderr);
            });
        }
    });
}

#[test]
fn an_unreachable_server_is_reported_once_and_polled_again() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound");
    let ran = sh(&closed.to_string(), "lockd client watch orders --every 100ms --timeout 2s");
    assert_eq!((ran.code, ran.stdout.as_str()), (13, ""), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("retrying").count(), 1, "{}", ran.stderr);
    let server = Server::start(Role::Operator);
    let proxy = server.proxy();
    let mut command =
        crate::lockd::server::program(&proxy.address.to_string(), assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["client", "watch", "orders", "--every", "100ms", "--timeout", "4s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let running = Running::new(child);
    next(&mut lines);
    proxy.cut();
    let (code, stderr) = running.ended();
    assert_eq!((code, stderr.matches("retrying").count()), (Some(13), 1), "{stderr}");
}

#[test]
fn it_ends_when_the_reader_closes_the_pipe() {
    let server = Server::start(Role::Operator);
    let (running, mut lines) = watch(&server, &[]);
    next(&mut lines);
    drop(lines);
    server.sh("lockd client acquire --ttl 300s orders");
    assert_eq!(running.ended().0, Some(0));
}
