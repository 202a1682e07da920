//! Messages and exit codes that say what happened, and what to do.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use identity::Role;

use crate::lockd::identities::IdentityDir;
use crate::lockd::serve::Running;
use crate::lockd::server::{Server, sh};
use crate::lockd::support::lockd;
use crate::running::spoken;

/// It said `waiting: …` and did not wait, and named the text that the holder had chosen as the holder.
#[test]
fn a_key_that_is_held_is_told_with_its_holder_and_how_to_wait() {
    let server = Server::start(Role::Operator);
    server.sh("lockd client acquire --owner root@prod --ttl 5m taken >/dev/null");
    let state = tempfile::tempdir().expect("a directory");
    let state = state.path().display();
    for command in ["lockd client acquire", "lockd run --key", "lockc acquire"] {
        let after = if command.contains("run") { "-- true" } else { "" };
        let ran = server.sh(&format!("XDG_STATE_HOME={state} {command} taken {after}"));
        assert_eq!(ran.code, 10, "{command}: {}", ran.stderr);
        let (said, facts) = ran.stderr.split_once(": key=").unwrap_or_else(|| panic!("{}", ran.stderr));
        assert!(said.contains("not granted: anonymous holds it for another "), "{said}");
        assert!(said.ends_with("unless renewed; --block 60s waits for it"), "{said}");
        assert!(
            facts.starts_with("taken holder=anonymous owner=\"root@prod\" public_id=L-"),
            "{command}: {facts}"
        );
    }
    let waited = server.sh("lockd client acquire --block 1s taken");
    assert_eq!(waited.code, 10);
    let lines: Vec<&str> = waited.stderr.lines().collect();
    assert_eq!(
        lines[0],
        r#"lockd: waiting for the lease, next in the queue: holder=anonymous owner="root@prod""#
    );
    assert!(lines[1].starts_with("lockd: waited 1s in vain: anonymous holds it"), "{}", waited.stderr);
    assert_eq!(lines.len(), 2, "{}", waited.stderr);
}

/// A wait was silent, also on a terminal.
#[test]
fn a_wait_is_one_line_on_a_terminal_and_is_cleared() {
    let server = Server::start(Role::Operator);
    server.sh("lockd client acquire --ttl 5m taken >/dev/null");
    let (mut reader, terminal) = crate::terminal::open();
    let mut command = server.lockd(&["client", "acquire", "--block", "2s", "taken"]);
    let status = command.stdout(Stdio::null()).stderr(terminal).status().expect("it runs");
    drop(command);
    assert_eq!(status.code(), Some(10));
    let mut seen = Vec::new();
    // A terminal ends with an error when no program has it open.
    let _ = reader.read_to_end(&mut seen);
    let seen = String::from_utf8_lossy(&seen);
    let (waiting, end) =
        seen.rsplit_once("waiting for the lease, next in the queue: holder=anonymous").expect("a status");
    assert!(!waiting.contains('\n'), "one line: {seen:?}");
    assert!(end.contains("\u{1b}[2K") && end.contains("waited 2s in vain"), "cleared: {seen:?}");
}

