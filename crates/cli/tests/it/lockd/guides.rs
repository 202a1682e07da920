//! The commands of the guides, run as they are printed, in one shell, against a real server over mTLS.
//!
//! Each `sh` block of a page must end with status 0, and print what the `text` or `json` block after it shows, if there is
//! one. In an output, `…` stands for any text within a line, and a line `…` for any number of lines. The comment
//! `<!-- not run: reason -->` above a block excludes it, and `<!-- run: command -->` adds a command that readers do not need.
//!
//! Only the port differs from a reader's: it is in `LOCKD_CLIENT_SERVER`, and curl's in `.curlrc`.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use crate::lockd::bucket_copy::{environment, object_server};
use crate::lockd::curl::{configure_curl, require_curl};
use crate::lockd::serve::Running;
use crate::lockd::server::program;

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
const NOT_RUN: &str = "<!-- not run: ";
const RUN: &str = "<!-- run: ";
/// Precedes the number and the exit status of a block in the output.
const MARK: char = '\u{1}';
/// Ends a script that hangs.
const LIMIT_SECONDS: &str = "300";

#[derive(Debug, PartialEq)]
pub(crate) struct Block {
    shell: String,
    /// The output that the page shows.
    output: Option<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut excluded, mut previous_ran) = (Vec::<Block>::new(), false, false);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.starts_with(NOT_RUN) {
            excluded = true;
        }
        if let Some(command) = line.strip_prefix(RUN).and_then(|rest| rest.strip_suffix(" -->")) {
            blocks.push(Block { shell: command.to_string(), output: None });
            previous_ran = false;
        }
        let Some(language) = line.strip_prefix("```") else { continue };
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let text = text.join("\n");
        match language {
            "sh" => {
                previous_ran = !excluded;
                if previous_ran {
                    blocks.push(Block { shell: text, output: None });
                }
                excluded = false;
            }
            "text" | "json" if previous_ran => {
                let block = blocks.last_mut().expect("a block has run");
                assert_eq!(block.output, None, "two outputs of one block:\n{}", block.shell);
                block.output = Some(text);
            }
            _ => {}
        }
    }
    blocks
}

pub(crate) fn script(blocks: &[Block]) -> String {
    let mut script = "exec 2>&1\n".to_string();
    for Block { shell, .. } in blocks {
        write!(script, "printf '{MARK}'\n{shell}\nprintf '{MARK}%s{MARK}' $?\n")
            .expect("writing to a string");
    }
    script
}

