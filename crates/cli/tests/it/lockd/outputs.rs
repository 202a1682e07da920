//! `--output json|yaml|table|wide`, for results and for failures.

use identity::Role;
use serde_json::{Value, json};

use crate::lockd::server::{Server, sh};

/// Failures were text on standard error, whatever `--output` said.
#[test]
fn failures_are_printed_in_the_format_of_the_output() {
    let server = Server::start(Role::Operator);
    server.sh("lockd client acquire --owner me --ttl 5m taken >/dev/null");
    let failure = |script: &str| {
        let ran = server.sh(script);
        assert_eq!(ran.stderr, "", "{script}");
        let value: Value =
            serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stdout));
        assert_eq!(value["exit_code"], ran.code, "{script}");
        value
    };
    let held = failure("lockd client acquire taken --output json");
    assert_eq!((&held["error"], &held["exit_code"]), (&json!("waiting"), &json!(10)));
    assert_eq!((&held["holder"], &held["owner"]), (&json!("anonymous"), &json!("me")));
    assert_eq!(failure("lockd client describe never --output json")["error"], "not_found");
    assert_eq!(failure("lockd client release other --output json")["error"], "usage");
    assert_eq!(failure("lockd client list --output json --no-such-flag")["error"], "usage");
    assert_eq!(failure("LOCKD_CLIENT_OUTPUT=json lockd client lease L-0")["exit_code"], 2);
    assert_eq!(failure("lockd health --output json --server 127.0.0.1:1")["error"], "unavailable");
    assert_eq!(failure("lockd auth inspect client --in /nowhere --output json")["error"], "failed");
    let state = tempfile::tempdir().expect("a directory");
    let lockc = format!("XDG_STATE_HOME={} lockc release --output json", state.path().display());
    assert_eq!(failure(&lockc)["error"], "usage");
    let yaml = server.sh("lockd client acquire taken --output yaml");
    assert!(
        yaml.stdout.starts_with("error: waiting\n") && yaml.stdout.ends_with("exit_code: 10\n"),
        "{}",
        yaml.stdout
    );
}

/// Commands without `--output`: their standard output is a script, a page, a protocol, a log or an archive.
const WITHOUT_OUTPUT: [&str; 5] =
    ["lockd completions", "lockd man", "lockd mcp", "lockd serve", "lockd store export"];

/// Some commands had `--json`, some `--output`, and some neither.
#[test]
fn every_command_has_the_formats() {
    let mut without = Vec::new();
    for program in ["jvs", "lockc", "lockd"] {
        let mut pending = vec![vec![program.to_string()]];
        while let Some(words) = pending.pop() {
            let help = sh("127.0.0.1:1", &format!("{} --help", words.join(" "))).stdout;
            let commands = help.split("\nCommands:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
            let names = commands.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("  "));
            let names = names.filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty());
            let names: Vec<&str> = names.filter(|name| *name != "help").collect();
            pending.extend(names.iter().map(|name| [words.as_slice(), &[(*name).to_string()]].concat()));
            let has_formats = help.contains("--output <OUTPUT>")
                && ["json", "yaml", "table", "wide"].iter().all(|format| help.contains(format));
            if names.is_empty() && !has_formats {
                without.push(words.join(" "));
            }
        }
    }
    without.sort();
    assert_eq!(without, WITHOUT_OUTPUT);
}

#[test]
fn the_commands_of_worktrees_and_the_dump_have_the_same_data_in_each_format() {
    let dir = tempfile::tempdir().expect("a directory");
    let script =
        format!("cd '{}' && jvs init >/dev/null && jvs lock acquire >/dev/null", dir.path().display());
    assert_eq!(sh("127.0.0.1:1", &script).code, 0);
    let jvs = |words: &str| sh("127.0.0.1:1", &format!("cd '{}'; jvs {words}", dir.path().display()));
    let json: Value = serde_json::from_str(&jvs("lock status --output json").stdout).expect("JSON");
    let by_flag: Value = serde_json::from_str(&jvs("lock status --json").stdout).expect("JSON");
    assert_eq!((&json["ok"], &json["data"]["state"]), (&json!(true), &by_flag["data"]["state"]));
    let yaml = yamljson::to_json(jvs("lock status --output yaml").stdout.as_bytes()).expect("YAML");
    let yaml: Value = serde_json::from_str(&yaml).expect("JSON");
    assert_eq!(yaml["data"]["state"], json["data"]["state"]);
    let table = jvs("lock status --output table");
    let state = json["data"]["state"].as_str().expect("a word");
    assert!(
        table.stdout.lines().any(|line| line.split_whitespace().eq(["state", state])),
        "{}",
        table.stdout
    );
    for (words, start) in
        [("--output yaml", "ok: false\n"), ("--output json", "{\"ok\":false,"), ("--json", "{\"ok\":false,")]
    {
        for failing in ["lock acquire", "lock acquire --no-such-flag"] {
            let refused = jvs(&format!("{failing} {words}"));
            let sorted = refused.stdout.starts_with("error:") || refused.stdout.starts_with("{\"error\"");
            assert!(refused.code != 0 && (sorted || refused.stdout.starts_with(start)), "{}", refused.stdout);
            assert_eq!(refused.stderr, "", "{failing} {words}");
        }
    }
    assert_eq!(jvs("lock status --json --output yaml").code, 2);
}

