//! Any bytes, split anywhere: accepted or refused as by `serde_json`, with the same value; compacting again changes nothing;
//! the outcome is the same for every split, by blocks and byte by byte. The first input byte is the position of the split,
//! and the offset in an array at which the same text is tried again, so that short texts are also read by blocks.
#![no_main]

use jsonstream::{Compactor, JsonError, JsonErrorKind, Limits, compact};
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde_json::Value;

const LIMITS: Limits = Limits { bytes_max: 1 << 20 };

fuzz_target!(|input: &[u8]| {
    let Some((cut, text)) = input.split_first() else { return };
    let whole = alike(text, usize::from(*cut).min(text.len()));
    assert_eq!(pushed(Compactor::new(LIMITS), text.chunks(1)), whole);
    let front = format!("[{}", " ".repeat(64 + usize::from(*cut % 64)));
    let long = [front.as_bytes(), text, &[b' '; 64], b"]"].concat();
    let inside = alike(&long, front.len() + text.len() / 2);
    if let Ok(out) = &whole {
        assert_eq!(inside, Ok([b"[", out.as_slice(), b"]"].concat()));
    }
    match whole {
        Err(JsonError { kind: JsonErrorKind::TooDeep, .. }) => {}
        Err(_) => assert!(!oracle(text)),
        Ok(out) => {
            assert!(oracle(text));
            assert_eq!(value(&out), value(text));
            assert_eq!(compact(&out, LIMITS), Ok(out));
        }
    }
});

/// The outcome at once and split in two, by blocks and byte by byte.
fn alike(text: &[u8], cut: usize) -> Result<Vec<u8>, JsonError> {
    let whole = compact(text, LIMITS);
    let (front, back) = text.split_at(cut);
    assert_eq!(pushed(Compactor::scalar(LIMITS), [text]), whole);
    for (kind, compactor) in Compactor::vector(LIMITS) {
        assert_eq!(pushed(compactor, [front, back]), whole, "{kind}");
    }
    whole
}

fn pushed<'a>(
    mut compactor: Compactor,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<u8>, JsonError> {
    let mut out = Vec::new();
    for piece in pieces {
        compactor.push(piece, &mut out)?;
    }
    compactor.finish().map(|_| out)
}

fn oracle(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

fn value(text: &[u8]) -> Option<Value> {
    serde_json::from_slice(text).ok()
}
