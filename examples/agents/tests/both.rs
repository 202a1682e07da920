//! Both commands, as typed. Neither depends on how fast anything is: without lockd all three have read before anyone
//! writes, and with it the meeting may last as long or as short as it likes.
#![allow(missing_docs, reason = "a test has no public items")]

use std::fs;
use std::path::Path;
use std::process::Command;

const FILES: [(&str, [&str; 2]); 3] =
    [("CHANGES.md", ["ada", "eve"]), ("src/list.txt", ["ada", "bob"]), ("src/menu.txt", ["bob", "eve"])];

fn run(how: &str, folder: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_agents")).arg(how).arg(folder).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Whose edits are in a file.
fn editors(folder: &Path, file: &str) -> Vec<String> {
    let content = fs::read_to_string(folder.join(file)).expect("it is there");
    let mut lines = content.lines();
    assert_eq!(lines.next(), Some(file), "the first line is as it was");
    let mut names: Vec<String> =
        lines.map(|line| line.strip_prefix("- edited by ").expect("an edit").to_string()).collect();
    names.sort_unstable();
    names
}

#[test]
fn without_lockd_one_edit_of_each_file_is_lost() {
    let dir = tempfile::tempdir().expect("a folder");
    let said = run("unguarded", dir.path());
    assert!(said.contains("ada, bob, eve have read, meet, and write\n"), "{said}");
    assert!(said.ends_with("6 edits were made, 3 are lost\n"), "{said}");
    for (file, both) in FILES {
        let left = editors(dir.path(), file);
        assert!(left.len() == 1 && both.contains(&left[0].as_str()), "{file}: {left:?}");
    }
}

#[test]
fn with_lockd_none_is_lost() {
    let dir = tempfile::tempdir().expect("a folder");
    let said = run("guarded", dir.path());
    assert!(said.ends_with("6 edits were made, 0 are lost\n"), "{said}");
    assert!(!said.contains("meet,"), "two of them were at work at once: {said}");
    for name in ["ada", "bob", "eve"] {
        assert!(said.contains(&format!("{name} has read, meets nobody, and writes\n")), "{said}");
    }
    for (file, both) in FILES {
        assert_eq!(editors(dir.path(), file), both, "{file}");
    }
}

#[test]
fn a_folder_that_has_something_in_it_is_left_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("mine"), "mine").expect("room");
    for args in [vec!["unguarded", dir.path().to_str().expect("text")], vec![], vec!["unguarded", "a", "b"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_agents")).args(args).output().expect("it starts");
        assert!(!output.status.success() && !output.stderr.is_empty());
    }
    assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1);
}