/// Whether the line has the parts of the pattern, which `…` separates, in order.
fn line_matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// The line with single spaces: the width of columns depends on the values.
fn folded(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn lines_match(pattern: &[&str], lines: &[&str]) -> bool {
    match pattern.split_first() {
        None => lines.is_empty(),
        Some((&"…", rest)) => (0..=lines.len()).any(|skipped| lines_match(rest, &lines[skipped..])),
        Some((first, rest)) => lines.split_first().is_some_and(|(line, after)| {
            line_matches(&folded(first), &folded(line)) && lines_match(rest, after)
        }),
    }
}

fn matches(pattern: &str, output: &str) -> bool {
    lines_match(&pattern.lines().collect::<Vec<_>>(), &output.lines().collect::<Vec<_>>())
}

/// What is wrong with the output of a block, if anything is.
fn failure(block: &Block, output: &str, status: &str) -> Option<String> {
    let shown = block.output.as_ref().is_none_or(|expected| matches(expected, output));
    let expected = block.output.as_deref().unwrap_or("anything");
    (status != "0" || !shown).then(|| {
        format!(
            "{}\n--- the page shows\n{expected}\n--- printed, with status {status}\n{output}",
            block.shell
        )
    })
}

/// Runs the page in an empty directory, as a user whose server was started with nothing configured.
fn run(page: &str, at_least: usize) {
    run_with(page, at_least, &[]);
}

/// The same, with these variables.
fn run_with(page: &str, at_least: usize, variables: &[(&str, String)]) {
    let blocks = page_blocks(page);
    assert!(blocks.len() >= at_least, "{page}: only {} blocks were found", blocks.len());
    let home = tempfile::tempdir().expect("a directory");
    let data = home.path().join(".local/share/lockd");
    std::fs::create_dir_all(&data).expect("an empty home directory");
    let server = Running::start(&data, &[]);
    configure_curl(&server, home.path(), "");
    let work = home.path().join("work");
    std::fs::create_dir(&work).expect("an empty home directory");
    let mut shell = program(&server.address, "timeout");
    shell.args([LIMIT_SECONDS, "sh", "-uc", &script(&blocks)]).current_dir(&work).stdin(Stdio::null());
    as_reader(&mut shell, home.path());
    shell.envs(variables.iter().map(|(name, value)| (name, value)));
    check_blocks(page, &blocks, &mut shell);
}

/// The blocks of a page below `docs`.
pub(crate) fn page_blocks(page: &str) -> Vec<Block> {
    blocks(&std::fs::read_to_string(format!("{GUIDE}/{page}")).expect("the page"))
}

/// Runs a shell that was given the script of these blocks, and compares what it prints with the page.
pub(crate) fn check_blocks(page: &str, blocks: &[Block], shell: &mut Command) {
    let output = shell.output().expect("a shell");
    let output = String::from_utf8_lossy(&output.stdout);
    let parts: Vec<&str> = output.split(MARK).collect();
    assert_eq!(parts.len(), 1 + 3 * blocks.len(), "{page}: ended early:\n{output}");
    let runs = parts[1..].chunks(3);
    let failures: Vec<String> =
        blocks.iter().zip(runs).filter_map(|(block, run)| failure(block, run[0], run[1])).collect();
    assert!(failures.is_empty(), "{page}:\n{}", failures.join("\n=====\n"));
}

/// The environment of a user who has configured nothing.
pub(crate) fn as_reader(shell: &mut Command, home: &std::path::Path) {
    shell.env("HOME", home).env("CURL_HOME", home).env_remove("LOCKD_CLIENT_MTLS");
    for variable in ["XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
        shell.env_remove(variable);
    }
}

#[test]
fn the_commands_of_the_readme_succeed() {
    require_curl();
    run("../README.md", 4);
}

#[test]
fn the_first_ten_minutes_go_as_the_page_shows() {
    run("guide/start.md", 6);
}

#[test]
fn the_cycle_with_curl_goes_as_the_page_shows() {
    require_curl();
    run("guide/curl.md", 10);
}

#[test]
fn the_commands_for_users_of_other_locks_go_as_the_page_shows() {
    run("guide/migrating.md", 2);
}

#[test]
fn the_operators_tasks_go_as_the_page_shows() {
    run("operating/operators.md", 12);
}

#[test]
fn backup_drill_and_restore_go_as_the_page_shows() {
    let objects = object_server();
    run_with("operating/backup.md", 9, &environment(&objects));
}

#[test]
fn a_page_is_parsed_into_commands_and_their_output() {
    let page = "```sh\na\nb\n```\ntext\n```text\nout\n```\n<!-- not run: no -->\n```sh\nc\n```\n```text\nd\n```\n<!-- run: f -->\n```text\ng\n```\n```sh\ne\n```\n";
    let block = |shell: &str, output: Option<&str>| Block {
        shell: shell.to_string(),
        output: output.map(str::to_string),
    };
    assert_eq!(blocks(page), [block("a\nb", Some("out")), block("f", None), block("e", None)]);
}

#[test]
fn an_ellipsis_matches_within_a_line_and_between_lines() {
    assert!(matches("a=… b=…\nend", "a=1 b=2\nend"));
    assert!(matches("…\nend", "x\ny\nend") && matches("…\nend", "end") && matches("", ""));
    for (pattern, output) in [("a=… b=2", "a=1 b=3"), ("a", "a\nb"), ("a\n…\nb", "a\nc"), ("ab…ba", "aba")]
    {
        assert!(!matches(pattern, output), "{pattern} {output}");
    }
}
