//! The commands of the runbooks, typed as they are printed, against real servers and damaged stores.
//!
//! A page is run like a guide, in one shell. `systemctl` and `journalctl` are scripts of this test that start, stop and
//! reload a server, and show its log. `$DATA` is the data directory, `$BACKUP` a backup and `$SOCKET` the Unix socket of the
//! server; `<!-- run: … -->` causes the trouble that the page is about.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::lockd::guides::{as_reader, check_blocks, page_blocks, script};
use crate::lockd::server::program;

const LIMIT_SECONDS: &str = "300";

const SYSTEMCTL: &str = r#"#!/bin/sh
pid=$(cat "$RUNBOOK/pid" 2>/dev/null)
case "$1" in
start)
    [ ! -f "$RUNBOOK/prelude" ] || . "$RUNBOOK/prelude"
    lockd serve --listen "$ADDRESS" --data-dir "$DATA" --unix "$SOCKET" >>"$RUNBOOK/journal" 2>&1 &
    echo $! >"$RUNBOOK/pid"
    for _ in $(seq 600); do
        lockd health --alive --unix "$SOCKET" >/dev/null 2>&1 && exit 0
        kill -0 $! 2>/dev/null || exit 1
        sleep 0.05
    done
    exit 1 ;;
stop)
    [ -n "$pid" ] && kill "$pid" 2>/dev/null || exit 0
    for _ in $(seq 600); do
        kill -0 "$pid" 2>/dev/null || exit 0
        sleep 0.05
    done
    exit 1 ;;
restart) "$0" stop && "$0" start ;;
esac
"#;

const JOURNALCTL: &str = r#"#!/bin/sh
# As `journalctl -u lockd -n N`.
tail -n "$4" "$RUNBOOK/journal"
"#;

/// Ends the server of a page, whatever becomes of the page.
struct ServerOf<'a>(&'a Path);

impl Drop for ServerOf<'_> {
    fn drop(&mut self) {
        let pid = fs::read_to_string(self.0.join("pid")).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

fn run(page: &str, at_least: usize) {
    let blocks = page_blocks(&format!("operating/runbooks/{page}"));
    assert!(blocks.len() >= at_least, "{page}: only {} blocks were found", blocks.len());
    let home = tempfile::tempdir().expect("a directory");
    let (runbook, work) = (home.path().join("runbook"), home.path().join("work"));
    fs::create_dir(&runbook).expect("an empty home directory");
    fs::create_dir(&work).expect("an empty home directory");
    for (name, text) in [("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)] {
        fs::write(runbook.join(name), text).expect("writable");
        fs::set_permissions(runbook.join(name), fs::Permissions::from_mode(0o700)).expect("ours");
    }
    let _server = ServerOf(&runbook);
    let address = free_address();
    let mut shell = program(&address, "timeout");
    shell.args([LIMIT_SECONDS, "sh", "-uc", &script(&blocks)]).current_dir(&work).stdin(Stdio::null());
    as_reader(&mut shell, home.path());
    let path = shell.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, value)| value);
    let path = format!("{}:{}", runbook.display(), path.expect("it is set").to_string_lossy());
    shell
        .env("PATH", path)
        .env("RUNBOOK", &runbook)
        .env("ADDRESS", &address)
        .env("SOCKET", runbook.join("lockd.sock"));
    shell.env("DATA", home.path().join(".local/share/lockd")).env("BACKUP", home.path().join("backup"));
    check_blocks(page, &blocks, &mut shell);
}

/// An address of this machine that is free now.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

#[test]
fn a_server_that_refuses_to_start() {
    run("server-refuses-to-start.md", 6);
}

#[test]
fn a_store_that_is_restored_from_a_backup() {
    run("restore-from-backup.md", 5);
}

#[test]
fn a_full_disk() {
    run("full-disk.md", 4);
}

#[test]
fn an_expired_certificate() {
    run("expired-certificate.md", 3);
}

#[test]
fn a_lost_ca() {
    run("lost-ca.md", 4);
}

#[test]
fn a_clock_that_jumps() {
    run("clock-jump.md", 2);
}

#[test]
fn too_many_waiters() {
    run("too-many-waiters.md", 4);
}

#[test]
fn a_client_that_was_revoked_by_mistake() {
    run("revoked-by-mistake.md", 4);
}

#[test]
fn every_runbook_is_run_and_listed() {
    let source = include_str!("runbooks.rs");
    let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/runbooks");
    let index = fs::read_to_string(format!("{pages}/README.md")).expect("the list");
    for entry in fs::read_dir(pages).expect("the runbooks") {
        let name = entry.expect("readable").file_name().into_string().expect("text");
        let is_run = name == "README.md" || source.contains(&format!("run(\"{name}\""));
        assert!(is_run && (name == "README.md" || index.contains(&format!("]({name}"))), "{name}");
    }
    let shell = Command::new("sh").args(["-n", "-c", SYSTEMCTL]).status().expect("a shell");
    assert!(shell.success());
}
