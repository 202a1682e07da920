//! Tests of the help, shell completions and man pages of a program.

use std::path::Path;
use std::process::{Command, Output};

/// The program's output; it must succeed.
fn printed(program: &Path, words: &[&str]) -> String {
    let Output { status, stdout, stderr } = Command::new(program).args(words).output().expect("it runs");
    assert!(status.success(), "{words:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("text")
}

/// The subcommands of a command, as `--help` lists them.
fn subcommands(program: &Path, words: &[String]) -> Vec<Vec<String>> {
    let mut command: Vec<&str> = words.iter().map(String::as_str).collect();
    command.push("--help");
    let help = printed(program, &command);
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(|name| [words, &[name.to_owned()]].concat()).collect()
}

/// Every command, also if it only has subcommands.
fn commands(program: &Path) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let mut at = 0;
    while at < all.len() {
        let next = subcommands(program, &all[at]);
        all.extend(next);
        at += 1;
    }
    all
}

pub(crate) fn every_command_has_help_with_an_example(program: &Path) {
    let all = commands(program);
    assert!(all.len() > 10, "{all:?}");
    for words in all.iter().filter(|words| subcommands(program, words).is_empty()) {
        let command: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let help = printed(program, &command);
        assert!(help.contains("Example:") || help.contains("Examples:"), "{words:?} has no example");
        assert!(!help.contains('\u{1b}'), "{words:?}: no colours outside a terminal");
    }
    let top = printed(program, &["--help"]);
    assert!(top.contains("Exit codes: 0 done; 1 failed; 2 wrong usage"), "{top}");
    let refused = Command::new(program).arg("--no-such-flag").output().expect("it runs");
    assert!(
        refused.status.code() == Some(2) && !refused.stderr.contains(&0x1b),
        "no colours outside a terminal"
    );
}

pub(crate) fn every_command_has_a_page_that_can_be_read(program: &Path, name: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("share/man/man1");
    let out_text = out.to_str().expect("a plain path");
    assert_eq!(printed(program, &["man", "--out", out_text]), "");
    let all = commands(program);
    for words in &all {
        let page = [&[name.to_owned()], words.as_slice()].concat().join("-") + ".1";
        let text = std::fs::read_to_string(out.join(&page)).expect(&page);
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{page}");
    }
    assert_eq!(std::fs::read_dir(&out).expect("it was created").count(), all.len(), "one page per command");
    for page in std::fs::read_dir(&out).expect("it was created") {
        let page = page.expect("readable").path();
        // groff is optional.
        let Ok(read) = Command::new("groff").args(["-k", "-man", "-Tutf8", "-ww", "-z"]).arg(&page).output()
        else {
            return;
        };
        assert!(read.status.success() && read.stderr.is_empty(), "{}", String::from_utf8_lossy(&read.stderr));
    }
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("writable");
    let refused = Command::new(program).args(["man", "--out"]).arg(&file).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8(refused.stderr).expect("text");
    assert!(message.contains(file.to_str().expect("a plain path")), "{message}");
}

/// Rejects help texts that say nothing ("The key."), and Rust names that leaked into them.
pub(crate) fn help_texts_are_phrases_without_rust_names(program: &Path) {
    let texts = help_texts(program);
    assert!(texts.len() > 50, "{texts:?}");
    let is_bad =
        |(_, text): &&(String, String)| text.split_whitespace().count() < 3 || rust_name(text).is_some();
    let bad: Vec<&(String, String)> = texts.iter().filter(is_bad).collect();
    assert!(bad.is_empty(), "too short, or with a Rust name: {bad:#?}");
}

/// Every help text of the program with the command or argument that it describes, read from the man pages: these are
/// generated from the clap command tree.
fn help_texts(program: &Path) -> Vec<(String, String)> {
    let dir = tempfile::tempdir().expect("a directory");
    printed(program, &["man", "--out", dir.path().to_str().expect("a plain path")]);
    let mut texts = Vec::new();
    for page in std::fs::read_dir(dir.path()).expect("it was created") {
        let page = page.expect("readable");
        let name = page.file_name().to_string_lossy().into_owned();
        let mut roff = std::fs::read_to_string(page.path()).expect("readable");
        for (escape, plain) in [("\\-", "-"), ("\\*(Aq", "'"), ("\\fB", ""), ("\\fI", ""), ("\\fR", "")] {
            roff = roff.replace(escape, plain);
        }
        texts.extend(texts_of_page(&roff).map(|(item, text)| (format!("{name}: {item}"), text)));
    }
    texts
}

/// The command's own text, and those of its subcommands, arguments and possible values. clap's `--help` and `--version` are
/// left out; a missing text is empty.
fn texts_of_page(roff: &str) -> impl Iterator<Item = (String, String)> {
    let lines: Vec<&str> = roff.lines().collect();
    let texts = lines.windows(3).filter_map(|lines| match lines {
        [".SH NAME", line, _] => Some(line.split_once(" - ").unwrap_or((line, ""))),
        [".TP", item, text] => Some((*item, if text.starts_with('.') { "" } else { text })),
        [".IP \\(bu 2", line, _] => line.split_once(": "),
        _ => None,
    });
    let texts =
        texts.filter(|(_, text)| !text.starts_with("Print help") && !text.starts_with("Print version"));
    texts.map(|(item, text)| (item.to_owned(), text.to_owned())).collect::<Vec<_>>().into_iter()
}

/// A word such as `PublicRead`: what `{:?}` prints for an enum.
fn rust_name(text: &str) -> Option<&str> {
    let is_rust_name = |word: &&str| {
        let letters: Vec<char> = word.chars().collect();
        let is_hump = |at: &[char]| at[0].is_lowercase() && at[1].is_uppercase() && at[2].is_lowercase();
        word.starts_with(char::is_uppercase) && letters.windows(3).any(is_hump)
    };
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| *word != "OpenTelemetry");
    words.filter(|word| !word.is_empty()).find(is_rust_name)
}

pub(crate) fn shells_can_complete(program: &Path, name: &str, (typed, completed): (&str, &str)) {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(program, &["completions", shell]);
        assert!(script.contains(completed), "{shell}");
    }
    let script = printed(program, &["completions", "bash"]);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("completions.bash");
    std::fs::write(&file, script).expect("writable");
    let check = Command::new("bash").arg("-n").arg(&file).output().expect("bash");
    assert!(check.status.success() && check.stderr.is_empty(), "{}", String::from_utf8_lossy(&check.stderr));
    let typing = format!(
        "source '{}' && COMP_WORDS=({name} {typed}) && COMP_CWORD=1 && _{name} {name} {typed} {name} && echo ${{COMPREPLY[*]}}",
        file.display()
    );
    let typing = Command::new("bash").args(["-c", &typing]).output().expect("bash");
    assert_eq!(String::from_utf8(typing.stdout).expect("text").trim(), completed);
    let unknown = Command::new(program).args(["completions", "dos"]).output().expect("it runs");
    assert_eq!(unknown.status.code(), Some(2));
}
