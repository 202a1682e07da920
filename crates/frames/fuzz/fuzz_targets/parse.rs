//! Any bytes, as a client or a server may send them: no panic, and what is read has one encoding.
#![no_main]

use frames::{Message, encode_control, encode_request, encode_response, parse, parse_preface};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = match parse_preface(bytes) {
        Ok(Some(rest)) => rest,
        Ok(None) | Err(_) => bytes,
    };
    while let Ok(Some((message, length))) = parse(rest) {
        let mut again = Vec::new();
        match &message {
            Message::Request(read) => {
                encode_request(&mut again, read.id, read.method, read.target, read.fields, read.body)
                    .expect("it was short");
            }
            Message::Response(read) => {
                encode_response(&mut again, read.id, read.status, read.fields, read.body).expect("it was short");
            }
            control => encode_control(&mut again, control),
        }
        assert_eq!(again, &rest[..length]);
        for cut in [0, 4, length / 2, length - 1] {
            assert_eq!(parse(&rest[..cut]).unwrap_or(None), None, "a part of a frame is not a frame");
        }
        rest = &rest[length..];
    }
});
