//! The curl commands of the HTTP API reference, run as they are printed, in one shell, against a real server over mTLS.
//!
//! Only curl's own configuration differs from a reader's: `.curlrc` connects `localhost:9341` to the port of this server,
//! and prints each status to standard error. The commands that the page reserves for operators are run a second time with
//! the identity of a worker, which must be refused.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::lockd::serve::Running;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/api.md");
/// Precedes each block of commands on the page.
const EXPECTED: &str = "Example, status ";
/// Marks a call that the page reserves for operators.
const OPERATORS: &str = "May be called by identities with the role `operator`.";

/// A block of commands, and the status of its last response. The responses before it have the status 200.
#[derive(Clone)]
struct Example {
    heading: String,
    for_operators: bool,
    status: String,
    shell: String,
}

fn examples(page: &str) -> Vec<Example> {
    let (mut examples, mut heading, mut status, mut for_operators) = (Vec::new(), "", None, false);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.starts_with('#') {
            (heading, for_operators) = (line, false);
        } else if line == OPERATORS {
            for_operators = true;
        } else if let Some(text) = line.strip_prefix(EXPECTED) {
            status = Some(text.trim_end_matches(':').to_string());
        } else if line == "```sh" {
            let status = status.take().unwrap_or_else(|| panic!("commands without a status: {heading}"));
            let shell: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let (heading, shell) = (heading.to_string(), shell.join("\n"));
            examples.push(Example { heading, for_operators, status, shell });
        }
    }
    examples
}

/// The operators' examples with a worker's identity file.
fn as_worker(examples: &[Example]) -> Vec<Example> {
    let forbidden = |example: &Example| Example {
        heading: format!("{} as a worker", example.heading),
        status: "403".to_string(),
        shell: example.shell.replace("client.pem", "worker.pem"),
        ..example.clone()
    };
    examples.iter().filter(|example| example.for_operators).map(forbidden).collect()
}

fn issue_worker(data: &Path) {
    let mut auth = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    auth.args([
        "auth",
        "new",
        "client",
        "--server-in",
        "server.pem",
        "--out",
        "worker.pem",
        "--cn",
        "worker-3",
    ]);
    let output = auth.current_dir(data).output().expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Prints each status to standard error.
const STATUS: &str = "write-out = \"%{stderr}\\nstatus=%{http_code}\\n\"\n";

/// Writes a `.curlrc` that connects the port of the documentation to the server.
pub(crate) fn configure_curl(server: &Running, directory: &Path, more: &str) {
    let port = server.address.rsplit(':').next().expect("an address with a port");
    let config = format!(
        "connect-to = \"localhost:9341:127.0.0.1:{port}\"\nmax-time = 60\nsilent\nshow-error\n{more}"
    );
    std::fs::write(directory.join(".curlrc"), config).expect("the directory is writable");
}

/// The examples as one script. A line on standard error marks the start of each.
fn script(examples: &[Example]) -> String {
    let mut script = String::new();
    for (index, example) in examples.iter().enumerate() {
        let shell = &example.shell;
        write!(script, "echo example={index} >&2\n{shell}\necho\n").expect("writing to a string");
    }
    script
}

pub(crate) fn require_curl() {
    let version = Command::new("curl").arg("--version").output();
    assert!(
        version.is_ok_and(|output| output.status.success()),
        "this test runs the curl commands of the documentation: install curl (apt-get install curl)"
    );
}

#[test]
fn every_curl_command_of_the_api_reference_returns_the_status_that_the_page_states() {
    require_curl();
    let page = PathBuf::from(PAGE);
    let page = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let mut examples = examples(&page);
    assert!(examples.len() > 35, "only {} examples were found", examples.len());
    let forbidden = as_worker(&examples);
    assert!(forbidden.len() >= 7, "only {} calls for operators were found", forbidden.len());
    examples.extend(forbidden);
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let server = Running::start(&data, &[]);
    issue_worker(&data);
    configure_curl(&server, &data, STATUS);
    let mut shell = Command::new("sh");
    shell.args(["-uc", &script(&examples)]).current_dir(&data).env("CURL_HOME", &data).env("HOME", &data);
    let Output { status, stdout, stderr } = shell.output().expect("a shell");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "the script ended early:\n{stderr}\n{stdout}");
    let runs: Vec<&str> = stderr.split("example=").skip(1).collect();
    assert_eq!(runs.len(), examples.len(), "{stderr}");
    let mut failures = Vec::new();
    for (example, run) in examples.iter().zip(runs) {
        let statuses: Vec<&str> = run.lines().filter_map(|line| line.strip_prefix("status=")).collect();
        let curls = example.shell.matches("curl ").count();
        let mut expected = vec!["200"; curls - 1];
        expected.push(&example.status);
        if statuses != expected {
            failures.push(format!("{}: {statuses:?}, not {expected:?}\n{}", example.heading, example.shell));
        }
    }
    assert!(failures.is_empty(), "{}\n{stderr}\n{stdout}", failures.join("\n"));
}
