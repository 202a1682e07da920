//! `--help` names the exit codes of the table.

use std::path::Path;
use std::process::Command;

use cli::exit_codes::{ExitCode, JVS, LOCKD};

fn help(program: impl AsRef<Path>) -> String {
    let output = Command::new(program.as_ref()).arg("--help").output().expect("the program runs");
    String::from_utf8(output.stdout).expect("text").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn help_lists_every_exit_code_of_lockd_and_lockc() {
    for program in [assert_cmd::cargo::cargo_bin!("lockd"), assert_cmd::cargo::cargo_bin!("lockc")] {
        let help = help(program);
        for ExitCode { code, name, .. } in LOCKD {
            assert!(help.contains(&format!("{code} {name}")), "{code} {name}: {help}");
        }
    }
}

#[test]
fn help_lists_every_exit_code_of_jvs() {
    let help = help(assert_cmd::cargo::cargo_bin!("jvs"));
    for (class, ..) in JVS.iter().filter(|(class, ..)| class.exit_code() >= 20) {
        let listed = format!("{} {}", class.exit_code(), class.name());
        assert!(help.contains(&listed), "{listed}: {help}");
    }
}
