//! `lockc`: the command lines of the lockd service specification, contexts, editors.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use identity::Role;

use crate::lockd::server::Server;
use crate::lockd::support::Ran;

/// A server, and a temporary home directory.
struct Fixture {
    server: Server,
    home: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { server: Server::start(Role::Operator), home: tempfile::tempdir().expect("a folder") }
    }

    /// Runs a script in the home directory.
    fn sh(&self, script: &str) -> Ran {
        let home = self.home.path().display();
        let begin = "unset XDG_STATE_HOME XDG_DATA_HOME VISUAL EDITOR LOCKC_CONTEXT";
        self.server.sh(&format!("{begin}; export HOME='{home}'; cd '{home}'\n{script}"))
    }

    /// The files in the context directory, except lock files.
    fn kept(&self) -> Vec<PathBuf> {
        let folder = self.home.path().join(".local/state/lockd");
        let entries =
            std::fs::read_dir(folder).expect("it was made").map(|entry| entry.expect("readable").path());
        let mut kept: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_none_or(|name| name != "lock")).collect();
        kept.sort();
        kept
    }
}

#[test]
fn the_command_lines_of_the_specification_work() {
    let fixture = Fixture::new();
    let address = fixture.server.address;
    let ran = fixture.sh(&format!(
        r#"set -e
        unset LOCKD_CLIENT_SERVER LOCKD_CLIENT_MTLS
        lockc acquire -s http://{address} --ttl 30s orders >/dev/null
        lockc state get -o empty.yaml
        echo '{{"step":"fetch","count":12345678901234567890123,"rate":1.50,"no":"no"}}' > dump.json
        lockc state update -i dump.json
        lockc state get -o dump.yaml >/dev/null
        cat dump.yaml
        sed -i 's/fetch/done/' dump.yaml
        lockc state update -i dump.yaml
        lockc state get -o -; echo
        lockc state get --format yaml | head -1
        lockc keepalive --ttl 45s >/dev/null
        lockc release
        lockc release || echo "again: $?"
        "#
    ));
    let expected = r#"read version=0 bytes=0
committed version=1 bytes=70
step: fetch
count: 12345678901234567890123
rate: 1.50
"no": "no"
committed version=2 bytes=69
{"step":"done","count":12345678901234567890123,"rate":1.50,"no":"no"}
step: done
again: 2
"#;
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);
    assert!(ran.stderr.contains("no leases held"), "{}", ran.stderr);
}

