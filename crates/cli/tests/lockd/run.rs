//! `lockd run`: the command lives while its lease does, and no longer.

use std::process::Command;

use identity::Role;
use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};

use crate::running::{Running, assert_gone, spoken, until};
use crate::server::{Server, program};

/// Starts a script under a lease, which has to say first which processes are its own.
fn start(lockd: &mut Command, options: &[&str], script: &str) -> (Running, Vec<Pid>) {
    let run = lockd.args(["run", "--key", "orders"]).args(options).args(["--", "sh", "-c", script]);
    spoken(run)
}

fn group_is_gone(leader: Pid) -> bool {
    test_kill_process_group(leader) == Err(rustix::io::Errno::SRCH)
}

/// What the server says of the key, as `name=value` lines.
fn describe(server: &Server) -> String {
    server.sh("lockd client describe orders").stdout
}

fn public_id(server: &Server) -> String {
    let described = describe(server);
    let id = described.lines().find_map(|line| line.strip_prefix("public_id="));
    id.unwrap_or_else(|| panic!("nobody holds it: {described}")).to_owned()
}

#[test]
fn the_command_gets_its_token_and_its_exit_code_is_passed_on() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(r#"lockd run --key orders --namespace team --ttl 30s -- sh -c '
            echo "fencing_token=$LOCKD_FENCING_TOKEN public_id=$LOCKD_PUBLIC_ID"
            echo "$LOCKD_NAMESPACE $LOCKD_KEY"; exit 7'
        echo "exit $?"
        lockd client why --namespace team orders"#);
    assert_eq!(ran.stderr, "");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("fencing_token=") && lines[0].contains(" public_id=L-"), "{}", lines[0]);
    assert_eq!(lines[1..3], ["team orders", "exit 7"]);
    assert!(lines[3].starts_with("free: "), "it was given back: {}", lines[3]);
    assert_eq!(server.sh("lockd run --key orders -- sh -c 'kill -KILL $$'").code, 128 + 9);
    assert_eq!(server.sh("lockd run --key orders -- /no/such/program").code, 127);
    assert_eq!(server.sh("lockd run --key orders -- /").code, 126);
}

#[test]
fn the_token_is_the_leases_own() {
    let server = Server::start(Role::Operator);
    let ran = server.sh("lockd run --key orders -- sh -c 'lockd client describe orders; \
         echo token $LOCKD_FENCING_TOKEN id $LOCKD_PUBLIC_ID'");
    let said = |name: &str| ran.stdout.lines().find_map(|line| line.strip_prefix(name)).expect("it is said");
    let expected = format!("{} id {}", said("fencing_token="), said("public_id="));
    assert_eq!(said("token "), expected);
}

