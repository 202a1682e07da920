//! Input: an edit, a newline, and a document. The output is JSON, and removing again changes nothing.
#![no_main]

use jsonstream::{Limits, apply, check, parse_edit};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits { bytes_max: 1 << 30 };
const NOW: &str = "2026-11-15T08:42:00Z";

fuzz_target!(|input: &[u8]| {
    let Some((text, document)) = std::str::from_utf8(input).ok().and_then(|input| input.split_once('\n'))
    else {
        return;
    };
    let Ok(edit) = parse_edit(text) else { return };
    let edits = [edit];
    let Ok(once) = apply(document.as_bytes(), &edits, NOW) else { return };
    assert!(check(&once, LIMITS).is_ok());
    if text.starts_with("rm:") && !text.contains('[') && !text.starts_with("rm:=") {
        assert_eq!(apply(&once, &edits, NOW).as_ref(), Ok(&once));
    }
});
