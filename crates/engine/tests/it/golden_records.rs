//! Batches that an earlier build wrote must stay readable.
//!
//! `golden/records-v1.txt` and `golden/records-v2.txt` have one batch with one record per line: its bytes, a tab, its
//! meaning. Lines are added and never changed: if one fails, the format has changed, and needs a new version.

use std::collections::BTreeSet;

use engine::internals::record::Record;
use engine::internals::record::{BatchContents, decode_batch};
use kernel::{ClockReading, Shard, Span};
use sim::Step;
use sim::transcript::write_step;

const FORMAT_1: &str = include_str!("golden/records-v1.txt");
const FORMAT_2: &str = include_str!("golden/records-v2.txt");

/// The clocks in every golden batch of format 2.
const CLOCKS: ClockReading =
    ClockReading { boot: 0x00ff_eedd << 96 | 7, boot_clock: Span(50_000), unix_ms: 1_800_000_000_123 };

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

/// The records of a file, with their bytes, in a log of shard 1.
fn golden(file: &'static str) -> impl Iterator<Item = (Vec<u8>, BatchContents)> {
    file.lines().map(|line| {
        let (hex, expected) = line.split_once('\t').expect("bytes, a tab, a meaning");
        let bytes = bytes(hex);
        let contents = decode_batch(&bytes, Shard(1)).unwrap_or_else(|error| panic!("{error}: {expected}"));
        let [record] = &contents.records[..] else { panic!("one record: {expected}") };
        assert_eq!(meaning(record), expected);
        (bytes, contents)
    })
}

fn actions(records: impl Iterator<Item = (Vec<u8>, BatchContents)>) -> BTreeSet<&'static str> {
    records.map(|(_, contents)| contents.records[0].command.action.name()).collect()
}

#[test]
fn golden_records_keep_their_meaning_and_are_encoded_as_the_same_bytes() {
    for (bytes, contents) in golden(FORMAT_2) {
        assert_eq!(contents.clocks, Some(CLOCKS));
        assert_eq!(Record::encode_batch(CLOCKS, &contents.records), bytes, "{contents:?}");
    }
    let actions = actions(golden(FORMAT_2));
    assert_eq!(actions.len(), 21, "every action has a golden record: {actions:?}");
}

#[test]
fn golden_records_of_format_1_keep_their_meaning() {
    assert!(golden(FORMAT_1).all(|(_, contents)| contents.clocks.is_none()));
    let actions = actions(golden(FORMAT_1));
    assert_eq!(actions.len(), 20, "every action of format 1 has a golden record: {actions:?}");
}
