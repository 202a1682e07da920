//! `jvs snapshot rm` and `jvs gc`.

use std::process::Stdio;

use serde_json::json;
use worktree::clock::{Clock, SystemClock};

use crate::jvs::support::Playground;

/// Three snapshots of one file that changes; oldest first.
fn with_three_snapshots() -> (Playground, Vec<String>) {
    let playground = Playground::new();
    let session = playground.acquire();
    let take = |text: &str| {
        playground.write("file", text.repeat(5000).as_bytes());
        let taken = playground.json(&["snapshot", text, "--session-id", &session]);
        taken["snapshot_id"].as_str().expect("an id").to_owned()
    };
    let ids = ["one", "two", "three"].map(take).to_vec();
    (playground, ids)
}

#[test]
fn snapshot_rm_frees_space_and_leaves_a_healthy_repository() {
    let (playground, ids) = with_three_snapshots();
    let dry = playground.json(&["snapshot", "rm", "--dry-run", &ids[0]]);
    let done = playground.json(&["snapshot", "rm", &ids[0]]);
    assert_eq!((&done["removed"], &done["bytes_after"]), (&json!([ids[0]]), &dry["bytes_after"]));
    assert!(done["bytes_after"].as_u64() < done["bytes_before"].as_u64(), "{done}");
    let gone = playground.jvs(&["info", &ids[0]]);
    assert!(gone.code == 1 && gone.stderr.contains("was removed"), "{}", gone.stderr);
    assert_eq!(playground.json(&["history"])["snapshots"].as_array().expect("a list").len(), 2);
    assert_eq!(playground.json(&["verify", "--all"])["verified"].as_array().expect("a list").len(), 2);
    let doctor = playground.jvs(&["doctor", "--strict"]);
    assert_eq!(doctor.code, 0, "{}", doctor.stdout);
    let head = playground.jvs(&["snapshot", "rm", "head"]);
    assert!(head.code == 2 && head.stderr.contains("head of a worktree"), "{}", head.stderr);
    assert_eq!(playground.jvs(&["snapshot", "rm"]).code, 2);
}

/// Takes a snapshot that is killed while it copies.
fn interrupt_a_snapshot(playground: &Playground) {
    (0..4_000).for_each(|n| playground.write(&format!("file-{n}"), &[b'x'; 2_000]));
    let intents = playground.root().join(".jvs/intents");
    let unfinished = || std::fs::read_dir(&intents).expect("readable").count();
    for _ in 0..10 {
        let mut taking = playground.command();
        taking.args(["snapshot", "--consistency", "best_effort"]).stdout(Stdio::null());
        let mut taking = taking.spawn().expect("the binary runs");
        while unfinished() == 0 && taking.try_wait().expect("our own child").is_none() {
            SystemClock::new().wait(1);
        }
        taking.kill().expect("our own child");
        taking.wait().expect("our own child");
        if unfinished() > 0 {
            return;
        }
    }
    panic!("every snapshot was finished before it could be killed");
}

/// Ctrl-C in a snapshot left what it had copied, no command but `doctor --strict` said so, and `gc` did not remove it.
#[test]
fn an_interrupted_snapshot_is_reported_by_the_next_and_removed_by_gc() {
    let playground = Playground::new();
    interrupt_a_snapshot(&playground);
    let next = playground.jvs(&["snapshot", "--consistency", "best_effort"]);
    assert!(next.stdout.contains("until `jvs gc` removes them: unfinished=1"), "{}", next.stdout);
    let dry = playground.json(&["gc", "--dry-run"]);
    let done = playground.json(&["gc"]);
    assert_eq!((&done["unfinished"], &done["removed"]), (&dry["unfinished"], &json!([])));
    assert_eq!(done["unfinished"].as_array().expect("a list").len(), 1, "{done}");
    assert_eq!(playground.json(&["gc"])["unfinished"], json!([]));
    let doctor = playground.jvs(&["doctor", "--strict"]);
    assert!(!doctor.stdout.contains("partial_snapshot"), "{}", doctor.stdout);
}

#[test]
fn gc_keeps_what_its_rules_tags_and_pins_keep() {
    let (playground, ids) = with_three_snapshots();
    assert_eq!(playground.json(&["gc"])["removed"], json!([]), "without a rule nothing goes");
    playground.json(&["tag", "add", "base", &ids[0]]);
    let dry = playground.jvs(&["gc", "--keep-last", "1", "--dry-run"]);
    assert!(dry.stdout.contains(&format!("would remove {}", ids[1])), "{}", dry.stdout);
    assert!(dry.stdout.contains(&format!("kept {} (tagged)", ids[0])), "{}", dry.stdout);
    assert_eq!(playground.json(&["gc", "--keep-last", "1", "--keep-days", "1"])["removed"], json!([]));
    let done = playground.json(&["gc", "--keep-last", "1"]);
    assert_eq!(done["removed"], json!([ids[1]]));
    assert_eq!(playground.jvs(&["show", "base:file"]).stdout, "one".repeat(5000), "the others are whole");
    assert_eq!(playground.jvs(&["doctor", "--strict"]).code, 0);
}