/// `release` printed nothing, and exited with 0, for leases that had expired or been revoked.
#[test]
fn a_release_of_what_had_ended_says_so() {
    let server = Server::start(Role::Operator);
    let ran =
        server.sh(r#"eval "$(lockd client acquire --ttl 5m live)"; lockd client release; echo "live $?"
        eval "$(lockd client acquire --ttl 50ms late)"
        lockd client watch late --until free >/dev/null; lockd client release; echo "late $?"
        eval "$(lockd client acquire --ttl 5m taken)"
        lockd client revoke "${LOCKD_CLIENT_LEASE_ID%%.*}" >/dev/null
        lockd client release; echo "taken $?"; lockd client release --output json"#);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.stderr);
    assert!(lines[0].contains("had expired before it was released"), "{}", lines[0]);
    assert!(lines[1].contains("stay blocked until it is reclaimed"), "{}", lines[1]);
    let expected = "live 0\nlate 0\ntaken 0\n{\"released\":true,\"state\":\"revoking\"}\n";
    assert_eq!(ran.stdout, expected);
}

/// An identity that was revoked while `lockd run` held its lease, or waited for it, was reported as an expired lease.
#[test]
fn a_run_whose_identity_is_revoked_is_denied() {
    let dir = IdentityDir::new();
    for name in ["holder", "waiter", "other"] {
        dir.client(&format!("{name}.pem"), name);
    }
    let data = tempfile::tempdir().expect("a directory");
    let bundle = dir.path("server.pem");
    let mut server =
        Running::start(&data.path().join("data"), &["--bundle", bundle.to_str().expect("a path")]);
    let run = |identity: &str, more: &[&str], script: &str| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        command.args(["run", "--server", &server.address, "--ttl", "3s", "--grace", "100ms"]);
        command.arg("--identity").arg(dir.path(identity)).args(more).args(["--", "sh", "-c", script]);
        command
    };
    let (holder, _) = spoken(&mut run("holder.pem", &["--key", "a"], "echo $$; exec sleep 60"));
    let (other, _) = spoken(&mut run("other.pem", &["--key", "b"], "echo $$; exec sleep 60"));
    let mut waiter = run("waiter.pem", &["--key", "b", "--block", "1m"], "echo granted");
    let waiter = waiter.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    crate::running::until("it waits", || {
        let seen = dir.run(&format!("client describe b --server {} --identity other.pem", server.address));
        seen.stdout.contains("waiters=1")
    });
    dir.auth("revoke client --server-in server.pem --in holder.pem");
    dir.auth("revoke client --server-in server.pem --in waiter.pem");
    server.log.wait_for("reloaded identities");
    let (code, said) = holder.ended();
    assert_eq!(code, Some(14), "{said}");
    assert!(
        said.contains("lost while the command ran: the server refuses this certificate: it is revoked"),
        "{said}"
    );
    let denied = waiter.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&denied.stderr);
    assert_eq!(denied.status.code(), Some(14), "{said}");
    drop(other);
}

