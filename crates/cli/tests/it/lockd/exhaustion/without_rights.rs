//! Attacks by identities that may do little: a certificate without any useful right, a revoked one; and attacks that use
//! what every certificate may.

use std::collections::VecDeque;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::{Arena, Attack, Connection, duration, http2, idle_until, key, note, withstands};
use crate::lockd::frame_client::Protocol;
use crate::lockd::serve::{connect_to, tls_config, tls_config_for};

/// A certificate without rights held every connection of a server by idle HTTP/2 connections. No other client was
/// accepted, operators and probes included.
#[test]
fn idle_connections_of_an_identity_without_rights() {
    IDLE_CONNECTIONS_OF_AN_IDENTITY_WITHOUT_RIGHTS.over_http();
}

pub(super) const IDLE_CONNECTIONS_OF_AN_IDENTITY_WITHOUT_RIGHTS: Attack = Attack {
    name: "idle connections of an identity without rights",
    spawn: |scope, arena, stop, _| {
        for _ in 0..2 {
            scope.spawn(move || {
                let config = match arena.protocol {
                    Protocol::Http => tls_config_for(&arena.none, "h2"),
                    Protocol::Frames => arena.config(&arena.none),
                };
                let mut idle = VecDeque::new();
                while !stop.load(Ordering::Acquire) {
                    let mut connection = connect_to(arena.target(), &config);
                    if arena.protocol == Protocol::Http {
                        connection.write(&http2::preface());
                    }
                    idle.push_back(connection);
                    if idle.len() > 400 {
                        idle.pop_front();
                    }
                }
            });
        }
    },
};

/// `GET /v1/leases` of a client that may see none visited all leases of the store, on the thread that decides.
#[test]
fn lists_that_show_nothing() {
    withstands("lists that show nothing", |scope, arena, stop, refused| {
        make_leases(arena);
        for path in ["/v1/leases", "/v1/leases?limit=1", "/v1/namespaces", "/v1/contention"].repeat(2) {
            scope.spawn(move || {
                let mut connection = connect_to(arena.target(), &tls_config(&arena.none));
                while !stop.load(Ordering::Acquire) {
                    note(refused, connection.ask("GET", path, ""));
                }
            });
        }
    });
}

/// As many leases as fit into the time of a round.
fn make_leases(arena: &Arena) {
    let is_enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let is_enough = &is_enough;
            scope.spawn(move || {
                let mut connection = arena.attacker();
                for n in 0.. {
                    if is_enough.load(Ordering::Acquire) {
                        return;
                    }
                    connection.ask("POST", "/v1/acquire", &key(&format!("{thread}-{n}")).to_string());
                }
            });
        }
        std::thread::park_timeout(duration());
        is_enough.store(true, Ordering::Release);
    });
}

/// Five connections stored 100 MB with a credential of another identity that had expired: only its MAC was checked.
#[test]
fn uploads_with_the_credential_of_another() {
    withstands("uploads with the credential of another", |scope, arena, stop, refused| {
        let lease = arena.lease(&key("u")).expect("granted");
        for _ in 0..4 {
            let header = format!("x-lease-id: {lease}\r\ncontent-length: 90000000\r\n");
            scope.spawn(move || {
                let config = tls_config(&arena.none);
                let part = format!("[\"{}", "x".repeat(1 << 20));
                while !stop.load(Ordering::Acquire) {
                    let mut connection = connect_to(arena.target(), &config);
                    let path = "/v1/update_state?key=u&namespace=attacker";
                    connection.begin_body("POST", path, &header, &part);
                    note(refused, connection.response_within(std::time::Duration::from_millis(100)));
                }
            });
        }
    });
}

