//! Benchmarks of the service: the real program in its own process, over loopback sockets.
//!
//! `cargo bench -p lockd-cli --bench service`; arguments after `--` select parts by name: `rate` (requests per second, compared
//! with an empty handler on the same stack), `idle` (memory of an idle server), `documents` (100 MB written and read), `load`
//! (1,000 connections, 10,000 waiters, one minute). `TMPDIR` selects the disk.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::cast_precision_loss, reason = "figures are rounded anyway")]

mod documents;
mod load;
mod rate;
mod servers;
mod wire;

/// The empty server uses lockd's allocator too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if words.first().is_some_and(|word| word == servers::EMPTY) {
        return servers::serve_nothing();
    }
    let wanted = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    if wanted("idle") {
        idle();
    }
    if wanted("rate") {
        rate::measure();
    }
    if wanted("documents") {
        documents::measure();
    }
    if wanted("load") {
        load::measure();
    }
}

fn idle() {
    for args in [&["--store", "mem://", "--mtls=false"][..], &[]] {
        let server = servers::Running::start(args);
        let kind = if args.is_empty() { "disk, mTLS" } else { "memory, plain" };
        println!("idle, {kind}: {:.1} MB resident (aim: under 20)", server.resident() as f64 / 1e6);
    }
}
