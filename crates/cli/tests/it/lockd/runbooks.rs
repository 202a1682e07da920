//! The commands of the runbooks, typed as they are printed, against real servers and damaged stores.
//!
//! A page is run like a guide, in one shell. `systemctl` and `journalctl` are scripts of this test that start, stop and
//! reload a server, and show its log. `$DATA` is the data directory, `$BACKUP` a backup and `$SOCKET` the Unix socket of the
//! server; `<!-- run: … -->` causes the trouble that the page is about. What a shell cannot cause is prepared in
//! `$RUNBOOK` by this test: a certificate that has expired, a diverged log, a backup of tomorrow.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use backup::{BackupOptions, Quiet};
use cli::times::now_unix_ms;
use kernel::{Action, Span};
use sim::fixture::{grant, key};

use crate::lockd::guides::{as_reader, check_blocks, page_blocks, script};
use crate::lockd::identities::{issue_at, server, worker};
use crate::lockd::serve::Running;
use crate::lockd::server::program;
use crate::lockd::support::{record, ticking};

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
    run_prepared(page, at_least, |_, _| ());
}

/// `prepare` gets `$RUNBOOK` and `$DATA`.
fn run_prepared(page: &str, at_least: usize, prepare: impl FnOnce(&Path, &Path)) {
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
    let (_server, data) = (ServerOf(&runbook), home.path().join(".local/share/lockd"));
    prepare(&runbook, &data);
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
    shell.env("DATA", data).env("BACKUP", home.path().join("backup"));
    check_blocks(page, &blocks, &mut shell);
}

/// Copies a store, for its owner alone.
pub(crate) fn copy_private(from: &Path, to: &Path) {
    let script = "cp -r \"$0\" \"$1\" && chmod -R go-rwx \"$1\"";
    let copied = Command::new("sh").args(["-c", script]).args([from, to]).status().expect("a shell");
    assert!(copied.success());
}

/// An address of this machine that is free now.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

#[test]
fn a_server_that_refuses_to_start() {
    run_prepared("server-refuses-to-start.md", 8, |runbook, _| {
        // A grant of a key that is held: this kernel would not have applied it.
        let store = ticking();
        let granted = Action::Acquire(grant(key("k2"), Span(300_000)));
        store.append(0, &[record(7, Some("bob"), granted)]);
        copy_private(store.close().path(), &runbook.join("diverged"));
    });
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
    run_prepared("expired-certificate.md", 4, |runbook, data| {
        fs::create_dir_all(data).expect("an empty home directory");
        drop(Running::start(data, &[]));
        let (ca, now, day) = (data.join("ca/ca.pem"), now_unix_ms() / 1000, 86_400);
        let expired = issue_at(&ca, now - 366 * day, server).to_pem();
        fs::write(data.join("server.pem"), expired.as_str()).expect("writable");
        let expired = issue_at(&ca, now - 30 * day, |authority, moment| worker(authority, "7", moment));
        fs::write(runbook.join("worker.pem"), expired.to_pem().as_str()).expect("writable");
    });
}

#[test]
fn a_lost_ca() {
    run("lost-ca.md", 4);
}

#[test]
fn a_clock_that_jumps() {
    run_prepared("clock-jump.md", 3, |runbook, _| {
        let store = ticking().close();
        let tomorrow = now_unix_ms() + 86_400_000;
        let options =
            BackupOptions { key: None, now_unix_ms: tomorrow, rate: None, timeout: Duration::from_secs(60) };
        let to = runbook.join("tomorrow");
        backup::take(store.path(), &to, &options, &Quiet, &mut |what| panic!("{what}")).expect("a backup");
    });
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
        let is_run = name == "README.md"
            || source.contains(&format!("run(\"{name}\""))
            || source.contains(&format!("run_prepared(\"{name}\""));
        assert!(is_run && (name == "README.md" || index.contains(&format!("]({name}"))), "{name}");
    }
    let shell = Command::new("sh").args(["-n", "-c", SYSTEMCTL]).status().expect("a shell");
    assert!(shell.success());
}