/// 150 uploads on one HTTP/2 connection took 120 MB, and as many files and descriptors.
#[test]
fn uploads_that_never_end_over_http2() {
    withstands("uploads that never end over HTTP/2", |scope, arena, stop, _| {
        let lease = arena.lease(&key("u")).expect("granted");
        scope.spawn(move || {
            let config = tls_config_for(&arena.attacker, "h2");
            let part = format!("[\"{}", "x".repeat(6 << 10));
            let path = "/v1/update_state?key=u&namespace=attacker";
            let mut connections = Vec::new();
            while !stop.load(Ordering::Acquire) && connections.len() < 20 {
                let mut connection = connect_to(arena.target(), &config);
                connection.write(&http2::preface());
                let upload = |n: u32| http2::begin_upload(2 * n + 1, path, ("x-lease-id", &lease), &part);
                connection.write(&(0..150).flat_map(upload).collect::<Vec<u8>>());
                connections.push(connection);
            }
            idle_until(stop);
        });
    });
}

/// A revoked client kept its connections, and its place among those that may connect.
#[test]
fn a_revoked_identity_connects_again_and_again() {
    A_REVOKED_IDENTITY_CONNECTS_AGAIN_AND_AGAIN.over_http();
}

pub(super) const A_REVOKED_IDENTITY_CONNECTS_AGAIN_AND_AGAIN: Attack = Attack {
    name: "a revoked identity connects again and again",
    spawn: |scope, arena, stop, _| {
        arena.revoke_none();
        for _ in 0..4 {
            scope.spawn(move || {
                let config = arena.config(&arena.none);
                while !stop.load(Ordering::Acquire) {
                    connect_to(arena.target(), &config).ask("GET", "/v1/whoami", "");
                }
            });
        }
    },
};

impl Arena {
    /// Revokes the certificate without rights, and waits until that is in force.
    fn revoke_none(&self) {
        let bundle = self.dir.path().join("data/server.pem");
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        command.args(["auth", "revoke", "client", "--server-in"]).arg(bundle).arg("--in").arg(&self.none);
        assert!(command.output().expect("the program").status.success());
        crate::running::until("it is revoked", || {
            let mut connection = connect_to(&self.server.address, &tls_config(&self.none));
            connection.ask("GET", "/healthz", "").is_none()
        });
    }
}

/// Ten identities could fill the table of idempotency keys, and every client of the SDK sends one.
#[test]
fn idempotency_keys() {
    IDEMPOTENCY_KEYS.over_http();
}

pub(super) const IDEMPOTENCY_KEYS: Attack = Attack {
    name: "idempotency keys",
    spawn: |scope, arena, stop, refused| {
        for thread in 0..4 {
            scope.spawn(move || {
                arena.flood(stop, refused, |n| {
                    let header = format!("x-idempotency-key: {thread}-{n}-{}\r\n", "x".repeat(100));
                    ("/v1/acquire", header, key(&format!("{thread}-{n}")).to_string())
                });
            });
        }
    },
};

/// A search for deadlocks visited up to 20,000 waiters for each acquire with a session.
#[test]
fn long_chains_of_waiters() {
    LONG_CHAINS_OF_WAITERS.over_http();
}

