//! Any JSON round-trips through YAML, and another YAML implementation reads the same values.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestRunner};
use yamljson::{from_json, to_json};

/// Strings that some parser resolves to another type.
const AMBIGUOUS: &[&str] = &[
    "no",
    "yes",
    "on",
    "Off",
    "y",
    "N",
    "true",
    "False",
    "null",
    "~",
    "",
    " ",
    "1e3",
    "0x10",
    "0o7",
    "0b1",
    "010",
    "1_000",
    "12:30:45",
    "2026-11-15",
    "2026-11-15T08:42:00Z",
    "1.5",
    ".5",
    ".inf",
    ".nan",
    "-",
    "- a",
    "a: b",
    "a #b",
    "#",
    "<<",
    "=",
    "!!str a",
    "&a",
    "*a",
    "|",
    ">",
    "%YAML",
    "---",
    "...",
    "@a",
    "`",
    "'",
    "\"",
    "\\",
    "{}",
    "[]",
    "a,b",
    "?",
    "? a",
    ": ",
    "a\nb",
    "a\nb\n",
    "a\n\nb\n\n",
    "\na",
    " a\nb",
    "a \nb",
    "a\n  b\n",
    "a\r\nb",
    "\t",
    "a\tb\nc",
    "\n",
    "\u{85}",
    "a\u{2028}b\n",
    "\u{feff}",
    "\u{0}",
    "\u{7f}",
    "\u{ffff}",
    "\u{1f600}",
    "Größe",
    "# a\nb",
    "--- \nb",
    "...\nb",
];

fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::sample::select(AMBIGUOUS).prop_map(str::to_string),
        proptest::collection::vec(any::<char>(), 0..12).prop_map(|chars| chars.into_iter().collect()),
        "[a-z0-9 .:#\n-]{0,20}",
    ]
}

fn number() -> impl Strategy<Value = String> {
    "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?"
}

/// Any JSON, compact, with strings in their shortest form and without duplicate keys.
fn json() -> impl Strategy<Value = String> {
    let quote = |text: String| serde_json::to_string(&text).expect("a string");
    let leaf = prop_oneof![
        Just("null".to_string()),
        any::<bool>().prop_map(|bool| bool.to_string()),
        number(),
        string().prop_map(quote),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        let object = proptest::collection::vec((string(), inner.clone()), 0..6).prop_map(move |entries| {
            let mut text = String::new();
            let mut seen = std::collections::BTreeSet::new();
            for (key, value) in entries.into_iter().filter(|(key, _)| seen.insert(key.clone())) {
                let comma = if text.is_empty() { "" } else { "," };
                write!(text, "{comma}{}:{value}", quote(key)).expect("writing to a string");
            }
            format!("{{{text}}}")
        });
        let array = proptest::collection::vec(inner, 0..6).prop_map(|items| format!("[{}]", items.join(",")));
        prop_oneof![object, array]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_json_round_trips(json in json()) {
        let yaml = from_json(json.as_bytes()).expect("YAML can represent it");
        let back = to_json(yaml.as_bytes()).map_err(|error| TestCaseError::fail(format!("{error}\n{yaml}")))?;
        prop_assert_eq!(back, json, "{}", yaml);
    }

    #[test]
    fn any_accepted_yaml_round_trips(yaml in "[a-c0-9:.#&*!?|>'\"{}\\[\\], \n-]{0,40}") {
        if let Ok(json) = to_json(yaml.as_bytes())
            && let Ok(again) = from_json(json.as_bytes())
        {
            prop_assert_eq!(to_json(again.as_bytes()).expect("it is YAML"), json);
        }
    }
}

/// Reads pairs of lines, each a JSON string: the JSON text, and its YAML.
const COMPARE_PY: &str = r#"
import json, sys, yaml
def same(a, b):
    if type(a) is not type(b): return False
    if isinstance(a, dict): return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list): return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)
lines = sys.stdin.read().splitlines()
for text, written in zip(lines[::2], lines[1::2]):
    expected, got = json.loads(json.loads(text)), yaml.safe_load(json.loads(written))
    if not same(expected, got):
        sys.exit("json %r\nyaml\n%s\nread as %r" % (expected, json.loads(written), got))
print(len(lines) // 2)
"#;

#[test]
fn another_implementation_reads_the_same() {
    let there = Command::new("python3").args(["-c", "import yaml"]).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        eprintln!("skipped: python3 with yaml is not installed");
        return;
    }
    let mut runner = TestRunner::deterministic();
    let made = (0..1500).map(|_| json().new_tree(&mut runner).expect("a value").current());
    let quoted = |text: &str| serde_json::to_string(text).expect("a string");
    let ambiguous = AMBIGUOUS.iter().map(|text| format!("{{{0}:[{0}]}}", quoted(text)));
    let mut input = String::new();
    let mut count = 0;
    for json in made.chain(ambiguous) {
        let yaml = from_json(json.as_bytes()).expect("YAML can represent it");
        // ASCII only, so that no line break is changed on the way.
        let ascii = |text: &str| {
            let text = quoted(text);
            let escaped = text.chars().map(|c| match c {
                c if c.is_ascii() && c != '\u{7f}' => c.to_string(),
                c => {
                    let units =
                        c.encode_utf16(&mut [0; 2]).to_vec().into_iter().map(|unit| format!("\\u{unit:04x}"));
                    units.collect::<Vec<_>>().concat()
                }
            });
            escaped.collect::<String>()
        };
        writeln!(input, "{}\n{}", ascii(&json), ascii(&yaml)).expect("writing to a string");
        count += 1;
    }
    let mut python = Command::new("python3")
        .args(["-c", COMPARE_PY])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it was there");
    python.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let ended = python.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(String::from_utf8_lossy(&ended.stdout).trim(), count.to_string(), "all pairs were compared");
}
