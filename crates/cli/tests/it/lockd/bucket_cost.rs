//! `lockd store cost`: what it estimates is what a server sends.

use objectserver::Operation;
use serde_json::Value;

use crate::lockd::bucket::{object_server, serve, wait_ms};
use crate::lockd::support::lockd;

fn estimate(flags: &[&str]) -> Value {
    let ran = lockd(&[&["store", "cost", "--output", "json"], flags].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

#[test]
fn a_load_is_estimated_in_requests_and_dollars_a_month() {
    let load = ["--acquires", "200", "--renewals", "50", "--commit-interval", "250ms"];
    let shown = estimate(&load);
    let appends = shown["estimate"]["append_requests"].as_f64().expect("a number");
    assert!((10.3e6..10.4e6).contains(&appends), "one append in each interval: {shown}");
    let text = lockd(&[&["store", "cost"], &load[..]].concat());
    assert!(
        text.stdout.contains("dollars a month") && text.stdout.contains("server records"),
        "{}",
        text.stdout
    );
    let ran = lockd(&["store", "cost", "--servers", "0"]);
    assert!(ran.code == 2 && ran.stderr.contains("at least one server"), "{}", ran.stderr);
}

/// The estimate for an idle server was nothing; the server overwrote its record all the time.
#[test]
fn the_estimate_for_an_idle_server_is_what_it_sends() {
    let idle = ["--acquires", "0", "--takeover-silence", "1s"];
    let shown = estimate(&idle);
    let a_second = shown["estimate"]["server_requests"].as_f64().expect("a number") / (30.0 * 24.0 * 3600.0);
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let _server = serve(&objects, dir.path(), &["--takeover-silence", "1s"]);
    wait_ms(1000);
    objects.reset_counts();
    wait_ms(6000);
    let counts = objects.counts();
    let sent = u32::try_from(counts.of(Operation::Put) + counts.of(Operation::List)).expect("few");
    // A busy machine sends fewer of them.
    let expected = a_second * 6.0;
    assert!((expected * 0.3..=expected * 1.4).contains(&f64::from(sent)), "sent={sent} expected={expected}");
}
