//! The rules of edits, one by one: their effect on a text, byte for byte, and their refusals.

use jsonstream::edit::{DOCUMENT_BYTES_MAX, EDIT_BYTES_MAX, EDITS_MAX, STEPS_MAX};
use jsonstream::{DEPTH_MAX, EditError, EditErrorKind, JsonError, JsonErrorKind, apply, parse_edit};

const NOW: &str = "2026-11-15T08:42:00.5+01:00";

fn edited(document: &str, edits: &[&str]) -> Result<String, EditError> {
    let edits: Vec<_> = edits.iter().map(|text| parse_edit(text)).collect::<Result<_, _>>()?;
    apply(document.as_bytes(), &edits, NOW).map(|out| String::from_utf8(out).expect("JSON is UTF-8"))
}

fn gives(document: &str, edit: &str, expected: &str) {
    assert_eq!(edited(document, &[edit]).as_deref(), Ok(expected), "{document} {edit}");
}

fn fails(document: &str, edit: &str, kind: EditErrorKind) {
    assert_eq!(edited(document, &[edit]).map_err(|error| error.kind()), Err(kind), "{document} {edit}");
}

fn unreadable(edit: &str) {
    let error = parse_edit(edit).expect_err(edit);
    assert!(matches!(error.kind(), EditErrorKind::Syntax(_)), "{edit}: {error}");
}

