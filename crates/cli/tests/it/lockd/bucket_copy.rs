//! Stores in buckets, as an operator handles them: copied there and back, backed up, restored, checked and read offline.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use objectserver::{Dialect, Fault, Moment, ObjectServer, Operation, ServerOptions};
use serde_json::Value;

use crate::lockd::serve::Running;
use crate::lockd::server::sh;
use crate::lockd::support::{Ran, flip, ticking};

const BUCKET: &str = "locks";
const URL: &str = "s3://locks/prod";

/// An object store with the bucket `locks`.
pub(crate) fn object_server() -> ObjectServer {
    ObjectServer::start(ServerOptions::new(Dialect::S3, BUCKET)).expect("a port on loopback")
}

/// The environment of a command that reaches the object server.
pub(crate) fn environment(server: &ObjectServer) -> [(&'static str, String); 4] {
    [
        ("LOCKD_S3_ENDPOINT", server.endpoint()),
        ("LOCKD_S3_REGION", "eu-test-1".into()),
        ("AWS_ACCESS_KEY_ID", "test".into()),
        ("AWS_SECRET_ACCESS_KEY", "test".into()),
    ]
}

fn command(server: &ObjectServer, args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(args).envs(environment(server)).stdin(Stdio::null());
    command
}

fn ran(command: &mut Command) -> Ran {
    let output = command.output().expect("the binary runs");
    Ran {
        code: output.status.code().expect("it was not killed"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

fn lockd(server: &ObjectServer, args: &[&str]) -> Ran {
    ran(&mut command(server, args))
}

fn done(ran: Ran) -> Ran {
    assert_eq!(ran.code, 0, "{} {}", ran.stdout, ran.stderr);
    ran
}

fn refused(ran: &Ran, code: i32, words: &str) {
    assert!(
        ran.code == code && ran.stderr.contains(words),
        "{words}: {} {} {}",
        ran.code,
        ran.stdout,
        ran.stderr
    );
}

/// A server whose store is the bucket or a directory.
fn serve(server: &ObjectServer, data: &Path, args: &[&str]) -> Running {
    let exports: Vec<String> =
        environment(server).iter().map(|(name, value)| format!("export {name}={value}")).collect();
    Running::start_after(&exports.join("; "), data, &[&["--mtls=false"], args].concat())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// An export without the time at which it was taken.
fn exported(server: &ObjectServer, store: &str) -> Vec<String> {
    let ran = done(lockd(server, &["store", "export", "--store", store]));
    let mut lines: Vec<String> = ran.stdout.lines().map(str::to_string).collect();
    let mut header: Value = serde_json::from_str(&lines[0]).expect("JSON");
    header["taken_at_unix_ms"] = Value::Null;
    lines[0] = header.to_string();
    lines
}

/// A stopped disk store with two shards, documents in the log and in blobs, one of them of several parts, and leases.
/// Returns what `acquire` of the key `orders` has printed.
fn filled_disk_store(server: &ObjectServer, data: &Path) -> String {
    let running = serve(server, data, &["--shards", "2"]);
    let ran = sh(
        &running.address,
        r#"set -e
        for n in 1 2 3 4; do
            granted=$(lockd client acquire --namespace "n$n" --ttl 300s small) && eval "$granted"
            echo "{\"n\": $n}" | lockd client update --namespace "n$n" small >&2
        done
        unset LOCKD_CLIENT_NAMESPACE
        granted=$(lockd client acquire --ttl 300s long) && eval "$granted"
        printf '"%0100000d"' 7 | lockd client update long >&2
        granted=$(lockd client acquire --ttl 300s huge) && eval "$granted"
        printf '"%07000000d"' 7 | lockd client update huge >&2
        granted=$(lockd client acquire --ttl 300s orders) && eval "$granted"
        echo '{"cursor": 41}' | lockd client update orders >&2
        printf '%s\n' "$granted""#,
    );
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout
}

const TOKEN: &str =
    "lockd client acquire --ttl 60s --output json other | sed 's/.*\"fencing_token\":\\([0-9]*\\).*/\\1/'";

/// The whole way: from a disk to a bucket and back, with a lease that is held all the time, and lost responses.
#[test]
fn a_store_moves_to_a_bucket_and_back_while_a_lease_is_held() {
    let objects = object_server();
    let dir = tempfile::tempdir().expect("a directory");
    let (data, key_file) = (dir.path().join("data"), dir.path().join("outside.key"));
    let granted = filled_disk_store(&objects, &data);
    objects.add_fault(Fault::response_lost().on(&[Operation::Put]).on_keys("prod/log/").times(2));
    let copy = ["store", "copy", text(&data), URL, "--store-key-file", text(&key_file)];
    let copied = done(lockd(&objects, &[&copy[..], &["--output", "json"]].concat()));
    let copied: Value = serde_json::from_str(&copied.stdout).expect("JSON");
    assert_eq!(
        (&copied["documents"], &copied["leases"], &copied["shards"]),
        (&7.into(), &7.into(), &2.into())
    );
    assert!(objects.object(BUCKET, "prod/store.key").is_none(), "the key is outside");
    let key = |path: &Path| std::fs::read(path).expect("readable");
    assert_eq!(key(&key_file), key(&data.join("store/store.key")));

    let remote = dir.path().join("remote");
    let flags = ["--store", URL, "--store-key-file", text(&key_file)];
    let running = serve(&objects, &remote, &flags);
    // The credential of the lease, and the address of the new server.
    let with_lease = |running: &Running| {
        let script = "lockd client keepalive --ttl 290s orders >&2 && lockd client get --public orders";
        sh("", &format!("{granted}\nexport LOCKD_CLIENT_SERVER={}\n{script}", running.address))
    };
    let renewed = with_lease(&running);
    assert!(
        renewed.code == 0 && renewed.stdout.contains("{\"cursor\":41}"),
        "{} {}",
        renewed.stdout,
        renewed.stderr
    );
    let huge = sh(&running.address, "lockd client get --public huge | wc -c");
    assert_eq!(huge.stdout.trim(), "7000002");
    let token: u64 = sh(&running.address, TOKEN).stdout.trim().parse().expect("a token");
    assert!(Some(token) > copied["last_lsn"].as_u64(), "{token} {copied}");
    drop(running);

    let back = dir.path().join("back");
    std::fs::create_dir(&back).expect("a directory");
    std::fs::set_permissions(&back, std::fs::Permissions::from_mode(0o700)).expect("ours");
    let target = format!("disk://{}/store", back.display());
    let copied = done(lockd(&objects, &["store", "copy", URL, &target, "--from-key-file", text(&key_file)]));
    for words in
        ["copied and verified", "keep every server of the old store stopped", "lockd serve --store disk://"]
    {
        assert!(copied.stdout.contains(words), "{words}: {}", copied.stdout);
    }
    let running = serve(&objects, &back, &[]);
    let renewed = with_lease(&running);
    assert!(
        renewed.code == 0 && renewed.stdout.contains("{\"cursor\":41}"),
        "{} {}",
        renewed.stdout,
        renewed.stderr
    );
    let later: u64 =
        sh(&running.address, &TOKEN.replace(" other", " more")).stdout.trim().parse().expect("a token");
    assert!(later > token, "{later} {token}");
}

#[test]
fn exports_and_dumps_of_a_store_and_its_copies_are_the_same() {
    let objects = object_server();
    let dir = tempfile::tempdir().expect("a directory");
    let (data, back) = (dir.path().join("data"), dir.path().join("back"));
    filled_disk_store(&objects, &data);
    done(lockd(&objects, &["store", "copy", text(&data), URL]));
    done(lockd(&objects, &["store", "copy", URL, "s3://locks/second", "--in", text(dir.path())]));
    done(lockd(&objects, &["store", "copy", "s3://locks/second", text(&back)]));
    let expected = exported(&objects, text(&data));
    assert!(expected.iter().any(|line| line.contains("\"key\":\"huge\"")));
    for store in [URL, "s3://locks/second", text(&back)] {
        assert!(exported(&objects, store) == expected, "{store}");
    }
    let dump = |store: &str| done(lockd(&objects, &["store", "dump", "--store", store])).stdout;
    assert_eq!(dump(text(&data)), dump(URL));
}

#[test]
fn a_bucket_is_backed_up_restored_into_a_new_prefix_drilled_and_read() {
    let objects = object_server();
    let dir = tempfile::tempdir().expect("a directory");
    let (data, archive, key) = (dir.path().join("data"), dir.path().join("b.tar"), dir.path().join("k"));
    filled_disk_store(&objects, &data);
    done(lockd(&objects, &["store", "copy", text(&data), URL, "--store-key-file", text(&key)]));
    let backup = ["backup", "--store", URL, "--to", text(&archive), "--rate", "unlimited"];
    refused(&lockd(&objects, &backup), 1, "--store-key-file");
    let backup = [&backup[..], &["--store-key-file", text(&key)]].concat();
    let taken = done(lockd(&objects, &backup));
    assert!(
        taken.stdout.contains("backed up and verified") && taken.stderr.contains("is removed afterwards")
    );
    refused(&lockd(&objects, &backup), 2, "nothing is overwritten");
    let names = || std::fs::read_dir(dir.path()).expect("there").count();
    assert_eq!(names(), 3, "no temporary directory is left");
    let restore = |to: &str| lockd(&objects, &["restore", "--from", text(&archive), "--store", to]);
    refused(&restore(URL), 2, "there are objects below this prefix");
    let restored = done(restore("s3://locks/new"));
    assert!(restored.stdout.contains("lockd serve --store s3://locks/new"), "{}", restored.stdout);
    assert_eq!(exported(&objects, "s3://locks/new"), exported(&objects, text(&data)));
    let drill =
        ["backup", "drill", "--store", "s3://locks/new", "--in", text(dir.path()), "--rate", "unlimited"];
    assert!(done(lockd(&objects, &drill)).stdout.contains("drill passed"));
    let who = ["store", "who", "orders", "--at=-0s", "--store", "s3://locks/new"];
    assert!(done(lockd(&objects, &who)).stdout.contains("held by"));
    let checked = done(lockd(&objects, &["store", "check", "--store", "s3://locks/new"]));
    assert!(
        checked.stdout.contains("unreferenced_blobs=0")
            && checked.stdout.ends_with("sound: store=s3://locks/new\n")
    );
}

#[test]
fn a_check_of_a_bucket_finds_missing_batches_bad_index_objects_documents_and_unused_blobs() {
    let objects = object_server();
    let store = ticking();
    let dir = store.close();
    done(lockd(&objects, &["store", "copy", text(dir.path()), URL]));
    let check = || lockd(&objects, &["store", "check", "--store", URL, "--json"]);
    let report = |ran: &Ran| -> Value { serde_json::from_str(&ran.stdout).expect("JSON") };
    let sound = done(check());
    assert_eq!(
        (&report(&sound)["bucket"]["batches"], &report(&sound)["shards"][0]["leases"]),
        (&3.into(), &5.into())
    );
    objects.insert(BUCKET, "prod/blob/document/0/0-1", "not used");
    let unused = report(&done(check()));
    assert_eq!(unused["bucket"]["unreferenced_blobs"], 1, "{unused}");
    assert_eq!(unused["bucket"]["unreferenced_bytes"], 8, "{unused}");
    objects.insert(BUCKET, "prod/index/0/0000000000000000", "not an index");
    let index = check();
    let finding = &report(&index)["findings"][0];
    assert_eq!(
        (index.code, &finding["file"]),
        (1, &"s3://locks/prod/index/0/0000000000000000".into()),
        "{finding}"
    );
    assert!(objects.remove(BUCKET, "prod/index/0/0000000000000000"));
    let batch = objects.object(BUCKET, "prod/log/0/0000000000000001").expect("there");
    assert!(objects.remove(BUCKET, "prod/log/0/0000000000000001"));
    let missing = check();
    let finding = &report(&missing)["findings"][0];
    assert_eq!(
        (missing.code, &finding["file"]),
        (1, &"s3://locks/prod/log/0/0000000000000001".into()),
        "{finding}"
    );
    assert!(finding["what"].as_str().is_some_and(|what| what.contains("missing")), "{finding}");
    objects.insert(BUCKET, "prod/log/0/0000000000000001", batch);
    assert!(objects.damage(BUCKET, "prod/log/0/0000000000000002", 120));
    let damaged = check();
    assert_eq!(damaged.code, 1, "{} {}", damaged.stdout, damaged.stderr);
    assert!(damaged.stdout.contains("does not match its checksum"), "{}", damaged.stdout);
}

#[test]
fn a_store_in_use_damage_other_keys_and_targets_with_content_are_refused() {
    let objects = object_server();
    let store = ticking();
    let (path, segment) = (store.path().to_string(), store.segment());
    let copy =
        |from: &str, to: &str, more: &[&str]| lockd(&objects, &[&["store", "copy", from, to], more].concat());
    refused(&copy(&path, URL, &[]), 1, "another process has the store open");
    let dir = store.close();
    let wrong = dir.path().join("wrong");
    std::fs::write(&wrong, [8; 32]).expect("writable");
    refused(
        &copy(&path, URL, &["--from-key-file", text(&wrong)]),
        1,
        "not the one that this store was created with",
    );
    refused(&copy(&path, "s3://", &[]), 2, "s3://bucket/prefix");
    refused(&copy("s3://locks/none", &path, &[]), 2, "not empty");
    refused(
        &copy("s3://locks/none", text(&dir.path().join("to")), &[]),
        1,
        "there is no store at this location",
    );
    assert!(objects.objects(BUCKET).is_empty(), "nothing was written");
    done(copy(&path, URL, &[]));
    refused(&copy(&path, URL, &[]), 2, "there are objects below this prefix");
    let other = ["store", "dump", "--store", URL, "--store-key-file", text(&wrong)];
    refused(&lockd(&objects, &other), 1, "not the one that this store was created with");
    flip(&segment, 100);
    refused(
        &copy(&path, "s3://locks/other", &[]),
        1,
        "delete all objects below its prefix: store=s3://locks/other",
    );
    assert!(objects.object(BUCKET, "other/store").is_none(), "no server opens it");
}

/// A copy was killed. A server that was started with the target created a store of its own, beside the batches of the
/// other.
#[test]
fn a_killed_copy_leaves_a_prefix_that_no_command_takes_for_a_store() {
    let objects = object_server();
    let dir = ticking().close();
    let hold = objects.hold(Operation::Put, "prod/store", Moment::BeforeEffect);
    let mut copy = command(&objects, &["store", "copy", text(dir.path()), URL]);
    let mut copy = copy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program");
    assert!(hold.wait_for(1, Duration::from_secs(60)), "the copy gets to its end");
    copy.kill().expect("it runs");
    copy.wait().expect("a child");
    objects.refuse_connections();
    objects.accept_connections().expect("the same port");
    drop(hold);
    let what = "delete all objects below the prefix";
    refused(&lockd(&objects, &["store", "copy", text(dir.path()), URL]), 2, what);
    refused(&lockd(&objects, &["store", "check", "--store", URL]), 2, what);
    let serve =
        ["serve", "--mtls=false", "--listen", "127.0.0.1:0", "--store", URL, "--data-dir", text(dir.path())];
    refused(&lockd(&objects, &serve), 1, what);
    for name in objects.objects(BUCKET).keys() {
        objects.remove(BUCKET, name);
    }
    done(lockd(&objects, &["store", "copy", text(dir.path()), URL]));
}

/// Azure has other requests for everything, and reports a name that is in use as a conflict.
#[test]
fn a_store_is_copied_to_azure_and_back() {
    let objects =
        ObjectServer::start(ServerOptions::new(Dialect::Azure, BUCKET)).expect("a port on loopback");
    let dir = ticking().close();
    let back = tempfile::tempdir().expect("a directory");
    let back = back.path().join("store");
    let run = |args: &[&str]| -> Ran {
        let mut command = command(&objects, args);
        // Without a signature: no credentials are looked for.
        command.env("AZURE_STORAGE_ACCOUNT_NAME", "test").env("AZURE_SKIP_SIGNATURE", "true");
        ran(&mut command)
    };
    done(run(&["store", "copy", text(dir.path()), "az://locks/prod"]));
    refused(&run(&["store", "copy", text(dir.path()), "az://locks/prod"]), 2, "choose another one");
    done(run(&["store", "copy", "az://locks/prod", text(&back)]));
    let dump = |store: &str| done(run(&["store", "dump", "--store", store])).stdout;
    assert_eq!(dump(text(dir.path())), dump(text(&back)));
}
