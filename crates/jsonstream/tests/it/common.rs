//! Random documents, and damage to them.

use jsonstream::{Compactor, JsonError, Limits};
use proptest::prelude::*;
use proptest::sample::Index;

/// Large enough for every text here.
pub(crate) const LIMITS: Limits = Limits { bytes_max: 1 << 24 };

/// Compacts the chunks by `push` and by `push_into`, which must agree.
pub(crate) fn pushed<'a>(
    compactor: Compactor,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<u8>, JsonError> {
    let pieces: Vec<&[u8]> = pieces.into_iter().collect();
    let outcome = appended(compactor.clone(), &pieces);
    assert_eq!(outcome, filled(compactor, &pieces));
    outcome
}

/// By `push_into`, into a buffer with other content.
fn filled(mut compactor: Compactor, pieces: &[&[u8]]) -> Result<Vec<u8>, JsonError> {
    let mut buffer = vec![b'#'; pieces.iter().map(|piece| piece.len()).sum()];
    let mut filled = 0;
    for piece in pieces {
        filled += compactor.push_into(piece, &mut buffer[filled..])?;
    }
    compactor.finish()?;
    buffer.truncate(filled);
    Ok(buffer)
}

fn appended(mut compactor: Compactor, pieces: &[&[u8]]) -> Result<Vec<u8>, JsonError> {
    let mut out = Vec::new();
    for piece in pieces {
        compactor.push(piece, &mut out)?;
    }
    let summary = compactor.finish()?;
    assert_eq!(summary.compact_bytes, out.len() as u64);
    Ok(out)
}

/// The outcome with vector instructions, which must be the same with all instruction sets of the processor.
pub(crate) fn by_blocks<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, JsonError> {
    let pieces: Vec<&[u8]> = pieces.into_iter().collect();
    let best = pushed(Compactor::new(LIMITS), pieces.iter().copied());
    for (kind, compactor) in Compactor::vector(LIMITS).skip(1) {
        assert_eq!(pushed(compactor, pieces.iter().copied()), best, "{kind}");
    }
    best
}

/// The compactor without vector instructions.
pub(crate) fn scalar() -> Compactor {
    Compactor::scalar(LIMITS)
}

pub(crate) fn space() -> impl Strategy<Value = String> {
    prop_oneof![4 => Just(String::new()), 2 => Just(" ".to_owned()), 2 => "\n {0,20}", 1 => "[ \t\r\n]{0,12}"]
}

pub(crate) fn number() -> impl Strategy<Value = String> {
    "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?"
}

pub(crate) fn string() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => "[ !#-\\[\\]-~]{0,40}",
        2 => "\\\\([\"\\\\/bfnrt]|u[0-9a-fA-F]{4})",
        1 => "[é鍵🔑\u{7ff}\u{800}\u{ffff}\u{10ffff}]{1,20}",
        1 => any::<char>().prop_filter("plain", |c| *c >= ' ' && *c != '"' && *c != '\\').prop_map(String::from),
    ];
    prop::collection::vec(part, 0..5).prop_map(|parts| format!("\"{}\"", parts.concat()))
}

/// A JSON text with random whitespace between tokens.
pub(crate) fn document() -> impl Strategy<Value = String> {
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

/// An array of documents, long enough to be read by blocks.
pub(crate) fn long_document() -> impl Strategy<Value = String> {
    prop::collection::vec(document(), 1..8).prop_map(|parts| format!("[{}]", parts.join(",")))
}

/// Random bytes, mostly those with a meaning in JSON.
pub(crate) fn byte() -> impl Strategy<Value = u8> {
    let special =
        b"\"\\{}[]:,0123456789+-.eEutrfalsn/ \n\t\r\0\x1f\x7f\x80\xa0\xbf\xc0\xc3\xe0\xed\xef\xf0\xf4\xff";
    prop_oneof![5 => prop::sample::select(special.to_vec()), 1 => any::<u8>()]
}

/// Damage to a valid document.
#[derive(Clone, Debug)]
pub(crate) enum Damage {
    Replace(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Cut(Index),
    Double(Index, Index),
}

pub(crate) fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<Index>;
    prop_oneof![
        (index(), byte()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        (index(), byte()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        index().prop_map(Damage::Remove),
        index().prop_map(Damage::Cut),
        (index(), index()).prop_map(|(a, b)| Damage::Double(a, b)),
    ]
}

pub(crate) fn damaged(mut bytes: Vec<u8>, damage: &[Damage]) -> Vec<u8> {
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