/// The standard output of these is a document, or another command's.
#[test]
fn failures_of_get_edit_and_run_go_to_standard_error() {
    let server = Server::start(Role::Operator);
    server.sh("lockd client acquire --ttl 5m taken >/dev/null");
    for (script, code) in [
        ("lockd client get other --output json", 2),
        ("echo x | lockd client edit a=1 --output json", 2),
        ("lockd run --key taken --output json -- true", 10),
    ] {
        let ran = server.sh(script);
        assert_eq!(ran.code, code, "{script}");
        let value: Value =
            serde_json::from_str(&ran.stderr).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr));
        assert_eq!(value["exit_code"], code, "{script}");
        assert!(serde_json::from_str::<Value>(&ran.stdout).is_err(), "no document: {}", ran.stdout);
    }
}

#[test]
fn each_format_has_the_same_data() {
    let server = Server::start(Role::Operator);
    server.sh("lockd client acquire --owner me --ttl 5m orders >/dev/null");
    for command in
        ["list", "keys", "describe orders", "why orders", "contention", "quotas", "namespaces", "agents"]
    {
        let json = server.sh(&format!("lockd client {command} --output json"));
        let value: Value = serde_json::from_str(&json.stdout).expect("JSON");
        assert!(value.is_object(), "{command}: {value}");
        let yaml = server.sh(&format!("lockd client {command} --output yaml"));
        let back = yamljson::to_json(yaml.stdout.as_bytes()).expect("YAML");
        let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        let back: Value = serde_json::from_str(&back).expect("JSON");
        assert_eq!(keys(&back), keys(&value), "{command}");
        for format in ["table", "wide"] {
            let table = server.sh(&format!("lockd client {command} --output {format}"));
            assert_eq!((table.code, table.stdout.is_empty()), (0, false), "{command}: {}", table.stderr);
        }
    }
    let ready = server.sh("lockd health --output json; lockd health --alive --output yaml");
    assert_eq!(ready.stdout, "{\"ready\":true}\nalive: true\n");
}

#[test]
fn describe_and_watch_name_the_holder_and_the_public_id() {
    let server = Server::start(Role::Operator);
    server.sh("lockd client acquire --owner 'me, too' --ttl 5m orders >/dev/null");
    let text = server.sh("lockd client describe orders").stdout;
    assert!(text.contains("\nholder=anonymous\nowner=\"me, too\"\nsince=20"), "{text}");
    assert!(text.contains(" (in 4m "), "{text}");
    let described: Value =
        serde_json::from_str(&server.sh("lockd client describe orders --output json").stdout).expect("JSON");
    assert!(
        described["lease"]["public_id"].is_string() && !described.to_string().contains("lease_id"),
        "{described}"
    );
    let watched = server.sh("lockd client watch orders --until held").stdout;
    assert!(watched.contains("held key=orders holder=anonymous owner=\"me, too\" public_id=L-"), "{watched}");
}

#[test]
fn a_word_that_is_a_format_is_no_file_by_accident() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!(
        "cd '{}'; lockd client get k -o yaml; echo $?; lockc state get -o json; echo $?; ls",
        dir.path().display()
    );
    let ran = sh("127.0.0.1:1", &script);
    let lines: Vec<&str> = ran.stdout.lines().filter(|line| !line.starts_with("lockd: ")).collect();
    assert_eq!(lines, ["2", "2"], "no file was made: {}", ran.stderr);
    assert!(ran.stderr.contains("--output yaml for the format, or -o ./yaml for the file"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--output json for the format, or -o ./json for the file"), "{}", ran.stderr);
}
