//! Help, completions and manual pages of a program, which must be whole and true.

use std::path::Path;
use std::process::{Command, Output};

/// What the program prints; it must succeed.
fn printed(program: &Path, words: &[&str]) -> String {
    let Output { status, stdout, stderr } = Command::new(program).args(words).output().expect("it runs");
    assert!(status.success(), "{words:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("text")
}

/// The commands below these words, as `--help` lists them.
fn below(program: &Path, words: &[String]) -> Vec<Vec<String>> {
    let mut asked: Vec<&str> = words.iter().map(String::as_str).collect();
    asked.push("--help");
    let help = printed(program, &asked);
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(|name| [words, &[name.to_owned()]].concat()).collect()
}

/// Every command, those that only lead to others included.
fn commands(program: &Path) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let mut at = 0;
    while at < all.len() {
        let next = below(program, &all[at]);
        all.extend(next);
        at += 1;
    }
    all
}

pub(crate) fn every_command_has_help_with_an_example(program: &Path) {
    let all = commands(program);
    assert!(all.len() > 10, "{all:?}");
    for words in all.iter().filter(|words| below(program, words).is_empty()) {
        let asked: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let help = printed(program, &asked);
        assert!(help.contains("Example:") || help.contains("Examples:"), "{words:?} has no example");
        assert!(!help.contains('\u{1b}'), "{words:?}: colours are for terminals");
    }
    let top = printed(program, &["--help"]);
    assert!(top.contains("Exit codes: 0 done; 1 failed; 2 wrong usage"), "{top}");
    let refused = Command::new(program).arg("--no-such-flag").output().expect("it runs");
    assert!(refused.status.code() == Some(2) && !refused.stderr.contains(&0x1b), "colours are for terminals");
}

pub(crate) fn every_command_has_a_page_that_can_be_read(program: &Path, name: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("share/man/man1");
    let out_text = out.to_str().expect("a plain path");
    assert_eq!(printed(program, &["man", "--out", out_text]), "");
    let all = commands(program);
    for words in &all {
        let page = [&[name.to_owned()], words.as_slice()].concat().join("-") + ".1";
        let text = std::fs::read_to_string(out.join(&page)).expect(&page);
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{page}");
    }
    assert_eq!(
        std::fs::read_dir(&out).expect("it was made").count(),
        all.len(),
        "and none for anything else"
    );
    for page in std::fs::read_dir(&out).expect("it was made") {
        let page = page.expect("readable").path();
        // Not every machine has it.
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
    let said = String::from_utf8(refused.stderr).expect("text");
    assert!(said.contains(file.to_str().expect("a plain path")), "{said}");
}

pub(crate) fn shells_can_complete(program: &Path, name: &str, (typed, completed): (&str, &str)) {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(program, &["completions", shell]);
        assert!(script.contains(completed), "{shell}");
    }
    let script = printed(program, &["completions", "bash"]);
    let dir = tempfile::tempdir().expect("a folder");
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