pub(super) const LONG_CHAINS_OF_WAITERS: Attack = Attack {
    name: "long chains of waiters",
    spawn: |scope, arena, stop, refused| {
        const LENGTH: u32 = 150;
        let of_session = |n: u32, key: u32, more: &str| {
            let fields = format!(r#""namespace":"attacker","key":"c{key}","session_id":"s{n}""#);
            format!(r#"{{{fields},"ttl_seconds":300{more}}}"#)
        };
        let mut holder = arena.attacker();
        for n in 0..=LENGTH {
            holder.ask("POST", "/v1/acquire", &of_session(n, n, ""));
        }
        let mut chain = match arena.protocol {
            Protocol::Http => connect_to(arena.target(), &tls_config_for(&arena.attacker, "h2")),
            Protocol::Frames => arena.attacker(),
        };
        if arena.protocol == Protocol::Http {
            chain.write(&http2::preface());
        }
        for n in 0..LENGTH {
            let body = of_session(n, n + 1, r#","block_seconds":50"#);
            match arena.protocol {
                Protocol::Http => chain.write(&http2::post(2 * n + 1, "/v1/acquire", &body)),
                Protocol::Frames => chain.begin("POST", "/v1/acquire", "", &body),
            };
        }
        scope.spawn(move || {
            idle_until(stop);
            drop(chain);
        });
        for thread in 0..4 {
            scope.spawn(move || {
                // The whole chain is behind the first key. Sessions that hold nothing close no cycle.
                let body = of_session(1000 + thread, 0, "");
                arena.flood(stop, refused, |_| ("/v1/acquire", String::new(), body.clone()));
            });
        }
    },
};

/// Readers of events that read nothing, while there are many events.
#[test]
fn event_streams_that_are_not_read() {
    withstands("event streams that are not read", |scope, arena, stop, _| {
        scope.spawn(move || {
            let config = tls_config(&arena.attacker);
            let open = |_| {
                let mut connection = connect_to(arena.target(), &config);
                connection.begin("GET", "/v1/events?namespace=attacker", "", "");
                connection
            };
            let readers: Vec<Connection> = (0..150).map(open).collect();
            idle_until(stop);
            drop(readers);
        });
        scope.spawn(move || {
            let mut connection = arena.attacker();
            while !stop.load(Ordering::Acquire) {
                let Some((200, reply)) = connection.ask("POST", "/v1/acquire", &key("e").to_string()) else {
                    continue;
                };
                let reply: serde_json::Value = serde_json::from_str(&reply).expect("JSON");
                let body = json!({"lease_id": reply["lease_id"]}).to_string();
                connection.ask("POST", "/v1/release", &body);
            }
        });
    });
}

/// Requests that are taken back at once cost the server a task each, and their client nothing.
#[test]
fn requests_that_are_reset() {
    withstands("requests that are reset", |scope, arena, stop, _| {
        for _ in 0..2 {
            scope.spawn(move || {
                let config = tls_config_for(&arena.attacker, "h2");
                let reset = |n: u32| {
                    let stream = 2 * n + 1;
                    [http2::get(stream, "/v1/leases"), http2::reset(stream)].concat()
                };
                let resets: Vec<u8> = (0..100).flat_map(reset).collect();
                while !stop.load(Ordering::Acquire) {
                    let mut connection = connect_to(arena.target(), &config);
                    connection.write(&http2::preface());
                    connection.write(&resets);
                }
            });
        }
    });
}

/// Four connections with as many requests in flight as each carries: another client's single one waited for all of them, in
/// the queue of the log and in that of the event loop, which looked at its socket after 61 turns of others.
#[test]
fn acquires_over_http2_without_a_pause() {
    withstands("acquires over HTTP/2 without a pause", |scope, arena, stop, refused| {
        const IN_FLIGHT: u32 = 190;
        for thread in 0..4 {
            scope.spawn(move || {
                let mut connection = connect_to(arena.target(), &tls_config_for(&arena.attacker, "h2"));
                connection.write(&http2::preface());
                for n in 0.. {
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                    let body = key(&format!("{thread}-{n}")).to_string();
                    connection.write(&http2::post(2 * n + 1, "/v1/acquire", &body)).expect("connected");
                    if n >= IN_FLIGHT && !http2::next_end(&mut connection).expect("connected") {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// A connection that sends a hundred requests at once had a hundred turns for each one of a client that waits for its
/// response.
#[test]
fn requests_that_are_sent_ahead() {
    REQUESTS_THAT_ARE_SENT_AHEAD.over_http();
}

pub(super) const REQUESTS_THAT_ARE_SENT_AHEAD: Attack = Attack {
    name: "requests that are sent ahead",
    spawn: |scope, arena, stop, refused| {
        const COUNT: usize = 100;
        for _ in 0..8 {
            scope.spawn(move || {
                let mut connection = connect_to(arena.target(), &arena.config(&arena.none));
                let request = "POST /v1/release HTTP/1.1\r\nhost: lockd\r\ncontent-length: 2\r\n\r\n{}";
                let requests = request.repeat(COUNT);
                while !stop.load(Ordering::Acquire) {
                    let sent = match arena.protocol {
                        Protocol::Http => connection.write(requests.as_bytes()),
                        Protocol::Frames => {
                            (0..COUNT).try_for_each(|_| connection.begin("POST", "/v1/release", "", "{}"))
                        }
                    };
                    if sent.is_none() {
                        return;
                    }
                    for _ in 0..COUNT {
                        note(refused, connection.response_within(std::time::Duration::from_secs(60)));
                    }
                }
            });
        }
    },
};