#[test]
fn several_keys_are_held_and_one_is_the_current_one() {
    let fixture = Fixture::new();
    let ran = fixture.sh(r"set -e
        for key in one two three; do lockc acquire --ttl 5m $key >/dev/null; done
        lockc list | cut -c-7
        lockc use one
        echo 1 | lockc state update >/dev/null
        lockc state get two
        lockc release three; lockc release one
        lockc list | cut -c-5
        LOCKC_CONTEXT=other lockc list
        lockc --context other acquire --ttl 5m apart >/dev/null
        lockc list --context other | cut -c-7
        lockc list | cut -c-5");
    assert_eq!(ran.stdout, "  one n\n  two n\n* three\n* two\n* apart\n* two\n", "{}", ran.stderr);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    for file in fixture.kept() {
        let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    assert_eq!(fixture.kept().len(), 2, "{:?}", fixture.kept());
    let shown = fixture.sh("lockc list; lockc list --output json; lockc use two --output json");
    let secret = std::fs::read_to_string(&fixture.kept()[0]).expect("readable");
    let secret = secret.split("\"lease_id\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("one");
    assert!(secret.len() > 20 && !shown.stdout.contains(secret), "no credentials: {}", shown.stdout);
}

#[test]
fn exit_codes_tell_what_to_do() {
    let fixture = Fixture::new();
    for (code, word, script) in [
        (2, "no leases held", "lockc state get; lockc keepalive"),
        (
            2,
            "name one: keys=a,b",
            "lockc acquire a; lockc acquire b; lockc acquire c; lockc release; lockc release",
        ),
        (2, "keys=a", "lockc acquire a; lockc use b"),
        (2, "context=\"../x\"", "lockc --context ../x list"),
        (10, "not granted", "lockc acquire a; lockc --context other acquire a"),
        (2, "line=2 column=1", "lockc acquire a; printf 'b: 1\\n2: c\\n' | lockc state update --format yaml"),
        (2, "invalid_json", "lockc acquire a; printf 'b: 1\\n' | lockc state update"),
        (2, "the text is empty", "lockc acquire a; lockc state update --format yaml < /dev/null"),
        (11, "version_conflict", "lockc acquire a; echo 1 | lockc state update --if-version 7"),
        (1, "path=/nonexistent/a.yaml", "lockc acquire a; lockc state update -i /nonexistent/a.yaml"),
        (13, "cannot be reached", "lockc acquire -s http://127.0.0.1:1 a"),
        (2, "at another server", "lockc acquire a; lockc acquire -s http://127.0.0.1:1 a"),
        (
            11,
            "not_held",
            "lockc acquire a; cp -r .local other; lockc release; rm -r .local; mv other .local; lockc state get -o f",
        ),
    ] {
        let ran = fixture.sh(&format!(
            "{{ {script}; }} >/dev/null; code=$?\nfor k in $(lockc list | cut -c3- | cut -d' ' -f1); do lockc release $k 2>/dev/null; done; exit $code"
        ));
        assert_eq!(ran.code, code, "{script}: {}", ran.stderr);
        assert!(ran.stderr.contains(word), "{script}: {}", ran.stderr);
    }
}

#[test]
fn an_expired_lease_is_removed_with_a_message() {
    let fixture = Fixture::new();
    let ran = fixture.sh("lockc acquire --ttl 5m other >/dev/null; lockc acquire --ttl 50ms orders >/dev/null
        lockc --context second acquire --block 10s orders >/dev/null # granted when the first lease has expired
        while ! lockc list 2>told | grep -q '^  other'; do sleep 0.1; done; cat told
        lockc state get 2>&1; echo \"get $?\"");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(
        lines[0], "lockc: a lease has expired and is removed from the context: key=orders",
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.ends_with("get 2\n"), "another is not taken for it: {}", ran.stdout);
    let at_once =
        fixture.sh("lockc acquire --ttl 50ms again >/dev/null; sleep 0.2; echo 1 | lockc state update");
    assert_eq!(at_once.code, 12, "{}", at_once.stderr);
}

/// Both processes read the file, both added their lease, and the second write lost the first's lease.
#[test]
fn many_calls_at_once_forget_nothing() {
    let fixture = Fixture::new();
    let ran = fixture.sh("for n in 1 2 3 4 5 6 7 8; do lockc acquire --ttl 5m key-$n >/dev/null & done; wait
        lockc list | wc -l
        for n in 1 2 3 4 5 6 7 8; do lockc release key-$n & done; wait; lockc list");
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("8\n", ""));
}

#[test]
fn a_get_that_fails_in_a_pipe_costs_no_document() {
    let fixture = Fixture::new();
    for broken in
        ["lockc state get other", "lockc state get --no-such-flag", "lockc --context other state get"]
    {
        for format in ["json", "yaml"] {
            let ran = fixture.sh(&format!(
                "lockc acquire orders >/dev/null; echo '{{\"precious\":1}}' | lockc state update >/dev/null
                {broken} | lockc state update --format {format}; echo \"update $?\"
                lockc state get; lockc release"
            ));
            assert_eq!(ran.stdout, "update 2\n{\"precious\":1}", "{broken}: {}", ran.stderr);
        }
    }
}

#[test]
fn a_damaged_context_is_left_as_it_is() {
    let fixture = Fixture::new();
    let ran = fixture.sh(
        "lockc acquire orders >/dev/null; echo '{' > .local/state/lockd/lockc-default.json; lockc acquire other",
    );
    assert_eq!(ran.code, 1);
    assert!(
        ran.stderr.contains("lockc-default.json") && ran.stderr.contains("move it away"),
        "{}",
        ran.stderr
    );
    assert_eq!(std::fs::read_to_string(&fixture.kept()[0]).expect("it is there"), "{\n");
    let free = fixture.sh("lockc --context second acquire other >/dev/null");
    assert_eq!(free.code, 0, "nothing was acquired that nobody knows of: {}", free.stderr);
}

#[test]
fn a_document_is_edited_and_committed() {
    let fixture = Fixture::new();
    let ran = fixture.sh(r##"lockc acquire --ttl 5m orders >/dev/null
        EDITOR='sed -i s/{}/step:\ fetch/' lockc edit
        EDITOR=false VISUAL='sed -i s/fetch/done/' lockc edit
        EDITOR=true lockc edit; echo "unchanged $?"
        EDITOR='printf "# a comment\nstep:   done\n" >' lockc edit; echo "the same $?"
        EDITOR='sed -i s/\"done\"/1.50/' lockc edit --format json
        lockc state get"##);
    let expected = "committed version=1 bytes=16\ncommitted version=2 bytes=15\nunchanged 0\nthe same 0\n\
                    committed version=3 bytes=13\n{\"step\":1.50}";
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);
    assert_eq!(
        ran.stderr,
        "lockc: no change, nothing was committed\nlockc: no change, nothing was committed\n"
    );
    assert_eq!(fixture.kept().len(), 1, "no drafts are left: {:?}", fixture.kept());
}

#[test]
fn an_edit_that_cannot_be_committed_is_kept_in_a_file_whose_path_is_printed() {
    let fixture = Fixture::new();
    for (code, word, editor) in [
        (
            11,
            "version_conflict",
            "#!/bin/sh\necho mine: 1 > \"$1\"; echo '{\"theirs\":1}' | lockc state update >/dev/null",
        ),
        (2, "line=1 column=8", "#!/bin/sh\necho 'mine: 1: 2' > \"$1\""),
        (1, "the editor failed", "#!/bin/sh\necho 'mine: 1' > \"$1\"; exit 3"),
        (
            11,
            "not_held",
            "#!/bin/sh\necho 'mine: 1' > \"$1\"; cp -r .local other; lockc release; rm -r .local; mv other .local",
        ),
    ] {
        let editor_file = fixture.home.path().join("editor");
        std::fs::write(&editor_file, editor).expect("writable");
        let ran = fixture.sh(
            "chmod +x editor; lockc acquire --ttl 5m orders >/dev/null; echo '{\"first\":1}' | lockc state update >/dev/null
            EDITOR=./editor lockc edit; code=$?; lockc release 2>/dev/null; exit $code",
        );
        assert_eq!(ran.code, code, "{editor}: {}", ran.stderr);
        assert!(ran.stderr.contains(word), "{editor}: {}", ran.stderr);
        let path = ran.stderr.split("your edit is kept in a file: path=").nth(1).expect("it is told");
        let path = path.lines().next().expect("a line");
        assert!(std::fs::read_to_string(path).expect("it is there").starts_with("mine: 1"), "{editor}");
        let mode = std::fs::metadata(path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "for nobody else's eyes");
        std::fs::remove_file(path).expect("ours");
    }
    let ran = fixture.sh("lockc acquire orders >/dev/null; EDITOR='cp /dev/null' lockc edit");
    assert_eq!((ran.code, ran.stderr.as_str()), (1, "lockc: the text is empty, nothing was committed\n"));
    assert_eq!(fixture.kept().len(), 1, "nothing is kept of nothing: {:?}", fixture.kept());
}

/// The editor was open for longer than the TTL, and the lease expired.
#[test]
fn the_lease_is_renewed_while_the_editor_is_open() {
    let fixture = Fixture::new();
    let editor = "#!/bin/sh\ncp .local/state/lockd/lockc-default.json before
        for n in $(seq 600); do cmp -s before .local/state/lockd/lockc-default.json || break; sleep 0.1; done
        cmp -s before .local/state/lockd/lockc-default.json && exit 1; echo 'late: 1' > \"$1\"";
    std::fs::write(fixture.home.path().join("editor"), editor).expect("writable");
    let ran =
        fixture.sh("chmod +x editor; lockc acquire --ttl 6s orders >/dev/null; EDITOR=./editor lockc edit");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "committed version=1 bytes=10\n"), "{}", ran.stderr);
}

#[test]
fn the_state_folder_is_where_xdg_says() {
    let fixture = Fixture::new();
    let ran = fixture.sh(
        "XDG_STATE_HOME=$HOME/state lockc acquire orders >/dev/null; stat -c %a state/lockd; ls state/lockd",
    );
    assert_eq!(ran.stdout, "700\nlockc-default.json\nlockc-default.lock\n", "{}", ran.stderr);
    let ran = fixture.sh("HOME= XDG_STATE_HOME= lockc list; unset HOME; lockc list");
    assert_eq!(ran.code, 2, "{}", ran.stderr);
}

#[test]
fn health_is_reported_by_the_exit_code() {
    let fixture = Fixture::new();
    let ran = fixture.sh(
        "lockd health; lockd health --alive; lockd health -s http://127.0.0.1:1; echo $?; lockd health --unix nowhere; echo $?",
    );
    assert_eq!(ran.stdout, "ready\nalive\n13\n13\n", "{}", ran.stderr);
}

mod pages {
    use std::path::Path;

    use crate::help_pages;

    fn program() -> &'static Path {
        Path::new(assert_cmd::cargo::cargo_bin!("lockc"))
    }

    #[test]
    fn every_command_has_help_with_an_example() {
        help_pages::every_command_has_help_with_an_example(program());
    }

    #[test]
    fn every_command_has_a_page_that_can_be_read() {
        help_pages::every_command_has_a_page_that_can_be_read(program(), "lockc");
    }

    #[test]
    fn shells_can_complete() {
        help_pages::shells_can_complete(program(), "lockc", ("ke", "keepalive"));
    }

    #[test]
    fn help_texts_are_phrases_without_rust_names() {
        help_pages::help_texts_are_phrases_without_rust_names(program());
    }
}
