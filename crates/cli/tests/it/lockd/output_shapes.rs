//! The JSON of every command, as the reference page has it: `UPDATE_GOLDEN=1 cargo test -p lockd-cli --test it output_shapes`
//! rewrites the page.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use identity::Role;
use serde_json::{Map, Value};

use crate::lockd::server::Server;
use crate::lockd::support::lockd;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/output.md");
const COMMAND: &str = "UPDATE_GOLDEN=1 cargo test -p lockd-cli --test it output_shapes";

/// A command line, and the script before it. The script of a `lockd client` command begins with a lease on `k`.
const COMMANDS: [(&str, &str); 52] = [
    ("lockd client acquire k", "lockd client release"),
    ("lockd client acquire --resource FILE:/a --resource KEY:b=CONSUMES", ""),
    ("lockd client keepalive", ""),
    ("lockd client release", ""),
    ("lockd client update -i /dev/stdin", "exec < $document"),
    ("lockd client set k n++", ""),
    ("lockd client remove", "lockd client set k n++"),
    ("lockd client describe k", "lockd client set k n++"),
    (
        "lockd client why k",
        "lockd client acquire --block 1m k & until lockd client describe k | grep waiters=1; do sleep 0.02; done",
    ),
    ("lockd client watch k --until held", ""),
    (
        "lockd client watch --prefix k --until changed",
        "(until lockd client set k n++; sleep 0.02; [ -e $end ]; do :; done) &",
    ),
    ("lockd client list", ""),
    ("lockd client keys", "lockd client set k n++"),
    ("lockd client lease ${LOCKD_CLIENT_LEASE_ID%%.*}", "lockd client release"),
    ("lockd client resource KEY:k", ""),
    ("lockd client history KEY:nothing-happened", ""),
    ("lockd client whoami", ""),
    (
        "lockd client contention",
        "lockd client acquire --block 1m k & until lockd client describe k | grep waiters=1; do sleep 0.02; done",
    ),
    ("lockd client events --timeout 10s", ""),
    ("lockd client activate", "lockd client release; eval \"$(lockd client acquire --ttl 5m --reserve k)\""),
    (
        "lockd client rebind",
        "lockd client release; eval \"$(lockd client acquire --ttl 50ms --on-expiry hold:5m k)\"; until lockd client describe k | grep state=revoking; do sleep 0.02; done",
    ),
    ("lockd client touch", ""),
    ("lockd client fence", ""),
    ("lockd client metrics", ""),
    ("lockd client revoke k", ""),
    ("lockd client revoke --holder anonymous", ""),
    ("lockd client reclaim k", "lockd client revoke k"),
    ("lockd client pause --holder bob", ""),
    ("lockd client resume --holder bob", ""),
    (
        "lockd client set-quota --namespace team --holder bob --max-leases 3 --max-total 1h --idle 1m --acquires-per-second 5",
        "",
    ),
    (
        "lockd client quotas",
        "lockd client set-quota --namespace team --holder bob --max-leases 3 --max-total 1h --idle 1m --acquires-per-second 5",
    ),
    ("lockd client namespaces", ""),
    ("lockd client delete-namespace default --yes", "lockd client release"),
    ("lockd client agents", "lockd client manifest --agent-id coder --intent MUTATES:FILE:/a --ttl 5m"),
    (
        "lockd client set-agent coder die-restart",
        "lockd client manifest --agent-id coder --intent MUTATES:FILE:/a --ttl 5m",
    ),
    ("lockd client manifest --agent-id coder --intent MUTATES:FILE:/a", ""),
    ("lockd client heartbeat", ""),
    ("lockd client release-all", ""),
    ("lockd client reconcile", ""),
    ("lockd health", ""),
    ("lockd health --alive", ""),
    ("lockc acquire c", ""),
    ("lockc keepalive", "lockc acquire --ttl 5m c"),
    ("lockc use c", "lockc acquire --ttl 5m c"),
    ("lockc list", "lockc acquire --ttl 5m c"),
    ("lockc top", "lockc acquire --ttl 5m c"),
    ("lockc release", "lockc acquire --ttl 5m c"),
    ("lockd client acquire k", ""),
    ("lockd client update --if-version 7 -i /dev/stdin", "exec < $document"),
    ("lockd client keepalive", "lockd client release; lockd client revoke k"),
    ("lockd client describe never", ""),
    ("lockd client acquire --server 127.0.0.1:1 k", ""),
];

/// The first of the commands in [`COMMANDS`] that fail.
const FIRST_FAILURE: usize = 47;

/// Commands of `lockd client` whose output is no response: a document, or a description in a format of its own.
const OTHERS: [&str; 3] = ["get", "edit", "openapi"];

const PREFACE: &str = "\
# JSON output

What `--output json` prints: one object for each command, one line for each change or event of `watch` and `events`. The
objects are promises: fields are added, and neither renamed nor removed. `--output yaml` prints the same as YAML;
`--output table` and `--output wide` print lists in columns, and anything else as one line for each value.

