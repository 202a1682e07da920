//! Edge cases: refusals with their positions, conversions, and the style of the output.

use std::fmt::Write as _;

use yamljson::{from_json, to_json};

#[test]
fn output_is_block_style_with_as_few_quotes_as_is_safe() {
    let json =
        br#"{"name":"orders","enabled":"no","count":10,"big":123456789012345678901234567890,"rate":1e3,
        "steps":[{"id":1,"log":"first\nsecond\n"},[],[[1],2]],"empty":{},"1":null,"":""}"#;
    let expected = r#"name: orders
enabled: "no"
count: 10
big: 123456789012345678901234567890
rate: !!float 1e3
steps:
  - id: 1
    log: |
      first
      second
  - []
  - - - 1
    - 2
empty: {}
"1": null
"": ""
"#;
    assert_eq!(from_json(json).expect("YAML can represent it"), expected);
}

#[test]
fn a_value_alone_is_a_document() {
    for json in
        ["null", "true", "0", "-0", "1E400", "\"\"", "\"a\\nb\"", "\"a\\nb\\n\"", "[]", "{}", "[[[]]]"]
    {
        let yaml = from_json(json.as_bytes()).expect("YAML can represent it");
        assert_eq!(to_json(yaml.as_bytes()).expect("it is YAML"), json, "{yaml}");
    }
}

#[test]
fn keys_may_have_any_length() {
    for length in [490, 510, 1023, 1024, 5000, 100_000] {
        for (key, around) in [("k", ("", "")), ("no: ", ("[", "]")), ("ü\\n", ("{\"a\":[", "]}"))] {
            let json =
                format!("{}{{\"{}\":[{{\"b\":1}}],\"c\":2}}{}", around.0, key.repeat(length), around.1);
            let yaml = from_json(json.as_bytes()).expect("YAML can represent it");
            assert_eq!(
                to_json(yaml.as_bytes()).map_err(|error| error.to_string()),
                Ok(json),
                "{length} {key}"
            );
        }
    }
}

#[test]
fn nesting_is_allowed_up_to_the_limit_of_json() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]")] {
        let levels = 512 / if open.len() > 5 { 2 } else { 1 };
        let json = format!("{}1{}", open.repeat(levels), close.repeat(levels));
        let yaml = from_json(json.as_bytes()).expect("it is JSON");
        assert_eq!(to_json(yaml.as_bytes()).map_err(|error| error.to_string()), Ok(json));
    }
    let deep = |levels| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    assert!(from_json(deep(513).as_bytes()).is_err());
    assert!(to_json(deep(512).as_bytes()).is_ok());
    assert!(to_json(deep(513).as_bytes()).is_err());
    assert!(to_json(deep(100_000).as_bytes()).is_err());
    assert!(to_json("- ".repeat(100_000).as_bytes()).is_err());
}

