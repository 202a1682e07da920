//! Settings of `lockd serve` that are out of range, given to the real binary.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::running::until;

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
