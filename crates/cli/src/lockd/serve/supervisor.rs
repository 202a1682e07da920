//! Notifications about the server to the service manager that started it, if one did.
//!
//! **Invariant.** `ready` is called only when the store is recovered and every listener is bound: systemd then
//! starts the units that are ordered after this one.
//!
//! **What is absent.** Failures: a notification that cannot be sent is a warning, and the server serves.

use std::net::SocketAddr;

use rustix::time::{ClockId, clock_gettime};
use system::service_manager::{Notification, SOCKET_VARIABLE, ServiceManager};

/// The service manager of this process, or none.
pub(super) struct Supervisor(Option<ServiceManager>);

impl Supervisor {
    pub(super) fn from_environment() -> Supervisor {
        let manager = ServiceManager::from_environment();
        Supervisor(manager.unwrap_or_else(|error| {
            tracing::warn!(%error, variable = SOCKET_VARIABLE, "no notifications to the service manager");
            None
        }))
    }

    pub(super) fn is_present(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn recovering(&self) {
        self.send(Notification::Status("recovering the store"));
    }

    pub(super) fn ready(&self, bound: SocketAddr) {
        self.send(Notification::Ready(&format!("serving: address={bound}")));
    }

    /// Reports a reload while it runs, and its outcome.
    pub(super) fn reload<E: std::fmt::Display>(&self, reload: impl FnOnce() -> Result<(), E>) {
        self.send(Notification::Reloading { monotonic_us: monotonic_us() });
        match reload() {
            Ok(()) => self.send(Notification::Ready("serving; the last reload was complete")),
            Err(error) => {
                let text = format!("serving; the last reload was refused and changed nothing: {error}");
                self.send(Notification::Ready(&text));
            }
        }
    }

    pub(super) fn stopping(&self) {
        self.send(Notification::Stopping);
    }

    fn send(&self, notification: Notification<'_>) {
        let Some(manager) = &self.0 else { return };
        if let Err(error) = manager.notify(notification) {
            tracing::warn!(%error, ?notification, "a notification to the service manager was not sent");
        }
    }
}

/// The clock by which systemd orders reloads.
fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let microseconds = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
    u64::try_from(microseconds).expect("it counts from the boot")
}
