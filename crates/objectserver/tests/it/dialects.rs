//! What `object_store` does with a faultless server, in each dialect.

use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions};
use objectserver::{Dialect, Operation};

use crate::clients::{BUCKET, DIALECTS, client, start};

pub(crate) fn create() -> PutOptions {
    PutOptions::from(PutMode::Create)
}

async fn names(store: &Arc<dyn ObjectStore>, prefix: &str) -> Vec<String> {
    let prefix = Path::from(prefix);
    let listed: Vec<_> = store.list(Some(&prefix)).try_collect().await.expect("listed");
    listed.into_iter().map(|object| object.location.to_string()).collect()
}

#[tokio::test]
async fn a_second_create_finds_the_object() {
    for dialect in DIALECTS {
        let server = start(dialect);
        let (store, path) = (client(&server, dialect), Path::from("a b/ü&<1>"));
        store.put_opts(&path, "one".into(), create()).await.expect("created");
        let second = store.put_opts(&path, "two".into(), create()).await;
        assert!(matches!(second, Err(Error::AlreadyExists { .. })), "{dialect:?} {second:?}");
        assert_eq!(server.object(BUCKET, path.as_ref()).as_deref(), Some(&b"one"[..]));
        let statuses: Vec<_> = server.create_attempts().iter().map(|attempt| attempt.status).collect();
        let expected = match dialect {
            Dialect::S3 | Dialect::Gcs => [Some(200), Some(412)],
            Dialect::Azure => [Some(201), Some(409)],
        };
        assert_eq!(statuses, expected);
        assert!(server.double_wins().is_empty());
    }
}

#[tokio::test]
async fn objects_are_read_whole_and_in_ranges() {
    for dialect in DIALECTS {
        let server = start(dialect);
        let (store, path) = (client(&server, dialect), Path::from("a/b"));
        store.put(&path, "0123456789".into()).await.expect("written");
        assert_eq!(store.get(&path).await.expect("found").bytes().await.expect("read"), "0123456789");
        assert_eq!(store.get_range(&path, 2..5).await.expect("read"), "234");
        assert_eq!(store.head(&path).await.expect("found").size, 10);
        let beyond = GetOptions { range: Some(GetRange::Offset(10)), ..GetOptions::default() };
        let error = store.get_opts(&path, beyond).await.expect_err("past the end").to_string();
        assert!(error.contains("416"), "{error}");
        assert!(matches!(store.get(&Path::from("a/c")).await, Err(Error::NotFound { .. })));
        assert!(matches!(store.head(&Path::from("a/c")).await, Err(Error::NotFound { .. })));
    }
}

#[tokio::test]
async fn lists_run_over_pages_and_start_after_an_offset() {
    for dialect in DIALECTS {
        let server = start(dialect);
        let store = client(&server, dialect);
        let expected: Vec<_> = (0..35).map(|number| format!("log/{number:03}")).collect();
        for name in &expected {
            assert!(server.insert(BUCKET, name, "x"));
        }
        server.insert(BUCKET, "other", "x");
        assert_eq!(names(&store, "log").await, expected);
        assert_eq!(server.counts().of(Operation::List), 4, "{dialect:?}");
        let (prefix, offset) = (Path::from("log"), Path::from("log/030"));
        let later: Vec<_> =
            store.list_with_offset(Some(&prefix), &offset).try_collect().await.expect("listed");
        assert_eq!(later.len(), 4, "{dialect:?}");
        let top = store.list_with_delimiter(None).await.expect("listed");
        assert_eq!((top.common_prefixes, top.objects.len()), (vec![Path::from("log")], 1));
    }
}

#[tokio::test]
async fn many_objects_are_deleted() {
    for dialect in DIALECTS {
        let server = start(dialect);
        let store = client(&server, dialect);
        let paths: Vec<_> = (0..300).map(|number| Path::from(format!("x/{number}&"))).collect();
        for path in &paths {
            server.insert(BUCKET, path.as_ref(), "x");
        }
        let stream = futures_util::stream::iter(paths.clone()).map(Ok).boxed();
        let deleted: Vec<_> = store.delete_stream(stream).try_collect().await.expect("deleted");
        assert_eq!((deleted, server.objects(BUCKET).len()), (paths, 0));
        // S3 does not mind a missing object; the others report it.
        let missing = store.delete(&Path::from("x/0")).await;
        assert_eq!(missing.is_ok(), dialect == Dialect::S3, "{dialect:?} {missing:?}");
    }
}

#[tokio::test]
async fn uploads_are_completed_or_aborted() {
    for dialect in DIALECTS {
        let server = start(dialect);
        let (store, path) = (client(&server, dialect), Path::from("big"));
        let mut upload = store.put_multipart(&path).await.expect("begun");
        upload.put_part("12345".into()).await.expect("stored");
        upload.put_part("678".into()).await.expect("stored");
        assert_eq!(server.open_uploads()[0].bytes, 8);
        upload.complete().await.expect("completed");
        assert_eq!(server.object(BUCKET, "big").as_deref(), Some(&b"12345678"[..]));
        assert!(server.open_uploads().is_empty());
        let mut upload = store.put_multipart(&Path::from("never")).await.expect("begun");
        upload.put_part("12345".into()).await.expect("stored");
        upload.abort().await.expect("aborted");
        // Azure has no abort: uncommitted blocks stay until they expire.
        assert_eq!(server.open_uploads().len(), usize::from(dialect == Dialect::Azure));
    }
}

#[tokio::test]
async fn of_racing_creators_exactly_one_wins() {
    for dialect in DIALECTS {
        let server = start(dialect);
        let store = client(&server, dialect);
        for round in 0..20 {
            let path = Path::from(format!("round/{round}"));
            let creators = (0..32).map(|creator| {
                let (store, path) = (Arc::clone(&store), path.clone());
                tokio::spawn(async move {
                    store.put_opts(&path, format!("{creator}").into(), create()).await.is_ok()
                })
            });
            let mut winners = Vec::new();
            for (creator, task) in creators.collect::<Vec<_>>().into_iter().enumerate() {
                if task.await.expect("no panic") {
                    winners.push(creator.to_string());
                }
            }
            assert_eq!(winners.len(), 1, "{dialect:?} round={round}");
            assert_eq!(server.object(BUCKET, path.as_ref()).as_deref(), Some(winners[0].as_bytes()));
        }
        assert!(server.double_wins().is_empty());
    }
}
