//! Records that an earlier build wrote must stay readable.
//!
//! `golden/records-v1.txt` has one record per line: its bytes, a tab, its meaning. Lines are added and never
//! changed: if one fails, the format has changed, and needs a new version.

use engine::Record;
use sim::Step;
use sim::transcript::write_step;

const GOLDEN: &str = include_str!("golden/records-v1.txt");

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
    pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
}

fn meaning(record: &Record) -> String {
    let step = Step { lsn: record.lsn, now: record.now, command: record.command.clone() };
    let document =
        record.document.as_ref().map_or_else(String::new, |bytes| format!(" document={}", bytes.len()));
    format!("{} correlation={:x}{document}", write_step(&step), record.correlation)
}

#[test]
fn golden_records_keep_their_meaning() {
    let mut tags = std::collections::BTreeSet::new();
    for line in GOLDEN.lines() {
        let (hex, expected) = line.split_once('\t').expect("bytes, a tab, a meaning");
        let bytes = bytes(hex);
        let (record, length) = Record::decode(&bytes).unwrap_or_else(|error| panic!("{error}: {expected}"));
        assert_eq!((meaning(&record).as_str(), length), (expected, bytes.len()));
        let mut again = Vec::new();
        record.encode(&mut again);
        assert_eq!(again, bytes, "{expected}");
        let action = format!("{:?}", record.command.action);
        tags.insert(action.split(['(', ' ']).next().unwrap_or_default().to_string());
    }
    assert_eq!(tags.len(), 20, "every action has a golden record: {tags:?}");
}