#[test]
fn the_command_works_under_the_lease_with_lockd_client() {
    let server = Server::start(Role::Operator);
    let ran = server
        .sh(r#"eval "$(lockd client acquire other)" # another lease around it is not mistaken for its own
        lockd run --key orders -- sh -c 'lockd client set orders runs++ >/dev/null && lockd client get'"#);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, r#"{"runs":1}"#), "{}", ran.stderr);
}

#[test]
fn a_key_that_another_holds_is_exit_10_and_nothing_is_started() {
    let server = Server::start(Role::Operator);
    let ran =
        server.sh("lockd client acquire orders >/dev/null; lockd run --key orders --block 0 -- echo started");
    assert_eq!((ran.code, ran.stdout.as_str()), (10, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("holder="), "{}", ran.stderr);
}

#[test]
fn a_run_waits_for_its_turn() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(r#"eval "$(lockd client acquire orders)"
        lockd run --key orders --block 60s -- echo started & run=$!
        until lockd client describe orders | grep -q waiters=1; do sleep 0.05; done
        echo released; lockd client release orders; wait $run"#);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "released\nstarted\n"), "{}", ran.stderr);
}

#[test]
fn a_run_that_is_interrupted_while_it_waits_gives_up_its_place() {
    let server = Server::start(Role::Operator);
    server.sh("lockd client acquire --ttl 300s orders");
    let waiting = Running::new(
        server
            .lockd(&["run", "--key", "orders", "--block", "300s", "--", "echo", "started"])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the binary runs"),
    );
    until("it waits", || describe(&server).contains("waiters=1"));
    // A shell starts what is to run in the background with SIGINT ignored, and so it stays: this one always arrives.
    kill_process(waiting.pid(), Signal::TERM).expect("our own child");
    let (code, stderr) = waiting.ended();
    assert_eq!(code, Some(143), "{stderr}");
    assert!(stderr.contains("interrupted"), "{stderr}");
    until("its place is free", || describe(&server).contains("waiters=0"));
}

#[test]
fn signals_are_passed_on_to_the_command_and_the_lease_is_given_back() {
    let server = Server::start(Role::Operator);
    let script = "trap 'exit 33' TERM; echo $$; while :; do sleep 0.05; done";
    let (run, _) = start(&mut server.lockd(&[]), &[], script);
    kill_process(run.pid(), Signal::TERM).expect("our own child");
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(33), "{stderr}");
    assert!(!describe(&server).contains("public_id="));
}

/// Without renewals the command would get SIGTERM after 3.7 s: the TTL less a margin of 0.3 s and a grace of 2 s.
#[test]
fn the_lease_is_renewed_while_the_command_runs() {
    let server = Server::start(Role::Operator);
    let ran = server.sh("lockd run --key orders --ttl 6s -- sh -c 'sleep 5; exit 5'");
    assert_eq!(ran.code, 5, "{}", ran.stderr);
}

/// One child ends when it is told, one ignores it, and one is nobody's child any more.
#[test]
fn a_revoked_lease_ends_the_whole_group_politely_and_then_by_force() {
    let server = Server::start(Role::Operator);
    let stubborn = "trap '' TERM; exec 2>/dev/null; while :; do sleep 0.1; done";
    let polite = "trap 'echo told > \"$0\"; exit 0' TERM; while :; do sleep 0.05; done";
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("told");
    let script = format!(
        "sh -c '{}' & a=$!; sh -c '{}' {} & b=$!; (sleep 600 & echo $! > {2}.orphan) ; \
         trap '' TERM; echo $$ $a $b $(cat {2}.orphan); wait; wait; sleep 600",
        stubborn.replace('\'', r"'\''"),
        polite.replace('\'', r"'\''"),
        file.display(),
    );
    let (run, pids) = start(&mut server.lockd(&[]), &["--ttl", "6s", "--grace", "2s"], &script);
    assert_eq!(pids.len(), 4);
    let revoked = server.sh(&format!("lockd client revoke {}", public_id(&server)));
    assert_eq!(revoked.code, 0, "{}", revoked.stderr);
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(12), "{stderr}");
    assert!(stderr.contains("an operator withdrew it"), "{stderr}");
    assert!(group_is_gone(pids[0]), "all of it, and nothing left to reap");
    assert!(file.exists(), "whoever listens to SIGTERM has time to clean up");
}

/// The server grants the key to the next only after the command has ended: whoever is granted looks.
fn is_gone_before_the_next_is_granted(cut: impl FnOnce(&server::testing::Proxy)) {
    let server = Server::start(Role::Operator);
    let proxy = server.proxy();
    let mut lockd = program(&proxy.address.to_string(), assert_cmd::cargo::cargo_bin!("lockd"));
    // The command gets SIGTERM 3.45 s before the server can expire the lease.
    let options = ["--ttl", "9s", "--grace", "3s"];
    let (run, pids) = start(&mut lockd, &options, "sleep 600 & echo $$ $!; wait");
    cut(&proxy);
    // Waits in the server's own queue, and looks as soon as it has the lease.
    let next = server.sh(&format!(
        "lockd run --key orders --block 60s -- sh -c 'kill -0 -{} 2>/dev/null && exit 77 || exit 0'",
        pids[0].as_raw_nonzero()
    ));
    assert_eq!(next.code, 0, "77: the command still ran: {}", next.stderr);
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(12), "{stderr}");
    assert!(stderr.contains("no server has confirmed it in time"), "{stderr}");
    assert!(group_is_gone(pids[0]));
}

#[test]
fn a_command_whose_server_is_cut_off_is_gone_before_the_next_is_granted() {
    is_gone_before_the_next_is_granted(server::testing::Proxy::cut);
}

/// Nothing breaks, but no answer ever comes.
#[test]
fn a_command_whose_server_hangs_is_gone_before_the_next_is_granted() {
    is_gone_before_the_next_is_granted(server::testing::Proxy::hang);
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_when_the_server_is_cut_off() {
    let server = Server::start(Role::Operator);
    let proxy = server.proxy();
    let mut lockd = program(&proxy.address.to_string(), assert_cmd::cargo::cargo_bin!("lockd"));
    let script = "trap '' TERM; echo $$; while :; do sleep 0.1; done";
    let (run, pids) = start(&mut lockd, &["--ttl", "2s"], script);
    proxy.cut();
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(12), "{stderr}");
    assert!(group_is_gone(pids[0]));
}

