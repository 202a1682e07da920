//! The reference page lists every exit code.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{ExitCode, JVS, LOCKD};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/exit-codes.md");
const COMMAND: &str = concat!("UPDATE_DOCS=1 cargo test -p ", env!("CARGO_PKG_NAME"), " --lib exit_codes");

const PREFACE: &str = "\
# Exit codes

A script decides by the exit code; the message on standard error is for people. Codes are stable: codes are added, and
not changed.
";

const RUN: &str = "
`lockd run` and `jvs run` exit with the code of their command:

| code | meaning |
|---|---|
| the command's | the command ended, and the lease or lock was held until then |
| 128 + n | signal n killed the command |
| 126 | the command could not be executed |
| 127 | the command was not found |
| 12 | `lockd run`: the lease was lost, and the command was killed |
| 14 | `lockd run`: the same, because the servers refuse the identity: its certificate is revoked or has expired |
| 21, 22, 24, 1 | `jvs run`: the lock was lost, and the command was killed |

`lockd health` exits with 13 if the server cannot grant leases. `lockd client watch --until` exits with 1 if the condition
was not met before `--timeout`. `lockd store check` exits with 0 if the store is sound, 1 if it found damage and 2 if
it could not inspect the store.
";

const FAILURES: &str = "
With `--output json` or `--output yaml` a failure is one document on standard output, instead of the line on standard
error: the server's refusal as in [the API](api.md) (`error`, `detail` and its hints), with `exit_code`. A failure that is
not the server's has the same shape; its `error` is `failed`, `usage`, `held`, `fenced`, `expired`, `unavailable`, `denied`
or `indeterminate`. The standard output of `lockd client get`, `lockd client edit` and `lockc state get` is a document, and
that of `lockd run` is its command's: their failures go to standard error.

```sh
lockd client acquire orders --output json
# {\"error\":\"waiting\",\"detail\":\"blocked by conflicting leases or earlier waiters\",\"retry_after_seconds\":1,
#  \"holder\":\"ada\",\"owner\":\"nightly\",\"remaining_ms\":58483,\"position\":0,\"attempt_id\":\"A-\u{2026}\",
#  \"leases\":[\"L-\u{2026}\"],\"exit_code\":10}
```
";

const DOCTOR: &str = "
`jvs doctor` exits with 0 if the repository is healthy, 1 if it found a problem and 2 if it could not check.
";

fn page() -> String {
    let mut page = format!("{PREFACE}\nThis page is generated: `{COMMAND}`.\n");
    page.push_str("\n## lockd and lockc\n\n| code | name | meaning | what to do |\n|---|---|---|---|\n");
    for ExitCode { code, name, meaning, remedy } in &LOCKD {
        writeln!(page, "| {code} | {name} | {meaning} | {remedy} |").expect("writing to a string");
    }
    page.push_str(FAILURES);
    page.push_str("\n## jvs\n\nWith `--json` the class is also in the field `class` of the error.\n\n");
    page.push_str("| code | class | meaning | what to do |\n|---|---|---|---|\n");
    page.push_str("| 0 | | the command succeeded | go on |\n");
    let mut classes: Vec<_> = JVS.iter().collect();
    classes.sort_by_key(|(class, ..)| class.exit_code());
    for (class, meaning, remedy) in classes {
        let (code, name) = (class.exit_code(), class.name());
        writeln!(page, "| {code} | `{name}` | {meaning} | {remedy} |").expect("writing to a string");
    }
    page + DOCTOR + "\n## Commands under a lease or lock\n" + RUN
}

#[test]
fn the_reference_page_lists_every_exit_code() {
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &page).expect("the page is writable");
    }
    let written = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(written == page, "docs/reference/exit-codes.md is stale: run {COMMAND}");
}

#[test]
fn each_class_of_jvs_is_listed_once() {
    let mut codes: BTreeMap<u8, usize> = BTreeMap::new();
    for (class, ..) in &JVS {
        *codes.entry(class.exit_code()).or_default() += 1;
    }
    let expected = [(1, 3), (2, 1), (20, 1), (21, 1), (22, 1), (23, 1), (24, 1), (25, 1), (26, 1)];
    assert_eq!(codes, BTreeMap::from(expected));
}