#[test]
fn json_that_yaml_cannot_represent_is_refused() {
    for (json, message) in [
        (r#"{"a":1,"b":2,"a":3}"#, "duplicate key, which YAML does not allow; use JSON: offset=13"),
        (r#"{"a":1,"\u0061":3}"#, "duplicate key, which YAML does not allow; use JSON: offset=7"),
        (r#"["\ud800"]"#, "lone surrogate, which YAML cannot represent; use JSON: offset=1"),
        ("[1,", "ends too early: offset=3"),
    ] {
        assert_eq!(from_json(json.as_bytes()).expect_err(json).to_string(), message);
    }
}

#[test]
fn yaml_that_json_cannot_represent_is_refused_with_its_position() {
    for (yaml, message, position) in [
        ("", "empty", (1, 1)),
        ("# only a comment\n", "empty", (1, 1)),
        ("a: 1\ntrue: 2\n", "not a string", (2, 1)),
        ("1: 2\n", "not a string", (1, 1)),
        ("~: 2\n", "not a string", (1, 1)),
        ("? [a]\n: 2\n", "not a string", (1, 3)),
        ("? {a: b}\n: 2\n", "not a string", (1, 3)),
        ("a: 1\nb: 2\n'a': 3\n", "duplicate", (3, 1)),
        ("a: &x\n  b: *x\n", "contains itself", (2, 6)),
        ("&x [*x]", "contains itself", (1, 5)),
        ("a: *x\n", "", (1, 4)),
        ("a: !secret b\n", "tag", (1, 12)),
        ("a: !!binary aGk=\n", "tag", (1, 13)),
        ("!!set {a: ~}\n", "tag", (1, 7)),
        ("!!int a\n", "fit its tag", (1, 7)),
        ("!!int 1.5\n", "fit its tag", (1, 7)),
        ("!!bool yes\n", "fit its tag", (1, 8)),
        ("a: .inf\n", "no such number", (1, 4)),
        ("a: .nan\n", "no such number", (1, 4)),
        ("!!float .nan\n", "no such number", (1, 9)),
        ("zip: 01234\n", "leading zero", (1, 6)),
        ("a: 1\n---\nb: 2\n", "more than one document", (2, 1)),
        ("%YAML 1.1\n---\na: no\n", "only YAML 1.2", (2, 1)),
        ("a: {}\n<<: {}\n", "merge key", (2, 1)),
        ("a: [1\n", "", (1, 4)),
        ("a: b: c\n", "", (1, 5)),
        ("a:\n\t- b\n", "", (2, 2)),
        // A tab that indents was accepted at the top level, and after a space or a dash.
        ("\t- x\n", "tab", (1, 2)),
        ("\ta: 1\n", "tab", (1, 2)),
        (" \ta: 1\n", "tab", (1, 3)),
        ("---\n\t- x\n", "tab", (2, 2)),
        ("\n\t\"a\": 1\n", "tab", (2, 2)),
        ("\t&x a: 1\n", "tab", (1, 2)),
        ("a:\n \t- x\n", "tab", (2, 3)),
        ("a:\r \t- x\r", "tab", (2, 3)),
        ("ü: 1\nä:\n \tb: 1\n", "tab", (3, 3)),
        ("-\ta: 1\n", "tab", (1, 3)),
    ] {
        let error = to_json(yaml.as_bytes()).expect_err(yaml).to_string();
        assert!(error.contains(message), "{yaml:?}: {error}");
        let (line, column) = position;
        assert!(error.ends_with(&format!("line={line} column={column}")), "{yaml:?}: {error}");
    }
    assert!(to_json(b"a: \xff").expect_err("bytes").to_string().ends_with("not utf-8: offset=3"));
}

#[test]
fn lossless_conversions_are_made() {
    for (yaml, json) in [
        ("a: &x [1, no]\nb: *x\nc: *x\n", r#"{"a":[1,"no"],"b":[1,"no"],"c":[1,"no"]}"#),
        ("&k a: 1\nb: *k\n", r#"{"a":1,"b":"a"}"#),
        ("- &k a\n- *k : 1\n", r#"["a",{"a":1}]"#),
        ("[0x10, 0o17, +5, .5, 5., 1e3]", "[16,15,5,0.5,5.0,1e3]"),
        (
            "[!!str 5, !!int '5', !!float 5, !!null '', !!bool 'true', !!seq [], !!map {}]",
            r#"["5",5,5,null,true,[],{}]"#,
        ),
        ("a:\nb: ''\nc: \"\\x41\\u00e4\\U0001F600\"\n", r#"{"a":null,"b":"","c":"Aä😀"}"#),
        ("a: >\n  one\n  two\n\n  three\nb: |+\n  x\n\n", r#"{"a":"one two\nthree\n","b":"x\n\n"}"#),
        ("%YAML 1.2\n---\n[yes, 2026-11-15, 1_000, 12:30]\n...\n", r#"["yes","2026-11-15","1_000","12:30"]"#),
        ("--- # a comment\n", "null"),
        ("{\"a\": [1,2.50], \"b\": {\"c\": null}}", r#"{"a":[1,2.50],"b":{"c":null}}"#),
        ("a: 1\r\nb: 2\r\n", r#"{"a":1,"b":2}"#),
        ("a: <<\n'<<': b\n", r#"{"a":"<<","<<":"b"}"#),
    ] {
        assert_eq!(
            to_json(yaml.as_bytes()).map_err(|error| error.to_string()),
            Ok(json.to_string()),
            "{yaml}"
        );
    }
}

/// Nine lines expand to a billion strings: a parser that copies them all never ends.
#[test]
fn an_alias_bomb_is_refused() {
    let mut yaml = "a0: &a0 [lol,lol,lol,lol,lol,lol,lol,lol,lol]\n".to_string();
    for level in 1..10 {
        let items = vec![format!("*a{}", level - 1); 9].join(", ");
        writeln!(yaml, "a{level}: &a{level} [{items}]").expect("writing to a string");
    }
    let error = to_json(yaml.as_bytes()).expect_err("a bomb").to_string();
    assert!(error.contains("16 MiB") && error.contains("line=7"), "{error}");
}

/// Tabs separate tokens, and are part of texts and comments. Only indentation is of spaces.
#[test]
fn tabs_that_do_not_indent_a_block_are_accepted() {
    for (yaml, json) in [
        ("a:\t1\t# one\n", r#"{"a":1}"#),
        ("-\tx\n-\t[1,\t2]\n", r#"["x",[1,2]]"#),
        ("\t[1]\n", "[1]"),
        ("\tx\n", r#""x""#),
        ("\t\n- x\n\t# comment\n- y\n", r#"["x","y"]"#),
        ("a: 'x\ty'\n", r#"{"a":"x\ty"}"#),
        ("a: |\n  \tx\n", r#"{"a":"\tx\n"}"#),
        ("a: b\tc\n", r#"{"a":"b\tc"}"#),
        ("{\n\ta: 1,\n\tb: [2]\n}\n", r#"{"a":1,"b":[2]}"#),
    ] {
        assert_eq!(to_json(yaml.as_bytes()).map_err(|error| error.to_string()), Ok(json.into()), "{yaml:?}");
    }
}
