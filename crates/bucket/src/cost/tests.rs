use super::*;

fn busy(interval_ms: u64) -> Load {
    Load {
        acquires_per_second: 10_000.0,
        commit_interval: Duration::from_millis(interval_ms),
        ..Load::default()
    }
}

fn dollars(load: &Load, name: &str) -> f64 {
    estimate(load, Prices::named(name).expect("known")).expect("a load").dollars
}

/// What the server costs beside that: its own record.
fn records(name: &str) -> f64 {
    dollars(&Load { acquires_per_second: 0.0, ..Load::default() }, name)
}

fn is_near(value: f64, expected: f64, tolerance: f64) -> bool {
    (value - expected).abs() <= expected * tolerance
}

/// One busy shard: 25.9 million appends a month at one each 100 ms, 10.4 million at 250 ms, 2.6 million at 1 s.
#[test]
fn a_busy_shard_appends_once_in_each_interval() {
    for (interval_ms, requests, standard, express) in
        [(100, 25.9e6, 130.0, 29.0), (250, 10.4e6, 52.0, 12.0), (1000, 2.6e6, 13.0, 3.0)]
    {
        let load = busy(interval_ms);
        let estimated = estimate(&load, &PRICES[0]).expect("a load");
        assert!(is_near(estimated.append_requests, requests, 0.01), "{estimated:?}");
        assert!(is_near(dollars(&load, "s3") - records("s3"), standard, 0.02), "{estimated:?}");
        assert!(
            is_near(dollars(&load, "s3-express") - records("s3-express"), express, 0.05),
            "{estimated:?}"
        );
    }
    assert!(dollars(&busy(250), "s3") - records("s3") <= 55.0);
}

#[test]
fn a_rare_command_is_an_append_of_its_own_and_none_are_none() {
    let rare = Load { acquires_per_second: 0.001, ..Load::default() };
    let estimated = estimate(&rare, &PRICES[0]).expect("a load");
    assert!(is_near(estimated.appends_per_second, 0.002, 0.001), "{estimated:?}");
    assert!(is_near(estimated.commands_per_append, 1.0, 0.001), "{estimated:?}");
    assert!(is_near(estimated.latency_ms, 60.0, 0.01), "nothing to wait for: {estimated:?}");
    let idle = estimate(&Load { acquires_per_second: 0.0, ..Load::default() }, &PRICES[0]).expect("a load");
    assert!(idle.append_requests.abs() < f64::EPSILON, "{idle:?}");
}

/// The estimate had no requests of the servers' own records, most of what an idle server pays for.
#[test]
fn servers_pay_for_their_records_and_for_the_shards_that_they_follow() {
    let of = |servers, shards, acquires_per_second, silence_s| {
        let takeover_silence = Duration::from_secs(silence_s);
        let load = Load { acquires_per_second, shards, servers, takeover_silence, ..Load::default() };
        let estimated = estimate(&load, &PRICES[0]).expect("a load");
        (estimated.server_requests, estimated.read_requests, estimated.dollars)
    };
    let (writes, reads, dollars) = of(1, 1, 0.0, 3);
    assert!(
        is_near(writes, 4.32e6, 0.001) && reads < 1.0 && is_near(dollars, 21.6, 0.01),
        "{writes} {reads} {dollars}"
    );
    let (writes, reads, _) = of(2, 1, 0.0, 3);
    assert!(is_near(writes, 8.64e6, 0.001) && is_near(reads, 9.0 * 864e3, 0.001), "{writes} {reads}");
    let growing = of(2, 1, 10.0, 3).1;
    assert!(is_near(growing, 12.0 * 864e3, 0.01), "a log that grows is read four times: {growing}");
    let (_, reads, _) = of(5, 10, 0.0, 3);
    assert!(
        is_near(reads, (5.0 * 4.0 * 4.0 + 20.0) * 864e3, 0.001),
        "two servers follow each shard: {reads}"
    );
    assert!(is_near(of(1, 1, 0.0, 30).2, 2.16, 0.05), "a tenth");
}

