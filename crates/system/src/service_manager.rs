//! Notifications to the service manager that started this process: the `sd_notify` protocol of systemd.
//!
//! The manager names a Unix datagram socket in `$NOTIFY_SOCKET`: a path, or `@` and a name in the abstract namespace.
//!
//! **Invariant.** A notification is one datagram with the fields of its kind; a status text cannot add a field.
//!
//! **What is absent.** Clocks: the caller passes the time. Of the protocol: the watchdog, passed descriptors, `vsock:`
//! addresses.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The variable in which a service manager names its socket.
pub const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Timeout of a send: a manager that does not read must not block the service. Long, because a service whose `Ready` is
/// lost counts as starting for good.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// A change that a service manager acts on or shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification<'a> {
    /// Shows a text, for people.
    Status(&'a str),
    /// The service has started, or has reloaded. Shows a text.
    Ready(&'a str),
    /// The service begins to reload, and sends `Ready` when it has.
    Reloading {
        /// `CLOCK_MONOTONIC`, in microseconds: distinguishes this reload from an earlier one.
        monotonic_us: u64,
    },
    /// The service begins to shut down.
    Stopping,
}

impl fmt::Display for Notification<'_> {
    /// As it is sent: one field per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notification::Status(text) => write!(f, "STATUS={}", one_line(text)),
            Notification::Ready(text) => write!(f, "READY=1\nSTATUS={}", one_line(text)),
            Notification::Reloading { monotonic_us } => {
                write!(f, "RELOADING=1\nMONOTONIC_USEC={monotonic_us}\nSTATUS=reloading")
            }
            Notification::Stopping => f.write_str("STOPPING=1\nSTATUS=stopping"),
        }
    }
}

/// A line break would begin a field.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// The socket of a service manager.
#[derive(Debug)]
pub struct ServiceManager {
    address: SocketAddr,
}

impl ServiceManager {
    /// The manager of this process; `None` if it has none.
    pub fn from_environment() -> io::Result<Option<ServiceManager>> {
        let name = std::env::var_os(SOCKET_VARIABLE).filter(|name| !name.is_empty());
        name.map(|name| ServiceManager::at(&name)).transpose()
    }

    /// The manager with a socket of that name, as in `$NOTIFY_SOCKET`.
    pub fn at(name: &OsStr) -> io::Result<ServiceManager> {
        let address = match name.as_bytes() {
            [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name),
            [b'/', ..] => SocketAddr::from_pathname(name),
            _ => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "neither an absolute path nor @ and a name"))
            }
        };
        Ok(ServiceManager { address: address? })
    }

    /// Sends a notification. The manager does not confirm it.
    pub fn notify(&self, notification: Notification<'_>) -> io::Result<()> {
        self.notify_within(SEND_TIMEOUT, notification)
    }

    fn notify_within(&self, timeout: Duration, notification: Notification<'_>) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(timeout))?;
        socket.send_to_addr(notification.to_string().as_bytes(), &self.address).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    fn received(socket: &UnixDatagram) -> String {
        socket.set_read_timeout(Some(DEADLINE)).expect("an open socket");
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).expect("a datagram");
        String::from_utf8(bytes.get(..length).expect("within the buffer").to_vec()).expect("text")
    }

    #[test]
    fn each_notification_is_one_datagram_with_its_fields() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("bound");
        let manager = ServiceManager::at(path.as_os_str()).expect("a path");
        for (notification, datagram) in [
            (Notification::Status("recovering"), "STATUS=recovering"),
            (Notification::Ready("serving"), "READY=1\nSTATUS=serving"),
            (
                Notification::Reloading { monotonic_us: 1_234_567 },
                "RELOADING=1\nMONOTONIC_USEC=1234567\nSTATUS=reloading",
            ),
            (Notification::Stopping, "STOPPING=1\nSTATUS=stopping"),
        ] {
            manager.notify(notification).expect("sent");
            assert_eq!(received(&socket), datagram);
        }
    }

    #[test]
    fn an_abstract_name_is_reached_without_a_file() {
        let name = format!("lockd-test-{}", crate::hex::encode(&crate::random::bytes::<8>()));
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("bound");
        let manager = ServiceManager::at(OsStr::new(&format!("@{name}"))).expect("a name");
        manager.notify(Notification::Stopping).expect("sent");
        assert_eq!(received(&socket), "STOPPING=1\nSTATUS=stopping");
    }

    #[test]
    fn a_text_cannot_add_a_field() {
        assert_eq!(Notification::Status("a\nREADY=1\r\0b").to_string(), "STATUS=a READY=1  b");
        assert_eq!(Notification::Ready("a\nSTOPPING=1").to_string(), "READY=1\nSTATUS=a STOPPING=1");
    }

    #[test]
    fn a_name_of_another_kind_or_too_long_is_refused() {
        for name in ["notify", "vsock:2:1234", "./notify", "", &format!("/{}", "x".repeat(200))] {
            ServiceManager::at(OsStr::new(name)).expect_err(name);
        }
    }

    #[test]
    fn a_socket_without_a_listener_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let manager = ServiceManager::at(path.as_os_str()).expect("a path");
        manager.notify(Notification::Stopping).expect_err("no socket");
        drop(UnixDatagram::bind(&path).expect("bound"));
        manager.notify(Notification::Stopping).expect_err("no process listens");
    }

    #[test]
    fn a_send_to_a_manager_that_does_not_read_times_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let _unread = UnixDatagram::bind(&path).expect("bound");
        // A socket's own buffer may be full before the queue is: then the next socket goes on.
        loop {
            let filler = UnixDatagram::unbound().expect("a socket");
            filler.set_nonblocking(true).expect("an open socket");
            if filler.send_to(b"STATUS=", &path).is_err() {
                break;
            }
            while filler.send_to(b"STATUS=", &path).is_ok() {}
        }
        let manager = ServiceManager::at(path.as_os_str()).expect("a path");
        let error = manager.notify_within(Duration::from_millis(20), Notification::Stopping);
        assert_eq!(error.expect_err("the queue is full").kind(), io::ErrorKind::WouldBlock);
    }
}
