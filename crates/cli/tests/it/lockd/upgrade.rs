//! Stores of every format so far open under this version, and a store of a newer one is refused with a sentence that helps.

use std::path::{Path, PathBuf};
use std::process::Command;

use store::Seq;
use store::disk::StoreView;
use store::frame::SegmentHeader;

use crate::lockd::serve::Running;
use crate::lockd::server::sh;
use crate::lockd::support::lockd;

/// A backup that 0.1.0 has taken, of a store of format 2: two documents, one of them a blob, and a lease. Never changed:
/// every later version must restore it, and open the store.
const FORMAT_2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/golden/store-format-2.tar");
/// Snapshots as format 1 has them, one per line: bytes, a tab, their meaning.
const SNAPSHOTS_1: &str = include_str!("../../../../engine/tests/it/golden/snapshots-v1.txt");

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
    pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
}

fn write(path: PathBuf, content: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("writable");
    std::fs::write(path, content).expect("writable");
}

fn private(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(path).expect("writable");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).expect("ours");
}

fn sealed(mut content: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&content);
    content.extend(crc.to_le_bytes());
    content
}

/// A store of format 1 with four shards: `store` without format and MAC, no map, and the log of shard 2 truncated up to the
/// end of its snapshot.
fn store_of_format_1(path: &Path) {
    const STORE_ID: u128 = 0x0102;
    private(path);
    let parameters =
        [b"lockdsto".to_vec(), vec![1, 0, 0, 0, 4, 0, 0, 0], STORE_ID.to_le_bytes().to_vec()].concat();
    write(path.join("store"), &sealed(parameters));
    write(path.join("store.key"), &[7; 32]);
    let snapshot = SNAPSHOTS_1.lines().nth(2).and_then(|line| line.split('\t').next()).expect("a snapshot");
    let snapshot = bytes(snapshot);
    let next = u64::from_le_bytes(snapshot[28..36].try_into().expect("eight bytes"));
    write(path.join(format!("blob/by-name/snapshot/2/{next:016x}")), &snapshot);
    let header = SegmentHeader { shard: 2, store_id: STORE_ID, first: Seq(next), chain: 0 }.encode();
    write(path.join(format!("log/2/{next:016x}.seg")), &header);
    let floor = [b"lockdflr".to_vec(), vec![1, 0, 0, 0], next.to_le_bytes().to_vec()].concat();
    write(path.join("log/2/floor"), &sealed(floor));
    let modes = Command::new("chmod").args(["-R", "go-rwx"]).arg(path).status().expect("chmod");
    assert!(modes.success());
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn a_store_of_format_1_is_backed_up_checked_converted_and_served() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    private(&data);
    store_of_format_1(&data.join("store"));
    let checked = lockd(&["store", "check", "--store", path(&data)]);
    assert_eq!(checked.code, 0, "{} {}", checked.stdout, checked.stderr);
    assert!(
        checked.stdout.contains("shard=2 floor=4712") && checked.stdout.contains("snapshots=4712:readable"),
        "{}",
        checked.stdout
    );
    let backup = dir.path().join("before");
    let taken = lockd(&["backup", "--store", path(&data), "--to", path(&backup)]);
    assert_eq!(taken.code, 0, "{}", taken.stderr);
    let served = Running::start(&data, &["--mtls=false"]);
    let granted = sh(&served.address, "lockd client acquire --ttl 30s upgraded");
    assert_eq!(granted.code, 0, "{}", granted.stderr);
    drop(served);
    assert!(data.join("store/map/1").exists(), "it is converted");
    assert_eq!(StoreView::open(&data.join("store")).expect("readable").file().shards, 4);
    // The way back: the store as it was before.
    let restored = lockd(&["restore", "--from", path(&backup), "--store", path(&dir.path().join("old"))]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    assert_eq!(std::fs::read(dir.path().join("old/store")).expect("there").len(), 36, "of format 1");
}

#[test]
fn a_store_and_a_backup_of_0_1_0_are_restored_checked_and_served() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    private(&data);
    let restored = lockd(&["restore", "--from", FORMAT_2, "--store", path(&data.join("store"))]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    let checked = lockd(&["store", "check", "--store", path(&data)]);
    assert!(checked.code == 0 && checked.stdout.contains("leases=1 documents=2"), "{}", checked.stdout);
    let served = Running::start(&data, &["--mtls=false"]);
    let read = sh(
        &served.address,
        "lockd client get --public orders; lockd client get --public --namespace billing long | wc -c; \
         lockd client describe orders",
    );
    assert!(
        read.stdout.starts_with("{\"cursor\":3}") && read.stdout.contains("66002"),
        "{} {}",
        read.stdout,
        read.stderr
    );
    assert!(read.stdout.contains("version=3"), "{}", read.stdout);
}

/// After a downgrade the message called the store damaged, and asked for a backup: the store was sound, and newer.
#[test]
fn a_store_of_a_newer_format_is_refused_and_not_called_damaged() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    drop(Running::start(&data, &["--mtls=false"]));
    let file = data.join("store/store");
    let mut content = std::fs::read(&file).expect("there");
    content.truncate(68);
    content[8] = 3;
    std::fs::write(&file, sealed(content)).expect("writable");
    let before = crate::lockd::dump::files(&data);
    for args in [
        &["serve", "--mtls=false", "--listen", "127.0.0.1:0", "--data-dir", path(&data)][..],
        &["backup", "--store", path(&data), "--to", path(&dir.path().join("b"))],
        &["store", "check", "--store", path(&data)],
        &["store", "export", "--store", path(&data)],
    ] {
        let ran = lockd(args);
        assert_ne!(ran.code, 0, "{args:?}");
        for words in ["written by a newer lockd", "start the newer version again", "format=3 supported=2"] {
            assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
        }
        assert!(!ran.stderr.contains("damage") && !ran.stdout.contains("damage"), "{args:?}");
    }
    assert_eq!(crate::lockd::dump::files(&data), before, "nothing is changed");
}
