//! What validating and compacting costs, beside ceilings in the same run: `serde_json` that only validates,
//! and a copy.
//!
//! `cargo bench -p jsonstream --bench compaction`; words after `--` pick inputs by name.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::cast_precision_loss, reason = "figures are rounded anyway")]

use std::hint::black_box;
use std::time::Instant;

use jsonstream::{Compactor, Limits, check};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// Pieces come as a connection gives them.
const PIECE: usize = 64 << 10;
const ROUNDS: usize = 15;
const LIMITS: Limits = Limits { bytes_max: u64::MAX };

fn main() {
    let picked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    println!("MB/s, the best of {ROUNDS} rounds; in brackets ours to it\n");
    for (name, text) in inputs() {
        if picked.is_empty() || picked.iter().any(|word| name.contains(word.as_str())) {
            report(name, &text);
        }
    }
}

fn report(name: &str, text: &str) {
    let (mut ours, mut only, mut slice, mut whole, mut copy) = (0.0_f64, 0.0_f64, 0.0_f64, 0.0_f64, 0.0_f64);
    let mut out = Vec::with_capacity(text.len() + PIECE);
    for _ in 0..ROUNDS {
        ours = ours.max(speed(text, || compacted(text, &mut out)));
        only = only.max(speed(text, || check(text.as_bytes(), LIMITS).expect("JSON").compact_bytes));
        slice =
            slice.max(speed(text, || serde_json::from_slice::<IgnoredAny>(text.as_bytes()).expect("JSON")));
        whole = whole.max(speed(text, || validated(text.as_bytes())));
        copy = copy.max(speed(text, || copied(text, &mut out)));
    }
    println!(
        "{name}, {:.1} MB, compact {:.1} MB",
        megabytes(text.len()),
        megabytes(compacted(text, &mut out))
    );
    println!("  ours, compacting                 {ours:6.0}");
    println!("  ours, checking only              {only:6.0}  ({:.2})", ours / only);
    println!("  serde_json, without UTF-8        {slice:6.0}  ({:.2})", ours / slice);
    println!("  serde_json, with UTF-8           {whole:6.0}  ({:.2})", ours / whole);
    println!("  copy                             {copy:6.0}  ({:.2})\n", ours / copy);
}

fn compacted(text: &str, out: &mut Vec<u8>) -> usize {
    out.clear();
    let mut compactor = Compactor::new(LIMITS);
    for piece in text.as_bytes().chunks(PIECE) {
        compactor.push(piece, out).expect("JSON");
    }
    compactor.finish().expect("JSON");
    out.len()
}

fn validated(bytes: &[u8]) -> IgnoredAny {
    serde_json::from_str(std::str::from_utf8(bytes).expect("UTF-8")).expect("JSON")
}

fn copied(text: &str, out: &mut Vec<u8>) -> usize {
    out.clear();
    for piece in text.as_bytes().chunks(PIECE) {
        out.extend_from_slice(black_box(piece));
    }
    out.len()
}

fn speed<T>(text: &str, work: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    black_box(work());
    megabytes(text.len()) / start.elapsed().as_secs_f64()
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

fn inputs() -> Vec<(&'static str, String)> {
    let records: Value = (0..20_000).map(record).collect();
    let prose: Value =
        (0..4_000).map(|n| format!("{n}: {}", "the lease was handed on. ".repeat(80))).collect();
    let far: Value = (0..20_000).map(|n| format!("{n} 鍵は渡された、ключ передан, clé remise 🔑")).collect();
    let numbers: Value =
        (0..400_000_u32).map(|n| f64::from(n.wrapping_mul(2_654_435_761)) / 1024.0).collect();
    vec![
        ("records, pretty", serde_json::to_string_pretty(&records).expect("a value")),
        ("records, compact", serde_json::to_string(&records).expect("a value")),
        ("numbers, pretty", serde_json::to_string_pretty(&numbers).expect("a value")),
        ("long strings", serde_json::to_string_pretty(&prose).expect("a value")),
        ("beyond ASCII", serde_json::to_string_pretty(&far).expect("a value")),
    ]
}

/// The checkpoint of a worker.
fn record(n: u32) -> Value {
    json!({
        "id": u64::from(n) * 7_919_000_001,
        "owner": format!("worker-{}", n % 97),
        "path": format!("s3://bucket/orders/{:08}/part-{}.parquet", n, n % 13),
        "progress": {"step": (["fetch", "merge", "write"][n as usize % 3]), "count": n, "ratio": f64::from(n) / 7.0},
        "updated": "2026-11-15T08:42:00.123Z",
        "tags": ["blue", "retry", format!("shard-{}", n % 64)],
        "note": if n.is_multiple_of(5) { json!("said \"done\"\nand left") } else { Value::Null },
        "done": n.is_multiple_of(2),
        "offsets": [n, n + 1, n + 17, -3, 0],
    })
}
