//! Throughput of validation and compaction, compared in the same run with: AVX2 on processors with AVX-512, the scalar
//! compactor, `serde_json` and `sonic-rs` as validators and through a tree of values, and a copy.
//!
//! `cargo bench -p lockd-jsonstream --bench compaction`; arguments after `--` select inputs by name. `sonic-rs` chooses its
//! instructions at compile time: `RUSTFLAGS="-C target-cpu=native"` enables those of this machine.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::cast_precision_loss, reason = "figures are rounded anyway")]

use std::hint::black_box;
use std::time::Instant;

use jsonstream::{Compactor, Limits, check};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// The size of chunks, as from a connection.
const PIECE: usize = 64 << 10;
/// Many short rounds: the best one ran undisturbed.
const ROUNDS: usize = 100;
const LIMITS: Limits = Limits { bytes_max: u64::MAX };

/// A benchmarked function; it writes into an existing buffer. Its result keeps the optimizer from removing the call.
type Work = fn(&[u8], &mut Vec<u8>) -> usize;

const CONTESTANTS: [(&str, Work); 9] = [
    ("ours, compacting", |text, out| compacted(Compactor::new(LIMITS), text, out)),
    ("ours, with AVX2, compacting", |text, out| compacted(with_avx2(), text, out)),
    ("ours, checking only", |text, _| check(text, LIMITS).map_or(0, |_| 1)),
    ("ours, scalar, compacting", |text, out| compacted(Compactor::scalar(LIMITS), text, out)),
    ("serde_json, checking only", |text, _| usize::from(checked_by_serde(text))),
    ("serde_json, value and back", through_serde),
    ("sonic-rs, checking only", |text, _| usize::from(sonic_rs::from_slice::<IgnoredAny>(text).is_ok())),
    ("sonic-rs, value and back", through_sonic),
    ("copy", copied),
];

fn main() {
    let picked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    println!("GB/s of input, the best of {ROUNDS} rounds; in brackets the first line to this one\n");
    for (name, text) in inputs() {
        if picked.is_empty() || picked.iter().any(|word| name.contains(word.as_str())) {
            report(name, text.as_bytes());
        }
    }
}

fn report(name: &str, text: &[u8]) {
    let mut out = Vec::with_capacity(text.len() + PIECE);
    let compact = compacted(Compactor::new(LIMITS), text, &mut out);
    println!("{name}, {:.2} MB, compact {:.2} MB", text.len() as f64 / 1e6, compact as f64 / 1e6);
    let mut best = [f64::INFINITY; CONTESTANTS.len()];
    for _ in 0..ROUNDS {
        for ((_, work), best) in CONTESTANTS.iter().zip(&mut best) {
            out.clear();
            let start = Instant::now();
            let done = black_box(work(black_box(text), &mut out));
            *best = best.min(start.elapsed().as_secs_f64());
            assert!(done > 0, "it is JSON");
        }
    }
    for ((name, _), seconds) in CONTESTANTS.iter().zip(best) {
        println!("  {name:28} {:7.2}  ({:.2})", text.len() as f64 / seconds / 1e9, seconds / best[0]);
    }
    println!();
}

/// AVX2, which most processors have; otherwise the scalar compactor.
fn with_avx2() -> Compactor {
    let avx2 = Compactor::vector(LIMITS).find(|(name, _)| *name == "AVX2");
    avx2.map_or_else(|| Compactor::scalar(LIMITS), |(_, compactor)| compactor)
}

fn compacted(mut compactor: Compactor, text: &[u8], out: &mut Vec<u8>) -> usize {
    for piece in text.chunks(PIECE) {
        compactor.push(piece, out).expect("JSON");
    }
    compactor.finish().expect("JSON");
    out.len()
}

/// From bytes, `serde_json` would not validate UTF-8 in ignored values.
fn checked_by_serde(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// Numbers and the order of keys do not survive it.
fn through_serde(text: &[u8], out: &mut Vec<u8>) -> usize {
    let value: Value = serde_json::from_slice(text).expect("JSON");
    serde_json::to_writer(&mut *out, &value).expect("a value");
    out.len()
}

/// Numbers do not survive it.
fn through_sonic(text: &[u8], out: &mut Vec<u8>) -> usize {
    let value: sonic_rs::Value = sonic_rs::from_slice(text).expect("JSON");
    sonic_rs::to_writer(&mut *out, &value).expect("a value");
    out.len()
}

fn copied(text: &[u8], out: &mut Vec<u8>) -> usize {
    for piece in text.chunks(PIECE) {
        out.extend_from_slice(black_box(piece));
    }
    out.len()
}

fn inputs() -> Vec<(&'static str, String)> {
    let records: Value = (0..4_000).map(record).collect();
    let numbers: Value =
        (0..100_000_u32).map(|n| f64::from(n.wrapping_mul(2_654_435_761)) / 1024.0).collect();
    let prose: Value =
        (0..1_000).map(|n| format!("{n}: {}", "the lease was handed on. ".repeat(80))).collect();
    let escapes: Value =
        (0..20_000).map(|n| format!("C:\\jobs\\{n}\t\"said\\done\"\n\u{1}\u{1f}/end")).collect();
    let far: Value = (0..20_000).map(|n| format!("{n} 鍵は渡された、ключ передан, clé remise 🔑")).collect();
    vec![
        ("records, pretty-printed", pretty(&records)),
        ("records, compact", records.to_string()),
        ("numbers, pretty-printed", pretty(&numbers)),
        ("numbers, compact", numbers.to_string()),
        ("long strings", pretty(&prose)),
        ("deep nesting, pretty-printed", pretty(&(0..200).map(|_| nested(100)).collect())),
        ("deep nesting, compact", (0..4_000).map(|_| nested(100)).collect::<Value>().to_string()),
        ("many escapes", pretty(&escapes)),
        ("beyond ASCII", pretty(&far)),
    ]
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a value")
}

/// Alternating arrays and objects.
fn nested(depth: u32) -> Value {
    (0..depth)
        .fold(json!(null), |inner, level| if level % 2 == 0 { json!([inner]) } else { json!({"in": inner}) })
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
