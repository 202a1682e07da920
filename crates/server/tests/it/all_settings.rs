//! No setting reaches a panic: every pair of extreme values is served, or refused with the name of a setting.
//!
//! `--history-window 60d` passed all checks and reached an assertion of the kernel. A combination of two values that are
//! each allowed could do the same.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::Duration;

use axum::Extension;
use identity::Role;
use lockd_server::backend::store::StoreUrl;
use lockd_server::peer::Peer;
use lockd_server::settings::{Range, Setting, duration_text};
use lockd_server::{Config, Server, StartError};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::embedding::{ask, ask_with};
use crate::support::within;

/// One value for each setting, as a flag takes it; `None`: the default.
type Values<'a> = [Option<&'a str>];

/// A setting with a range, and its smallest, its default and its largest value.
struct Extremes {
    setting: &'static Setting<Config>,
    levels: [Option<String>; 3],
    /// One below the smallest value, if there is such a number, and one above the largest.
    beyond: Vec<String>,
}

fn extremes(setting: &'static Setting<Config>, range: Range) -> Extremes {
    let ms = Duration::from_millis(1);
    let (min, max, beyond) = match range {
        Range::Duration(min, max) => {
            let below = min.checked_sub(Duration::from_nanos(1)).map(duration_text);
            (
                duration_text(min),
                duration_text(max),
                below.into_iter().chain([duration_text(max + ms)]).collect(),
            )
        }
        Range::Size(min, max) | Range::Count(min, max) => {
            let below = min.checked_sub(1).map(|below| below.to_string());
            let beyond = below.into_iter().chain([(max + 1).to_string()]).collect();
            (min.to_string(), max.to_string(), beyond)
        }
    };
    // A thousand shards are started once, in a test of their own.
    let max = if setting.name == "shards" { "3".to_string() } else { max };
    Extremes { setting, levels: [Some(min), None, Some(max)], beyond }
}

fn all_extremes() -> Vec<Extremes> {
    let all = Config::SETTINGS.iter().filter_map(|setting| Some(extremes(setting, setting.range?))).collect();
    let all: Vec<Extremes> = all;
    assert!(all.len() >= 15, "the settings are not where they were");
    all
}

fn configured(extremes: &[Extremes], values: &Values<'_>, mut config: Config) -> Result<Config, String> {
    for (Extremes { setting, .. }, value) in extremes.iter().zip(values) {
        if let Some(value) = value {
            let refused = |error| format!("{}={value}: {error}", setting.name);
            setting.set(&mut config, OsStr::new(value)).map_err(refused)?;
        }
    }
    Ok(config)
}

/// Rows of levels in which every pair of levels of two settings occurs, found greedily.
fn all_pairs(factors: usize, levels: usize) -> Vec<Vec<usize>> {
    let mut uncovered: BTreeSet<(usize, usize, usize, usize)> = BTreeSet::new();
    for a in 0..factors {
        for b in a + 1..factors {
            uncovered.extend((0..levels * levels).map(|pair| (a, pair / levels, b, pair % levels)));
        }
    }
    let mut rows = Vec::new();
    while let Some((a, level_a, b, level_b)) = uncovered.first().copied() {
        let mut row = vec![None; factors];
        (row[a], row[b]) = (Some(level_a), Some(level_b));
        for factor in 0..factors {
            let gain = |level: usize| {
                let with = |other: usize| match row[other] {
                    Some(fixed) if other < factor => uncovered.contains(&(other, fixed, factor, level)),
                    Some(fixed) if other > factor => uncovered.contains(&(factor, level, other, fixed)),
                    _ => false,
                };
                (0..factors).filter(|other| with(*other)).count()
            };
            let best = (0..levels).rev().max_by_key(|level| gain(*level)).expect("a level");
            row[factor] = row[factor].or(Some(best));
        }
        let row: Vec<usize> = row.into_iter().map(|level| level.expect("every factor has one")).collect();
        uncovered.retain(|(a, level_a, b, level_b)| row[*a] != *level_a || row[*b] != *level_b);
        rows.push(row);
    }
    rows
}

