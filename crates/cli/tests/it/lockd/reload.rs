//! SIGHUP: a reload takes over the whole new state or changes nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use identity::{Algorithm, Authority, CaBundle, ClientBundle, Days, IssueContext, UnixTime};
use rustix::process::Signal;

use crate::lockd::serve::Running;

/// A server, a worker that is revoked and a worker that is not.
struct World {
    server: Running,
    bundle: PathBuf,
    denylist: PathBuf,
    revoked: PathBuf,
    /// Of the revoked client.
    serial: String,
    good: PathBuf,
}

impl World {
    /// The revocation is in force: it is in the server's identity file, and the denylist file is empty.
    fn with_a_revoked_client(dir: &Path) -> World {
        let data = dir.join("data");
        let denylist = dir.join("denylist");
        std::fs::write(&denylist, "# none yet\n").expect("written");
        let server = Running::start(&data, &["--denylist-path", denylist.to_str().expect("text")]);
        let bundle = data.join("server.pem");
        let [revoked, good] = ["revoked", "good"].map(|name| {
            let out = dir.join(format!("{name}.pem"));
            auth(&["new", "client", "--cn", name, "--server-in", text(&bundle), "--out", text(&out)]);
            out
        });
        let serial = serial(&revoked);
        let mut world = World { server, bundle, denylist, revoked, serial, good };
        assert!(world.lets_in(&world.revoked));
        auth(&["revoke", "client", "--server-in", text(&world.bundle), &world.serial]);
        world.reload("reloaded identities");
        assert!(!world.lets_in(&world.revoked) && world.lets_in(&world.good));
        world
    }

    fn reload(&mut self, outcome: &str) -> String {
        self.server.signal(Signal::HUP);
        self.server.log.wait_for(outcome)
    }

    /// On a new connection, with a full handshake.
    fn lets_in(&self, client: &Path) -> bool {
        let response = self.server.connect(client).ask("GET", "/v1/leases", "");
        response.is_some_and(|(status, _)| status == 200)
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// The serial in the identity file of a client.
pub(crate) fn serial(client: &Path) -> String {
    let text = std::fs::read_to_string(client).expect("made");
    ClientBundle::parse(&text).expect("sound").identity().serial.to_string()
}

pub(crate) fn auth(args: &[&str]) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    let output = command.arg("auth").args(args).output().expect("it runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A client was revoked. The server's identity file was then replaced by one with another CA, and SIGHUP was sent. The
/// reload was refused, the log said that nothing was reloaded, and the old CA stayed trusted; but the denylist of the
/// refused file, an empty one, was in force already: the revoked client was let in again.
#[test]
fn reload_refused_for_another_ca_keeps_revoked_clients_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut world = World::with_a_revoked_client(dir.path());
    let other = dir.path().join("other");
    std::fs::create_dir(&other).expect("made");
    auth(&["new", "server", "--out", text(&other.join("server.pem"))]);
    std::fs::copy(other.join("server.pem"), &world.bundle).expect("copied");
    let line = world.reload("reload failed");
    assert!(line.contains("another CA"), "{line}");
    assert!(!world.lets_in(&world.revoked), "the revocation is still in force");
    assert!(world.lets_in(&world.good), "the old CA and certificate are still in force");
}

/// Each part of the new state is invalid once, and the new identity file has no denylist: the denylist in force must stay.
#[test]
fn reload_refused_for_any_part_of_the_state_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut world = World::with_a_revoked_client(dir.path());
    let ca = std::fs::read_to_string(world.bundle.with_file_name("ca").join("ca.pem")).expect("made");
    let without_denylist = server_file(&ca, Duration::ZERO);
    let expired = server_file(&ca, Duration::from_secs(800 * 86_400));
    let without_key = without_denylist.replacen("PRIVATE KEY", "PUBLIC KEY", 2);
    for (bundle, denylist, reason) in [
        ("not an identity file", "", "file="),
        (without_key.as_str(), "", "file="),
        (expired.as_str(), "", "expired"),
        (without_denylist.as_str(), "not a serial\n", "line=1"),
    ] {
        std::fs::write(&world.bundle, bundle).expect("written");
        std::fs::write(&world.denylist, denylist).expect("written");
        let line = world.reload("reload failed");
        assert!(line.contains(reason), "{reason}: {line}");
        assert!(!world.lets_in(&world.revoked), "{reason}: the revocation is still in force");
        assert!(world.lets_in(&world.good), "{reason}: the old certificate is still in force");
    }
    std::fs::write(&world.denylist, "").expect("written");
    let line = world.reload("reload failed");
    assert!(line.contains(&world.serial), "a revoked serial is missing: {line}");
    assert!(!world.lets_in(&world.revoked), "the revocation is still in force");
    std::fs::write(&world.denylist, format!("!{}\n", world.serial)).expect("written");
    let line = world.reload("un-revoked");
    assert!(line.contains("WARN") && line.contains(&world.serial), "{line}");
    assert!(world.lets_in(&world.revoked), "it was un-revoked on purpose");
}

/// The text of a server's identity file of that CA, valid for a year from `age` ago.
fn server_file(ca: &str, age: Duration) -> String {
    let ca = CaBundle::parse(ca).expect("made by the server");
    let authority = Authority::open(ca.certificate(), ca.key(), None).expect("its key is in clear");
    let now = UnixTime::since_unix_epoch(
        UnixTime::now().as_secs().checked_sub(age.as_secs()).map(Duration::from_secs).expect("after 1970"),
    );
    let mut serial = 0_u8;
    let mut fill = |bytes: &mut [u8]| {
        serial += 1;
        bytes.fill(serial);
    };
    let mut moment = IssueContext { now, fill: &mut fill };
    let name = "lockd".parse().expect("a name");
    let bundle = authority.issue_server(&name, &[], (Algorithm::default(), Days::DEFAULT), &mut moment);
    bundle.expect("issued").to_pem().to_string()
}
