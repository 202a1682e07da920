//! A real server on loopback, on a thread of its own, and a shell to ask it from.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use engine::engine::{Fatal, Options, Upkeep, Watcher};
use identity::Role;
use kernel::{Event, Limits, Lsn};
use server::app::{App, Settings};
use server::boot::{Making, StoreUrl, open};
use server::peer::Peer;
use tokio::sync::watch;

use crate::support::Ran;

struct Watch;

impl Watcher for Watch {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn happened(&self, _: &[(Lsn, Vec<Event>)]) {}

    fn upkeep(&self, news: Upkeep) {
        if let Upkeep::Failed(error) = news {
            panic!("{error}");
        }
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: watch::Sender<bool>,
}

impl Server {
    /// Everybody is this.
    pub(crate) fn start(role: Role) -> Server {
        let making = Making {
            shards: 2,
            limits: Limits::default(),
            options: Options::default(),
            allow_network: false,
        };
        let watcher: Arc<dyn Watcher> = Arc::new(Watch);
        let opened = open(&StoreUrl::Memory, &making, &|bytes| bytes.fill(7), &watcher).expect("memory");
        let wall = Box::new(|| Duration::from_secs(1_800_000_000));
        let app = Arc::new(App::new(opened.engines, opened.key, Settings::default(), wall));
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("it is bound");
        listener.set_nonblocking(true).expect("a socket");
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        std::thread::spawn(move || {
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
                let limits = server::serve::Limits::default();
                server::serve::serve(
                    vec![server::serve::Listener::Plain(listener, Peer::anonymous(role))],
                    app,
                    limits,
                    stopped,
                )
                .await;
            });
        });
        Server { address, stop }
    }

    /// Runs a script that knows where the server is, and knows `lockd`.
    pub(crate) fn sh(&self, script: &str) -> Ran {
        sh(&self.address.to_string(), script)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
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
