//! `diff`, `status`, `show`, tags, pins and the search of the history.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::jvs::support::{Playground, ran};

/// A repository with the snapshots `one` and `two`, and its lock's session.
fn with_two_snapshots() -> (Playground, String, [String; 2]) {
    let playground = Playground::new();
    let session = playground.acquire();
    playground.write("kept", b"same");
    playground.write("text", b"one");
    std::fs::create_dir(playground.file("dir")).expect("writable");
    playground.write("dir/gone", b"x");
    std::os::unix::fs::symlink("kept", playground.file("link")).expect("writable");
    let take = |note: &str| {
        let taken = playground.json(&["snapshot", note, "--session-id", &session]);
        taken["snapshot_id"].as_str().expect("an id").to_owned()
    };
    let one = take("First: base");
    playground.write("text", b"changed");
    std::fs::remove_file(playground.file("dir/gone")).expect("there");
    playground.write("new name", b"12345");
    let two = take("second");
    (playground, session, [one, two])
}

fn changes(data: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let all = data["changes"].as_array().expect("a list");
    all.iter().map(|one| (text(&one["path"]), text(&one["change"]))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(path, change)| ((*path).to_owned(), (*change).to_owned())).collect()
}

#[test]
fn diff_lists_what_changed_between_snapshots_and_to_the_files() {
    let (playground, _, [one, two]) = with_two_snapshots();
    let between = playground.json(&["diff", &one, &two]);
    assert_eq!(
        changes(&between),
        pairs(&[("dir/gone", "removed"), ("new%20name", "added"), ("text", "modified")])
    );
    assert_eq!((&between["bytes_added"], &between["bytes_removed"]), (&12.into(), &4.into()));
    assert_eq!(playground.jvs(&["diff"]).stdout, "", "the files are those of the head");
    std::fs::set_permissions(playground.file("kept"), std::fs::Permissions::from_mode(0o600)).expect("ours");
    std::fs::remove_file(playground.file("link")).expect("there");
    std::fs::create_dir(playground.file("link")).expect("writable");
    let printed = playground.jvs(&["diff"]);
    assert_eq!(printed.stdout, "m kept\nT link/\n");
    let stat = playground.jvs(&["diff", "--stat", &one]);
    assert!(stat.stdout.contains("paths=5 added=1 removed=1 altered=3"), "{}", stat.stdout);
    assert_eq!(playground.jvs(&["diff", "no-such"]).code, 1);
}

#[test]
fn status_tells_unsaved_changes_from_none() {
    let (playground, ..) = with_two_snapshots();
    let clean = playground.json(&["status"]);
    assert_eq!((&clean["clean"], &clean["state"]), (&true.into(), &"live".into()));
    assert!(playground.jvs(&["status"]).stdout.ends_with("no unsaved changes\n"));
    playground.write("a", b"");
    playground.write("b", b"");
    let dirty = playground.jvs(&["status", "--limit", "1"]);
    assert!(
        dirty.stdout.contains("unsaved changes: 2\nA a\nand 1 more; `jvs diff` lists all"),
        "{}",
        dirty.stdout
    );
    assert_eq!(playground.json(&["status"])["clean"], false);
    let empty = Playground::new();
    assert_eq!(empty.json(&["status"])["clean"], true, "no head, no files");
    empty.write("first", b"");
    assert_eq!(changes(&empty.json(&["status"])), pairs(&[("first", "added")]));
}