#[test]
fn the_examples_of_the_specification_work() {
    gives(r#"{"status":{"counter":41}}"#, "status.counter++", r#"{"status":{"counter":42}}"#);
    let edits = ["progress.step=fetch", "progress.count++", "time:progress.updated=NOW"];
    let expected = format!(r#"{{"progress":{{"step":"fetch","count":1,"updated":"{NOW}"}}}}"#);
    assert_eq!(edited("", &edits), Ok(expected));
    let edits = ["progress.step=\"done\"", "progress.count=+5"];
    let expected = r#"{"progress":{"step":"done","count":6}}"#;
    assert_eq!(edited(r#"{"progress":{"step":"fetch","count":1}}"#, &edits).as_deref(), Ok(expected));
}

#[test]
fn values_are_what_they_look_like() {
    for (value, json) in [
        ("5", "5"),
        ("0", "0"),
        ("1.50", "1.50"),
        ("1e309", "1e309"),
        ("12345678901234567890", "12345678901234567890"),
        ("true", "true"),
        ("false", "false"),
        ("null", "null"),
        (r#""x""#, r#""x""#),
        (r#""5""#, r#""5""#),
        (r#""\u0041\ud800""#, r#""\u0041\ud800""#),
        (r#""a b""#, r#""a b""#),
        ("x", r#""x""#),
        ("", r#""""#),
        ("True", r#""True""#),
        ("nul", r#""nul""#),
        ("01", r#""01""#),
        ("1.", r#""1.""#),
        (".5", r#"".5""#),
        (" 5", r#"" 5""#),
        ("5 ", r#""5 ""#),
        ("1 2", r#""1 2""#),
        ("{}", r#""{}""#),
        ("[1]", r#""[1]""#),
        ("\"x", r#""\"x""#),
        ("a\"b", r#""a\"b""#),
        ("a\\b", r#""a\\b""#),
        ("a\nb\t\u{1}", r#""a\nb\t\u0001""#),
        ("é🔑", "\"é🔑\""),
        ("a=b", r#""a=b""#),
        ("=", r#""=""#),
        ("++", r#""++""#),
        ("a.b[0]", r#""a.b[0]""#),
        ("NaN", r#""NaN""#),
        ("+x", r#""+x""#),
        ("-x", r#""-x""#),
        ("+", r#""+""#),
        ("-", r#""-""#),
        ("+01:00", r#""+01:00""#),
        ("+05", r#""+05""#),
        ("+-5", r#""+-5""#),
        ("--5", r#""--5""#),
        ("+ 5", r#""+ 5""#),
        ("NOW", r#""NOW""#),
    ] {
        gives("{}", &format!("k={value}"), &format!(r#"{{"k":{json}}}"#));
        gives(r#"{"k":[1], "l":2}"#, &format!("k={value}"), &format!(r#"{{"k":{json}, "l":2}}"#));
    }
}

#[test]
fn any_json_can_be_set_and_is_compact() {
    gives("{}", "n:=-5", r#"{"n":-5}"#);
    gives("{}", "n:= { \"a b\" : [ 1.0 , null ] } ", r#"{"n":{"a b":[1.0,null]}}"#);
    gives("{}", r#"s:="5""#, r#"{"s":"5"}"#);
    gives("{}", r"a\:=5", r#"{"a:":5}"#);
    gives("{}", "a:b=5", r#"{"a:b":5}"#);
    gives("{}", "time:=5", r#"{"time":5}"#);
    gives("{}", "rm:=5", r#"{"rm":5}"#);
    gives("{}", "delete:=5", r#"{"delete":5}"#);
    for (edit, kind, offset) in [
        ("n:=", JsonErrorKind::UnexpectedEnd, 0),
        ("n:=x", JsonErrorKind::UnexpectedByte, 0),
        ("n:=+5", JsonErrorKind::UnexpectedByte, 0),
        ("n:=1 2", JsonErrorKind::TrailingByte, 2),
    ] {
        fails("{}", edit, EditErrorKind::Value(JsonError { kind, offset }));
    }
}

#[test]
fn arithmetic_is_exact() {
    for (before, edit, after) in [
        ("1", "n++", "2"),
        ("-1", "n++", "0"),
        ("0", "n--", "-1"),
        ("1", "n=+5", "6"),
        ("1", "n=-5", "-4"),
        ("9007199254740993", "n++", "9007199254740994"),
        ("18446744073709551615", "n++", "18446744073709551616"),
        ("0.1", "n=+0.2", "0.3"),
        ("1.00", "n--", "0.00"),
        ("1e2", "n++", "101"),
        ("1", "n=+1e2", "101"),
        ("1", "n=-0.001", "0.999"),
        ("-0", "n=+0", "0"),
        ("170141183460469231731687303715884105726", "n++", "170141183460469231731687303715884105727"),
    ] {
        gives(&format!("{{ \"n\" : {before} }}"), edit, &format!("{{ \"n\" : {after} }}"));
    }
}

#[test]
fn a_missing_number_counts_from_zero() {
    gives("", "a.b++", r#"{"a":{"b":1}}"#);
    gives("{}", "n--", r#"{"n":-1}"#);
    gives("{}", "n=+0.50", r#"{"n":0.50}"#);
    gives("{}", "n=-3", r#"{"n":-3}"#);
    gives(r#"{"a":[7]}"#, "a[+]++", r#"{"a":[7,1]}"#);
}

#[test]
fn adding_to_anything_but_a_number_is_refused() {
    for value in ["\"7\"", "true", "null", "{}", "[]", "[1]"] {
        for edit in ["n++", "n--", "n=+1", "n=-1"] {
            fails(&format!(r#"{{"n":{value}}}"#), edit, EditErrorKind::NoNumber);
        }
    }
}

#[test]
fn inexact_arithmetic_is_refused() {
    fails(r#"{"n":170141183460469231731687303715884105727}"#, "n++", EditErrorKind::Overflow);
    fails(r#"{"n":-170141183460469231731687303715884105728}"#, "n--", EditErrorKind::Overflow);
    fails(r#"{"n":1e40}"#, "n++", EditErrorKind::Overflow);
    fails(r#"{"n":1e-40}"#, "n++", EditErrorKind::Overflow);
    fails("{}", "n=+1e99", EditErrorKind::Overflow);
    fails("{}", "n=-170141183460469231731687303715884105728", EditErrorKind::Overflow);
}

#[test]
fn times_are_the_callers_or_literal() {
    gives("{}", "time:t=NOW", &format!(r#"{{"t":"{NOW}"}}"#));
    gives(r#"{"a":{"t":0}}"#, "time:a.t=2024-02-29T23:59:59Z", r#"{"a":{"t":"2024-02-29T23:59:59Z"}}"#);
    for edit in
        ["time:t=now", "time:t=", "time:t=2024-02-30T00:00:00Z", "time:t=1700000000", "time:t=\"NOW\""]
    {
        fails("{}", edit, EditErrorKind::Time);
    }
    for edit in ["time:t", "time:", "time:t++", "time:t:=NOW", "time:t+=NOW"] {
        unreadable(edit);
    }
    let edit = parse_edit("time:t=NOW").expect("an edit");
    assert_eq!(apply(b"", &[edit], "today").expect_err("no time").kind(), EditErrorKind::Time);
}

#[test]
fn an_unused_now_is_not_validated() {
    let edit = parse_edit("a=1").expect("an edit");
    assert_eq!(apply(b"", &[edit], "").expect("edited"), br#"{"a":1}"#);
}

#[test]
fn a_removal_takes_one_comma_and_leaves_the_rest() {
    for (document, edit, after) in [
        (r#"{"a":1,"b":2,"c":3}"#, "rm:a", r#"{"b":2,"c":3}"#),
        (r#"{"a":1,"b":2,"c":3}"#, "rm:b", r#"{"a":1,"c":3}"#),
        (r#"{"a":1,"b":2,"c":3}"#, "delete:c", r#"{"a":1,"b":2}"#),
        ("{ \"a\" : 1 , \"b\" : 2 , \"c\" : 3 }", "rm:a", "{ \"b\" : 2 , \"c\" : 3 }"),
        ("{ \"a\" : 1 , \"b\" : 2 , \"c\" : 3 }", "rm:b", "{ \"a\" : 1 , \"c\" : 3 }"),
        ("{ \"a\" : 1 , \"b\" : 2 , \"c\" : 3 }", "rm:c", "{ \"a\" : 1 , \"b\" : 2 }"),
        ("{\n  \"a\": 1\n}\n", "rm:a", "{}\n"),
        ("{\"l\":[ 1 , 2 , 3 ]}", "rm:l[0]", "{\"l\":[ 2 , 3 ]}"),
        ("{\"l\":[ 1 , 2 , 3 ]}", "rm:l[1]", "{\"l\":[ 1 , 3 ]}"),
        ("{\"l\":[ 1 , 2 , 3 ]}", "rm:l[-1]", "{\"l\":[ 1 , 2 ]}"),
        ("[ [ ] ]", "rm:[0]", "[]"),
        (r#"{"a":{"b":{"c":1}}}"#, "rm:a.b.c", r#"{"a":{"b":{}}}"#),
        (r#"{"a":{"b":{"c":1}}}"#, "rm:a.b", r#"{"a":{}}"#),
        (r#"{"a.b":1,"a":2}"#, r"rm:a\.b", r#"{"a":2}"#),
        (r#"{"a:":1,"b-":2}"#, "rm:a:", r#"{"b-":2}"#),
        (r#"{"a:":1,"b-":2}"#, "rm:b-", r#"{"a:":1}"#),
    ] {
        gives(document, edit, after);
    }
}

#[test]
fn removing_a_missing_value_changes_nothing() {
    for edit in ["rm:x", "delete:x.y.z", "rm:x[0]", "rm:a.x", "rm:l[0].x", "rm:x[3].y"] {
        let text = "{ \"a\": {}, \"l\": [ {} ] }\n";
        gives(text, edit, text);
    }
    gives("", "rm:x", "{}");
    fails(r#"{"l":[1]}"#, "rm:l[1]", EditErrorKind::OutOfRange);
    fails(r#"{"l":[1]}"#, "rm:l[-2]", EditErrorKind::OutOfRange);
    fails(r#"{"l":[1]}"#, "rm:l.x", EditErrorKind::NoObject);
    fails(r#"{"a":5}"#, "rm:a.b", EditErrorKind::NoObject);
    fails(r#"{"a":5}"#, "rm:a[0]", EditErrorKind::NoArray);
    for edit in ["rm:", "delete:", "rm:a=5", "rm:l[+]", "rm:l[+].a", "rm:.", "rm:a."] {
        unreadable(edit);
    }
}

#[test]
fn arrays_are_indexed_from_either_end() {
    for (edit, after) in [
        ("l[0]=x", r#"{"l":["x",20,30]}"#),
        ("l[2]=x", r#"{"l":[10,20,"x"]}"#),
        ("l[-1]=x", r#"{"l":[10,20,"x"]}"#),
        ("l[-3]=x", r#"{"l":["x",20,30]}"#),
        ("l[+]=x", r#"{"l":[10,20,30,"x"]}"#),
        ("l[1]++", r#"{"l":[10,21,30]}"#),
        ("l[+].a[+]=1", r#"{"l":[10,20,30,{"a":[1]}]}"#),
        ("l[+][+]=1", r#"{"l":[10,20,30,[1]]}"#),
    ] {
        gives(r#"{"l":[10,20,30]}"#, edit, after);
    }
    for edit in ["l[3]=x", "l[-4]=x", "l[3]++", "l[4294967295]=x", "l[-4294967295]=x", "l[3].a=1"] {
        fails(r#"{"l":[10,20,30]}"#, edit, EditErrorKind::OutOfRange);
    }
    gives("[ ]", "[+]=1", "[1 ]");
    gives("[ 1 ]", "[+].a=1", "[ 1,{\"a\":1} ]");
    fails("[]", "[0]=1", EditErrorKind::OutOfRange);
    fails("[]", "[-1]=1", EditErrorKind::OutOfRange);
}

#[test]
fn missing_containers_are_created() {
    gives("", "a.b.c=1", r#"{"a":{"b":{"c":1}}}"#);
    gives(r#"{"a":{}}"#, "a.b.c=1", r#"{"a":{"b":{"c":1}}}"#);
    gives("{}", "a[+]=1", r#"{"a":[1]}"#);
    gives("{}", "a.b[+].c=1", r#"{"a":{"b":[{"c":1}]}}"#);
    fails("{}", "a[0]=1", EditErrorKind::OutOfRange);
    fails("{}", "a.b[-1].c=1", EditErrorKind::OutOfRange);
    fails("{}", "a[+][0]=1", EditErrorKind::OutOfRange);
    fails("{}", "a[0]++", EditErrorKind::OutOfRange);
}

#[test]
fn paths_through_scalars_are_refused() {
    for value in ["5", "\"s\"", "true", "null", "\"{}\""] {
        let document = format!(r#"{{"a":{value}}}"#);
        for edit in ["a.b=1", "a.b++", "a.b.c=1", "rm:a.b", "time:a.b=NOW"] {
            fails(&document, edit, EditErrorKind::NoObject);
        }
        for edit in ["a[0]=1", "a[+]=1", "a[-1]++", "rm:a[0]", "a[0].b=1"] {
            fails(&document, edit, EditErrorKind::NoArray);
        }
        fails(value, "a=1", EditErrorKind::NoObject);
        fails(value, "[0]=1", EditErrorKind::NoArray);
    }
    fails(r#"{"a":[]}"#, "a.b=1", EditErrorKind::NoObject);
    fails(r#"{"a":{}}"#, "a[+]=1", EditErrorKind::NoArray);
    fails("", "[+]=1", EditErrorKind::NoArray);
}

#[test]
fn names_are_compared_unescaped_and_kept_as_written() {
    gives(r#"{"\u0061":1}"#, "a=2", r#"{"\u0061":2}"#);
    gives(r#"{"a\"b\\\n":1}"#, "a\"b\\\\\n++", r#"{"a\"b\\\n":2}"#);
    gives(r#"{"\ud83d\udd11":1}"#, "🔑++", r#"{"\ud83d\udd11":2}"#);
    gives(r#"{"\ud83d":1}"#, "a=1", r#"{"\ud83d":1,"a":1}"#);
    gives("{}", "say \"x\"\\\\=1", r#"{"say \"x\"\\":1}"#);
    gives("{}", "é key=1", r#"{"é key":1}"#);
    gives("{}", r"a\.b\[0\]\=\+=1", r#"{"a.b[0]=+":1}"#);
}

#[test]
fn of_duplicate_keys_the_last_counts() {
    let text = r#"{ "a": 1, "b": {"x":1}, "a": 2, "b": {"x":5}, "\u0061": 3 }"#;
    gives(text, "a++", r#"{ "a": 1, "b": {"x":1}, "a": 2, "b": {"x":5}, "\u0061": 4 }"#);
    gives(text, "b.x++", r#"{ "a": 1, "b": {"x":1}, "a": 2, "b": {"x":6}, "\u0061": 3 }"#);
    gives(text, "rm:a", r#"{ "b": {"x":1}, "b": {"x":5} }"#);
    gives(text, "rm:b", r#"{ "a": 1, "a": 2, "\u0061": 3 }"#);
    gives(r#"{"a":1,"a":2}"#, "rm:a", "{}");
}

#[test]
fn unedited_text_stays_byte_for_byte() {
    let text = "\n{ \"z\" : 1.0e+00 ,\t\"big\":123456789012345678901234567890,\"esc\":\"\\u00e9\\/\\ud800\", \"n\": 1 , \"l\":[ ] }\r\n";
    gives(text, "n++", &text.replace("\"n\": 1", "\"n\": 2"));
    gives(text, "l[+]=x", &text.replace("[ ]", "[\"x\" ]"));
    gives(text, "new=1", &text.replace("[ ]", "[ ],\"new\":1"));
    gives(text, "rm:n", &text.replace("\"n\": 1 , ", ""));
    assert_eq!(edited(text, &[]).as_deref(), Ok(text));
}

#[test]
fn edits_are_applied_in_order_and_all_or_none() {
    let edits = ["a=1", "a++", "b.c=x", "rm:a", "b.d[+]=1", "b.d[-1]--"];
    assert_eq!(edited("", &edits).as_deref(), Ok(r#"{"b":{"c":"x","d":[0]}}"#));
    assert!(edited("", &["a=1", "a.b=1"]).is_err());
}

#[test]
fn empty_input_is_an_empty_object() {
    for document in ["", " ", "\n", " \r\n\t"] {
        assert_eq!(edited(document, &[]).as_deref(), Ok("{}"));
        gives(document, "a=1", r#"{"a":1}"#);
    }
}

#[test]
fn a_document_that_is_not_json_is_refused() {
    for (document, kind, offset) in [
        ("{", JsonErrorKind::UnexpectedEnd, 1),
        ("{\"a\":01}", JsonErrorKind::InvalidNumber, 6),
        ("{} {}", JsonErrorKind::TrailingByte, 3),
        ("\u{feff}{}", JsonErrorKind::ByteOrderMark, 0),
    ] {
        fails(document, "a=1", EditErrorKind::Document(JsonError { kind, offset }));
    }
    let edit = parse_edit("a=1").expect("an edit");
    assert!(apply(b"\"\xFF\"", &[edit], NOW).is_err());
}

#[test]
fn invalid_edits_are_refused() {
    for edit in [
        "", "a", "a.b", "=", "=5", ":=5", "++", "--", "a+", "a-", "a+=5", "a-=5", "a++=5", "a--=5", ".=1",
        "a..b=1", "a.=1", "[]=1", "[x]=1", "a[=1", "a]=1", "a[0]b=1", r"a\=1", r"a\", r"a\b=1", r"\a=1",
        "a[1+]=1", "a: 5",
    ] {
        unreadable(edit);
    }
    assert!(matches!(parse_edit("a:=1:=").expect_err("not JSON").kind(), EditErrorKind::Value(_)));
}

#[test]
fn a_backslash_escapes_operators() {
    gives("{}", r"a\+=5", r#"{"a+":5}"#);
    gives("{}", r"a\-=5", r#"{"a-":5}"#);
    gives("{}", r"a\+++", r#"{"a+":1}"#);
    gives("{}", "a+++", r#"{"a+":1}"#);
    gives("{}", "a-b--", r#"{"a-b":-1}"#);
    gives("{}", r"rm\:a=1", r#"{"rm:a":1}"#);
    gives("{}", r"time\:a=NOW", r#"{"time:a":"NOW"}"#);
    gives("{}", r"a\\=1", r#"{"a\\":1}"#);
    gives("{}", r"a\\:=1", r#"{"a\\":1}"#);
    unreadable(r"a\++");
    unreadable(r"a+\+");
}

#[test]
fn depth_is_limited() {
    let levels = usize::from(DEPTH_MAX);
    let nested = |depth: usize| [r#"{"a":"#.repeat(depth), "1".to_owned(), "}".repeat(depth)].concat();
    assert!(parse_edit(&format!("{}=1", vec!["a"; STEPS_MAX].join("."))).is_ok());
    unreadable(&format!("{}=1", vec!["a"; STEPS_MAX + 1].join(".")));
    gives(
        &nested(levels - 1),
        "b=1",
        &[&nested(levels - 1)[..nested(levels - 1).len() - 1], ",\"b\":1}"].concat(),
    );
    let deep = format!("a:={}", nested(levels - 1));
    assert!(edited("{}", &[&deep]).is_ok());
    let deeper = format!("a.b:={}", nested(levels - 1));
    let error = edited("{}", &[&deeper]).expect_err("too deep");
    assert!(matches!(error.kind(), EditErrorKind::Result(JsonError { kind: JsonErrorKind::TooDeep, .. })));
}

#[test]
fn sizes_are_limited() {
    let longest = format!("a={}", "x".repeat(EDIT_BYTES_MAX - 2));
    assert!(parse_edit(&longest).is_ok());
    unreadable(&format!("{longest}x"));
    let edit = parse_edit("a++").expect("an edit");
    let many = vec![edit; EDITS_MAX + 1];
    assert_eq!(apply(b"", &many[1..], NOW).expect("edited"), format!(r#"{{"a":{EDITS_MAX}}}"#).into_bytes());
    assert_eq!(apply(b"", &many, NOW).expect_err("too many").kind(), EditErrorKind::TooMany);
    assert_eq!(DOCUMENT_BYTES_MAX, 1 << 30);
}

#[test]
fn messages_name_the_problem_and_the_path() {
    for (document, edit, message) in [
        ("{}", "a", "edit has neither = nor ++ nor -- nor rm: edit=\"a\""),
        (r#"{"a":{"b":5}}"#, "a.b.c=1", "not an object, so it has no members edit=\"a.b\""),
        (r#"{"a":[]}"#, "a[2].b=1", "no such element edit=\"a[2]\""),
        ("{}", "a:=x", "value is not json: unexpected byte offset=0 edit=\"a:=x\""),
        ("[", "a=1", "document is not json: ends too early offset=1"),
    ] {
        assert_eq!(edited(document, &[edit]).expect_err(edit).to_string(), message);
    }
}
