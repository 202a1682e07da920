//! The files in `packaging/`: the commands in them are valid commands of this version.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::lockd::reload::text;
use crate::lockd::revocation::World;
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

/// `kill -HUP` succeeded at once, also for a reload that was refused.
#[test]
fn the_reload_of_the_unit_waits_and_fails_if_it_is_refused() {
    let unit = read("packaging/systemd/lockd.service");
    let start: Vec<&str> = line(&unit, "ExecStart=").split(' ').collect();
    let reload: Vec<&str> = line(&unit, "ExecReload=").split(' ').collect();
    assert_eq!(reload[0], start[0], "the program of the server");
    let settings = settings(&start[1..]);
    let socket = settings["unix"]["value"].as_str().expect("a path");
    let world = World::new(&[]);
    let actual = world.path("s");
    let arguments: Vec<&str> =
        reload[1..].iter().map(|word| if *word == socket { text(&actual) } else { word }).collect();
    assert!(arguments.contains(&text(&actual)), "{reload:?} is not on the socket of {start:?}");
    assert_eq!(lockd(&arguments).code, 0);
    std::fs::write(world.bundle(), "not an identity file").expect("written");
    let refused = lockd(&arguments);
    assert!(refused.code == 1 && refused.stderr.contains("nothing was changed"), "{}", refused.stderr);
}

#[test]
fn the_image_has_this_version_and_its_commands_are_valid() {
    let containerfile = read("packaging/Containerfile");
    // Without `--format docker`, podman drops the health check with a warning.
    let build = format!("podman build -t lockd:{VERSION} --format docker .");
    for (file, text) in
        [("Containerfile", &containerfile), ("installing.md", &read("docs/operating/installing.md"))]
    {
        assert!(text.contains(&build), "{file}: {VERSION}");
    }
    let arguments = strings(line(&containerfile, "CMD "));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let socket = settings(&arguments)["unix"]["value"].clone();
    let (_, probe) = line(&containerfile, "HEALTHCHECK ").split_once("CMD ").expect("a command");
    assert_is_probe_of(&strings(probe), socket.as_str().expect("a path"));
}

#[test]
fn the_manifests_have_this_version_and_their_commands_are_valid() {
    for (manifest, servers) in [("lockd.yaml", "1"), ("lockd-bucket.yaml", "3")] {
        let manifest = read(&format!("packaging/kubernetes/{manifest}"));
        check_manifest(&manifest);
        assert_eq!(line(&manifest, "replicas: "), servers);
    }
}

fn check_manifest(manifest: &str) {
    assert_eq!(line(manifest, "image: "), format!("lockd:{VERSION}"));
    let flags = manifest.lines().filter_map(|line| line.trim_start().strip_prefix("- --"));
    let flags: Vec<String> = flags.map(|flag| format!("--{flag}")).collect();
    let arguments: Vec<&str> = ["serve"].into_iter().chain(flags.iter().map(String::as_str)).collect();
    let settings = settings(&arguments);
    let socket = settings["unix"]["value"].as_str().expect("a path");
    let grace = seconds(line(manifest, "terminationGracePeriodSeconds: "));
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

/// The package is made by hand-written shell: a moved file or a renamed command would be noticed by its first user.
#[test]
fn the_debian_package_has_all_that_it_refers_to() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        println!("skipped: dpkg-deb is not installed");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let binaries = Path::new(assert_cmd::cargo::cargo_bin!("lockd")).parent().expect("a directory");
    let run = |program: &Path, args: &[&OsStr]| {
        let output = Command::new(program).args(args).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/build-deb");
    let out = dir.path().as_os_str();
    let words = ["--compression", "none", "--binaries", "--out"].map(OsStr::new);
    run(&script, &[words[0], words[1], words[2], binaries.as_os_str(), words[3], out]);

    let made =
        std::fs::read_dir(dir.path()).expect("a directory").map(|entry| entry.expect("readable").path());
    let package = made.into_iter().next().expect("a package");
    assert!(package.to_str().expect("text").contains(&format!("/lockd_{VERSION}_")), "{}", package.display());
    let root = dir.path().join("root");
    run(Path::new("dpkg-deb"), &["-x".as_ref(), package.as_ref(), root.as_ref()]);
    run(Path::new("dpkg-deb"), &["-e".as_ref(), package.as_ref(), root.join("DEBIAN").as_ref()]);
    for name in ["lockd", "lockc", "jvs"] {
        let installed = root.join("usr/bin").join(name);
        assert_eq!(run(&installed, &["--version".as_ref()]), format!("{name} {VERSION}\n"));
        for shared in [
            format!("man/man1/{name}.1.gz"),
            format!("bash-completion/completions/{name}"),
            format!("zsh/vendor-completions/_{name}"),
            format!("fish/vendor_completions.d/{name}.fish"),
        ] {
            let length = std::fs::metadata(root.join("usr/share").join(&shared)).expect(&shared).len();
            assert!(length > 100, "{shared}: {length} bytes");
        }
    }
    let unit = std::fs::read_to_string(root.join("lib/systemd/system/lockd.service")).expect("the unit");
    for prefix in ["ExecStart=", "ExecReload="] {
        let program = line(&unit, prefix).split(' ').next().expect("a program");
        assert!(root.join(program.trim_start_matches('/')).exists(), "{program}");
    }
    let rules = root.join("usr/share/lockd/monitoring/lockd.rules.yml");
    let rules = std::fs::read_to_string(rules).expect("the alert rules");
    let mut runbooks = rules.lines().filter_map(|line| line.trim().strip_prefix("runbook: docs/")).peekable();
    assert!(runbooks.peek().is_some());
    for runbook in runbooks {
        let page = runbook.split('#').next().expect("a path");
        assert!(root.join("usr/share/doc/lockd").join(page).exists(), "{runbook}");
    }
    for name in ["postinst", "prerm", "postrm"] {
        run(Path::new("sh"), &["-n".as_ref(), root.join("DEBIAN").join(name).as_ref()]);
    }
}