#[test]
fn show_prints_files_names_and_targets_of_a_snapshot() {
    let (playground, _, [one, _]) = with_two_snapshots();
    assert_eq!(playground.jvs(&["show", &format!("{one}:text")]).stdout, "one");
    assert_eq!(playground.jvs(&["show", "head:new name"]).stdout, "12345");
    assert_eq!(playground.jvs(&["show", &format!("{one}:dir/")]).stdout, "0644            1 dir/gone\n");
    assert_eq!(playground.jvs(&["show", "head:link"]).stdout, "kept\n");
    let data = playground.json(&["show", "head:text"]);
    assert_eq!((&data["name"]["bytes"], &data["name"]["kind"]), (&7.into(), &"file".into()));
    let names = playground.json(&["show", "head"]);
    let paths: Vec<&Value> =
        names["names"].as_array().expect("a list").iter().map(|one| &one["path"]).collect();
    assert_eq!(paths, ["dir", "kept", "link", "new%20name", "text"]);
    for (name, code) in [("head:none", 1), ("head:../x", 2), ("nothing:text", 1)] {
        assert_eq!(playground.jvs(&["show", name]).code, code, "{name}");
    }
    let stored = playground.root().join(".jvs/snapshots").join(&one).join("tree/text");
    std::fs::write(stored, b"eno").expect("as a bad disk does");
    let damaged = playground.jvs(&["show", &format!("{one}:text")]);
    assert_eq!(damaged.code, 1);
    assert!(damaged.stderr.contains("E_DAMAGED"), "{}", damaged.stderr);
}

#[test]
fn a_tag_names_a_snapshot_wherever_one_is_named() {
    let (playground, session, [one, two]) = with_two_snapshots();
    playground.json(&["tag", "add", "base", &one]);
    assert_eq!(playground.json(&["info", "base"])["snapshot_id"], json!(one));
    assert_eq!(playground.jvs(&["show", "base:text"]).stdout, "one");
    playground.json(&["restore", "base", "--session-id", &session]);
    assert_eq!(std::fs::read(playground.file("text")).expect("there"), b"one");
    let again = playground.jvs(&["tag", "add", "base", &two]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("jvs tag rm base"), "{}", again.stderr);
    for refused in ["head", "2026", "a/b", ""] {
        assert_eq!(playground.jvs(&["tag", "add", refused]).code, 2, "{refused:?}");
    }
    assert_eq!(playground.json(&["tag", "list"])["tags"][0]["tag"], "base");
    playground.json(&["tag", "rm", "base"]);
    assert_eq!(playground.jvs(&["tag", "rm", "base"]).code, 1);
    assert_eq!(playground.jvs(&["info", "base"]).code, 1);
}

#[test]
fn pins_are_added_listed_and_removed() {
    let (playground, _, [one, _]) = with_two_snapshots();
    playground.json(&["pin", "add", &one]);
    playground.json(&["pin", "add", &one]);
    let pins = playground.json(&["pin", "list"]);
    assert_eq!(pins["pins"].as_array().expect("a list").len(), 1, "pinning twice is pinning once");
    playground.json(&["pin", "rm", &one]);
    assert_eq!(playground.jvs(&["pin", "rm", &one]).code, 1);
}

#[test]
fn history_is_searched_by_note_path_and_tag() {
    let (playground, _, [one, two]) = with_two_snapshots();
    playground.json(&["tag", "add", "base", &one]);
    let found = |args: &[&str]| -> Vec<String> {
        let data = playground.json(&[&["history"], args].concat());
        let all = data["snapshots"].as_array().expect("a list");
        all.iter().map(|one| one["snapshot_id"].as_str().expect("an id").to_owned()).collect()
    };
    let (one, two) = (one.as_str(), two.as_str());
    assert_eq!(found(&["--grep", "fIRST"]), [one]);
    assert_eq!(found(&["--path", "new name"]), [two]);
    assert_eq!(found(&["--path", "dir"]), [two, one], "a name below it came and went");
    assert_eq!(found(&["--path", "text", "--limit", "1"]), [two]);
    assert_eq!(found(&["--path", "kept"]), [one]);
    assert_eq!(found(&["--tagged"]), [one]);
    assert!(found(&["--grep", "nothing"]).is_empty());
    let text = ran(playground.command().args(["history", "--grep", "nothing"]));
    assert_eq!(text.stdout, "no snapshot matches\n");
    assert!(playground.jvs(&["history"]).stdout.contains("First: base [base]"));
}