#[test]
fn tls_to_a_plain_server_is_told_as_that() {
    let server = Server::start(Role::Operator);
    let dir = IdentityDir::new();
    dir.client("ada.pem", "ada");
    for words in ["list", "acquire orders"] {
        let command = format!("client {words} --server https://{} --identity ada.pem", server.address);
        let ran = dir.run(&command);
        assert_eq!(ran.code, 2, "a retry does not help: {}", ran.stderr);
        assert!(ran.stderr.contains("it may expect plain HTTP; use an http:// address"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("cannot be reached"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("may have been applied"), "{}", ran.stderr);
    }
}

/// The right was named by a word of the program's source, and nothing said how to get it.
#[test]
fn a_missing_right_is_named_by_its_letter_with_the_command_that_helps() {
    let dir = IdentityDir::new();
    dir.client("ada.pem", "ada");
    let data = tempfile::tempdir().expect("a directory");
    let bundle = dir.path("server.pem");
    let server = Running::start(&data.path().join("data"), &["--bundle", bundle.to_str().expect("a path")]);
    let ran = dir.run(&format!("client get --public k --server {} --identity ada.pem", server.address));
    assert_eq!(ran.code, 14);
    assert!(ran.stderr.contains("lacks the right `p`"), "{}", ran.stderr);
    assert!(ran.stderr.contains("`lockd auth new client --namespace default:rwp`"), "{}", ran.stderr);
}

/// A get that failed printed its message twice into one file or pipe.
#[test]
fn a_failed_get_prints_one_line_where_both_outputs_go() {
    let server = Server::start(Role::Operator);
    let state = tempfile::tempdir().expect("a directory");
    let lockc = format!("XDG_STATE_HOME={} lockc state get", state.path().display());
    for program in ["lockd client get", &lockc] {
        let ran = server.sh(&format!("{program} orders 2>&1 | cat"));
        assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
        let apart = server.sh(&format!("{program} orders"));
        assert_eq!((apart.stdout.lines().count(), apart.stderr.lines().count()), (1, 1), "{}", apart.stderr);
    }
}

#[test]
fn an_invalid_command_line_is_refused_with_a_tip() {
    for (words, tip) in [
        ("aquire orders", "tip: a similar command exists: 'lockd client acquire'"),
        ("acquire orders", "tip: a similar command exists: 'lockd client acquire'"),
        ("client aquire orders", "tip: a similar command exists: 'lockd client acquire'"),
        // There were seven suggestions, the right one among them.
        ("client relase", "tip: a similar command exists: 'lockd client release'"),
        ("auth nwe client", "tip: a similar command exists: 'lockd auth new'"),
        ("auth new cleint", "tip: a similar command exists: 'lockd auth new client'"),
        // The suggestion was `--mtls`, and `-- --ky`.
        ("client acquire --tl 30s k", "tip: a similar argument exists: '--ttl'"),
        ("run --ky k -- true", "tip: a similar argument exists: '--key'"),
        ("list", "tip: a similar command exists: 'lockd client list'"),
        ("rn --key k", "tip: a similar command exists: 'lockd run'"),
        ("lock orders", "tip: a similar command exists: 'lockd run'"),
        ("run --key k echo hi", "tip: put -- before the command to run: '-- echo hi'"),
        ("run --key k --wait 10m -- true", "tip: a similar argument exists: '--block'"),
        ("client list -o json", "write '--output json' for the format, or '> ./json' for a file"),
        ("auth list -oyaml", "write '--output yaml' for the format, or '> ./yaml' for a file"),
        ("run -o json --key k -- true", "write '--output json' for the format, or '> ./json' for a file"),
        ("client acquire", "Usage: lockd client acquire [OPTIONS] [KEY]"),
        ("client get k -o json", "write --output json for the format, or -o ./json for the file"),
        ("serve --config nosuch.toml", "the settings file cannot be read: No such file"),
        ("client list --identity nosuch.pem", "the identity file cannot be read: No such file"),
        (
            "client list --identity nosuch.pem --denylist-path none.txt",
            "the denylist cannot be read: No such file",
        ),
        ("client history orders", "write KIND:name; a key is KEY:name, as in KEY:orders"),
        ("client resource orders", "write KIND:name; a key is KEY:name, as in KEY:orders"),
    ] {
        let ran = lockd(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(ran.code, 2, "{words}");
        assert!(ran.stderr.contains(tip), "{words}: {}", ran.stderr);
    }
    let unrelated = lockd(&["zebra"]);
    assert!(!unrelated.stderr.contains("tip:"), "{}", unrelated.stderr);
}

/// The help of `watch` and `events` said that `--timeout` was of one request, and 10 seconds if not given.
#[test]
fn the_help_of_a_timeout_is_that_of_the_command() {
    for (command, timeout) in [
        ("watch", "How long to follow [default: no limit]"),
        ("events", "How long to follow [default: no limit]"),
        ("list", "Timeout of one request, in addition to `--block` [default: 10s]"),
    ] {
        let help = lockd(&["client", command, "--help"]).stdout;
        let about = help.split("--timeout <TIMEOUT>\n").nth(1).expect("the option").trim_start();
        assert!(about.starts_with(timeout), "{command}: {about}");
    }
}

#[test]
fn a_bad_variable_is_named() {
    let told = |variable: &str, words: &[&str]| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        let output = command.args(words).env(variable, "5x").output().expect("it runs");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).expect("text")
    };
    assert!(told("LOCKD_MAX_TTL", &["serve"]).contains("the variable LOCKD_MAX_TTL"));
    assert!(told("LOCKD_CLIENT_TTL", &["client", "acquire", "k"]).contains("the variable LOCKD_CLIENT_TTL"));
    let flag = told("LOCKD_CLIENT_TTL", &["client", "acquire", "--ttl", "x", "k"]);
    assert!(!flag.contains("variable"), "{flag}");
}

/// `--ttl 30` was 30 seconds, and `serve --max-ttl 30` was refused.
#[test]
fn a_number_without_a_unit_is_in_seconds_for_clients_and_servers() {
    let config = lockd(&["config", "--max-ttl", "90", "--data-dir", "/tmp/none"]);
    assert!(config.stdout.contains("max-ttl = \"1m 30s\""), "{}{}", config.stdout, config.stderr);
    let server = Server::start(Role::Operator);
    let ran = server.sh("lockd client acquire --ttl 90 --output json k");
    assert_eq!(ran.lines()[0]["ttl_ms"], 90_000, "{}", ran.stdout);
}

#[test]
fn the_process_that_has_the_store_open_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Running::start(dir.path(), &["--mtls=false"]);
    let data = dir.path().to_str().expect("a path");
    let second = lockd(&["serve", "--mtls=false", "--listen", "127.0.0.1:0", "--data-dir", data]);
    assert_eq!(second.code, 1, "{}", second.stderr);
    assert!(second.stderr.contains(&format!(" pid={}", server.id())), "{}", second.stderr);
}

