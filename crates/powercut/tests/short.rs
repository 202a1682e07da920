//! A few kills of the real process, as part of all tests. Longer runs are for `cargo run --release -p powercut`.
#![allow(missing_docs, reason = "a test has no public items")]

use std::process::Command;

#[test]
fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = env!("CARGO_BIN_EXE_powercut");
    let mut command = Command::new(program);
    command.args(["--kills", "25", "--answers", "200", "--seed", "1", "--dir"]).arg(dir.path().join("store"));
    let done = command.output().expect("it runs");
    let (said, why) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{why}");
    assert!(said.contains("25 kills") && said.contains("none lost"), "{said}");
}
