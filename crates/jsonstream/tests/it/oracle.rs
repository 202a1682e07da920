//! The compactor against `serde_json`, on random documents, damaged documents and random bytes.
//!
//! The oracle checks UTF-8 by the standard library, then parses [`IgnoredAny`], which has no depth limit and validates
//! numbers and escapes without computing them. (From bytes, it would not validate UTF-8.) The only difference is that the
//! compactor refuses nesting deeper than 512. Both accept numbers of any size, lone escaped surrogates and duplicate
//! keys, and refuse a byte order mark.

use jsonstream::{Compactor, JsonErrorKind, check, compact};
use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::common::{LIMITS, by_blocks, byte, damage, damaged, document, long_document, pushed, scalar};

fn oracle(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

fn value(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

/// Both accept or both refuse; the value is the same; compacting again changes nothing.
fn agrees(bytes: &[u8]) -> Result<(), TestCaseError> {
    let ours = compact(bytes, LIMITS);
    if matches!(ours, Err(error) if error.kind == JsonErrorKind::TooDeep) {
        return Ok(());
    }
    prop_assert_eq!(ours.is_ok(), oracle(bytes), "{}: {:?}", bytes.escape_ascii(), ours);
    let summary = check(bytes, LIMITS);
    let Ok(out) = ours else {
        prop_assert_eq!(summary.err(), ours.err());
        return Ok(());
    };
    prop_assert_eq!(summary.map(|summary| summary.compact_bytes), Ok(out.len() as u64));
    prop_assert_eq!(value(&out), value(bytes));
    prop_assert_eq!(compact(&out, LIMITS), Ok(out));
    Ok(())
}

/// The bytes before the offset are a prefix of some JSON text; with the byte at the offset they are not.
fn offset_is_the_first_invalid_byte(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Err(error) = compact(bytes, LIMITS) else { return Ok(()) };
    let offset = usize::try_from(error.offset).expect("short");
    let mut compactor = Compactor::new(LIMITS);
    prop_assert!(compactor.push(&bytes[..offset], &mut Vec::new()).is_ok());
    let next = compactor.push(&bytes[offset..bytes.len().min(offset + 1)], &mut Vec::new());
    prop_assert_eq!(next.is_ok(), error.kind == JsonErrorKind::UnexpectedEnd);
    Ok(())
}

/// All texts of up to five of these bytes, which suffice for every kind of token.
#[test]
fn every_short_text_gets_the_verdict_of_the_oracle() {
    const BYTES: &[u8] = b"\"\\{}[]:,01-.e \xC3\xA9";
    let mut texts = vec![Vec::new()];
    for _ in 0..5 {
        let longer = |text: &Vec<u8>| {
            BYTES.iter().map(|byte| [text.as_slice(), &[*byte]].concat()).collect::<Vec<_>>()
        };
        texts = texts.iter().flat_map(longer).collect();
        for text in &texts {
            assert_eq!(compact(text, LIMITS).is_ok(), oracle(text), "{}", text.escape_ascii());
        }
    }
}

// A failure prints the smallest input that still fails, which repeats it better than a seed.
proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sound_documents_pass_and_mean_the_same(text in document()) {
        prop_assert!(oracle(text.as_bytes()), "{text}");
        agrees(text.as_bytes())?;
    }

    #[test]
    fn long_sound_documents_pass_and_mean_the_same(text in long_document()) {
        prop_assert!(oracle(text.as_bytes()), "{text}");
        agrees(text.as_bytes())?;
    }

    #[test]
    fn long_damaged_documents_get_the_verdict_of_the_oracle(
        text in long_document(), damage in prop::collection::vec(damage(), 1..4)
    ) {
        let bytes = damaged(text.into_bytes(), &damage);
        agrees(&bytes)?;
        offset_is_the_first_invalid_byte(&bytes)?;
    }

    #[test]
    fn damaged_documents_get_the_verdict_of_the_oracle(
        text in document(), damage in prop::collection::vec(damage(), 1..4)
    ) {
        let bytes = damaged(text.into_bytes(), &damage);
        agrees(&bytes)?;
        offset_is_the_first_invalid_byte(&bytes)?;
    }

    #[test]
    fn garbage_gets_the_verdict_of_the_oracle(bytes in prop::collection::vec(byte(), 0..12)) {
        agrees(&bytes)?;
        offset_is_the_first_invalid_byte(&bytes)?;
    }

    #[test]
    fn strings_of_garbage_get_the_verdict_of_the_oracle(inside in prop::collection::vec(byte(), 0..40)) {
        let bytes = [b"\"".as_slice(), &inside, b"\""].concat();
        agrees(&bytes)?;
        offset_is_the_first_invalid_byte(&bytes)?;
    }

    #[test]
    fn numbers_of_garbage_get_the_verdict_of_the_oracle(text in "[-+.eE0-9]{1,8}") {
        agrees(text.as_bytes())?;
        agrees(format!("[{text}]").as_bytes())?;
    }

    #[test]
    fn pieces_of_any_size_give_the_same(
        text in document(), damage in prop::collection::vec(damage(), 0..3), sizes in prop::collection::vec(0..40_usize, 1..20)
    ) {
        let bytes = damaged(text.into_bytes(), &damage);
        let mut rest = bytes.as_slice();
        let mut pieces = Vec::new();
        for size in sizes.iter().cycle().take(10_000) {
            let (piece, behind) = rest.split_at(rest.len().min(*size));
            pieces.push(piece);
            rest = behind;
        }
        pieces.push(rest);
        let whole = compact(&bytes, LIMITS);
        prop_assert_eq!(pushed(scalar(), pieces.iter().copied()), whole.clone());
        prop_assert_eq!(by_blocks(pieces), whole);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Cut into two at every place, with blocks and without, a text gets the oracle's verdict every time.
    #[test]
    fn every_cut_gets_the_verdict_of_the_oracle(
        text in long_document(), damage in prop::collection::vec(damage(), 0..2)
    ) {
        let bytes = damaged(text.into_bytes(), &damage);
        let whole = compact(&bytes, LIMITS);
        prop_assert_eq!(whole.is_ok(), oracle(&bytes));
        for place in 0..=bytes.len() {
            let (front, back) = bytes.split_at(place);
            prop_assert_eq!(&by_blocks([front, back]), &whole, "cut at {}", place);
            prop_assert_eq!(&pushed(scalar(), [front, back]), &whole, "scalar, cut at {}", place);
        }
    }
}
