//! The block reader against the byte reader: both give the same output, or the same error at the same offset, however the
//! text is split into chunks. Texts are long enough that the relevant bytes are in a block, wherever blocks begin. On a
//! processor without these instructions both are the same, and the tests prove nothing.

use jsonstream::{Compactor, DEPTH_MAX, JsonError};
use proptest::prelude::*;

use crate::common::{LIMITS, by_blocks, byte, damage, damaged, long_document, pushed, scalar};

/// The outcome of the block reader, which must be that of the byte reader.
fn alike(text: &[u8]) -> Result<Vec<u8>, JsonError> {
    let slow = pushed(scalar(), [text]);
    let fast = by_blocks([text]);
    assert!(fast == slow, "{}\n{:?}\n{:?}", text.escape_ascii(), shown(&fast), shown(&slow));
    fast
}

fn shown(outcome: &Result<Vec<u8>, JsonError>) -> Result<String, JsonError> {
    outcome.as_ref().map(|out| out.escape_ascii().to_string()).map_err(|error| *error)
}

/// Prefixes of any length after which a text may follow, split around their padding.
const FRONTS: [(&str, &str); 7] = [
    ("[\"", "\","),
    ("[\"", "\""),
    ("{\"", "\":"),
    ("{\"a\":1,\"", "\""),
    ("{\"a\":[0],\"b\":[\"", "\"],"),
    ("[[{}],\"", ""),
    ("{\"", ""),
];

/// Checks every sequence of up to `count` tokens at these positions of a block, with and without text after it.
fn every_text_of(tokens: &[&str], count: usize, positions: std::ops::RangeInclusive<usize>) {
    let mut texts = vec![String::new()];
    for _ in 0..count {
        texts =
            texts.iter().flat_map(|text| tokens.iter().map(move |token| format!("{text}{token}"))).collect();
        for (number, text) in texts.iter().enumerate() {
            for position in positions.clone() {
                // Not every prefix at every position: they are spread over the texts.
                let (front, back) = FRONTS[(number + position) % FRONTS.len()];
                let padding = "x".repeat(64 + position);
                let spaces = " ".repeat(100);
                drop(alike(format!("{front}{padding}{back}{text}{spaces}").as_bytes()));
                drop(alike(format!("{front}{padding}{back}{text}1,1,1,[1,1]{spaces}").as_bytes()));
            }
        }
    }
}

#[test]
fn every_short_run_of_tokens_is_read_alike_in_a_block() {
    every_text_of(&["{", "}", "[", "]", ":", ",", "\"\"", "0", " "], 4, 57..=57);
}

#[test]
fn every_short_run_of_tokens_is_read_alike_across_blocks() {
    every_text_of(&["{", "}", "[", "]", ":", ",", "\"a\"", "10", "true", "\n  "], 3, 40..=63);
}

#[test]
fn every_short_number_is_read_alike_in_a_block() {
    every_text_of(&["-", "+", "0", "7", ".", "e", ",", "x"], 5, 20..=20);
}

#[test]
fn every_short_number_is_read_alike_across_blocks() {
    every_text_of(&["-", "+", "0", "7", ".", "E", " "], 4, 54..=63);
}

#[test]
fn every_short_string_is_read_alike_across_blocks() {
    every_text_of(&["\"", "\\", "u", "00", "n", "é", "\u{1}"], 4, 54..=63);
}

#[test]
fn literals_are_read_alike_at_every_position() {
    for word in [
        "true", "false", "null", "tru", "fals", "nul", "truee", "nullx", "True", "t", "nan", "true1", "-true",
    ] {
        for after in ["", ",1", "]", " ]", "\"", ":", "\u{7f}", "{", "\n]"] {
            for position in 0..130 {
                let front = format!("[{}", " ".repeat(position));
                drop(alike(format!("{front}{word}{after}").as_bytes()));
                drop(alike(format!("{front}{word}{after}{}", " ".repeat(70)).as_bytes()));
            }
        }
    }
}

#[test]
fn every_byte_is_read_alike_at_every_position() {
    let part = "{\"key\":\"words \\u00e9 and é, 鍵🔑\",\"n\":[-12.50e+3,0,1E5,true,false,null,{},[]]},";
    let text = format!("[{}{{}}]", part.repeat(3)).into_bytes();
    assert!(alike(&text).is_ok());
    for position in 0..text.len().min(170) {
        for byte in 0..=255 {
            let mut other = text.clone();
            other[position] = byte;
            drop(alike(&other));
        }
    }
}

#[test]
fn every_byte_is_read_alike_at_every_position_of_a_long_string() {
    for filling in ["x", "é"] {
        let text = format!("[\"{}\", 1]", filling.repeat(300)).into_bytes();
        assert!(alike(&text).is_ok());
        for (position, byte) in (64..270).flat_map(|position| (0..=255).map(move |byte| (position, byte))) {
            let mut other = text.clone();
            other[position] = byte;
            drop(alike(&other));
        }
    }
}

