//! A short run with 25 kills. For longer runs: `cargo run --release -p lockd-powercut`.
#![allow(missing_docs, reason = "a test has no public items")]

use std::process::Command;

#[test]
fn no_acknowledged_write_is_lost_when_the_process_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = env!("CARGO_BIN_EXE_powercut");
    let mut command = Command::new(program);
    command.args(["--kills", "25", "--answers", "200", "--seed", "1", "--dir"]).arg(dir.path().join("store"));
    let output = command.output().expect("it runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.contains("25 kills") && stdout.contains("none lost"), "{stdout}");
}