#[test]
fn the_longer_of_latency_and_interval_is_the_period() {
    let of = |latency_ms, interval_ms| {
        let load = Load { put_latency: Duration::from_millis(latency_ms), ..busy(interval_ms) };
        estimate(&load, &PRICES[0]).expect("a load").appends_per_second
    };
    assert!(is_near(of(50, 0), 20.0, 0.001));
    assert!(is_near(of(50, 20), 20.0, 0.001));
    assert!(is_near(of(50, 200), 5.0, 0.001));
}

/// Simulates arrivals with a fixed sequence of random numbers, and compares with the formula.
#[test]
fn the_formula_agrees_with_a_simulation() {
    let mut state = 7_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(state >> 33).expect("31 bits")) / f64::from(1_u32 << 31)
    };
    for (rate, period) in [(1.0, 0.05), (10.0, 0.1), (40.0, 0.1), (3.0, 1.0)] {
        let (mut now, mut appends, mut next_append, mut arrivals) = (0.0, 0_u32, 0.0_f64, 0_u32);
        // The first append begins with a command; commands up to the next possible beginning share the next append.
        let mut pending = false;
        while arrivals < 200_000 {
            now -= (1.0 - random()).ln() / rate;
            arrivals += 1;
            if pending && now > next_append {
                (appends, pending, next_append) = (appends + 1, false, next_append + period);
            }
            if !pending && now >= next_append {
                (appends, next_append) = (appends + 1, now + period);
            } else {
                pending = true;
            }
        }
        let simulated = f64::from(appends) / now;
        let formula = appends_per_second(rate, period);
        assert!(is_near(simulated, formula, 0.02), "rate={rate} period={period} {simulated} {formula}");
    }
}

#[test]
fn shards_share_the_load_and_each_appends() {
    let one = estimate(&busy(100), &PRICES[0]).expect("a load");
    let four = estimate(&Load { shards: 4, ..busy(100) }, &PRICES[0]).expect("a load");
    assert!(is_near(four.appends_per_second, 4.0 * one.appends_per_second, 0.001));
    assert!(is_near(four.commands_per_append, one.commands_per_append / 4.0, 0.001));
}

#[test]
fn short_documents_are_free_and_long_ones_are_requests_of_their_own() {
    let of = |document_bytes| {
        let load = Load { documents_per_second: 1.0, document_bytes, ..Load::default() };
        estimate(&load, &PRICES[0]).expect("a load").document_requests / MONTH_S
    };
    assert!(of(64 << 10).abs() < f64::EPSILON);
    assert!(is_near(of(65 << 10), 1.0, 0.001));
    assert!(is_near(of(5 << 20), 1.0, 0.001));
    assert!(is_near(of(12 << 20), 6.0, 0.001), "three parts, a begin, a completion, a HEAD");
}

#[test]
fn loads_that_make_no_sense_are_refused() {
    for bad in [
        Load { acquires_per_second: -1.0, ..Load::default() },
        Load { renewals_per_second: f64::NAN, ..Load::default() },
        Load { documents_per_second: f64::INFINITY, ..Load::default() },
        Load { shards: 0, ..Load::default() },
        Load { servers: 0, ..Load::default() },
        Load { takeover_silence: Duration::ZERO, ..Load::default() },
    ] {
        assert!(estimate(&bad, &PRICES[0]).is_err(), "{bad:?}");
    }
    assert_eq!(Prices::named("tape"), None);
    for prices in &PRICES {
        assert_eq!(Prices::named(prices.name), Some(prices));
        assert!(!prices.date.is_empty());
    }
}

#[test]
fn an_estimate_is_shown_line_by_line() {
    let shown = estimate(&busy(250), &PRICES[0]).expect("a load").to_string();
    assert!(shown.contains("requests a month") && shown.contains("dollars a month"), "{shown}");
    assert_eq!(shown.lines().count(), 10, "{shown}");
}
