//! Every call of the API has a command, and what the commands of operators and holders do.

use std::collections::BTreeSet;

use cli::remote::calls::COMMANDS;
use identity::Role;
use serde_json::Value;

use crate::lockd::server::Server;
use crate::lockd::support::{Ran, lockd};
use crate::running::until;

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr))
}

/// Quotas, pauses, reserved leases and more could be used by raw HTTP only.
#[test]
fn every_call_of_the_api_has_a_command() {
    let server = Server::start(Role::Operator);
    let document = json(&server.sh("lockd client openapi"));
    let paths = document["paths"].as_object().expect("paths").values();
    let operations = paths.flat_map(|path| path.as_object().expect("methods").values());
    let ids: BTreeSet<&str> =
        operations.map(|operation| operation["operationId"].as_str().expect("an id")).collect();
    let known: BTreeSet<&str> = COMMANDS.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, known, "each operation has one row in the table of commands");
    for command in COMMANDS.iter().map(|(_, command)| *command).collect::<BTreeSet<_>>() {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        assert_eq!(lockd(&words).code, 0, "{command}");
    }
}

#[test]
fn a_reserved_lease_is_activated_touched_and_taken_back() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(r#"set -e
        eval "$(lockd client acquire --reserve --session-id s1 --ttl 5m --metadata note orders)"
        lockd client keepalive || echo "keepalive $?"
        lockd client activate | cut -d' ' -f1
        lockd client touch orders | cut -d' ' -f1
        lockd client fence
        lockd client fence orders 5 || echo "old token $?"
        lockd client lease "${LOCKD_CLIENT_LEASE_ID%%.*}" --output json | grep -o '"metadata":"note"'
        lockd client release
        eval "$(lockd client acquire --ttl 50ms --on-expiry hold:5m held)"
        until lockd client describe held | grep -q state=revoking; do sleep 0.05; done
        first=$LOCKD_CLIENT_FENCING_TOKEN
        eval "$(lockd client rebind)"
        [ "$LOCKD_CLIENT_FENCING_TOKEN" -gt "$first" ] && echo newer"#);
    let expected =
        "keepalive 2\nactive\ntouched\ncurrent\nstale\nold token 11\n\"metadata\":\"note\"\nnewer\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (0, expected), "{}", ran.stderr);
}

#[test]
fn several_resources_are_one_lease() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(
        r#"set -e
        eval "$(lockd client acquire --ttl 5m --resource KEY:a=b --resource FILE:/src=CONSUMES --resource KEY:c=MUTATES)"
        lockd client list | sed -n 2p | cut -d' ' -f1
        lockd client resource FILE:/src | sed -n 1p
        lockd client keepalive > /dev/null
        lockd client release
        lockd client acquire --resource src || echo "bad $?"
        lockd client acquire --on-expiry later k || echo "bad $?""#,
    );
    assert_eq!(ran.stdout.lines().next(), Some("\"a=b\",FILE:/src,c"), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("\nactive FILE:/src namespace=default waiters=0\n"), "{}", ran.stdout);
    assert!(ran.stderr.contains("KIND:NAME=PREDICATE") && ran.stderr.contains("free, manual or hold:30s"));
    assert_eq!(ran.stdout.matches("bad 2").count(), 2);
}