#[test]
fn every_pair_of_bytes_is_read_alike_where_blocks_meet() {
    for (first, second) in (0..=255_u8).flat_map(|a| (0..=255_u8).map(move |b| (a, b))) {
        // The first block begins after the first 64 bytes.
        for (position, tail) in [(127, "\x7f"), (126, "é"), (127, "é")] {
            let mut text = vec![b'x'; position];
            text[..2].copy_from_slice(b"[\"");
            text.extend([first, second]);
            text.extend(tail.bytes().chain("x".repeat(80).bytes()).chain("\"]".bytes()));
            drop(alike(&text));
        }
    }
}

#[test]
fn cut_characters_are_read_alike_where_blocks_meet() {
    let edges = [0x20, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xF4, 0xFF];
    for first in 0xC0..=0xFF_u8 {
        for second in 0x7F..=0xC1_u8 {
            for (third, fourth) in edges.iter().flat_map(|a| edges.iter().map(move |b| (*a, *b))) {
                for position in 124..=128 {
                    let mut text = vec![b'x'; position];
                    text[..2].copy_from_slice(b"[\"");
                    text.extend([first, second, third, fourth]);
                    text.extend("x".repeat(66).bytes().chain("\"]".bytes()));
                    drop(alike(&text));
                }
            }
        }
    }
}

#[test]
fn depth_is_read_alike_at_the_limit() {
    let depth = usize::from(DEPTH_MAX);
    for depth in [1, 2, 63, 64, 65, 127, 128, depth - 65, depth - 64, depth - 1, depth, depth + 1, 2 * depth]
    {
        for (open, close) in [("[", "]"), ("{\"\":", "}"), ("[ ", " ]"), ("[{\"k\":", "}]"), ("[1,", "]")] {
            for wrong in ["", "]", "}", ","] {
                let text = [&open.repeat(depth), "1", &close.repeat(depth), wrong].concat();
                assert_eq!(
                    alike(text.as_bytes()).is_ok(),
                    wrong.is_empty() && depth * open.matches(['[', '{']).count() <= 512
                );
                drop(alike(text.replacen(close, wrong, 1).as_bytes()));
            }
        }
    }
}

#[test]
fn numbers_and_strings_longer_than_every_buffer_are_read_alike() {
    for digits in [60, 64, 128, 16_000, 16_384, 40_000] {
        let digits = "7".repeat(digits);
        for text in [
            format!("[{digits}]"),
            format!("[1,{digits}.{digits}e{digits} ]"),
            format!("[{digits}.{digits}.1]"),
            format!("[-{digits}e{digits}e]"),
            format!("[1,0{digits}]"),
            format!("[\"{digits}\\u{digits}\",\"\\{digits}\"]"),
            format!("{{ \"é{digits}\" : \"{digits}🔑\" }}"),
            format!("{{\"{digits}\":{digits}x}}"),
        ] {
            drop(alike(text.as_bytes()));
        }
    }
}

/// Pushes a first chunk of `first` bytes, then chunks of `size` bytes.
fn in_pieces(compactor: Compactor, text: &[u8], first: usize, size: usize) -> Result<Vec<u8>, JsonError> {
    let (front, back) = text.split_at(first.min(text.len()));
    pushed(compactor, std::iter::once(front).chain(back.chunks(size)))
}

// A failure prints the shrunk input, which reproduces it better than a seed.
proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_documents_are_compacted_alike(text in long_document()) {
        prop_assert!(alike(text.as_bytes()).is_ok());
    }

    #[test]
    fn damaged_documents_are_read_alike(text in long_document(), damage in prop::collection::vec(damage(), 1..3)) {
        drop(alike(&damaged(text.into_bytes(), &damage)));
    }

    #[test]
    fn garbage_is_read_alike(bytes in prop::collection::vec(byte(), 64..200), front in 0..FRONTS.len()) {
        let (front, back) = FRONTS[front];
        drop(alike(&[front.as_bytes(), b"x", back.as_bytes(), &bytes].concat()));
    }

    #[test]
    fn pieces_are_read_alike(
        text in long_document(), damage in prop::collection::vec(damage(), 0..2), first in 0..200_usize, size in 60..200_usize
    ) {
        let bytes = damaged(text.into_bytes(), &damage);
        let slow = pushed(scalar(), [bytes.as_slice()]);
        for (kind, compactor) in Compactor::vector(LIMITS) {
            prop_assert_eq!(in_pieces(compactor, &bytes, first, size), slow.clone(), "{}", kind);
        }
        prop_assert_eq!(in_pieces(scalar(), &bytes, first, size), slow);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_push_appends_alike_and_leaves_the_rest(text in long_document(), mark in "[a-z]{0,9}") {
        let mut out = mark.clone().into_bytes();
        let mut compactor = Compactor::new(LIMITS);
        compactor.push(text.as_bytes(), &mut out).expect("JSON");
        prop_assert_eq!(&out[..mark.len()], mark.as_bytes());
        prop_assert_eq!(Ok(out[mark.len()..].to_vec()), pushed(scalar(), [text.as_bytes()]));
    }
}
