//! The files in `packaging/`: the commands in them are valid commands of this version.

use std::path::Path;

use serde_json::Value;

use crate::lockd::support::{Ran, lockd};

/// The version that this build is packaged as.
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).expect(path)
}

/// The rest of the only line that begins so, indentation aside.
fn line<'a>(text: &'a str, prefix: &str) -> &'a str {
    let mut rests = text.lines().filter_map(|line| line.trim_start().strip_prefix(prefix));
    let rest = rests.next().unwrap_or_else(|| panic!("no line begins with {prefix:?}"));
    assert!(rests.next().is_none(), "two lines begin with {prefix:?}");
    rest
}

/// The settings that `serve` would use with these arguments, by `lockd config`.
fn settings(arguments: &[&str]) -> Value {
    let flags = arguments.strip_prefix(&["serve"]).expect("the command serve");
    let Ran { code, stdout, stderr } = lockd(&[&["config", "--output", "json"], flags].concat());
    assert_eq!(code, 0, "{arguments:?}: {stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

fn strings(json: &str) -> Vec<String> {
    serde_json::from_str(json).expect("a list of strings")
}

/// Seconds of a duration of whole seconds.
fn seconds(text: &str) -> u64 {
    text.strip_suffix('s').unwrap_or(text).parse().expect(text)
}

/// The time that a stop may take: the drain, and as long again for the last append.
fn stop_seconds(settings: &Value) -> u64 {
    2 * seconds(settings["drain-timeout"]["value"].as_str().expect("text"))
}

#[test]
fn the_unit_starts_a_server_with_a_socket_and_waits_for_its_stop() {
    let unit = read("packaging/systemd/lockd.service");
    let command: Vec<&str> = line(&unit, "ExecStart=").split(' ').collect();
    let (_program, arguments) = command.split_first().expect("a program");
    let settings = settings(arguments);
    assert_eq!(settings["unix"]["value"], "/run/lockd/lockd.sock");
    assert!(seconds(line(&unit, "TimeoutStopSec=")) > stop_seconds(&settings));
    assert_eq!(line(&unit, "Type="), "notify");
}

#[test]
fn the_image_has_this_version_and_its_commands_are_valid() {
    let containerfile = read("packaging/Containerfile");
    assert!(containerfile.contains(&format!("build -t lockd:{VERSION} .")), "{VERSION}");
    let arguments = strings(line(&containerfile, "CMD "));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let socket = settings(&arguments)["unix"]["value"].clone();
    let (_, probe) = line(&containerfile, "HEALTHCHECK ").split_once("CMD ").expect("a command");
    assert_is_probe_of(&strings(probe), socket.as_str().expect("a path"));
}

#[test]
fn the_manifest_has_this_version_and_its_commands_are_valid() {
    let manifest = read("packaging/kubernetes/lockd.yaml");
    assert_eq!(line(&manifest, "image: "), format!("lockd:{VERSION}"));
    let flags = manifest.lines().filter_map(|line| line.trim_start().strip_prefix("- --"));
    let flags: Vec<String> = flags.map(|flag| format!("--{flag}")).collect();
    let arguments: Vec<&str> = ["serve"].into_iter().chain(flags.iter().map(String::as_str)).collect();
    let settings = settings(&arguments);
    let socket = settings["unix"]["value"].as_str().expect("a path");
    let grace = seconds(line(&manifest, "terminationGracePeriodSeconds: "));
    assert!(grace > stop_seconds(&settings));
    let probes = manifest.lines().filter_map(|line| line.trim_start().strip_prefix("exec: {command: ["));
    let mut count = 0;
    for probe in probes {
        let words = probe.strip_suffix("]}").expect(probe).split(", ").map(String::from);
        assert_is_probe_of(&words.collect::<Vec<_>>(), socket);
        count += 1;
    }
    assert_eq!(count, 3, "start, readiness and liveness");
}

/// A probe of a server that is not there: 13, not 2 (usage).
fn assert_is_probe_of(command: &[String], socket: &str) {
    let (program, arguments) = command.split_first().expect("a program");
    assert_eq!(program, "/lockd");
    assert!(arguments.iter().any(|word| word == socket), "{command:?} {socket}");
    let missing = tempfile::tempdir().expect("a directory").path().join("sock");
    let elsewhere = |word: &String| if word == socket { missing.display().to_string() } else { word.clone() };
    let arguments: Vec<String> = arguments.iter().map(elsewhere).collect();
    let ran = lockd(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ran.code, 13, "{command:?}: {}", ran.stderr);
}