/// A stopped lockd cannot renew; when it wakes, its lease is over, and it must not let the command go on.
#[test]
fn a_run_that_slept_through_its_lease_kills_the_command_when_it_wakes() {
    let server = Server::start(Role::Operator);
    let script = "trap '' TERM; echo $$; while :; do sleep 0.1; done";
    let (run, pids) = start(&mut server.lockd(&[]), &["--ttl", "2s"], script);
    kill_process(run.pid(), Signal::STOP).expect("our own child");
    let next = server.sh("lockd client acquire --block 60s --ttl 300s orders");
    assert_eq!(next.code, 0, "the lease ran out: {}", next.stderr);
    assert!(!group_is_gone(pids[0]), "nobody could end it");
    kill_process(run.pid(), Signal::CONT).expect("our own child");
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(12), "{stderr}");
    assert!(group_is_gone(pids[0]));
    assert!(describe(&server).contains("public_id="), "the next one's lease is not touched");
}

/// It exited with 0 while nobody looked, after its lease had been another's.
#[test]
fn a_command_that_ended_after_its_lease_did_not_succeed() {
    let server = Server::start(Role::Operator);
    let (run, pids) =
        start(&mut server.lockd(&[]), &["--ttl", "2s"], "trap 'exit 0' TERM; echo $$; sleep 600 & wait");
    kill_process(run.pid(), Signal::STOP).expect("our own child");
    server.sh("lockd client acquire --block 60s --ttl 300s orders");
    kill_process(pids[0], Signal::TERM).expect("our own");
    assert_gone(pids[0]);
    kill_process(run.pid(), Signal::CONT).expect("our own child");
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(12), "{stderr}");
}

#[test]
fn a_lease_that_was_given_back_behind_its_back_is_lost() {
    let server = Server::start(Role::Operator);
    let script = "echo $$; lockd client release orders; sleep 600";
    let (run, pids) = start(&mut server.lockd(&[]), &["--ttl", "3s"], script);
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(12), "{stderr}");
    assert!(group_is_gone(pids[0]));
}

#[test]
fn a_command_may_give_the_lease_back_with_its_last_commit() {
    let server = Server::start(Role::Operator);
    let ran = server
        .sh("lockd run --key orders -- sh -c 'echo 1 | lockd client update orders --release >/dev/null'");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn the_command_dies_with_a_lockd_that_is_killed() {
    let server = Server::start(Role::Operator);
    let (run, pids) = start(&mut server.lockd(&[]), &[], "echo $$; exec sleep 600");
    kill_process(run.pid(), Signal::KILL).expect("our own child");
    assert_eq!(run.ended().0, None, "killed");
    assert_gone(pids[0]);
}

#[test]
fn a_server_that_is_not_there_is_unavailable_and_bad_arguments_are_wrong_usage() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound");
    for (code, script) in [
        (13, "lockd run --key orders -- echo started"),
        (2, "lockd run -- echo started"),
        (2, "lockd run --key orders"),
        (2, "lockd run --key orders --grace soon -- echo started"),
    ] {
        let ran = crate::server::sh(&nobody.to_string(), script);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{script}: {}", ran.stderr);
    }
}

/// Runs whose intents are in each other's way, started at once: each notes when it begins and when it ends.
fn at_once(server: &Server, intents: [&str; 2], script: &str) -> String {
    let dir = tempfile::tempdir().expect("a folder");
    let notes = dir.path().join("notes").display().to_string();
    let ran = server.sh(&format!(
        "cd {} || exit 99
         lockd run {} --block 60s -- sh -c '{script}' {notes} & a=$!
         lockd run {} --block 60s -- sh -c '{script}' {notes} & b=$!
         wait $a && wait $b && cat {notes}",
        dir.path().display(),
        intents[0],
        intents[1],
    ));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout
}

/// The second one dies, stays away and comes again by itself, or waits: whichever it was, it has its turn.
#[test]
fn runs_whose_intents_conflict_are_one_after_the_other() {
    let server = Server::start(Role::Operator);
    let script = r#"echo begin >> "$0"; sleep 0.5; echo end >> "$0""#;
    let intents = ["--intent MUTATES:FILE:src/a.rs", "--intent 'CONSUMES:FILE:src/*' --intent MUTATES:DB:x"];
    assert_eq!(at_once(&server, intents, script), "begin\nend\nbegin\nend\n");
}

