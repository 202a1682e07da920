//! Hard cases of RFC 8259, each with its outcome: the kind of error and the offset of the first invalid byte. Each is
//! pushed at once, byte by byte, and split at every position.

use jsonstream::JsonErrorKind::{
    ByteOrderMark, ControlCharacter, InvalidEscape, InvalidNumber, InvalidUtf8, TooDeep, TooLarge,
    TrailingByte, UnexpectedByte, UnexpectedEnd,
};
use jsonstream::{Compactor, DEPTH_MAX, JsonError, JsonErrorKind, Limits, check, compact};

use crate::common::{by_blocks, pushed, scalar};

const LIMITS: Limits = Limits { bytes_max: 1 << 20 };

/// The outcome for a text, which must not depend on chunks, nor on whether it is read by blocks.
fn outcome(text: &[u8]) -> Result<Vec<u8>, JsonError> {
    let whole = compact(text, LIMITS);
    assert_eq!(pushed(scalar(), [text]), whole, "scalar");
    assert_eq!(by_blocks(text.chunks(1)), whole, "byte by byte");
    for place in 0..=text.len() {
        let (front, back) = text.split_at(place);
        assert_eq!(by_blocks([front, back]), whole, "cut at {place}");
        assert_eq!(pushed(scalar(), [front, back]), whole, "scalar, cut at {place}");
    }
    for place in 0..64 {
        inside(text, place, &whole);
    }
    whole
}

/// The same text as an element of an array, far enough from its start to be read by blocks: it has the same outcome, with
/// the error at the same byte.
fn inside(text: &[u8], place: usize, alone: &Result<Vec<u8>, JsonError>) {
    let front = format!("[\"{}\",", "x".repeat(64 + place)).into_bytes();
    let behind = format!(",{}0]", " ".repeat(80)).into_bytes();
    let long = [front.as_slice(), text, &behind].concat();
    let outcome = by_blocks([long.as_slice()]);
    assert_eq!(outcome, pushed(scalar(), [long.as_slice()]), "at {place}");
    match alone {
        Ok(compact) => assert_eq!(outcome, Ok([front.as_slice(), compact, b",0]"].concat()), "at {place}"),
        Err(JsonError { kind: UnexpectedEnd | TrailingByte | ByteOrderMark, .. }) => {}
        Err(JsonError { kind, offset }) => {
            let offset = offset + front.len() as u64;
            assert_eq!(outcome, Err(JsonError { kind: *kind, offset }), "at {place}");
        }
    }
}

fn accepts(text: &[u8]) {
    assert_eq!(outcome(text).as_deref(), Ok(text), "{}", text.escape_ascii());
}

fn refuses(text: &[u8], kind: JsonErrorKind, offset: u64) {
    assert_eq!(outcome(text), Err(JsonError { kind, offset }), "{}", text.escape_ascii());
}

#[test]
fn numbers_are_kept_as_they_are() {
    for text in [
        "0",
        "-0",
        "-0.0",
        "1e309",
        "-1E-400",
        "1.50",
        "0e0",
        "0E+00",
        "10",
        "123456789012345678901234567890",
        "0.1000000000000000055511151231257827",
        "1e+5",
        "9007199254740993",
        "-0e-0",
        "0.0",
        "0.00000000000000000000000000000000000000000000000000000000000000000000000000001",
        "1E+0000000000000000000000000000000000000000000000000000000000000000000000000000",
        "5e-324",
        "-1.7976931348623157E+308",
        "100000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    ] {
        accepts(text.as_bytes());
        accepts(format!("[{text},{text}]").as_bytes());
    }
}

#[test]
fn invalid_numbers_are_refused_at_their_first_invalid_byte() {
    for (text, offset) in [
        ("01", 1),
        ("-01", 2),
        ("00", 1),
        ("1.e5", 2),
        ("1e+x", 3),
        ("-x", 1),
        ("--1", 1),
        ("1e1e", 3),
        ("-.5", 1),
        ("1ee5", 2),
        ("[1.]", 3),
        ("[1e]", 3),
        ("[-]", 2),
        ("1.5.5", 3),
        ("-Infinity", 1),
        ("-00", 2),
        ("0.0.0", 3),
        ("1e5.5", 3),
        ("1e+-5", 3),
        ("1-5", 1),
        ("1+5", 1),
        ("1.-5", 2),
        ("-e5", 1),
        ("1e.5", 2),
        ("0e5e", 3),
        ("12345678901234567890a", 20),
    ] {
        let kind = outcome(text.as_bytes()).expect_err(text);
        assert!(matches!(kind.kind, InvalidNumber | TrailingByte), "{text}");
        assert_eq!(kind.offset, offset, "{text}");
    }
    for text in ["1.", "1e", "-", "1e+", "1e-"] {
        refuses(text.as_bytes(), UnexpectedEnd, text.len() as u64);
    }
    for text in ["+1", ".5", "NaN", "Infinity", "x"] {
        refuses(text.as_bytes(), UnexpectedByte, 0);
    }
    refuses(b"0x10", TrailingByte, 1);
    refuses(b"1_000", TrailingByte, 1);
}

