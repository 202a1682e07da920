//! Help, completions and manual pages.

use std::path::Path;

use crate::help_pages;

fn program() -> &'static Path {
    Path::new(assert_cmd::cargo::cargo_bin!("jvs"))
}

#[test]
fn every_command_has_help_with_an_example() {
    help_pages::every_command_has_help_with_an_example(program());
}

#[test]
fn every_command_has_a_page_that_can_be_read() {
    help_pages::every_command_has_a_page_that_can_be_read(program(), "jvs");
}

/// The script was followed by an object without it.
#[test]
fn completions_as_json_are_one_object() {
    let mut command = std::process::Command::new(program());
    let output = command.args(["completions", "bash", "--json"]).output().expect("it starts");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    let script = answer["data"]["script"].as_str().expect("a text");
    assert!(script.contains("complete -F _jvs"), "{script}");
}

#[test]
fn shells_can_complete() {
    help_pages::shells_can_complete(program(), "jvs", ("snap", "snapshot"));
}

#[test]
fn help_texts_are_phrases_without_rust_names() {
    help_pages::help_texts_are_phrases_without_rust_names(program());
}