Below, the value of a field is the name of its type, and a list has its first entry. Fields that are not always there are
described in [the API](api.md), whose objects most of these are. `lease_id` is always a credential, `public_id` the id that
anybody may know, `holder` the identity that the server knows, and `owner` the text that the holder chose.

`get` and `edit` print a document, `openapi` the description of the API, `lockd config` its settings by name, and
`lockd store dump` [records](formats.md#reading-a-log). `lockd auth` describes identity files, and `lockd store check` has
[its own section](formats.md#reading-a-log). `jvs` puts results and failures of all its commands into
[one envelope](../guide/worktrees.md#json).
";

const FAILURES: &str = "
## Failures

Every failure has `error`, `detail` and `exit_code` ([exit codes](exit-codes.md)), and the hints of the server's refusal.
Decide by `error` or `exit_code`: the wording of `detail` may change.
";

/// A value with types in place of values, and the first entry of each list.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) => "boolean".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Array(items) => items.iter().take(1).map(shape).collect(),
        Value::Object(fields) => {
            let shapes = fields.iter().map(|(name, value)| (name.clone(), shape(value)));
            // The labels of a metric are data.
            let is_data = |name: &str| name == "labels";
            let shapes = shapes.map(|(name, value)| {
                let value = if is_data(&name) { Value::Object(Map::new()) } else { value };
                (name, value)
            });
            shapes.collect()
        }
    }
}

/// The shape of the first document that a command prints, on a server of its own.
fn shape_of(command: &str, before: &str, is_failure: bool) -> Value {
    let server = Server::start(Role::Operator);
    let dir = tempfile::tempdir().expect("a directory");
    let document = dir.path().join("document");
    std::fs::write(&document, "{}").expect("written");
    // The waiters in the background end when their server does.
    let events = if command.contains("events") { "| head -n 1" } else { "" };
    let script = format!(
        "document={} end={} XDG_STATE_HOME={}; export XDG_STATE_HOME\n\
         eval \"$(lockd client acquire --owner me --ttl 5m --metadata note k)\"\n\
         {{ :; {before}\n }} > /dev/null 2>&1\n\
         {background}{command} --output json {events}\n\
         code=$?; touch $end; exit $code",
        document.display(),
        dir.path().join("end").display(),
        dir.path().display(),
        background = if events.is_empty() {
            ""
        } else {
            "(for n in 1 2 3 4 5 6 7 8 9; do sleep 0.2; lockd client set k n++; done) > /dev/null 2>&1 &\n"
        },
    );
    let ran = server.sh(&script);
    assert_eq!(ran.code != 0, is_failure, "{command}: {}{}", ran.stdout, ran.stderr);
    let first = serde_json::Deserializer::from_str(&ran.stdout).into_iter().next();
    let value: Value = first.and_then(Result::ok).unwrap_or_else(|| panic!("{command}: {}", ran.stdout));
    shape(&value)
}

/// The shapes of all commands, each on a server of its own, a few at a time.
fn shapes() -> Vec<Value> {
    let numbered: Vec<(usize, &(&str, &str))> = COMMANDS.iter().enumerate().collect();
    let shape =
        |(at, (command, before)): &(usize, &(&str, &str))| shape_of(command, before, *at >= FIRST_FAILURE);
    std::thread::scope(|scope| {
        let parts = numbered.chunks(COMMANDS.len().div_ceil(6));
        let threads = parts.map(|part| scope.spawn(move || part.iter().map(shape).collect::<Vec<Value>>()));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("each has a shape")).collect()
    })
}

fn page() -> String {
    let mut page = format!("{PREFACE}\nThis page is generated: `{COMMAND}`.\n\n## Results\n");
    for (at, ((command, _), shape)) in COMMANDS.iter().zip(shapes()).enumerate() {
        if at == FIRST_FAILURE {
            page.push_str(FAILURES);
        }
        let shown =
            command.replace("${LOCKD_CLIENT_LEASE_ID%%.*}", "PUBLIC_ID").replace(" -i /dev/stdin", "");
        let json =
            serde_json::to_string(&shape).expect("plain data").replace("\":", "\": ").replace(",\"", ", \"");
        write!(page, "\n`{shown}`\n\n```json\n{json}\n```\n").expect("writing to a string");
    }
    page
}

#[test]
fn the_json_of_every_command_is_on_the_reference_page() {
    let page = page();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(Path::new(PAGE), &page).expect("the page is writable");
    }
    let written = std::fs::read_to_string(PAGE).unwrap_or_default();
    let differs = written.lines().zip(page.lines()).find(|(written, found)| written != found);
    assert!(written == page, "{differs:?}; a change of a public format; if it is meant, run {COMMAND}");
}

#[test]
fn every_client_command_has_a_shape() {
    let help = lockd(&["client", "--help"]).stdout;
    let list = help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("commands");
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: BTreeSet<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    let shown = COMMANDS.iter().filter_map(|(command, _)| command.strip_prefix("lockd client "));
    let mut shown: BTreeSet<&str> = shown.filter_map(|rest| rest.split(' ').next()).collect();
    shown.extend(OTHERS);
    shown.insert("help");
    assert_eq!(names, shown);
}
