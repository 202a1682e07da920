//! The compactor against `serde_json`, on documents made up at random, on damaged ones and on garbage.
//!
//! The oracle is UTF-8 by the standard library and then [`IgnoredAny`], which knows no depth and looks at numbers
//! and escapes without computing them. (Given bytes, it would not look at UTF-8.)

use jsonstream::{Compactor, JsonError, JsonErrorKind, Limits, check, compact};
use proptest::prelude::*;
use proptest::sample::Index;
use serde::de::IgnoredAny;
use serde_json::Value;

const LIMITS: Limits = Limits { bytes_max: 1 << 24 };

fn oracle(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

fn value(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

/// Same verdict; the same value, if there is one; nothing left to compact.
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

fn pushed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, JsonError> {
    let mut out = Vec::new();
    let mut compactor = Compactor::new(LIMITS);
    for piece in pieces {
        compactor.push(piece, &mut out)?;
    }
    compactor.finish().map(|_| out)
}

/// The bytes before the first wrong one can be gone on with, in some way; with the wrong one they cannot.
fn offset_is_the_first_wrong_byte(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Err(error) = compact(bytes, LIMITS) else { return Ok(()) };
    let offset = usize::try_from(error.offset).expect("short");
    let mut compactor = Compactor::new(LIMITS);
    prop_assert!(compactor.push(&bytes[..offset], &mut Vec::new()).is_ok());
    let behind = compactor.push(&bytes[offset..bytes.len().min(offset + 1)], &mut Vec::new());
    prop_assert_eq!(behind.is_ok(), error.kind == JsonErrorKind::UnexpectedEnd);
    Ok(())
}

fn space() -> impl Strategy<Value = String> {
    prop_oneof![4 => Just(String::new()), 2 => Just(" ".to_owned()), 2 => "\n {0,20}", 1 => "[ \t\r\n]{0,12}"]
}

fn number() -> impl Strategy<Value = String> {
    "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?"
}

fn string() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => "[ !#-\\[\\]-~]{0,40}",
        2 => "\\\\([\"\\\\/bfnrt]|u[0-9a-fA-F]{4})",
        1 => "[é鍵🔑\u{7ff}\u{800}\u{ffff}\u{10ffff}]{1,20}",
        1 => any::<char>().prop_filter("plain", |c| *c >= ' ' && *c != '"' && *c != '\\').prop_map(String::from),
    ];
    prop::collection::vec(part, 0..5).prop_map(|parts| format!("\"{}\"", parts.concat()))
}

/// The text of a value, with whitespace wherever there may be some.
fn document() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        2 => number(), 3 => string(), 1 => prop_oneof![Just("true"), Just("false"), Just("null")].prop_map(String::from)
    ];
    let value = leaf.prop_recursive(6, 60, 6, |inner| {
        let element = (space(), inner.clone(), space()).prop_map(|(a, b, c)| [a, b, c].concat());
        let member = (space(), string(), space(), space(), inner, space())
            .prop_map(|(a, key, b, c, value, d)| format!("{a}{key}{b}:{c}{value}{d}"));
        let array = (prop::collection::vec(element, 0..6), space()).prop_map(|(inside, s)| {
            if inside.is_empty() { format!("[{s}]") } else { format!("[{}]", inside.join(",")) }
        });
        let object = (prop::collection::vec(member, 0..6), space()).prop_map(|(inside, s)| {
            if inside.is_empty() { format!("{{{s}}}") } else { format!("{{{}}}", inside.join(",")) }
        });
        prop_oneof![array, object]
    });
    (space(), value, space()).prop_map(|(a, b, c)| [a, b, c].concat())
}

/// Bytes that matter to JSON, more often than others.
fn byte() -> impl Strategy<Value = u8> {
    let telling =
        b"\"\\{}[]:,0123456789+-.eEutrfalsn/ \n\t\r\0\x1f\x7f\x80\xa0\xbf\xc0\xc3\xe0\xed\xef\xf0\xf4\xff";
    prop_oneof![5 => prop::sample::select(telling.to_vec()), 1 => any::<u8>()]
}

/// What is done to a sound document.
#[derive(Clone, Debug)]
enum Damage {
    Replace(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Cut(Index),
    Double(Index, Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = any::<Index>;
    prop_oneof![
        (place(), byte()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        (place(), byte()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        place().prop_map(Damage::Remove),
        place().prop_map(Damage::Cut),
        (place(), place()).prop_map(|(a, b)| Damage::Double(a, b)),
    ]
}

fn damaged(mut bytes: Vec<u8>, damage: &[Damage]) -> Vec<u8> {
    for damage in damage {
        let length = bytes.len();
        match damage {
            Damage::Insert(at, byte) => bytes.insert(at.index(length + 1), *byte),
            _ if length == 0 => {}
            Damage::Replace(at, byte) => bytes[at.index(length)] = *byte,
            Damage::Remove(at) => drop(bytes.remove(at.index(length))),
            Damage::Cut(at) => bytes.truncate(at.index(length)),
            Damage::Double(a, b) => {
                let (a, b) = (a.index(length), b.index(length));
                let again = bytes[a.min(b)..a.max(b)].to_vec();
                bytes.splice(b..b, again);
            }
        }
    }
    bytes
}

/// All texts of up to five of these bytes, which are enough for every kind of token.
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
    fn damaged_documents_get_the_verdict_of_the_oracle(
        text in document(), damage in prop::collection::vec(damage(), 1..4)
    ) {
        let bytes = damaged(text.into_bytes(), &damage);
        agrees(&bytes)?;
        offset_is_the_first_wrong_byte(&bytes)?;
    }

    #[test]
    fn garbage_gets_the_verdict_of_the_oracle(bytes in prop::collection::vec(byte(), 0..12)) {
        agrees(&bytes)?;
        offset_is_the_first_wrong_byte(&bytes)?;
    }

    #[test]
    fn strings_of_garbage_get_the_verdict_of_the_oracle(inside in prop::collection::vec(byte(), 0..40)) {
        let bytes = [b"\"".as_slice(), &inside, b"\""].concat();
        agrees(&bytes)?;
        offset_is_the_first_wrong_byte(&bytes)?;
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
        prop_assert_eq!(pushed(pieces), compact(&bytes, LIMITS));
    }

    #[test]
    fn every_cut_gives_the_same(
        text in document(), damage in prop::collection::vec(damage(), 0..2)
    ) {
        let bytes = damaged(text.into_bytes(), &damage);
        let whole = compact(&bytes, LIMITS);
        for place in (0..=bytes.len()).take(400) {
            let (front, back) = bytes.split_at(place);
            prop_assert_eq!(&pushed([front, back]), &whole, "cut at {}", place);
        }
    }
}
