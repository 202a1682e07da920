//! `lockd client` in scripts: the command lines of the lockd service specification, exit codes, and output that is safe to
//! eval.

use identity::Role;

use crate::lockd::server::{Server, sh};

const ACQUIRE: &str = r#"eval "$(lockd client acquire --owner worker-1 --ttl 30s orders)"; "#;

#[test]
fn the_command_lines_of_the_specification_work() {
    let server = Server::start(Role::Operator);
    let address = server.address;
    let script = format!(
        r#"set -e
        unset LOCKD_CLIENT_SERVER LOCKD_CLIENT_MTLS
        eval "$(lockd client acquire --mtls=false --server {address} --owner worker-1 --ttl 30s orders)"
        lockd client keepalive --ttl 45s orders >/dev/null
        lockd client get orders -o - \
          | lockd client edit status.counter++ \
          | lockd client update orders >/dev/null
        lockd client set orders progress.step=fetch progress.count++ time:progress.updated=NOW >/dev/null
        lockd client get orders -o "$TMP_FILE"
        lockd client edit --file "$TMP_FILE" progress.step="done" progress.count=+5 rm:progress.updated
        lockd client update orders --file "$TMP_FILE" >/dev/null
        lockd client get
        lockd client release orders
        "#
    );
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("checkpoint.json");
    let ran = server.sh(&format!("TMP_FILE='{}'\n{script}", file.display()));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    let expected = r#"{"status":{"counter":1},"progress":{"step":"done","count":6}}"#;
    assert_eq!(ran.stdout, expected);
    assert_eq!(std::fs::read_to_string(&file).expect("it was written"), expected);
    let free = server.sh("lockd client acquire orders >/dev/null");
    assert_eq!(free.code, 0, "it was released: {}", free.stderr);
}

#[test]
fn acquire_exports_the_variables_that_later_commands_need() {
    let server = Server::start(Role::Operator);
    let ran = server.sh("lockd client acquire --namespace team --owner o --ttl 30s orders");
    let names: Vec<&str> =
        ran.stdout.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    let expected = [
        "LEASE_ID",
        "KEY",
        "NAMESPACE",
        "SERVER",
        "FENCING_TOKEN",
        "VERSION",
        "ETAG",
        "EXPIRES_UNIX",
        "LEASES",
    ];
    assert_eq!(names, expected.map(|name| format!("export LOCKD_CLIENT_{name}")));
    let server_line = format!("export LOCKD_CLIENT_SERVER='http://{}'", server.address);
    assert!(ran.stdout.lines().any(|line| line == server_line), "needs no --mtls=false: {}", ran.stdout);
}

#[test]
fn a_hostile_owner_or_key_is_only_a_text() {
    let server = Server::start(Role::Operator);
    for owner in [
        "'; echo PWNED; '",
        "$(echo PWNED)",
        "`echo PWNED`",
        r"\'; echo PWNED #",
        "a\"; echo PWNED; \"",
        "n-",
    ] {
        let script = format!(
            r#"owner=$(cat <<'END'
{owner}
END
)
            eval "$(lockd client acquire --owner="$owner" "$owner")"
            [ "$LOCKD_CLIENT_KEY" = "$owner" ] || exit 77
            lockd client release"#
        );
        let ran = server.sh(&script);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""), "{owner}");
    }
}

#[test]
fn exit_codes_tell_what_to_do() {
    let server = Server::start(Role::Operator);
    for (code, word, script) in [
        (10, "not granted", "lockd client acquire orders"),
        (10, "waited 1s in vain", "lockd client acquire --block 1s orders"),
        (11, "version_conflict", "echo '{}' | lockd client update --if-version 99 orders"),
        (11, "not_held", "echo '{}' | lockd client update --lease-id $LOCKD_CLIENT_LEASE_ID other"),
        (2, "invalid_json", "echo '{' | lockd client update orders"),
        (2, "invalid_ttl", "lockd client keepalive --ttl 9h orders"),
        (2, "not a credential", "lockd client release --lease-id x orders"),
        (2, "no lease on this key", "lockd client release other"),
        (2, "number", "lockd client set orders a=x && lockd client set orders a++"),
        (
            2,
            "no identity file",
            "XDG_DATA_HOME=/nonexistent lockd client --mtls=true --server localhost acquire orders",
        ),
        (2, "server=", "lockd client --server 'a b' acquire orders"),
        (2, "write 30s", "lockd client acquire --ttl soon orders"),
        (1, "path=/nonexistent", "lockd client update --file /nonexistent orders"),
        (11, "not_held", "lockd client release; lockd client get"),
        (
            0,
            "",
            "lockd client acquire --ttl 300s again && lockd client release orders && lockd client release orders",
        ),
    ] {
        let ran = server.sh(&format!("{ACQUIRE}{script}; code=$?; lockd client release orders; exit $code"));
        assert_eq!(ran.code, code, "{script}: {}", ran.stderr);
        assert!(ran.stderr.contains(word), "{script}: {}", ran.stderr);
    }
}

