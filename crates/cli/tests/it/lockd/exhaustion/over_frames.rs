//! The attacks over the stream protocol: those that have a form there, and those that only frames make possible.
//!
//! The victim speaks HTTP: it must not matter what the attacker speaks.
//!
//! **What is absent.** What frames do not carry is attacked over HTTP only: documents that are read or not taken, long
//! uploads, long bodies, lists, reconciles and event streams. So are the windows and resets of HTTP/2, heads of HTTP/1.1,
//! and connections without a certificate, which have no protocol.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use frames::{Message, RequestId};
use serde_json::json;

use super::{Arena, Connection, Spawn, connect_to, idle_until, key, note, without_rights};
use crate::lockd::frame_client::{FrameClient, Protocol, control};

#[test]
fn leases_with_long_names_over_frames() {
    super::LEASES_WITH_LONG_NAMES.over_frames();
}

#[test]
fn waiters_with_long_names_over_frames() {
    super::WAITERS_WITH_LONG_NAMES.over_frames();
}

#[test]
fn namespaces_and_agents_are_made_over_frames() {
    super::NAMESPACES_AND_AGENTS_ARE_MADE.over_frames();
}

#[test]
fn idempotency_keys_over_frames() {
    without_rights::IDEMPOTENCY_KEYS.over_frames();
}

#[test]
fn long_chains_of_waiters_over_frames() {
    without_rights::LONG_CHAINS_OF_WAITERS.over_frames();
}

#[test]
fn requests_that_are_sent_ahead_over_frames() {
    without_rights::REQUESTS_THAT_ARE_SENT_AHEAD.over_frames();
}

#[test]
fn idle_connections_of_an_identity_without_rights_over_frames() {
    without_rights::IDLE_CONNECTIONS_OF_AN_IDENTITY_WITHOUT_RIGHTS.over_frames();
}

#[test]
fn a_revoked_identity_connects_again_and_again_over_frames() {
    without_rights::A_REVOKED_IDENTITY_CONNECTS_AGAIN_AND_AGAIN.over_frames();
}

fn withstands(name: &str, spawn: Spawn) {
    super::withstands_over(Protocol::Frames, name, spawn);
}

/// What `acquires_over_http2_without_a_pause` does, in frames.
#[test]
fn acquires_without_a_pause() {
    withstands("acquires without a pause", |scope, arena, stop, refused| {
        for thread in 0..4 {
            scope.spawn(move || {
                arena.flood(stop, refused, |n| {
                    ("/v1/acquire", String::new(), key(&format!("{thread}-{n}")).to_string())
                });
            });
        }
    });
}

/// The attacker's connections, as many as it may have.
fn connections(arena: &Arena, stop: &AtomicBool, begin: impl Fn(&mut Connection)) -> Vec<Connection> {
    let config = arena.config(&arena.attacker);
    let mut connections = Vec::new();
    while !stop.load(Ordering::Acquire) && connections.len() < 450 {
        let mut connection = connect_to(arena.target(), &config);
        // The server stops reading.
        connection.0.sock.set_write_timeout(Some(Duration::from_millis(20))).expect("an open socket");
        begin(&mut connection);
        connections.push(connection);
    }
    connections
}

/// The longest frame of a request, all but its last byte, on every connection.
#[test]
fn half_frames_that_never_end() {
    withstands("half frames that never end", |scope, arena, stop, _| {
        for _ in 0..2 {
            scope.spawn(move || {
                let header = format!("x-idempotency-key: {}\r\n", "x".repeat(16_000));
                let frame =
                    FrameClient::default().request("POST", "/v1/release", &header, &"x".repeat(16_000));
                let frame = frame.expect("it fits");
                let held = connections(arena, stop, |connection| {
                    connection.write(&frame[..frame.len() - 1]);
                });
                idle_until(stop);
                drop(held);
            });
        }
    });
}

/// The requests of a connection are counted like those of HTTP/2: beyond the memory for them they are refused.
#[test]
fn waiters_fill_every_connection() {
    withstands("waiters fill every connection", |scope, arena, stop, _| {
        arena.lease(&key("hot")).expect("the first is granted");
        for _ in 0..2 {
            scope.spawn(move || {
                let mut body = key("hot");
                body["block_seconds"] = json!(50);
                let body = body.to_string();
                let waiting = connections(arena, stop, |connection| {
                    for _ in 0..frames::IN_FLIGHT_MAX {
                        connection.begin("POST", "/v1/acquire", "", &body);
                    }
                });
                idle_until(stop);
                drop(waiting);
            });
        }
    });
}

