//! The transcripts document the kernel by example: each must match what the kernel does.

use std::path::Path;

#[test]
fn every_transcript_matches_the_kernel() {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transcripts"));
    let mut count = 0;
    for entry in std::fs::read_dir(dir).expect("the transcripts directory exists") {
        let path = entry.expect("a readable directory").path();
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let done =
            sim::transcript::rerun(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (n, (expected, done)) in text.lines().zip(done.lines()).enumerate() {
            assert_eq!(expected, done, "{}:{}", path.display(), n + 1);
        }
        assert_eq!(text, done, "{}", path.display());
        count += 1;
    }
    assert!(count >= 10, "only {count} transcripts");
}
