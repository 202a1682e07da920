//! Golden bytes of every kind of frame, and properties of the parser.

use frames::{
    Field, Malformed, Message, Method, RequestId, Settings, Unencodable, encode_control, encode_request,
    encode_response, parse, parse_preface, renumber,
};
use proptest::prelude::*;

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
        .collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn control(message: Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    encode_control(&mut out, &message);
    out
}

fn request(id: u32, target: &str, fields: &[(Field, &[u8])], body: &[u8]) -> Result<Vec<u8>, Unencodable> {
    let mut out = Vec::new();
    encode_request(&mut out, RequestId(id), Method::Post, target, fields.iter().copied(), body)?;
    Ok(out)
}

/// The bytes are a promise: each kind, as docs/reference/stream.md has it.
#[test]
fn golden_bytes() {
    let fields = [(Field::IdempotencyKey, &b"k"[..]), (Field::FencingToken, &b"7"[..])];
    let sent = request(1, "/v1/release", &fields, b"{}").expect("short");
    let golden = "1e000000 01 01000000  02 02 0b00 2f76312f72656c65617365  01 0100 6b  04 0100 37  7b7d";
    assert_eq!(hex(&sent), hex(&bytes(golden)));
    let mut renumbered = request(9, "/v1/release", &fields, b"{}").expect("short");
    renumber(&mut renumbered, RequestId(1));
    assert_eq!(renumbered, sent);
    let mut response = Vec::new();
    encode_response(&mut response, RequestId(1), 409, [(Field::RetryAfter, &b"5"[..])], b"{}")
        .expect("short");
    assert_eq!(hex(&response), hex(&bytes("0e000000 02 01000000  9901 01  0a 0100 35  7b7d")));
    for (message, golden) in [
        (Message::Cancel(RequestId(258)), "05000000 03 02010000"),
        (Message::Aborted(RequestId(2)), "05000000 04 02000000"),
        (Message::GoAway(RequestId(3)), "05000000 05 03000000"),
        (Message::Ping(4), "05000000 06 04000000"),
        (Message::Pong(4), "05000000 07 04000000"),
        (Message::Settings(Settings::DEFAULT), "0d000000 08 00000000  00800000 c8000000"),
    ] {
        let encoded = control(message);
        assert_eq!(hex(&encoded), hex(&bytes(golden)), "{message:?}");
        assert_eq!(parse(&encoded), Ok(Some((message, encoded.len()))));
    }
    assert_eq!(frames::PREFACE, b"LOCKD/1\n");
    assert_eq!(frames::ALPN, b"lockd/1");
}

#[test]
fn a_request_is_read_as_it_was_written_and_from_its_last_byte_on() {
    let fields = [(Field::CorrelationId, &b"a b"[..]), (Field::IfStateEtag, &b""[..])];
    let sent = request(7, "/v1/update_state?key=a%20b", &fields, b"[1]").expect("short");
    for cut in 0..sent.len() {
        assert_eq!(parse(&sent[..cut]), Ok(None), "{cut}");
    }
    let followed = [sent.clone(), vec![9; 3]].concat();
    let Ok(Some((Message::Request(read), length))) = parse(&followed) else { panic!("a request") };
    assert_eq!((length, read.id, read.method), (sent.len(), RequestId(7), Method::Post));
    assert_eq!((read.target, read.body), ("/v1/update_state?key=a%20b", &b"[1]"[..]));
    assert_eq!(read.fields.into_iter().collect::<Vec<_>>(), fields);
    assert_eq!(read.fields.get(Field::IfStateEtag), Some(&b""[..]), "empty is not missing");
    assert_eq!(read.fields.get(Field::LeaseId), None);
}

