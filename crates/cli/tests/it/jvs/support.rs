//! A repository that the binary made, and the binary to use it with.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) struct Playground {
    dir: tempfile::TempDir,
}

/// The result of running the binary.
pub(crate) struct RunResult {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl RunResult {
    /// The `data` of an answer that must be a success.
    pub(crate) fn data(&self) -> Value {
        let answer: Value = serde_json::from_str(&self.stdout).expect("one JSON object");
        assert_eq!(answer["ok"], true, "{answer}");
        answer["data"].clone()
    }

    /// The `error` of an answer that must be a refusal.
    pub(crate) fn error(&self) -> Value {
        let answer: Value = serde_json::from_str(&self.stdout).expect("one JSON object");
        assert_eq!(answer["ok"], false, "{answer}");
        answer["error"].clone()
    }
}

impl Playground {
    /// A repository with the worktree `main`.
    pub(crate) fn new() -> Self {
        let playground = Self { dir: tempfile::tempdir().expect("a directory for the test") };
        std::fs::create_dir(playground.root()).expect("writable");
        assert_eq!(playground.jvs(&["init"]).code, 0);
        playground
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("repo")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root().join("main").join(name)
    }

    /// A file of the user's own sessions.
    pub(crate) fn session_file(&self, name: &str) -> PathBuf {
        self.dir.path().join("state/sessions").join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.file(name), bytes).expect("writable");
    }

    /// The binary, with an environment that is independent of the tester's.
    pub(crate) fn command(&self) -> Command {
        self.program(assert_cmd::cargo::cargo_bin!("jvs"))
    }

    /// Another program, in the same surroundings.
    pub(crate) fn program(&self, name: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(name);
        command.current_dir(self.root()).env("JVS_STATE_DIR", self.dir.path().join("state"));
        for name in ["JVS_SESSION_ID", "JVS_WORKTREE", "JVS_REPO", "JVS_FENCING_TOKEN"] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn jvs(&self, args: &[&str]) -> RunResult {
        ran(self.command().args(args))
    }

    pub(crate) fn jvs_in(&self, dir: &Path, args: &[&str]) -> RunResult {
        ran(self.command().current_dir(dir).args(args))
    }

    /// Runs it with `--json`, expects success, and returns the data.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let ran = self.jvs(&[&["--json"], args].concat());
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.stdout, ran.stderr);
        ran.data()
    }

    /// Takes the lock and returns its session.
    pub(crate) fn acquire(&self) -> String {
        let data = self.json(&["lock", "acquire"]);
        data["lock"]["session_id"].as_str().expect("a session").to_owned()
    }
}

pub(crate) fn ran(command: &mut Command) -> RunResult {
    let Output { status, stdout, stderr } = command.output().expect("the binary runs");
    RunResult {
        code: status.code().expect("it was not killed"),
        stdout: String::from_utf8(stdout).expect("text"),
        stderr: String::from_utf8(stderr).expect("text"),
    }
}
