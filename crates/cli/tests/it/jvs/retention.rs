//! `jvs snapshot rm` and `jvs gc`.

use serde_json::json;

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