/// Starts a server, acquires a lease, and stops it. `Err` if a setting is refused, by name.
async fn serve(config: Config) -> Result<(), String> {
    let over_tcp =
        config.head_timeout >= Duration::from_secs(1) && config.stall_timeout >= Duration::from_secs(1);
    let mut server = match Server::new(config) {
        Ok(server) => server,
        Err(StartError::Config(error)) => return Err(error.to_string()),
        Err(error) => panic!("{error}"),
    };
    let address = server.start().await.expect("a port");
    let router = server.router().layer(Extension(Peer::anonymous(Role::Worker)));
    let (status, reply) = ask(&router, "POST", "/v1/acquire", &json!({"key": "k"})).await;
    assert_eq!(status, 200, "{reply}");
    let lease = [("x-lease-id", reply["lease_id"].as_str().expect("a credential"))];
    let (status, reply) =
        ask_with(&router, "POST", "/v1/update_state?key=k", &lease, &json!({"a": "b"})).await;
    // Committed, or the lease has expired (and its history was deleted), or the document is too long, or too long for its
    // namespace.
    assert!([200, 403, 410, 413, 429].contains(&status), "{status} {reply}");
    if over_tcp {
        let mut socket = tokio::net::TcpStream::connect(address).await.expect("it listens");
        let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        socket.write_all(request).await.expect("it reads");
        let mut response = String::new();
        socket.read_to_string(&mut response).await.expect("it answers");
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }
    drop(router);
    server.shutdown().await.expect("the store closes");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pair_of_extreme_values_is_served_or_refused_by_name() {
    let extremes = all_extremes();
    let (mut served, mut refused) = (0, 0);
    for row in all_pairs(extremes.len(), 3) {
        let values: Vec<Option<&str>> =
            extremes.iter().zip(&row).map(|(extremes, level)| extremes.levels[*level].as_deref()).collect();
        let config = configured(&extremes, &values, Config::in_memory()).expect("each is in its range");
        match within(&format!("{values:?}"), serve(config)).await {
            Ok(()) => served += 1,
            Err(error) => {
                // The one rule between two settings.
                assert!(error.contains("--default-ttl"), "{values:?}: {error}");
                refused += 1;
            }
        }
    }
    assert!(served >= 9 && refused >= 1, "served={served} refused={refused}");
}

#[test]
fn a_value_beyond_its_range_is_refused_beside_any_other() {
    let extremes = all_extremes();
    for (index, outside) in extremes.iter().enumerate() {
        for value in &outside.beyond {
            for (other, inside) in extremes.iter().enumerate().filter(|(other, _)| *other != index) {
                for level in &inside.levels {
                    let mut values = vec![None; extremes.len()];
                    (values[index], values[other]) = (Some(value.as_str()), level.as_deref());
                    let error = configured(&extremes, &values, Config::in_memory()).expect_err(value);
                    assert!(error.starts_with(outside.setting.name), "{error}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_on_disk_is_served_with_every_setting_at_its_minimum_and_at_its_maximum() {
    let extremes = all_extremes();
    for level in [0, 2] {
        let dir = tempfile::tempdir().expect("a directory");
        let store = StoreUrl::disk(dir.path().join("store"));
        let mut values: Vec<Option<&str>> =
            extremes.iter().map(|extremes| extremes.levels[level].as_deref()).collect();
        let shards = extremes.iter().position(|extremes| extremes.setting.name == "shards");
        values[shards.expect("a setting")] = Some("1");
        let config =
            configured(&extremes, &values, Config { store, ..Config::in_memory() }).expect("in range");
        within("a store on disk", serve(config)).await.expect("the TTLs are equal");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_number_of_shards_is_served() {
    let config = Config { shards: 1024, ..Config::in_memory() };
    within("a thousand shards", serve(config)).await.expect("it is allowed");
}

#[test]
fn all_pairs_are_covered_by_few_rows() {
    let rows = all_pairs(15, 3);
    assert!(rows.len() < 40, "{}", rows.len());
    for a in 0..15 {
        for b in a + 1..15 {
            let pairs: BTreeSet<_> = rows.iter().map(|row| (row[a], row[b])).collect();
            assert_eq!(pairs.len(), 9, "{a} {b}");
        }
    }
}
