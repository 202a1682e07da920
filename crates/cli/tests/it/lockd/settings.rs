//! Settings of `lockd serve` that cannot be served, given to the real binary.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::lockd::support::lockd;
use crate::running::{Running, until};

/// `lockd serve --history-window 60d` passed every check, opened the store and then panicked in the kernel, whose spans end at
/// 2^32 - 1 ms (49.7 days): exit code 101, and a message about a record instead of one about the setting.
#[test]
fn a_history_window_beyond_the_kernels_spans_is_refused_with_its_range() {
    for source in ["flag", "variable", "file"] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--mtls=false", "--store", "mem://", "--data-dir"]);
        command.arg(dir.path()).env("XDG_CONFIG_HOME", dir.path());
        match source {
            "flag" => command.args(["--history-window", "60d"]),
            "variable" => command.env("LOCKD_HISTORY_WINDOW", "60d"),
            _ => {
                let file = dir.path().join("settings.toml");
                std::fs::write(&file, "history-window = \"60d\"\n").expect("written");
                command.arg("--config").arg(file)
            }
        };
        let mut child = command.stderr(Stdio::piped()).stdin(Stdio::null()).spawn().expect("the program");
        let mut status = None;
        until("it exits", || {
            status = child.try_wait().expect("our own child");
            status.is_some()
        });
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        assert_eq!(status.expect("it exited").code(), Some(2), "{source}: {stderr}");
        for part in ["--history-window", "60d", "from 0s to 49d 17h 2m 47s 295ms"] {
            assert!(stderr.contains(part), "{source}: {part}: {stderr}");
        }
    }
}

fn serve(dir: &std::path::Path, arguments: &[&str]) -> Running {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["serve", "--data-dir"]).arg(dir).args(arguments).env("XDG_CONFIG_HOME", dir);
    Running::new(command.stderr(Stdio::piped()).stdin(Stdio::null()).spawn().expect("the program"))
}

/// No value of any setting may end the program with a panic, exit code 101.
#[test]
fn a_value_that_cannot_be_served_is_refused_with_its_setting() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, "not a directory, not PEM").expect("writable");
    let file = file.to_str().expect("UTF-8");
    let below = format!("{file}/below");
    let cases: &[(&str, &str, i32)] = &[
        ("--listen", "nowhere", 2),
        ("--listen", "127.0.0.1:70000", 2),
        ("--listen", "0.0.0.0:0", 2),
        ("--store", "ftp://bucket", 2),
        ("--store", &format!("disk://{below}"), 1),
        ("--unix", &below, 1),
        ("--unix", file, 1),
        ("--bundle", file, 1),
        ("--denylist-path", &below, 1),
        ("--mtls", "perhaps", 2),
        ("--log-level", "loud", 2),
        ("--otlp-endpoint", "not a URL", 2),
        ("--default-ttl", "0s", 2),
        ("--max-ttl", "50d", 2),
        ("--acquire-block", "50d", 2),
        ("--sweeper-interval", "61m", 2),
        ("--gc-temps-interval", "0s", 2),
        ("--history-max", "4294967296", 2),
        ("--json-max", "0", 2),
        ("--inline-max", "1MiB", 2),
        ("--shards", "1025", 2),
        ("--max-connections", "0", 2),
        ("--max-leases-per-identity", "0", 2),
        ("--drain-timeout", "1000000000000d", 2),
    ];
    for (flag, value, code) in cases {
        let mut arguments = vec![];
        if !["--mtls", "--bundle", "--denylist-path"].contains(flag) {
            arguments.push("--mtls=false");
        }
        for (other, usual) in [("--store", "mem://"), ("--listen", "127.0.0.1:0")] {
            if other != *flag {
                arguments.extend([other, usual]);
            }
        }
        arguments.extend([*flag, *value]);
        let (exit, stderr) = serve(dir.path(), &arguments).ended();
        assert_eq!(exit, Some(*code), "{flag} {value}: {stderr}");
        assert!(!stderr.contains("panicked"), "{flag} {value}: {stderr}");
    }
    assert_eq!(std::fs::read_to_string(file).expect("still there"), "not a directory, not PEM");
}

/// The flags of `serve` are made for the command that runs; with them `config` had got the examples of `serve`.
#[test]
fn the_help_of_config_has_its_own_examples_and_the_flags_of_serve() {
    let (config, serve) = (lockd(&["config", "--help"]).stdout, lockd(&["serve", "--help"]).stdout);
    assert!(config.contains("lockd config --store mem:// > lockd.toml"), "{config}");
    assert!(!config.contains("SIGTERM stops the server") && serve.contains("SIGTERM stops the server"));
    assert!(config.contains("--max-ttl <TIME>") && serve.contains("--max-ttl <TIME>"));
}
