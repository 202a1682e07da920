//! Exports, and stores that are made of them.

use std::path::Path;

use backup::{BackupError, ExportCounts, ImportOptions, Quiet, export, import};
use kernel::{Cursor, Kernel};
use store::disk::StoreView;

use crate::world::{BLOB, NOW, World, content, no_hook};

fn options(shards: u32) -> ImportOptions {
    ImportOptions { now_unix_ms: || NOW, shards }
}

fn exported(world: &World) -> (String, ExportCounts) {
    let mut out = Vec::new();
    let counts = export(&world.store(), NOW, &mut out, &Quiet).expect("an export");
    (String::from_utf8_lossy(&out).into_owned(), counts)
}

fn imported(text: &str, target: &Path, shards: u32) -> Result<ExportCounts, BackupError> {
    import(&mut text.as_bytes(), target, &options(shards), &Quiet)
}

/// Keys, versions and etags.
fn documents(store: &Path) -> Vec<(String, u64, String)> {
    let view = StoreView::open(store).expect("a store");
    let mut found = Vec::new();
    for shard in 0..view.file().shards {
        let pace = backup::Pace::start(&Quiet, None, std::time::Duration::MAX);
        let kernel: Kernel = backup::recover_shard(&view, shard, &pace).expect("sound").kernel;
        assert_eq!(backup::check_documents(&view, shard, &kernel, &pace).expect("readable"), []);
        found.extend(kernel.documents_from(Cursor::default()).map(|(_, namespace, key, view)| {
            let document = view.document.expect("it has one");
            (format!("{namespace} {key}"), view.version.0, format!("{:?} {}", document.etag, document.bytes))
        }));
    }
    found.sort();
    found
}

/// A JSON string of this length.
fn text(n: usize, length: usize) -> Vec<u8> {
    let inner = content(n, length - 2).iter().map(|byte| b'a' + byte % 26).collect::<Vec<u8>>();
    [b"\"", &inner[..], b"\""].concat()
}

fn world() -> World {
    let world = World::new();
    for n in 0..40 {
        let name = format!("key \",\"state\": {n}\u{2028}");
        let lease = world.acquire(&name);
        for version in 0..=n % 3 {
            world.put(&lease, &name, &text(n + version, 30_000));
        }
    }
    let lease = world.acquire("long");
    world.put_blob(&lease, "long", &text(1, BLOB));
    world.put_blob(&lease, "long", &text(2, BLOB));
    world
}

#[test]
fn an_import_has_the_documents_versions_and_etags_of_the_export() {
    let world = world();
    let (text, counts) = exported(&world);
    assert_eq!(counts, ExportCounts { namespaces: 1, documents: 41, leases: 41 });
    assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    for shards in [1, 4] {
        let target = world.dir.path().join(format!("imported-{shards}"));
        assert_eq!(imported(&text, &target, shards).expect("imported"), counts);
        let (found, expected) = (documents(&target), documents(&world.store()));
        assert_eq!(found, expected);
        assert!(found.iter().any(|(_, version, _)| *version == 3), "versions are kept");
    }
}

/// The import is served like any other store: its first checkpoint replays it, and tokens are above the exported ones.
#[test]
fn an_imported_store_is_served_checkpointed_and_backed_up() {
    let world = world();
    let token = world.acquire("last").token;
    let (text, _) = exported(&world);
    world.stop();
    std::fs::rename(world.store(), world.dir.path().join("old")).expect("moved");
    imported(&text, &world.store(), 1).expect("imported");
    // The fixture opens stores with its own key.
    let exported_again = {
        let key = std::fs::read(world.store().join("store.key")).expect("a key");
        world.start_with(key.try_into().expect("32 bytes"));
        let lease = world.acquire("key \",\"state\": 5\u{2028}");
        assert!(lease.token > token);
        world.write_until_checkpoints(&lease, "key \",\"state\": 5\u{2028}", 3);
        world.backup(&world.dir.path().join("backup"), &no_hook).expect("a backup");
        world.assert_nothing_failed();
        exported(&world).1
    };
    assert_eq!((exported_again.documents, exported_again.leases), (41, 1), "leases are not imported");
}

#[test]
fn what_cannot_be_imported_is_refused_with_its_line_and_nothing_appears() {
    let world = world();
    let (text, _) = exported(&world);
    let target = world.dir.path().join("target");
    let lines: Vec<&str> = text.lines().collect();
    let refused = |text: &str, words: &str| match imported(text, &target, 1) {
        Err(BackupError::Refused(what)) => {
            assert!(what.contains(words) && what.contains("line="), "{words}: {what}");
            assert!(!target.exists());
        }
        other => panic!("{words}: {other:?}"),
    };
    let document = lines.iter().position(|line| line.contains("\"document\"")).expect("a document");
    let without = |at: usize| {
        let rest = lines.iter().enumerate().filter(|(n, _)| *n != at).map(|(_, line)| *line);
        rest.collect::<Vec<_>>().join("\n") + "\n"
    };
    let replaced = |at: usize, line: &str| {
        let all = lines.iter().enumerate().map(|(n, old)| if n == at { line } else { *old });
        all.collect::<Vec<_>>().join("\n") + "\n"
    };
    refused(&without(document), "as many lines");
    refused(&without(0), "does not begin with its header");
    refused(&without(lines.len() - 1), "ends early");
    refused(&text[..text.len() / 2], "ends early");
    refused(
        &replaced(document, &lines[document].replace("state\":\"", "state\":\"x")),
        "does not match its etag",
    );
    refused(&replaced(document, r#"{"type":"quota","identity":"ada"}"#), "not a line of an export");
    refused(&replaced(document, lines[document + 1]), "a key occurs twice");
    refused(&replaced(0, &lines[0].replace("\"format\":1", "\"format\":2")), "format=2 supported=1");
    refused(&(text.clone() + "{}\n"), "goes on after its end");
    refused("", "ends early");
    let behind = ImportOptions { now_unix_ms: || NOW - 1, shards: 1 };
    let clock = import(&mut text.as_bytes(), &target, &behind, &Quiet).expect_err("behind").to_string();
    assert!(clock.contains("set the clock first"), "{clock}");
}

#[test]
fn a_damaged_document_ends_the_export() {
    let world = World::new();
    world.put(&world.acquire("k"), "k", b"{}");
    let lease = world.acquire("long");
    world.put_blob(&lease, "long", &text(1, BLOB));
    let blobs = crate::damage::files(&world.store().join("blob/by-name/document"));
    std::fs::remove_file(blobs.keys().next().expect("a blob")).expect("there");
    let failed = export(&world.store(), NOW, &mut Vec::new(), &Quiet).expect_err("missing").to_string();
    assert!(failed.contains("its blob is missing") && failed.contains("long"), "{failed}");
}