/// The holder was the text that it had chosen itself, times were numbers, and nothing named who waited or what to do.
#[test]
fn why_names_holder_times_waiters_and_the_command_that_resolves_it() {
    let server = Server::start(Role::Operator);
    server.sh("lockd client acquire --owner root@prod --ttl 5m 'an order' >/dev/null");
    let mut waiter = server.lockd(&["client", "acquire", "--block", "1m", "an order"]);
    let waiter = waiter.stdout(std::process::Stdio::piped()).spawn().expect("it runs");
    until("it waits", || json(&server.sh("lockd client why 'an order' --output json"))["waiter_count"] == 1);

    let why = server.sh("lockd client why 'an order'");
    let lines: Vec<&str> = why.stdout.lines().collect();
    assert!(lines[0].starts_with("held: anonymous has it since 20"), "{}", lines[0]);
    assert!(lines[0].contains(" (in 4m ") && lines[0].contains("unless renewed"), "{}", lines[0]);
    assert!(lines[0].contains("holder=anonymous owner=\"root@prod\" public_id=L-"), "{}", lines[0]);
    assert!(lines[1].starts_with("waiter 1: anonymous for "), "{}", lines[1]);
    assert_eq!(lines[2], "wait for it: lockd client acquire --block 60s 'an order'");

    let value = json(&server.sh("lockd client why 'an order' --output json"));
    assert_eq!((&value["verdict"], &value["leases"][0]["holder"]), (&"held".into(), &"anonymous".into()));
    assert_eq!(value["waiters"][0]["identity"], "anonymous");
    assert!(value["leases"][0]["public_id"].as_str().is_some_and(|id| id.starts_with("L-")));
    assert!(!value.to_string().contains("lease_id"), "no credential, and no public id by its name: {value}");

    for command in value["commands"].as_array().expect("commands").iter().skip(1) {
        let command = command.as_str().expect("a command");
        assert_eq!(server.sh(command).code, 0, "{command}");
        if command.contains("revoke") {
            let blocked = server.sh("lockd client why 'an order'");
            assert!(blocked.stdout.starts_with("blocked: an operator revoked the lease of anonymous at 20"));
            assert!(blocked.stdout.contains("\noperators free it: lockd client reclaim 'an order'\n"));
        }
    }
    let granted = waiter.wait_with_output().expect("it ends");
    assert!(granted.status.success(), "the waiter gets it");
}

#[test]
fn leases_are_revoked_and_reclaimed_by_key_and_by_holder() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(r#"for key in a b c; do lockd client acquire --ttl 5m $key >/dev/null; done
        lockd client revoke a | sed -n 2p | awk '{print $1, $3}'
        lockd client revoke a 2>&1 >/dev/null
        lockd client reclaim b; echo "live $?"
        lockd client reclaim a | sed -n 2p | awk '{print $1, $3}'
        lockd client reclaim a; echo "free $?"
        lockd client revoke --holder anonymous
        lockd client revoke b --holder anonymous; echo "both $?"
        lockd client revoke; echo "none $?""#);
    let expected = "a revoking\nlockd: nothing to do: the lease is in this state already: state=revoking\nlive 2\n\
                    a revoked\nfree 2\nrevoked leases=2\nboth 2\nnone 2\n";
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);
    assert!(ran.stderr.contains("revoke it first: `lockd client revoke L-"), "{}", ran.stderr);
    assert!(ran.stderr.contains("no lease covers this key; it is free: key=a"), "{}", ran.stderr);
}

#[test]
fn lists_have_a_header_are_sorted_and_filtered() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(
        r#"for key in zebra orders/2 orders/1; do lockd client acquire --owner me --ttl 5m $key >/dev/null; done
        lockd client list | awk '{print $1, $4, $5}'
        lockd client list orders/ | awk '{print $1}'
        lockd client keys orders | awk '{print $1, $3, $4}'
        lockd client list --output json | grep -o '"name":"[^"]*"'"#,
    );
    let expected = "RESOURCES HOLDER OWNER\norders/1 anonymous \"me\"\norders/2 anonymous \"me\"\nzebra anonymous \"me\"\n\
                    RESOURCES\norders/1\norders/2\nKEY STATE HOLDER\norders/1 held anonymous\norders/2 held anonymous\n\
                    \"name\":\"orders/1\"\n\"name\":\"orders/2\"\n\"name\":\"zebra\"\n";
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);
}

