//! Revoked and expired certificates on connections of the stream protocol.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use identity::UnixTime;

use crate::lockd::frame_client::{Protocol, Reply};
use crate::lockd::identities::{issue_at, worker};
use crate::lockd::revocation::{World, acquire, release};
use crate::lockd::serve::{Connection, tls_config_for};

fn connect(world: &World, client: &std::path::Path) -> Connection {
    world.server.connect_with(&tls_config_for(client, Protocol::Frames.alpn()))
}

fn waiters(connection: &mut Connection, key: &str) -> u64 {
    let (_, body) = connection.ask("GET", &format!("/v1/describe?key={key}"), "").expect("a response");
    let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    body["waiters"].as_u64().expect("a number")
}

/// The keys that are waited for: a response counts at most 100 waiters of each.
const KEYS: [&str; 4] = ["k", "l", "m", "n"];

/// The holder of all keys, with its leases, and a connection with as many waiters for them as it may have.
fn full_connection(world: &World, client: &std::path::Path) -> (Connection, [String; 4], Connection) {
    let mut holder = world.server.connect(&world.client("holder"));
    let leases = KEYS.map(|key| acquire(&mut holder, &format!(r#"{{"key":"{key}"}}"#)));
    let mut waiting = connect(world, client);
    let each = frames::IN_FLIGHT_MAX / 4;
    for key in KEYS.repeat(each as usize) {
        let body = format!(r#"{{"key":"{key}","block_seconds":50}}"#);
        waiting.begin("POST", "/v1/acquire", "", &body);
    }
    crate::running::until("all wait", || KEYS.iter().all(|key| waiters(&mut holder, key) == u64::from(each)));
    (holder, leases, waiting)
}

/// The replies until the server closes the connection. Fails if there is none for this time.
fn rest_within(connection: &mut Connection, silence: Duration) -> Vec<Reply> {
    connection.0.sock.set_read_timeout(Some(silence)).expect("an open socket");
    let replies = std::iter::from_fn(|| connection.receive()).collect();
    // A timeout looks like an end, and is none: a closed connection has ended for good.
    connection.0.sock.set_read_timeout(Some(Duration::from_millis(1))).expect("an open socket");
    let mut byte = [0];
    let read = std::io::Read::read(&mut connection.0, &mut byte);
    assert!(
        !matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
        "it is not closed: {replies:?}"
    );
    replies
}

/// As many requests wait as a connection carries, and nothing but `auth revoke` happens.
#[test]
fn a_connection_full_of_waiters_is_dismissed_when_its_certificate_is_revoked() {
    let world = World::new(&[]);
    let revoked = world.client("revoked");
    let (mut holder, leases, mut waiting) = full_connection(&world, &revoked);
    let mut idle = connect(&world, &revoked);
    assert_eq!(idle.ask("GET", "/v1/whoami", "").expect("a response").0, 200);
    world.revoke(&revoked);
    let replies = rest_within(&mut waiting, Duration::from_secs(5));
    let dismissed = replies.iter().filter(|reply| {
        let Reply::Response { status, body, .. } = reply else { return false };
        assert!(*status == 401 && body.contains("unauthenticated"), "{reply:?}");
        true
    });
    assert_eq!(dismissed.count(), frames::IN_FLIGHT_MAX as usize);
    let last = waiting.last_id();
    assert!(replies.contains(&Reply::GoAway(last)), "{:?}", replies.last());
    assert_eq!(rest_within(&mut idle, Duration::from_secs(5)), [Reply::GoAway(1)]);
    assert_eq!(connect(&world, &revoked).ask("GET", "/v1/whoami", ""), None, "a new one");
    let mut other = connect(&world, &world.client("other"));
    for (key, lease) in KEYS.into_iter().zip(leases) {
        assert_eq!(waiters(&mut holder, key), 0);
        release(&mut holder, &lease);
        acquire(&mut other, &format!(r#"{{"key":"{key}"}}"#));
    }
}

/// Requests that a client has sent ahead, and the server has not begun, are not carried out.
#[test]
fn requests_behind_a_full_connection_are_not_carried_out_for_a_revoked_client() {
    let world = World::new(&[]);
    let revoked = world.client("revoked");
    let (mut holder, _, mut waiting) = full_connection(&world, &revoked);
    for n in 0..50 {
        waiting.begin("POST", "/v1/acquire", "", &format!(r#"{{"key":"behind-{n}"}}"#));
    }
    world.revoke(&revoked);
    let replies = rest_within(&mut waiting, Duration::from_secs(5));
    assert!(replies.contains(&Reply::GoAway(frames::IN_FLIGHT_MAX)), "{replies:?}");
    for reply in &replies {
        let Reply::Response { id, status, .. } = reply else { continue };
        assert!(*id <= frames::IN_FLIGHT_MAX && *status == 401, "{reply:?}");
    }
    for n in 0..50 {
        acquire(&mut holder, &format!(r#"{{"key":"behind-{n}"}}"#));
    }
}

/// The certificate was valid at the handshake, and the session may be resumed; then it expires.
#[test]
fn an_expired_certificate_ends_its_connection_and_dismisses_its_waiters() {
    const SECONDS_LEFT: u64 = 5;
    let world = World::new(&[]);
    let good = world.client("good");
    let mut holder = world.server.connect(&good);
    acquire(&mut holder, r#"{"key":"k"}"#);
    let issued = UnixTime::now().as_secs() - 86_400 + SECONDS_LEFT;
    let bundle =
        issue_at(&world.path("data/ca/ca.pem"), issued, |authority, moment| worker(authority, "1", moment));
    let expiring = world.path("expiring.pem");
    std::fs::write(&expiring, bundle.to_pem().as_str()).expect("written");
    std::fs::set_permissions(&expiring, std::fs::Permissions::from_mode(0o600)).expect("ours");
    let config = tls_config_for(&expiring, Protocol::Frames.alpn());
    let mut connection = world.server.connect_with(&config);
    assert_eq!(connection.ask("GET", "/v1/whoami", "").expect("a response").0, 200);
    connection.begin("POST", "/v1/acquire", "", r#"{"key":"k","block_seconds":50}"#);
    crate::running::until("it waits", || waiters(&mut holder, "k") == 1);
    let replies = rest_within(&mut connection, Duration::from_secs(SECONDS_LEFT + 5));
    let statuses: Vec<u16> =
        replies.into_iter().filter_map(Reply::response).map(|(status, _)| status).collect();
    assert_eq!(statuses, [401]);
    assert_eq!(waiters(&mut holder, "k"), 0);
    assert_eq!(world.server.connect_with(&config).ask("GET", "/v1/whoami", ""), None, "a resumed session");
}
