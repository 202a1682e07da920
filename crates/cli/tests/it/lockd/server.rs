//! A real server on loopback, on its own threads, and a shell to send requests from.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::process::{Command, Output};

use identity::Role;
use lockd_server::testing::{Loopback, Proxy};
use tokio::runtime::Runtime;

use crate::lockd::support::Ran;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    _running: Loopback,
    runtime: Runtime,
}

impl Server {
    /// Every client has this role.
    pub(crate) fn start(role: Role) -> Server {
        let runtime = Runtime::new().expect("threads");
        let running = runtime.block_on(Loopback::start(role));
        Server { address: running.address, _running: running, runtime }
    }

    /// A proxy in front of the server whose connections can be cut.
    pub(crate) fn proxy(&self) -> Proxy {
        self.runtime.block_on(Proxy::before(self.address))
    }

    /// `lockd` with the server's address in its environment.
    pub(crate) fn lockd(&self, args: &[&str]) -> Command {
        let mut command = program(&self.address.to_string(), assert_cmd::cargo::cargo_bin!("lockd"));
        command.args(args);
        command
    }

    /// Runs a script with the server's address in its environment and `lockd` in its PATH.
    pub(crate) fn sh(&self, script: &str) -> Ran {
        sh(&self.address.to_string(), script)
    }
}

/// Runs a script with a server address in its environment and `lockd` in its PATH.
pub(crate) fn sh(address: &str, script: &str) -> Ran {
    let Output { status, stdout, stderr } =
        program(address, "sh").args(["-c", script]).output().expect("a shell");
    Ran {
        code: status.code().expect("it was not killed"),
        stdout: String::from_utf8(stdout).expect("text"),
        stderr: String::from_utf8(stderr).expect("text"),
    }
}

/// A program with a server address in its environment and `lockd` in its PATH.
pub(crate) fn program(address: &str, name: impl AsRef<OsStr>) -> Command {
    let binary = std::path::Path::new(assert_cmd::cargo::cargo_bin!("lockd"));
    let path = format!(
        "{}:{}",
        binary.parent().expect("a folder").display(),
        std::env::var("PATH").expect("a path")
    );
    let mut command = Command::new(name);
    command.env("PATH", path).env("LOCKD_CLIENT_MTLS", "false").env("LOCKD_CLIENT_SERVER", address);
    command
}
