//! File descriptors: raises the limit of the process, and fits the limits of connections to it.
//!
//! **Invariant.** Connections alone never use up the descriptors: at least three eighths are left for the log, for
//! uploads and for the Unix socket.
//!
//! **What would break it.** The usual soft limit of 1024 with 10,000 connections allowed: a thousand silent clients make
//! every upload of others fail with "too many open files".

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::http::listener::ConnectionLimits;

/// Raises the soft limit of the process to its hard limit. Returns the limit; `None` if there is none.
fn raise_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If it fails, the limit stays as it is, and the connections are fitted to that.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    getrlimit(Resource::Nofile).current
}

/// Raises the limit of the process, and reduces the limits of connections where it is too low for them.
pub(crate) fn fit(limits: ConnectionLimits) -> ConnectionLimits {
    let Some(descriptors) = raise_limit() else { return limits };
    let fitted = fit_to(limits, usize::try_from(descriptors).unwrap_or(usize::MAX));
    if fitted.connections_max < limits.connections_max {
        tracing::warn!(
            descriptors,
            configured = limits.connections_max,
            max_connections = fitted.connections_max,
            "max-connections is reduced: the process may not open enough files; raise LimitNOFILE or `ulimit -Hn`"
        );
    }
    fitted
}

fn fit_to(limits: ConnectionLimits, descriptors: usize) -> ConnectionLimits {
    ConnectionLimits {
        connections_max: limits.connections_max.min((descriptors / 2).max(1)),
        handshakes_max: limits.handshakes_max.min((descriptors / 8).max(1)),
        ..limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_store() {
        let limits = ConnectionLimits::default();
        let fitted = fit_to(limits, 1024);
        assert_eq!((fitted.connections_max, fitted.handshakes_max), (512, 128));
        let fitted = fit_to(limits, 1 << 20);
        assert_eq!(fitted.connections_max, limits.connections_max);
        assert_eq!(fitted.handshakes_max, limits.handshakes_max);
    }
}
