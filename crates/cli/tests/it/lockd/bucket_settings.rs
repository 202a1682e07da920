//! The settings of a store in a bucket, in each of their spellings: flag, variable and settings file. That the fields of
//! `Config` are the same settings is tested with the table, in the server.

use std::path::Path;
use std::process::{Command, Stdio};

use objectserver::Operation;
use serde_json::{Value, json};

use crate::lockd::bucket::{object_server, post, request, serve};

/// Name, a value that is not the default, and how it is shown.
const SETTINGS: [(&str, &str, &str); 13] = [
    ("store", "s3://locks/prod", "s3://locks/prod"),
    ("store-key-file", "/etc/lockd/store.key", "/etc/lockd/store.key"),
    ("commit-interval", "250ms", "250ms"),
    ("s3-region", "eu-north-1", "eu-north-1"),
    ("s3-endpoint", "http://127.0.0.1:9", "http://127.0.0.1:9"),
    ("s3-sse", "AES256", "AES256"),
    ("s3-sse", "aws:kms", "aws:kms"),
    ("s3-kms-key-id", "key-1", "key-1"),
    ("s3-max-part-size", "8MiB", "8388608"),
    ("s3-multipart-threshold", "16MiB", "16777216"),
    ("s3-timeout", "7s", "7s"),
    ("s3-credential-process", "echo {}", "echo {}"),
    ("s3-ca-file", "/etc/ca.pem", "/etc/ca.pem"),
];

/// The value and the source of one setting, by `lockd config`.
fn shown(command: &mut Command, name: &str) -> (String, String) {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (value, source) = (&shown[name]["value"], shown[name]["source"].as_str().expect("a source"));
    (value.as_str().map_or_else(|| value.to_string(), str::to_string), source.to_string())
}

/// `lockd config`, with a settings file of these lines. The key of a key service needs its algorithm.
fn config(dir: &Path, name: &str, line: &str) -> Command {
    let other = if name == "s3-kms-key-id" { "s3-sse = \"aws:kms\"\n" } else { "" };
    let file = dir.join("settings.toml");
    std::fs::write(&file, format!("{other}{line}\n")).expect("written");
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["config", "--output", "json", "--config"]).arg(file);
    command.env("XDG_CONFIG_HOME", dir).stdin(Stdio::null());
    command
}

#[test]
fn every_setting_of_a_bucket_is_a_flag_a_variable_and_a_line_of_the_settings_file() {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, value, expected) in SETTINGS {
        let by_default = shown(&mut config(dir.path(), name, ""), name);
        assert!(by_default.1 == "default" && by_default.0 != expected, "{name}: {by_default:?}");

        let by_flag = shown(config(dir.path(), name, "").arg(format!("--{name}={value}")), name);
        assert_eq!(by_flag, (expected.to_string(), "flag".to_string()), "{name}");

        let variable = format!("LOCKD_{}", name.replace('-', "_").to_uppercase());
        let by_variable = shown(config(dir.path(), name, "").env(&variable, value), name);
        assert_eq!(by_variable, (expected.to_string(), format!("variable {variable}")), "{name}");

        let line = format!("{name} = {}", json!(value));
        let (by_file, source) = shown(&mut config(dir.path(), name, &line), name);
        assert_eq!((by_file.as_str(), source.starts_with("file ")), (expected, true), "{name}: {source}");
    }
}

/// Each offline command that opens a bucket has the same flags.
#[test]
fn commands_on_a_bucket_have_the_flags_of_the_server() {
    for command in ["probe", "check", "copy", "dump"] {
        let mut help = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        let help = help.args(["store", command, "--help"]).output().expect("it runs");
        let help = String::from_utf8(help.stdout).expect("text");
        for (name, ..) in SETTINGS.iter().filter(|(name, ..)| name.starts_with("s3-")) {
            assert!(help.contains(&format!("--{name}")), "{command} {name}: {help}");
        }
    }
}

#[test]
fn part_size_and_threshold_decide_how_long_documents_are_uploaded() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let sizes = ["--s3-max-part-size", "6MiB", "--s3-multipart-threshold", "8MiB"];
    let server = serve(&objects, dir.path(), &sizes);
    for (key, mebibytes, parts) in [("short", 7, 0), ("long", 13, 3)] {
        let acquire = json!({"key": key, "ttl_seconds": 60});
        let (_, lease) = post(&server.address, "/v1/acquire", &acquire).expect("a response");
        let headers = format!("x-lease-id: {}\r\n", lease["lease_id"].as_str().expect("a credential"));
        let body = json!({"text": "x".repeat(mebibytes << 20)}).to_string();
        objects.reset_counts();
        let path = format!("POST /v1/update_state?key={key}");
        let (status, _) = request(&server.address, &path, &headers, &body).expect("a response");
        assert_eq!((status, objects.counts().of(Operation::UploadPart)), (200, parts), "{key}");
    }
}
