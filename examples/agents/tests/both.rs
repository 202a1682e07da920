//! Both commands. Neither depends on timing: without lockd all three agents have read before any of them writes, and
//! with it the timeout of the rendezvous does not matter.
#![allow(missing_docs, reason = "a test has no public items")]

use std::fs;
use std::path::Path;
use std::process::Command;

const FILES: [(&str, [&str; 2]); 3] =
    [("CHANGES.md", ["ada", "eve"]), ("src/list.txt", ["ada", "bob"]), ("src/menu.txt", ["bob", "eve"])];

fn run(how: &str, dir: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_agents")).arg(how).arg(dir).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The agents whose edits are in a file.
fn editors(dir: &Path, file: &str) -> Vec<String> {
    let content = fs::read_to_string(dir.join(file)).expect("it is there");
    let mut lines = content.lines();
    assert_eq!(lines.next(), Some(file), "the first line is as it was");
    let mut names: Vec<String> =
        lines.map(|line| line.strip_prefix("- edited by ").expect("an edit").to_string()).collect();
    names.sort_unstable();
    names
}

#[test]
fn without_lockd_one_edit_of_each_file_is_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run("unguarded", dir.path());
    assert!(output.contains("ada, bob, eve have read, wait together, and write\n"), "{output}");
    assert!(output.ends_with("6 edits were made, 3 were lost\n"), "{output}");
    for (file, both) in FILES {
        let left = editors(dir.path(), file);
        assert!(left.len() == 1 && both.contains(&left[0].as_str()), "{file}: {left:?}");
    }
}

#[test]
fn with_lockd_none_is_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run("guarded", dir.path());
    assert!(output.ends_with("6 edits were made, 0 were lost\n"), "{output}");
    assert!(!output.contains("together"), "two agents worked concurrently: {output}");
    for name in ["ada", "bob", "eve"] {
        assert!(output.contains(&format!("{name} has read, waits alone, and writes\n")), "{output}");
    }
    for (file, both) in FILES {
        assert_eq!(editors(dir.path(), file), both, "{file}");
    }
}

#[test]
fn a_directory_that_is_not_empty_is_not_touched() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("mine"), "mine").expect("written");
    for args in [vec!["unguarded", dir.path().to_str().expect("text")], vec![], vec!["unguarded", "a", "b"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_agents")).args(args).output().expect("it starts");
        assert!(!output.status.success() && !output.stderr.is_empty());
    }
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1);
}
