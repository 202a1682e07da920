//! `lockd run`: the command runs only while its lease is held.

use std::process::Command;

use identity::Role;
use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};

use crate::lockd::server::{Server, program};
use crate::running::{Running, assert_gone, spoken, until};

/// Starts a script under a lease. Its first line of output must be the pids of its processes.
fn start(lockd: &mut Command, options: &[&str], script: &str) -> (Running, Vec<Pid>) {
    let run = lockd.args(["run", "--key", "orders"]).args(options).args(["--", "sh", "-c", script]);
    spoken(run)
}

fn group_is_gone(leader: Pid) -> bool {
    test_kill_process_group(leader) == Err(rustix::io::Errno::SRCH)
}

/// The output of `lockd client describe`.
fn describe(server: &Server) -> String {
    server.sh("lockd client describe orders").stdout
}

fn public_id(server: &Server) -> String {
    let described = describe(server);
    let id = described.lines().find_map(|line| line.strip_prefix("public_id="));
    id.unwrap_or_else(|| panic!("the key is free: {described}")).to_owned()
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
    assert!(lines[3].starts_with("free: "), "it was released: {}", lines[3]);
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
    let ran = server.sh(r#"eval "$(lockd client acquire other)" # an outer lease is not mistaken for its own
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
fn a_run_waits_in_the_queue() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(r#"eval "$(lockd client acquire orders)"
        lockd run --key orders --block 60s -- echo started & run=$!
        until lockd client describe orders | grep -q waiters=1; do sleep 0.05; done
        echo released; lockd client release orders; wait $run"#);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "released\nstarted\n"), "{}", ran.stderr);
}

#[test]
fn a_run_that_is_interrupted_while_it_waits_leaves_the_queue() {
    let server = Server::start(Role::Operator);
    server.sh("lockd client acquire --ttl 300s orders");
    let waiting = Running::new(
        server
            .lockd(&["run", "--key", "orders", "--block", "300s", "--", "echo", "started"])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the binary runs"),
    );
    until("the request is queued", || describe(&server).contains("waiters=1"));
    // SIGTERM, because a shell starts background jobs with SIGINT ignored, and it stays ignored.
    kill_process(waiting.pid(), Signal::TERM).expect("our own child");
    let (code, stderr) = waiting.ended();
    assert_eq!(code, Some(143), "{stderr}");
    assert!(stderr.contains("interrupted"), "{stderr}");
    until("it has left the queue", || describe(&server).contains("waiters=0"));
}

#[test]
fn signals_are_forwarded_to_the_command_and_the_lease_is_released() {
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

/// One child exits on SIGTERM, one ignores it, and one is an orphan.
#[test]
fn a_revoked_lease_ends_the_whole_group_with_sigterm_and_then_sigkill() {
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
    assert!(stderr.contains("an operator revoked it"), "{stderr}");
    assert!(group_is_gone(pids[0]), "no process and no zombie is left");
    assert!(file.exists(), "a SIGTERM handler has time to clean up");
}

/// The next holder is granted the key only after the command has ended; it checks that itself.
fn is_gone_before_the_next_is_granted(cut: impl FnOnce(&lockd_server::testing::Proxy)) {
    let server = Server::start(Role::Operator);
    let proxy = server.proxy();
    let mut lockd = program(&proxy.address.to_string(), assert_cmd::cargo::cargo_bin!("lockd"));
    // The command gets SIGTERM 3.45 s before the server can expire the lease.
    let options = ["--ttl", "9s", "--grace", "3s"];
    let (run, pids) = start(&mut lockd, &options, "sleep 600 & echo $$ $!; wait");
    cut(&proxy);
    // Waits in the server's queue, and checks as soon as it is granted.
    let next = server.sh(&format!(
        "lockd run --key orders --block 60s -- sh -c 'kill -0 -{} 2>/dev/null && exit 77 || exit 0'",
        pids[0].as_raw_nonzero()
    ));
    assert_eq!(next.code, 0, "77: the command still ran: {}", next.stderr);
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(12), "{stderr}");
    assert!(stderr.contains("no server confirmed it before its deadline"), "{stderr}");
    assert!(group_is_gone(pids[0]));
}

#[test]
fn a_command_whose_server_is_cut_off_is_gone_before_the_next_is_granted() {
    is_gone_before_the_next_is_granted(lockd_server::testing::Proxy::cut);
}

/// The connection stays open, but no response arrives.
#[test]
fn a_command_whose_server_hangs_is_gone_before_the_next_is_granted() {
    is_gone_before_the_next_is_granted(lockd_server::testing::Proxy::hang);
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

/// A stopped lockd cannot renew: after SIGCONT its lease has expired, and it must kill the command.
#[test]
fn a_run_that_was_stopped_past_its_deadline_kills_the_command_when_continued() {
    let server = Server::start(Role::Operator);
    let script = "trap '' TERM; echo $$; while :; do sleep 0.1; done";
    let (run, pids) = start(&mut server.lockd(&[]), &["--ttl", "2s"], script);
    kill_process(run.pid(), Signal::STOP).expect("our own child");
    let next = server.sh("lockd client acquire --block 60s --ttl 300s orders");
    assert_eq!(next.code, 0, "the lease expired: {}", next.stderr);
    assert!(!group_is_gone(pids[0]), "the supervisor was stopped");
    kill_process(run.pid(), Signal::CONT).expect("our own child");
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(12), "{stderr}");
    assert!(group_is_gone(pids[0]));
    assert!(describe(&server).contains("public_id="), "the next one's lease is not touched");
}

/// The command exited with 0 while lockd was stopped, after another client had been granted the lease.
#[test]
fn a_command_that_exits_after_its_lease_expired_does_not_succeed() {
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
fn a_lease_that_was_released_by_another_process_is_lost() {
    let server = Server::start(Role::Operator);
    let script = "echo $$; lockd client release orders; sleep 600";
    let (run, pids) = start(&mut server.lockd(&[]), &["--ttl", "3s"], script);
    let (code, stderr) = run.ended();
    assert_eq!(code, Some(12), "{stderr}");
    assert!(group_is_gone(pids[0]));
}

#[test]
fn a_command_may_release_the_lease_with_its_last_commit() {
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
fn an_unreachable_server_is_unavailable_and_bad_arguments_are_wrong_usage() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound");
    for (code, script) in [
        (13, "lockd run --key orders -- echo started"),
        (2, "lockd run -- echo started"),
        (2, "lockd run --key orders"),
        (2, "lockd run --key orders --grace soon -- echo started"),
    ] {
        let ran = crate::lockd::server::sh(&closed.to_string(), script);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{script}: {}", ran.stderr);
    }
}

/// Starts two runs concurrently; each script appends to a file when it begins and ends. Returns the file.
fn run_concurrently(server: &Server, intents: [&str; 2], script: &str) -> String {
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

/// By wait-die the second run waits, or dies and retries by itself; either way it runs after the first.
#[test]
fn runs_with_conflicting_intents_run_one_after_the_other() {
    let server = Server::start(Role::Operator);
    let script = r#"echo begin >> "$0"; sleep 0.5; echo end >> "$0""#;
    let intents = ["--intent MUTATES:FILE:src/a.rs", "--intent 'CONSUMES:FILE:src/*' --intent MUTATES:DB:x"];
    assert_eq!(run_concurrently(&server, intents, script), "begin\nend\nbegin\nend\n");
}

/// Each run waits for the other to begin, which would time out if they ran one after the other.
#[test]
fn runs_that_only_read_hold_their_leases_concurrently() {
    let server = Server::start(Role::Operator);
    let script = r#"echo begin >> "$0"; n=0
        until [ "$(wc -l < "$0")" -ge 2 ] || [ $n -ge 1200 ]; do sleep 0.05; n=$((n+1)); done; [ $n -lt 1200 ]"#;
    let intents = ["--intent CONSUMES:FILE:src/a.rs", "--intent 'CONSUMES:FILE:src/*'"];
    assert_eq!(run_concurrently(&server, intents, script), "begin\nbegin\n");
}

#[test]
fn a_bundle_is_held_by_the_command_and_released() {
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
fn a_conflicting_bundle_is_exit_10_and_names_the_holder() {
    let server = Server::start(Role::Operator);
    let ran = server.sh("lockd run --intent DELETES:FILE:/x --reason 'clean up' -- \
         lockd run --intent CONSUMES:FILE:/x --block 300ms -- echo started");
    assert_eq!((ran.code, ran.stdout.as_str()), (10, ""), "{}", ran.stderr);
    assert!(
        ran.stderr.contains(r#"holder="anonymous""#) && ran.stderr.contains(r#"reason="clean up""#),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_bundle_of_a_paused_agent_is_refused_at_once() {
    let server = Server::start(Role::Operator);
    let client = lockd_client::Client::builder()
        .plain()
        .endpoint(server.address.to_string())
        .build()
        .expect("an address");
    let paused = client.set_agent("ci", None, api::agents::AgentState::Paused);
    let ran = server.sh("lockd run --intent MUTATES:FILE:/x --agent-id ci -- echo once");
    assert_eq!(ran.code, 0, "the server knows it now: {}", ran.stderr);
    tokio::runtime::Runtime::new().expect("threads").block_on(paused).expect("an operator");
    let ran = server.sh("lockd run --intent MUTATES:FILE:/x --agent-id ci --block 100d -- echo started");
    assert_eq!((ran.code, ran.stdout.as_str()), (14, ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("this agent is paused"), "{}", ran.stderr);
}

#[test]
fn an_invalid_intent_is_refused_with_the_expected_form() {
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
