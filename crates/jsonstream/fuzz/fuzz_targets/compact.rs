//! Any bytes, cut anywhere: the verdict of `serde_json`, the same value, nothing left to compact, and the same
//! outcome for every cut. The first byte says where to cut.
#![no_main]

use jsonstream::{Compactor, JsonError, JsonErrorKind, Limits, compact};
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde_json::Value;

const LIMITS: Limits = Limits { bytes_max: 1 << 20 };

fuzz_target!(|input: &[u8]| {
    let Some((cut, text)) = input.split_first() else { return };
    let whole = compact(text, LIMITS);
    assert_eq!(in_two(text, usize::from(*cut).min(text.len())), whole);
    assert_eq!(pushed(text.chunks(1)), whole);
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

fn in_two(text: &[u8], cut: usize) -> Result<Vec<u8>, JsonError> {
    let (front, back) = text.split_at(cut);
    pushed([front, back])
}

fn pushed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, JsonError> {
    let mut out = Vec::new();
    let mut compactor = Compactor::new(LIMITS);
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