/// Each waits for the other to have begun: one after the other they would wait for ever.
#[test]
fn runs_that_only_read_are_held_at_once() {
    let server = Server::start(Role::Operator);
    let script = r#"echo begin >> "$0"; n=0
        until [ "$(wc -l < "$0")" -ge 2 ] || [ $n -ge 1200 ]; do sleep 0.05; n=$((n+1)); done; [ $n -lt 1200 ]"#;
    let intents = ["--intent CONSUMES:FILE:src/a.rs", "--intent 'CONSUMES:FILE:src/*'"];
    assert_eq!(at_once(&server, intents, script), "begin\nbegin\n");
}

#[test]
fn a_bundle_is_what_the_command_holds_and_is_given_back() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(
        r#"cd / && export LOCKD_KEY=outer && lockd run --intent MUTATES:FILE:src/a.rs --intent 'CONSUMES:FILE:src/*' --intent MUTATES:KEY:orders \
            --namespace team --reason "fix it" -- sh -c '
            echo "token=$LOCKD_FENCING_TOKEN namespace=$LOCKD_NAMESPACE key=<$LOCKD_KEY> id=$LOCKD_PUBLIC_ID"
            lockd client list --output json
            echo 7 | lockd client update orders >/dev/null && lockd client get orders; echo'
        echo "exit $?"; lockd client list --output json"#,
    );
    assert_eq!(ran.stderr, "");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let held: serde_json::Value = serde_json::from_str(lines[1]).expect("JSON");
    let lease = &held["leases"][0];
    let expected = format!(
        "token={} namespace=team key=<> id={}",
        lease["fencing_token"],
        lease["public_id"].as_str().expect("a name")
    );
    assert_eq!(lines[0], expected);
    let named = lease["resources"].as_array().expect("a list").iter();
    let named: Vec<String> = named.map(|one| format!("{} {}", one["predicate"], one["name"])).collect();
    assert_eq!(named, [r#""MUTATES" "/src/a.rs""#, r#""CONSUMES" "/src/*""#, r#""MUTATES" "orders""#]);
    assert_eq!(lines[2..], ["7", "exit 0", r#"{"leases":[]}"#], "{}", ran.stdout);
}

#[test]
fn a_bundle_in_others_way_is_exit_10_and_says_whose() {
    let server = Server::start(Role::Operator);
    let ran = server.sh("lockd run --intent DELETES:FILE:/x --reason 'clean up' -- \
         lockd run --intent CONSUMES:FILE:/x --block 300ms -- echo started");
    assert_eq!((ran.code, ran.stdout.as_str()), (10, ""), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("holder=anonymous") && ran.stderr.contains(r#"reason="clean up""#),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_bundle_of_an_agent_whose_grants_are_stopped_says_so_at_once() {
    let server = Server::start(Role::Operator);
    let client =
        ::client::Client::builder().plain().endpoint(server.address.to_string()).build().expect("an address");
    let paused = client.set_agent("ci", None, api::agents::AgentState::Paused);
    let ran = server.sh("lockd run --intent MUTATES:FILE:/x --agent-id ci -- echo once");
    assert_eq!(ran.code, 0, "the server knows it now: {}", ran.stderr);
    tokio::runtime::Runtime::new().expect("threads").block_on(paused).expect("an operator");
    let ran = server.sh("lockd run --intent MUTATES:FILE:/x --agent-id ci --block 100d -- echo started");
    assert_eq!((ran.code, ran.stdout.as_str()), (14, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("this agent is paused"), "{}", ran.stderr);
}

#[test]
fn an_intent_that_is_none_is_refused_with_its_form() {
    let server = Server::start(Role::Operator);
    for (bad, said) in [
        ("--intent src/auth.rs", "MUTATES:FILE:src/auth.rs"),
        ("--intent WRITES:FILE:/x", "one of PROVIDES"),
        ("--intent MUTATES:FILE:/x --key orders", "cannot be used with"),
        ("--intent MUTATES:FILE:/x --root ''", "root"),
        ("--intent MUTATES:FILE:/../x", "FILE:/../x"),
        ("--key orders --reason why", "cannot be used with"),
    ] {
        let ran = server.sh(&format!("lockd run {bad} -- echo started"));
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{bad}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{bad}: {}", ran.stderr);
    }
}
