//! Commands that are given the addresses of several servers: one that does not respond, a stand-by and the owner.

use std::net::{Ipv4Addr, TcpListener};

use super::super::bucket::object_server;
use super::servers;
use crate::lockd::server::sh;

/// An address at which nothing listens.
fn dead_address() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

#[test]
fn every_command_takes_several_servers_and_passes_by_one_that_is_gone() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let running = servers(&objects, dir.path(), 2, &[]);
    let (owner, standby) = (&running[0].address, &running[1].address);
    let in_variable = format!("{},{standby},{owner}", dead_address());
    let home = dir.path().display();
    let script = r#"set -e
        eval "$(lockd client acquire --ttl 5m orders)"
        echo '{"n":1}' | lockd client update orders >/dev/null
        lockd client get orders | lockd client edit n++ | lockd client update orders >/dev/null
        lockd client get orders; echo
        lockd client keepalive >/dev/null
        lockd client describe orders >/dev/null
        lockd client list >/dev/null
        lockd client namespaces >/dev/null
        lockd client whoami >/dev/null
        lockd client history KEY:orders >/dev/null
        lockd client remove orders >/dev/null
        lockd client release
        lockd run --key job -- echo ran
        lockc acquire --ttl 5m lockc-orders >/dev/null
        lockc keepalive >/dev/null
        lockc release >/dev/null
        lockd health
        timeout 2 lockd client events >/dev/null || [ $? = 124 ]
        lockd store hand-over --shard 0"#;
    let ran =
        sh(&in_variable, &format!("export HOME='{home}'; unset XDG_STATE_HOME LOCKC_CONTEXT\n{script}"));
    assert_eq!(ran.code, 0, "{} {}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("{\"n\":2}") && ran.stdout.contains("ran\n"), "{}", ran.stdout);
    // By flags, one for each.
    let flags = format!(" --server {}", in_variable.replace(',', " --server "));
    let ran = sh(
        "none",
        &format!(
            "lockd client{flags} acquire --ttl 5m flags >/dev/null && lockd run{flags} --key job -- echo ran"
        ),
    );
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{}", ran.stderr);
}