/// All of them leave the queue at once, and the server learns it by the end of a connection.
#[test]
fn connections_are_dropped_with_waiters_in_flight() {
    withstands("connections are dropped with waiters in flight", |scope, arena, stop, _| {
        arena.lease(&key("hot")).expect("the first is granted");
        for _ in 0..4 {
            scope.spawn(move || {
                let mut body = key("hot");
                body["block_seconds"] = json!(50);
                let body = body.to_string();
                while !stop.load(Ordering::Acquire) {
                    let mut connection = arena.attacker();
                    for _ in 0..frames::IN_FLIGHT_MAX {
                        connection.begin("POST", "/v1/acquire", "", &body);
                    }
                }
            });
        }
    });
}

/// A request that is taken back at once is in flight no longer, so the limit of those does not bound their rate. Half of them
/// wait, the others are granted.
#[test]
fn requests_that_are_cancelled() {
    withstands("requests that are cancelled", |scope, arena, stop, refused| {
        arena.lease(&key("hot")).expect("the first is granted");
        for thread in 0..4 {
            scope.spawn(move || {
                let mut connection = arena.attacker();
                let mut waits = key("hot");
                waits["block_seconds"] = json!(50);
                let waits = waits.to_string();
                for round in 0.. {
                    for n in 0..50 {
                        let free = key(&format!("{thread}-{round}-{n}")).to_string();
                        for body in [&waits, &free] {
                            connection.begin("POST", "/v1/acquire", "", body);
                            let cancel = Message::Cancel(RequestId(connection.last_id()));
                            connection.write(&control(&cancel));
                        }
                    }
                    for _ in 0..100 {
                        if stop.load(Ordering::Acquire) {
                            return;
                        }
                        note(refused, connection.next_response());
                    }
                }
            });
        }
    });
}

/// The server begins nothing while much output waits for a client, and reads little more than it begins.
#[test]
fn replies_that_are_not_read() {
    withstands("replies that are not read", |scope, arena, stop, _| {
        arena.lease(&arena.bundle("hot")).expect("the first is granted");
        for _ in 0..2 {
            scope.spawn(move || {
                let refused = arena.bundle("hot").to_string();
                let unread = connections(arena, stop, |connection| {
                    for _ in 0..400 {
                        let sent = connection.begin("POST", "/v1/acquire", "", &refused);
                        if sent.is_none() || stop.load(Ordering::Acquire) {
                            return;
                        }
                    }
                });
                idle_until(stop);
                drop(unread);
            });
        }
    });
}

/// A ping costs its sender nine bytes. Half of the connections read what comes, a little at a time.
#[test]
fn pings_without_an_end() {
    withstands("pings without an end", |scope, arena, stop, _| {
        let pings: Vec<u8> = (0..1000).flat_map(|number| control(&Message::Ping(number))).collect();
        for thread in 0..8 {
            let pings = pings.clone();
            scope.spawn(move || {
                let mut connection = arena.attacker();
                connection.0.sock.set_write_timeout(Some(Duration::from_millis(50))).expect("an open socket");
                while !stop.load(Ordering::Acquire) {
                    if connection.write(&pings).is_none() {
                        connection = arena.attacker();
                        let timeout = Some(Duration::from_millis(50));
                        connection.0.sock.set_write_timeout(timeout).expect("an open socket");
                    }
                    if thread % 2 == 0 {
                        for _ in 0..pings.len() / 9 {
                            if connection.receive().is_none() {
                                break;
                            }
                        }
                    }
                }
            });
        }
    });
}

/// Reads of a key that many waiting bundles contend for, as many at a time as a connection has.
#[test]
fn reads_are_polled() {
    withstands("reads are polled", |scope, arena, stop, refused| {
        let hot = arena.bundle("hot");
        arena.lease(&hot).expect("the first is granted");
        let member = hot["resources"][0]["name"].as_str().expect("a name").to_string();
        let mut waits = hot;
        waits["block_seconds"] = json!(50);
        let mut waiter = arena.attacker();
        for _ in 0..50 {
            waiter.begin("POST", "/v1/acquire", "", &waits.to_string());
        }
        scope.spawn(move || {
            idle_until(stop);
            drop(waiter);
        });
        for path in ["describe", "describe", "fence", "whoami"] {
            let query = format!("?namespace=attacker&key={member}");
            let path = format!("/v1/{path}{}", if path == "whoami" { "" } else { &query });
            scope.spawn(move || poll(arena, stop, refused, &path));
        }
    });
}

/// Reads until the attack is over.
fn poll(arena: &Arena, stop: &AtomicBool, refused: &AtomicUsize, path: &str) {
    let mut connection = arena.attacker();
    let mut in_flight = 0;
    while !stop.load(Ordering::Acquire) {
        in_flight += 1;
        if connection.begin("GET", path, "", "").is_some() && in_flight < arena.in_flight() {
            continue;
        }
        let response = connection.next_response();
        in_flight -= 1;
        if response.is_none() {
            (connection, in_flight) = (arena.attacker(), 0);
        }
        note(refused, response);
    }
}
