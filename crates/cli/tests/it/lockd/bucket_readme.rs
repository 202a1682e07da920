//! The commands of "Outgrow one machine" in README.md, run as they are printed: only the ports differ, and Cargo downloads
//! nothing.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::lockd::guides::as_reader;
use crate::running::until;

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");

/// A shell and everything that it has started, in a process group of their own. They are killed when it is dropped.
struct Session(Child);

impl Drop for Session {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    free.local_addr().expect("bound").port()
}

/// The commands of the section.
fn commands() -> String {
    let readme = std::fs::read_to_string(README).expect("README.md");
    let (_, section) = readme.split_once("## Outgrow one machine").expect("the section");
    let (_, block) = section.split_once("```sh\n").expect("a block");
    block.split("```").next().unwrap_or_default().to_string()
}

#[test]
fn the_three_commands_of_the_readme_serve_from_a_bucket() {
    let commands = commands();
    assert_eq!(commands.lines().count(), 3, "{commands}");
    let (bucket, server) = (free_port(), format!("127.0.0.1:{}", free_port()));
    let script = commands.replace("127.0.0.1:9000", &format!("127.0.0.1:{bucket}"));
    assert_ne!(script, commands, "the port of the object store is replaced");

    // As the first command does it, without a time limit.
    let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut build = Command::new("cargo");
    build.args(["build", "--offline", "--quiet", "-p", "lockd-objectserver"]).current_dir(workspace);
    assert!(build.status().expect("cargo").success(), "the object store is built");

    let home = tempfile::tempdir().expect("a directory");
    let program = assert_cmd::cargo::cargo_bin!("lockd");
    let path = std::env::var("PATH").expect("set");
    let path = format!("{}:{path}", program.parent().expect("a directory").display());
    let mut shell = Command::new("bash");
    // A user starts lockd when the object store serves, which the first command may have to build.
    let wait = format!("until (exec 3<>/dev/tcp/127.0.0.1/{bucket}) 2>/dev/null; do sleep 0.2; done");
    let (before, serve) = script.trim_end().rsplit_once('\n').expect("three lines");
    shell.args(["-c", &format!("{before}\n{wait}\n{serve}")]);
    as_reader(&mut shell, home.path());
    let cargo_home =
        std::env::var_os("CARGO_HOME").or_else(|| Some(std::env::home_dir()?.join(".cargo").into()));
    let rustup_home =
        std::env::var_os("RUSTUP_HOME").or_else(|| Some(std::env::home_dir()?.join(".rustup").into()));
    shell.env("PATH", &path).env("LOCKD_LISTEN", &server).env("CARGO_NET_OFFLINE", "true");
    shell.env("CARGO_HOME", cargo_home.expect("a home")).env("RUSTUP_HOME", rustup_home.expect("a home"));
    shell.current_dir(workspace).stdin(Stdio::null()).process_group(0);
    let mut session = Session(shell.spawn().expect("a shell"));

    let acquired = || {
        let mut acquire = Command::new(program);
        acquire.args(["client", "acquire", "orders", "--server", &server, "--output", "json"]);
        as_reader(&mut acquire, home.path());
        let output = acquire.output().expect("it runs");
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("fencing_token")
    };
    until("a lease is granted by the server whose store is in the bucket", || {
        assert!(session.0.try_wait().expect("our own child").is_none(), "the commands have ended");
        acquired()
    });
}
