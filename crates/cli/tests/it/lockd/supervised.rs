//! `lockd serve` under a service manager: its notifications and their order.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::running::until;

/// How long a test waits for the server before it fails.
const DEADLINE: Duration = Duration::from_secs(60);

/// A server, and the socket of its service manager.
struct Service {
    dir: tempfile::TempDir,
    socket: UnixDatagram,
    child: Child,
}

impl Service {
    fn start(args: &[&str]) -> Service {
        Service::start_in(tempfile::tempdir().expect("a directory"), args)
    }

    fn start_in(dir: tempfile::TempDir, args: &[&str]) -> Service {
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("bound");
        socket.set_read_timeout(Some(DEADLINE)).expect("an open socket");
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        command.args(["serve", "--data-dir"]).arg(data(&dir)).arg("--unix").arg(unix(&dir));
        // A flag in `args` takes precedence.
        command.args(args).env("LOCKD_LISTEN", "127.0.0.1:0");
        // No file of the user who runs the tests is read.
        command.env("XDG_CONFIG_HOME", dir.path()).env("NOTIFY_SOCKET", &path);
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program");
        Service { dir, socket, child }
    }

    /// The next notification.
    fn notification(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("a notification");
        String::from_utf8_lossy(bytes.get(..length).expect("within the buffer")).into_owned()
    }

    /// Skips notifications until one has this field.
    fn wait_for(&self, field: &str) -> String {
        loop {
            let notification = self.notification();
            if notification.lines().any(|line| line == field) {
                return notification;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for the exit: its code, the notifications that were not read yet, and standard error.
    fn ended(mut self) -> (Option<i32>, Vec<String>, String) {
        let mut status = None;
        until("the server ends", || {
            status = self.child.try_wait().expect("a child process");
            status.is_some()
        });
        self.socket.set_nonblocking(true).expect("an open socket");
        let mut notifications = Vec::new();
        let mut bytes = [0; 4096];
        while let Ok(length) = self.socket.recv(&mut bytes) {
            let datagram = bytes.get(..length).expect("within the buffer");
            notifications.push(String::from_utf8_lossy(datagram).into_owned());
        }
        let mut stderr = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        (status.expect("it has ended").code(), notifications, stderr)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn data(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("data")
}

fn unix(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("lockd.sock")
}

fn is_ready(mut stream: impl Read + Write) -> bool {
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response.starts_with("HTTP/1.1 200")
}

/// The unit was of `Type=exec`: units ordered after it were started during the recovery, and failed.
#[test]
fn ready_is_reported_when_both_listeners_serve() {
    let service = Service::start(&["--mtls=false"]);
    assert_eq!(service.notification(), "STATUS=recovering the store");
    let ready = service.notification();
    let address = ready.strip_prefix("READY=1\nSTATUS=serving: address=").expect(&ready);
    // At the first attempt: no retry.
    let tcp = TcpStream::connect(address).expect("it listens");
    tcp.set_read_timeout(Some(DEADLINE)).expect("an open socket");
    assert!(is_ready(tcp));
    let socket = UnixStream::connect(unix(&service.dir)).expect("it listens");
    socket.set_read_timeout(Some(DEADLINE)).expect("an open socket");
    assert!(is_ready(socket));
}

/// Each step of the start fails once, the last of them included: none of them may come after `READY=1`.
#[test]
fn a_start_that_fails_is_never_reported_as_ready() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let nothing: fn(&Path) = |_| {};
    let no_store: fn(&Path) = |dir| {
        std::fs::create_dir(dir.join("data")).expect("made");
        std::fs::write(dir.join("data/store"), "not a store").expect("written");
    };
    let no_socket: fn(&Path) = |dir| std::fs::write(dir.join("lockd.sock"), "a file").expect("written");
    let other_address = "127.0.0.1:0";
    for (step, prepare, listen) in [
        ("the store", no_store, other_address),
        ("the address", nothing, address.as_str()),
        ("the socket", no_socket, other_address),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        prepare(dir.path());
        let service = Service::start_in(dir, &["--mtls=false", "--listen", listen]);
        let (code, notifications, stderr) = service.ended();
        assert_eq!(code, Some(1), "{step}: {stderr}");
        assert_eq!(notifications, ["STATUS=recovering the store"], "{step}: {stderr}");
    }
}

/// A SIGHUP during the recovery ended the process, which systemd takes for a clean exit: it was not started again.
#[test]
fn a_reload_is_reported_also_when_it_was_requested_during_the_recovery() {
    let service = Service::start(&["--mtls=false"]);
    assert_eq!(service.notification(), "STATUS=recovering the store");
    service.signal(Signal::HUP);
    service.wait_for("READY=1");
    let before = reloaded_at(&service.notification());
    assert_eq!(service.notification(), "READY=1\nSTATUS=serving; the last reload was complete");
    service.signal(Signal::HUP);
    let after = reloaded_at(&service.notification());
    assert!(before > 0 && after > before, "{before} {after}");
    service.wait_for("READY=1");
}

/// The monotonic time of a reload, in microseconds.
fn reloaded_at(notification: &str) -> u64 {
    let time = notification.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").and_then(|rest| rest.lines().next());
    time.expect(notification).parse().expect("a number")
}

#[test]
fn a_refused_reload_is_reported_and_the_service_stays_ready() {
    let service = Service::start(&[]);
    service.wait_for("READY=1");
    std::fs::write(data(&service.dir).join("server.pem"), "not an identity file").expect("written");
    service.signal(Signal::HUP);
    let ready = service.wait_for("READY=1");
    assert!(ready.contains("STATUS=serving; the last reload was refused and changed nothing: "), "{ready}");
}

/// The command to try is for a terminal: a restart loop filled the journal with it.
#[test]
fn a_stop_is_reported_before_the_end_and_no_command_to_try_is_printed() {
    let service = Service::start(&["--mtls=false"]);
    service.wait_for("READY=1");
    service.signal(Signal::TERM);
    let (code, notifications, stderr) = service.ended();
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(notifications, ["STOPPING=1\nSTATUS=stopping"]);
    assert!(stderr.contains("stopped") && !stderr.contains("try it"), "{stderr}");
}