#[test]
fn an_expired_lease_has_its_own_exit_code() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(r#"eval "$(lockd client acquire --ttl 50ms orders)"
        lockd client acquire --block 10s orders >/dev/null # granted when the first lease has expired
        lockd client keepalive orders"#);
    assert_eq!(ran.code, 12, "{}", ran.stderr);
}

#[test]
fn an_unreachable_server_is_unavailable() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound");
    let ran = sh(&closed.to_string(), "lockd client acquire orders");
    assert_eq!(ran.code, 13, "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("server=http://{closed}")), "{}", ran.stderr);
    let server = Server::start(Role::Operator);
    let both = sh(&format!("{closed},{}", server.address), "lockd client acquire orders >/dev/null");
    assert_eq!(both.code, 0, "the second answers: {}", both.stderr);
}

#[test]
fn an_operator_finds_out_why_and_takes_the_key_back() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(&format!(
        r#"{ACQUIRE}
        id=$(lockd client describe orders | sed -n 's/^public_id=//p')
        lockd client why orders
        lockd client revoke "$id"
        lockd client why orders
        lockd client keepalive orders; echo "keepalive $?"
        lockd client reclaim "$id"
        lockd client why orders
        lockd client why never-used
        lockd client list --output json"#
    ));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 13, "{}{}", ran.stdout, ran.stderr);
    assert!(lines[0].starts_with("held: ") && lines[0].contains("owner=\"worker-1\""), "{}", lines[0]);
    assert!(lines[4].starts_with("orders ") && lines[4].contains(" revoking "), "{}", lines[4]);
    assert!(lines[5].starts_with("blocked: ") && lines[6].contains("reclaim orders"), "{}", lines[5]);
    assert_eq!(lines[7], "keepalive 11");
    assert!(lines[9].contains(" revoked "), "{}", lines[9]);
    assert!(lines[10].starts_with("free: ") && lines[11].starts_with("free: "));
    assert!(lines[12].starts_with(r#"{"leases":["#), "{}", lines[12]);
    assert!(!ran.stdout.contains("LEASE_ID"), "no secrets");
}

#[test]
fn a_worker_may_not_take_back() {
    let server = Server::start(Role::Worker);
    let script = r#"lockd client revoke "$(lockd client describe orders | sed -n 's/^public_id=//p')""#;
    let ran = server.sh(&format!("{ACQUIRE}{script}"));
    assert_eq!(ran.code, 14, "{}", ran.stderr);
}

#[test]
fn a_document_of_megabytes_goes_round() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(&format!(
        r#"{ACQUIRE}
        (printf '["'; head -c 5000000 /dev/zero | tr '\0' x; printf '"]') | lockd client update --output json orders
        lockd client get orders | wc -c
        lockd client get --public orders | wc -c"#
    ));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains(r#""bytes":5000004"#), "{}", ran.stdout);
    assert_eq!(ran.stdout.lines().skip(1).map(str::trim).collect::<Vec<_>>(), ["5000004", "5000004"]);
}

/// `get` failed and printed nothing, `edit` read that as `{}`, and `update` replaced the document with the edited `{}`.
#[test]
fn a_get_that_fails_in_a_pipe_costs_no_document() {
    let server = Server::start(Role::Operator);
    for broken in [
        "lockd client get orders --server 127.0.0.1:1 -o -", // nothing listens there
        "lockd client get orders --lease-id x -o -",
        "lockd client get orders",
        "LOCKD_CLIENT_KEY=other lockd client get orders -o -",
        "lockd client get orders --no-such-flag",
        "lockd client get --mtls=true --identity /nonexistent --server localhost orders -o -",
    ] {
        let ran = server.sh(&format!(
            r#"{ACQUIRE}
            echo '{{"precious":1}}' | lockd client update orders >/dev/null || exit 77
            [ "{broken}" = "lockd client get orders" ] && lease= || lease=$LOCKD_CLIENT_LEASE_ID
            LOCKD_CLIENT_LEASES= LOCKD_CLIENT_LEASE_ID=$lease {broken} | lockd client edit status.counter++ | lockd client update orders
            echo "update $?"
            lockd client get orders; lockd client release orders"#
        ));
        assert_eq!(ran.stdout, "update 2\n{\"precious\":1}", "{broken}: {}", ran.stderr);
        assert!(ran.stderr.contains("error message of the previous command"), "{broken}: {}", ran.stderr);
    }
}

#[test]
fn an_edit_that_fails_in_a_pipe_costs_no_document() {
    let server = Server::start(Role::Operator);
    for broken in ["lockd client edit precious.deeper=1", "lockd client edit", "lockd client edit ''"] {
        let ran = server.sh(&format!(
            r#"{ACQUIRE}
            echo '{{"precious":1}}' | lockd client update orders >/dev/null || exit 77
            lockd client get orders -o - | {broken} | lockd client edit a=1 | lockd client update orders
            echo "update $?"
            lockd client get orders; lockd client release orders"#
        ));
        assert_eq!(ran.stdout, "update 2\n{\"precious\":1}", "{broken}: {}", ran.stderr);
    }
}

#[test]
fn a_failed_get_prints_one_line_and_neither_creates_nor_changes_a_file() {
    let server = Server::start(Role::Operator);
    let dir = tempfile::tempdir().expect("a folder");
    let ran = server.sh(&format!(
        r#"cd '{}'; echo old > old
        lockd client get orders --lease-id x -o old; echo "old $?"
        lockd client get orders --lease-id x -o new; echo "new $?"
        cat old; ls
        lockd client get orders --lease-id x"#,
        dir.path().display()
    ));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[..4], ["old 2", "new 2", "old", "old"], "{}", ran.stdout);
    assert!(lines[4].starts_with("lockd: get failed: ") && lines.len() == 5, "{}", ran.stdout);
    assert_eq!(ran.code, 2);
}