#[test]
fn escapes_are_kept_as_they_are_and_lone_surrogates_with_them() {
    for text in [
        r#""\"\\\/\b\f\n\r\t""#,
        r#""\u0000""#,
        r#""\u00e9""#,
        r#""\uD83D\uDD11""#,
        r#""\ud83d""#,
        r#""\udd11\ud83d""#,
        r#""\uDEAD tail""#,
        r#""\ud800\udc00\uDBFF\uDFFF""#,
        r#""\udc00\ud800""#,
        r#""\uD83D\u0041""#,
        r#""\uD83D\n""#,
        r#""\uD83D\\uDD11""#,
        r#""\\\\\"\\""#,
        r#"{"\u0061":1,"a":2}"#,
        r#""""#,
        r#""/""#,
    ] {
        accepts(text.as_bytes());
    }
}

#[test]
fn unknown_escapes_are_refused() {
    refuses(br#""\x41""#, InvalidEscape, 2);
    refuses(br#""\'""#, InvalidEscape, 2);
    refuses(br#""\U0041""#, InvalidEscape, 2);
    refuses(br#""\u12g4""#, InvalidEscape, 5);
    refuses(br#""\u123""#, InvalidEscape, 6);
    refuses(br#""\u""#, InvalidEscape, 3);
    refuses(br#""\u 041""#, InvalidEscape, 3);
    refuses(br#""\u+041""#, InvalidEscape, 3);
    refuses(br#""\uD83D\x""#, InvalidEscape, 8);
    refuses(br#""\uD83D\uDD1g""#, InvalidEscape, 12);
    refuses(br#""\\\a""#, InvalidEscape, 4);
    refuses(br#"{"\k":1}"#, InvalidEscape, 3);
    refuses(b"\"\\\n\"", InvalidEscape, 2);
    refuses(b"\"\\\0\"", InvalidEscape, 2);
    refuses(b"\"\\\xC3\xA9\"", InvalidEscape, 2);
}

#[test]
fn control_characters_are_refused_in_strings() {
    for byte in 0..0x20 {
        refuses(&[b'"', b'a', byte, b'"'], ControlCharacter, 2);
        let long = [b"[\"0123456789abcdef".as_slice(), &[byte], b"0123456789\"]"].concat();
        refuses(&long, ControlCharacter, 18);
    }
    accepts(b"\"\x7F\"");
}

#[test]
fn strings_have_to_be_utf8() {
    accepts("\"é鍵🔑\u{7FF}\u{800}\u{FFFF}\u{10000}\u{10FFFF}\u{FEFF}\u{D7FF}\u{E000}\"".as_bytes());
    for (bytes, wrong) in [
        (b"\x80".as_slice(), 0),
        (b"\xBF", 0),
        (b"\xC0\x80", 0),
        (b"\xC1\xBF", 0),
        (b"\xC3", 1),
        (b"\xC3\xC3", 1),
        (b"\xE0\x80\x80", 1),
        (b"\xE0\x9F\xBF", 1),
        (b"\xE2\x82", 2),
        (b"\xED\xA0\x80", 1),
        (b"\xED\xBF\xBF", 1),
        (b"\xF0\x80\x80\x80", 1),
        (b"\xF0\x8F\xBF\xBF", 1),
        (b"\xF0\x9F\x94", 3),
        (b"\xF4\x90\x80\x80", 1),
        (b"\xF5\x80\x80\x80", 0),
        (b"\xF8\x88\x80\x80\x80", 0),
        (b"\xFE", 0),
        (b"\xFF", 0),
    ] {
        refuses(&[b"\"", bytes, b"\""].concat(), InvalidUtf8, 1 + wrong);
        refuses(&[b"{\"0123456789\xC3\xA9", bytes, b"\":1}"].concat(), InvalidUtf8, 14 + wrong);
    }
    refuses("é".as_bytes(), UnexpectedByte, 0);
    refuses(b"[\xA0]", UnexpectedByte, 1);
}

#[test]
fn structure_is_checked() {
    for (text, offset) in [
        ("]", 0),
        ("}", 0),
        (",", 0),
        (":", 0),
        ("[1,]", 3),
        ("[,1]", 1),
        ("[1 2]", 3),
        ("{,}", 1),
        ("{1:2}", 1),
        ("{\"a\"}", 4),
        ("{\"a\",1}", 4),
        ("{\"a\":}", 5),
        ("{\"a\":1,}", 7),
        ("{\"a\"::1}", 5),
        ("[1}", 2),
        ("{\"a\":1]", 6),
        ("[1:2]", 2),
        ("{\"a\":1 \"b\":2}", 7),
        ("{a:1}", 1),
        ("['a']", 1),
        ("[1,,2]", 3),
        ("nul1", 3),
        ("True", 0),
        ("[tru]", 4),
        ("falsy", 4),
        ("/**/1", 0),
        ("\u{c}1", 0),
        ("\u{b}1", 0),
    ] {
        refuses(text.as_bytes(), UnexpectedByte, offset);
    }
}

#[test]
fn one_value_and_only_whitespace_around_it() {
    assert_eq!(
        outcome(b" \t\r\n{ \"a b\" :\t[ 1 , true ,\r\nnull ] } \n").expect("JSON"),
        br#"{"a b":[1,true,null]}"#
    );
    refuses(b"1 2", TrailingByte, 2);
    refuses(b"{}{}", TrailingByte, 2);
    refuses(b"[] ]", TrailingByte, 3);
    refuses(b"null\0", TrailingByte, 4);
    refuses(b"truee", TrailingByte, 4);
    refuses(b"\"a\"\"b\"", TrailingByte, 3);
    refuses(b"1\xC2\xA0", TrailingByte, 1);
}

#[test]
fn four_bytes_are_whitespace_and_no_other() {
    for byte in 0..=255_u8 {
        let text = |space: &[u8]| {
            let parts = [b"[".as_slice(), b"1", b",", b"{", b"\"a\"", b":", b"null", b"}", b"]"];
            parts.join(space)
        };
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            for count in [1, 2, 63, 64, 65, 130] {
                let long = text(&vec![byte; count]);
                assert_eq!(by_blocks([long.as_slice()]).as_deref(), Ok(br#"[1,{"a":null}]"#.as_slice()));
                assert_eq!(
                    pushed(scalar(), [long.as_slice()]).as_deref(),
                    Ok(br#"[1,{"a":null}]"#.as_slice())
                );
            }
        } else if !matches!(byte, b'0'..=b'9' | b'-' | b'"' | b'[' | b']' | b'{' | b't' | b'f' | b'n') {
            let error = outcome(&text(&[byte])).expect_err("no whitespace");
            assert_eq!(error, JsonError { kind: UnexpectedByte, offset: 1 }, "{byte}");
        }
    }
}

#[test]
fn whitespace_ends_a_token() {
    for (text, kind, offset) in [
        ("[tr ue]", UnexpectedByte, 3),
        ("[nul\nl]", UnexpectedByte, 4),
        ("[- 1]", InvalidNumber, 2),
        ("[1 .5]", UnexpectedByte, 3),
        ("[1. 5]", InvalidNumber, 3),
        ("[1 e5]", UnexpectedByte, 3),
        ("[1e 5]", InvalidNumber, 3),
        ("[1e+ 5]", InvalidNumber, 4),
        ("[1 2]", UnexpectedByte, 3),
        ("[\"a\" \"b\"]", UnexpectedByte, 5),
        ("[true false]", UnexpectedByte, 6),
        ("[{} {}]", UnexpectedByte, 4),
        ("[\"a\nb\"]", ControlCharacter, 3),
        ("[\"a\tb\"]", ControlCharacter, 3),
    ] {
        refuses(text.as_bytes(), kind, offset);
    }
}

#[test]
fn an_empty_text_is_refused() {
    refuses(b"", UnexpectedEnd, 0);
    refuses(b" \n\t\r ", UnexpectedEnd, 5);
    refuses(b"\0", UnexpectedByte, 0);
    refuses(b" \0", UnexpectedByte, 1);
}

#[test]
fn a_byte_order_mark_is_refused() {
    refuses(b"\xEF\xBB\xBF{}", ByteOrderMark, 0);
    refuses(b" \xEF\xBB\xBF{}", UnexpectedByte, 1);
    refuses(b"{}\xEF\xBB\xBF", TrailingByte, 2);
    refuses(b"\xFE\xFF\0{\0}", UnexpectedByte, 0);
}

#[test]
fn truncation_is_noticed_at_every_byte() {
    let text =
        "{\"k\\u00e9y\": [1.5e-3, \"é🔑\\n\", true, false, null, {\"a\": {}}, []], \"z\": -0}".as_bytes();
    assert!(outcome(text).is_ok());
    for length in 0..text.len() {
        refuses(&text[..length], UnexpectedEnd, length as u64);
    }
}

fn nested(depth: usize, open: &str, close: &str) -> Vec<u8> {
    [open.repeat(depth), "1".to_owned(), close.repeat(depth)].concat().into_bytes()
}

#[test]
fn depth_is_accepted_up_to_the_limit() {
    let depth = usize::from(DEPTH_MAX);
    assert_eq!(depth, 512);
    for (open, close) in [("[", "]"), ("{\"\":", "}"), ("[ ", " ]")] {
        assert!(compact(&nested(depth, open, close), LIMITS).is_ok());
        let offset = (depth * open.len()) as u64;
        let error = compact(&nested(depth + 1, open, close), LIMITS);
        assert_eq!(error, Err(JsonError { kind: TooDeep, offset }));
    }
    let wide = [b"[".as_slice(), &b"[[]],".repeat(2000), b"1]"].concat();
    assert!(compact(&wide, LIMITS).is_ok(), "only what is open at once counts");
}

#[test]
fn bytes_are_accepted_up_to_the_limit() {
    let text = b"[ 1, 2 ] ";
    for limit in 0..=text.len() as u64 {
        let limits = Limits { bytes_max: limit };
        let expected = match limit {
            9 => Ok(b"[1,2]".to_vec()),
            _ => Err(JsonError { kind: TooLarge, offset: limit }),
        };
        assert_eq!(compact(text, limits), expected);
        assert_eq!(check(text, limits).map(|summary| summary.compact_bytes), expected.map(|_| 5));
    }
}

#[test]
fn an_error_before_the_limit_wins_over_the_limit() {
    let limits = Limits { bytes_max: 3 };
    assert_eq!(compact(b"[x]]]]]", limits), Err(JsonError { kind: UnexpectedByte, offset: 1 }));
}

#[test]
fn the_limit_is_noticed_with_the_first_byte_beyond_it() {
    let mut out = Vec::new();
    let mut compactor = Compactor::new(Limits { bytes_max: 4 });
    compactor.push(b"    ", &mut out).expect("within the limit");
    compactor.push(b"", &mut out).expect("within the limit");
    let error = JsonError { kind: TooLarge, offset: 4 };
    assert_eq!(compactor.push(b" ", &mut out), Err(error));
    assert_eq!(compactor.push(b"", &mut out), Err(error), "an error stays");
    assert_eq!(compactor.finish(), Err(error));
}

#[test]
fn an_error_is_permanent() {
    let mut out = Vec::new();
    let mut compactor = Compactor::new(LIMITS);
    let error = compactor.push(b"[1,]", &mut out).expect_err("not JSON");
    assert_eq!(compactor.push(b"1]", &mut out), Err(error));
    assert_eq!(compactor.finish(), Err(error));
}

#[test]
fn a_text_longer_than_every_buffer_is_compacted() {
    let element = "{ \"text\" : \"0123456789 abcdef é🔑 \\n\" , \"n\" : [ -12.5e+10 , true ] }\n";
    let long = format!("[{element}{}]", format!(",{element}").repeat(1500));
    let expected = long.replace([' ', '\n'], "").replace("0123456789abcdefé🔑", "0123456789 abcdef é🔑 ");
    for size in [1, 7, 4096, 16384, 16385, 65536, long.len()] {
        let out = by_blocks(long.as_bytes().chunks(size)).expect("JSON");
        assert!(out == expected.as_bytes(), "pieces of {size}");
    }
}

#[test]
fn memory_does_not_grow_with_the_text() {
    assert!(size_of::<Compactor>() <= 160, "{}", size_of::<Compactor>());
    let mut compactor = Compactor::new(Limits { bytes_max: u64::MAX });
    let mut out = Vec::new();
    compactor.push(b"[1", &mut out).expect("JSON");
    for text in [" ".repeat(1 << 20), ",1".repeat(1 << 16), ",[[[]]]".repeat(1 << 16)] {
        out = Vec::new();
        compactor.push(text.as_bytes(), &mut out).expect("JSON");
        // The output, in a vector that grows by doubling, plus a buffer for one part.
        assert!(out.capacity() <= 2 * (out.len() + (16 << 10)), "{}", out.capacity());
    }
}

#[test]
fn messages_end_with_the_offset() {
    let error = compact(b"{\"a\":tru}", LIMITS).expect_err("not JSON");
    assert_eq!(error.to_string(), "unexpected byte offset=8");
}