/// Each of these could mean two things to two readers, or is longer than a server keeps.
#[test]
fn anything_else_is_malformed() {
    let invalid = Err(Malformed("invalid payload"));
    let length = Err(Malformed("length out of range"));
    for (hex, expected) in [
        ("05000000 00 00000000", Err(Malformed("unknown kind"))),
        ("05000000 09 00000000", Err(Malformed("unknown kind"))),
        ("04000000 03 000000", length),
        ("06000000 03 00000000 00", length),
        ("ffffffff 01 00000000", length),
        ("fd7f0000 01 00000000", length),
        ("0e000000 08 00000000 0000000000000000 00", length),
        ("0c000000 08 00000000 00000000000000", invalid),
        ("0d000000 08 01000000 00800000c8000000", invalid),
        ("05000000 01 01000000", invalid),
        // The method, the target: empty, no path, a space, cut off.
        ("0a000000 01 01000000 03 00 0100 2f", invalid),
        ("09000000 01 01000000 02 00 0000", invalid),
        ("0a000000 01 01000000 02 00 0100 61", invalid),
        ("0b000000 01 01000000 02 00 0200 2f20", invalid),
        ("0a000000 01 01000000 02 00 0200 2f", invalid),
        // Fields: unknown, missing, cut off, repeated, falling, with a line feed.
        ("0d000000 01 01000000 02 01 0100 2f 0b0000", invalid),
        ("0a000000 01 01000000 02 01 0100 2f", invalid),
        ("0d000000 01 01000000 02 01 0100 2f 010100", invalid),
        ("10000000 01 01000000 02 02 0100 2f 010000 010000", invalid),
        ("10000000 01 01000000 02 02 0100 2f 020000 010000", invalid),
        ("0e000000 01 01000000 02 01 0100 2f 0101000a", invalid),
        // A status of two digits.
        ("08000000 02 01000000 0a00 00", invalid),
    ] {
        assert_eq!(parse(&bytes(hex)), expected, "{hex}");
    }
    assert_eq!(parse_preface(b"POST /v1"), Err(Malformed("another protocol")));
    assert_eq!(parse_preface(b"LOCKD"), Ok(None));
    assert_eq!(parse_preface(b"LOCKD/1\nx"), Ok(Some(&b"x"[..])));
}

#[test]
fn what_would_be_malformed_is_not_encoded() {
    let fields: [&[(Field, &[u8])]; 4] = [
        &[(Field::LeaseId, b"\n")],
        &[(Field::LeaseId, "é".as_bytes())],
        &[(Field::LeaseId, b"1"), (Field::LeaseId, b"2")],
        &[(Field::LeaseId, b"1"), (Field::CorrelationId, b"2")],
    ];
    for fields in fields {
        assert_eq!(request(1, "/", fields, b""), Err(Unencodable), "{fields:?}");
    }
    for target in ["", "v1", "/a b", "/é"] {
        assert_eq!(request(1, target, &[], b""), Err(Unencodable), "{target}");
    }
}

#[test]
fn limits_hold_on_both_sides() {
    let long = vec![b'x'; 17 << 10];
    assert!(request(1, "/", &[], &long[..frames::BODY_MAX]).is_ok());
    assert_eq!(request(1, "/", &[], &long[..=frames::BODY_MAX]), Err(Unencodable));
    assert_eq!(request(1, "/", &[(Field::LeaseId, &long)], &long[..frames::BODY_MAX]), Err(Unencodable));
    let mut out = vec![1];
    let body = vec![b'x'; frames::RESPONSE_MAX];
    assert_eq!(encode_response(&mut out, RequestId(1), 200, [], &body), Err(Unencodable));
    assert_eq!(out, [1], "nothing is written");
    encode_response(&mut out, RequestId(1), 200, [], &body[12..]).expect("the longest");
    assert_eq!(out.len(), 1 + frames::RESPONSE_MAX);
}

fn a_request() -> impl Strategy<Value = Vec<u8>> {
    let fields = proptest::collection::btree_map(0..10_usize, "[ -~]{0,20}", 0..10);
    (any::<u32>(), "/[!-~]{0,40}", fields, proptest::collection::vec(any::<u8>(), 0..100)).prop_map(
        |(id, target, fields, body)| {
            let fields: Vec<(Field, &[u8])> = fields
                .iter()
                .map(|(at, value)| (Field::all().nth(*at).expect("ten fields"), value.as_bytes()))
                .collect();
            request(id, &target, &fields, &body).expect("short")
        },
    )
}

/// The frame again, from what was read.
fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    match message {
        Message::Request(read) => {
            encode_request(&mut out, read.id, read.method, read.target, read.fields, read.body)
        }
        Message::Response(read) => encode_response(&mut out, read.id, read.status, read.fields, read.body),
        control => {
            encode_control(&mut out, control);
            Ok(())
        }
    }
    .expect("it was short");
    out
}

proptest! {
    /// Whatever is accepted has one encoding: a byte changed anywhere is refused, or is another message.
    #[test]
    fn what_is_read_would_have_been_written(frame in a_request(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut changed = frame.clone();
        let at = at.index(changed.len());
        changed[at] = byte;
        for bytes in [frame, changed] {
            if let Ok(Some((message, length))) = parse(&bytes) {
                prop_assert_eq!(&encoded(&message), &bytes[..length]);
            }
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..10_u8) {
        let mut bytes = bytes;
        if bytes.len() > 9 {
            let length = u32::try_from(bytes.len() - 4).expect("short");
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            bytes[4] = kind;
        }
        if let Ok(Some((message, length))) = parse(&bytes) {
            prop_assert_eq!(&encoded(&message), &bytes[..length]);
        }
        let _ = parse_preface(&bytes);
    }
}