#[test]
fn a_document_is_removed_under_the_lease_and_its_conditions() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(&format!(
        r#"{ACQUIRE}
        echo 1 | lockd client update orders
        lockd client remove orders --if-version 7; echo "wrong version: $?"
        lockd client get orders; echo
        lockd client remove orders --if-version 1
        lockd client get orders
        lockd client remove --output json
        echo 2 | lockd client update orders
        lockd client remove orders --release
        lockd client remove orders; echo "given back: $?""#
    ));
    let expected = "committed version=1 bytes=1\nwrong version: 11\n1\nremoved version=2\n\
                    {\"removed\":false,\"new_version\":2}\ncommitted version=3 bytes=1\nremoved version=4\n\
                    given back: 11\n";
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);
}

/// Keys and owners with U+202E and U+2028 reached the terminal as they were, and `--output json` printed U+009B, which a
/// terminal takes for the beginning of a control sequence.
#[test]
fn names_of_others_cannot_direct_the_terminal_in_text_or_json() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(
        r#"
        rlo=$(printf '\342\200\256'); sep=$(printf '\342\200\250'); mark=$(printf '\342\200\217'); iso=$(printf '\342\201\246')
        key="k${rlo}x${sep}y"
        lockd client acquire --owner "eve${mark}${iso} state=free" "$key" > /dev/null || exit 77
        for output in text json yaml table wide; do
            lockd client list --output $output; lockd client describe --output $output "$key"
            lockd client why --output $output "$key"; lockd client watch --until held --output $output "$key"
            lockd client acquire --output $output "$key" 2>&1
        done
        "#,
    );
    assert!(ran.stdout.contains("\\u202e") && ran.stdout.contains("\\u2066"), "{}", ran.stdout);
    let is_plain = |c: char| c == '\n' || (' '..='~').contains(&c);
    assert!(ran.stdout.chars().all(is_plain), "{:?}", ran.stdout);
    assert!(
        ran.stdout.contains("owner=\"eve\\u200f\\u2066 state=free\""),
        "a value is one word: {}",
        ran.stdout
    );
    assert!(ran.stderr.is_empty(), "{}", ran.stderr);
}