/// A server on a full disk said that it served, then that memory was ahead of its log, and advised to start it again.
#[test]
fn a_start_without_disk_space_says_how_much_is_needed() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    // A limit on the length of files fails writes as a full disk does: 1 MB.
    let serve = format!(
        "trap '' XFSZ; ulimit -f 2000; exec lockd serve --mtls=false --listen 127.0.0.1:0 --data-dir '{}'",
        data.display()
    );
    let ran = sh("127.0.0.1:1", &serve);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let last = ran.stderr.lines().last().expect("a message");
    assert!(last.starts_with("lockd: there is too little free disk space for the log; free some"), "{last}");
    assert!(last.contains("bytes=4194304") && last.contains("store/log/0 shard=0"), "{last}");
    assert!(!ran.stderr.contains("serving"), "{}", ran.stderr);
    drop(Running::start(&data, &["--mtls=false"]));
}

/// The message was the text of the operating system and a path.
#[test]
fn a_data_directory_that_cannot_be_used_is_told_with_what_helps() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("data");
    std::fs::write(&file, "").expect("written");
    let path = file.to_str().expect("a path");
    let serve = |data: &str| lockd(&["serve", "--mtls=false", "--listen", "127.0.0.1:0", "--data-dir", data]);
    let ran = serve(path);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("a file is where the server needs a directory; name another one"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains(&format!("path={path}")), "{}", ran.stderr);
    // Not even root may create a directory here.
    let ran = serve("/proc/self/lockd");
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("a file or directory of the server cannot be"), "{}", ran.stderr);
}

/// A log directory of another user was "Permission denied", without a path and without advice.
#[test]
fn files_of_another_user_are_told_with_path_and_user() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    drop(Running::start(&data, &["--mtls=false"]));
    let owned = Command::new("chown").args(["-R", "65534"]).arg(dir.path()).status().expect("chown");
    assert!(owned.success());
    let program = assert_cmd::cargo::cargo_bin!("lockd").display();
    let log = data.join("store/log/0");
    // In a directory that cannot be written to, the first write fails: it removes a spare segment if the server left one, and
    // else copies the end of the log.
    let first_writes: &[&str] = &["removing a file", "copying the end of the log"];
    for (mode, steps) in [("0", &["opening the log directory"][..]), ("500", first_writes)] {
        let script = format!(
            "chmod {mode} '{}'; export XDG_CONFIG_HOME=/nowhere; exec 9< '{program}'; exec setpriv --reuid=65534 --clear-groups /proc/self/fd/9 serve \
             --mtls=false --listen 127.0.0.1:0 --data-dir '{}'",
            log.display(),
            data.display()
        );
        let ran = sh("127.0.0.1:1", &script);
        let last = ran.stderr.lines().last().expect("a message");
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(
            steps.iter().any(|step| last.contains(step)) && last.contains(log.to_str().expect("a path")),
            "{last}"
        );
        assert!(last.contains("run this as the user that owns the store"), "{last}");
    }
}

/// `lockd store dump --store /var/lib/lockd`, the example of the help, failed with the layout of the documentation.
#[test]
fn a_store_is_found_in_the_data_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("lockd");
    drop(Running::start(&data, &["--mtls=false"]));
    let path = |path: &Path| path.to_str().expect("a path").to_string();
    let by_store = lockd(&["store", "dump", "--store", &path(&data.join("store"))]);
    assert_eq!(by_store.code, 0, "{}", by_store.stderr);
    let by_data = lockd(&["store", "dump", "--store", &path(&data)]);
    let by_alias = lockd(&["store", "dump", "--store", &format!("pebble://{}", path(&data.join("store")))]);
    let script = format!("XDG_DATA_HOME='{}' lockd store dump", path(dir.path()));
    let by_default = sh("127.0.0.1:1", &script);
    for other in [by_data, by_alias, by_default] {
        assert_eq!((other.code, &other.stdout), (0, &by_store.stdout), "{}", other.stderr);
    }
    assert_eq!(lockd(&["store", "check", "--store", &path(&data)]).code, 0);
}
