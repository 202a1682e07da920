//! A real server on loopback, on a thread of its own, and a shell to ask it from.

use std::net::SocketAddr;
use std::process::{Command, Output};

use identity::Role;
use server::testing::Loopback;
use tokio::runtime::Runtime;

use crate::support::Ran;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    _running: Loopback,
    _runtime: Runtime,
}

impl Server {
    /// Everybody is this.
    pub(crate) fn start(role: Role) -> Server {
        let runtime = Runtime::new().expect("threads");
        let running = runtime.block_on(Loopback::start(role));
        Server { address: running.address, _running: running, _runtime: runtime }
    }

    /// Runs a script that knows where the server is, and knows `lockd`.
    pub(crate) fn sh(&self, script: &str) -> Ran {
        sh(&self.address.to_string(), script)
    }
}

/// Runs a script against an address.
pub(crate) fn sh(address: &str, script: &str) -> Ran {
    let binary = std::path::Path::new(assert_cmd::cargo::cargo_bin!("lockd"));
    let path = format!(
        "{}:{}",
        binary.parent().expect("a folder").display(),
        std::env::var("PATH").expect("a path")
    );
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("PATH", path).env("LOCKD_CLIENT_MTLS", "false");
    command.env("LOCKD_CLIENT_SERVER", address);
    let Output { status, stdout, stderr } = command.output().expect("a shell");
    Ran {
        code: status.code().expect("it was not killed"),
        stdout: String::from_utf8(stdout).expect("text"),
        stderr: String::from_utf8(stderr).expect("text"),
    }
}