/// `keys` left out every key that had a document and was neither held nor waited for.
#[test]
fn a_key_that_only_has_a_document_is_listed() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(r#"set -e
        # In shells of their own: the exports name a namespace.
        for namespace in default team; do (
            eval "$(lockd client acquire --namespace $namespace --ttl 5m orders/stored)"
            lockd client set orders/stored n=1 >/dev/null
            lockd client release orders/stored >/dev/null
        ) done
        (
            eval "$(lockd client acquire --owner me --ttl 5m orders/both)"
            lockd client set orders/both n=17 >/dev/null
            lockd client set orders/both n++ >/dev/null
        )
        lockd client acquire --ttl 5m orders/held >/dev/null
        lockd client acquire --ttl 5m other >/dev/null
        lockd client keys orders/ | awk '{print $1, $2, $3, $4, $(NF-2), $(NF-1), $NF}'
        lockd client keys --namespace team | awk '{print $1, $2}'"#);
    let expected = "KEY NAMESPACE STATE HOLDER WAITERS VERSION BYTES\n\
                    orders/both default held anonymous 0 2 8\norders/held default held anonymous 0 - -\n\
                    orders/stored default free - 0 1 7\norders/stored team free - 0 1 7\n\
                    KEY NAMESPACE\norders/stored team\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (0, expected), "{}", ran.stderr);
    let value = json(&server.sh("lockd client keys orders/stored --namespace team --output json"));
    let key = &value["keys"][0];
    assert_eq!((&key["state"], &key["version"], &key["state_bytes"]), (&"free".into(), &1.into(), &7.into()));
    assert!(
        key["updated_at"].is_string() && key["state_etag"].is_string() && key["holder"].is_null(),
        "{key}"
    );
}

#[test]
fn quotas_pauses_namespaces_and_agents_have_commands() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(
        r#"lockd client set-quota --namespace team --holder ada --max-leases 3 --max-total 8h --idle 90 --acquires-per-second 5
        lockd client quotas | sed -n 2p | tr -s ' '
        lockd client pause --holder anonymous
        lockd client acquire k; echo "paused $?"
        lockd client resume --holder anonymous
        eval "$(lockd client manifest --agent-id coder --intent MUTATES:FILE:/src/a --ttl 5m)"
        lockd client agents | sed -n 2p | tr -s ' '
        lockd client set-agent coder die-restart | sed -n 2p | tr -s ' '
        lockd client heartbeat | sed -n 2p | awk '{print $2}'
        lockd client reconcile --rebind | sed -n 2p | awk '{print $2, $3}'
        lockd client manifest --agent-id other --intent MUTATES:FILE:/src/a; echo "blocked $?"
        lockd client release-all | sed -n 2p | awk '{print $2}'
        lockd client reconcile > /dev/null; echo "gone $?"
        lockd client namespaces | tail -n +2
        lockd client delete-namespace default; echo "unsure $?"
        lockd client delete-namespace default --yes
        lockd client metrics | grep -c '^# EOF'"#,
    );
    let lines: Vec<&str> = ran.stdout.lines().filter(|line| !line.starts_with("unset ")).collect();
    let expected = [
        "quota set namespace=team holder=ada",
        "team ada 3 8h 1m 30s 5 no",
        "paused holder=anonymous namespace=*",
        "paused 14",
        "resumed holder=anonymous namespace=*",
        "coder default anonymous ALIVE 1",
        "coder default anonymous DIE_RESTART 1",
        "yes",
        "yes active",
        "blocked 10",
        "yes",
        "gone 11",
        "default",
        "unsure 2",
        "deleted namespace=default",
        "1",
    ];
    assert_eq!(lines, expected, "{}", ran.stderr);
}

/// A prefix could be followed with curl only.
#[test]
fn a_prefix_is_watched_by_the_event_stream() {
    let server = Server::start(Role::Operator);
    let mut watch =
        server.lockd(&["client", "watch", "--prefix", "orders/", "--until", "changed", "--output", "json"]);
    let mut watch = watch.stdout(std::process::Stdio::piped()).spawn().expect("it runs");
    // Events are from the time of the subscription on: act until one has arrived.
    until("an event arrives", || {
        server
            .sh("lockd client acquire other >/dev/null; lockd client acquire --ttl 50ms orders/1 >/dev/null");
        watch.try_wait().expect("our own").is_some()
    });
    let output = watch.wait_with_output().expect("it ended");
    let event: Value = serde_json::from_slice(&output.stdout).expect("one event");
    assert_eq!(event["resources"][0]["name"], "orders/1", "{event}");
    let at = event["at_unix_ms"].as_u64().expect("the server's time");
    assert!(event["time"].as_str().is_some_and(|time| time.starts_with("2027-01-15T")), "{event}");
    assert!(at >= 1_800_000_000_000, "by the clock of the test server: {event}");
    let wrong = server.sh("lockd client watch --prefix orders/ --until free");
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
}
