//! The transcripts are the kernel's documentation by example: each must say what the kernel does.

use std::path::Path;

#[test]
fn every_transcript_tells_what_the_kernel_does() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transcripts"));
    let mut told = 0;
    for entry in std::fs::read_dir(folder).expect("the transcripts are there") {
        let path = entry.expect("a readable folder").path();
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let done =
            sim::transcript::rerun(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (n, (told, done)) in text.lines().zip(done.lines()).enumerate() {
            assert_eq!(told, done, "{}:{}", path.display(), n + 1);
        }
        assert_eq!(text, done, "{}", path.display());
        told += 1;
    }
    assert!(told >= 10, "only {told} transcripts");
}
