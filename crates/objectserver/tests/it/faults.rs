//! Each fault does what it says.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt as _};
use objectserver::{Dialect, Fault, Moment, ObjectServer, Operation};

use crate::clients::{BUCKET, client, client_at, start};
use crate::dialects::create;

const LONG: Duration = Duration::from_secs(3_600);

fn key() -> Path {
    Path::from("k")
}

fn statuses(server: &ObjectServer) -> Vec<Option<u16>> {
    server.create_attempts().iter().map(|attempt| attempt.status).collect()
}

#[tokio::test]
async fn ignored_conditions_allow_a_second_winner_at_one_address_only() {
    let server = start(Dialect::S3);
    let [first, second] = *server.addresses() else { return };
    server.add_fault(Fault::conditions_ignored().at(second));
    let by = |address| client_at(&format!("http://{address}"), Dialect::S3);
    by(first).put_opts(&key(), "1".into(), create()).await.expect("created");
    by(first).put_opts(&key(), "2".into(), create()).await.expect_err("exists");
    by(second).put_opts(&key(), "3".into(), create()).await.expect("the fault");
    assert_eq!(server.double_wins().len(), 1);
}

#[tokio::test]
async fn raced_conditions_let_both_of_two_concurrent_creators_win() {
    let server = start(Dialect::Gcs);
    let store = client(&server, Dialect::Gcs);
    server.add_fault(Fault::conditions_raced(Duration::from_millis(300)));
    let path = key();
    let create_with = |body: &'static str| store.put_opts(&path, body.into(), create());
    let (one, two) = tokio::join!(create_with("1"), create_with("2"));
    assert!(one.is_ok() && two.is_ok());
    assert_eq!(server.double_wins().len(), 1);
    create_with("3").await.expect_err("one after the other is refused");
}

#[tokio::test]
async fn conflicts_are_reported_instead_or_without_cause() {
    let server = start(Dialect::S3);
    let store = client(&server, Dialect::S3);
    let id = server.add_fault(Fault::spurious_conflict());
    store.put_opts(&key(), "1".into(), create()).await.expect_err("conflict");
    assert!(server.objects(BUCKET).is_empty());
    server.remove_fault(id);
    server.add_fault(Fault::existing_is_conflict());
    store.put_opts(&key(), "1".into(), create()).await.expect("created");
    store.put_opts(&key(), "2".into(), create()).await.expect_err("exists");
    assert_eq!(statuses(&server), [Some(409), Some(200), Some(409)]);
}

#[tokio::test]
async fn lists_and_absences_can_be_stale() {
    let server = start(Dialect::S3);
    let store = client(&server, Dialect::S3);
    server.add_fault(Fault::stale_lists(LONG));
    server.add_fault(Fault::absence_cached(LONG));
    store.head(&key()).await.expect_err("absent");
    store.put(&key(), "1".into()).await.expect("written");
    assert!(matches!(store.get(&key()).await, Err(Error::NotFound { .. })));
    assert!(store.list(None).try_collect::<Vec<_>>().await.expect("listed").is_empty());
    server.clear_faults();
    store.get(&key()).await.expect("found");
    assert_eq!(store.list(None).try_collect::<Vec<_>>().await.expect("listed").len(), 1);
}

#[tokio::test]
async fn responses_are_lost_and_errors_follow_or_precede_the_effect() {
    let faults = [
        (Fault::response_lost(), None, true),
        (Fault::error_after(500), Some(500), true),
        (Fault::error_before(503), Some(503), false),
        (Fault::error_before(429), Some(429), false),
        (Fault::denied(), Some(403), false),
    ];
    for (fault, status, effect) in faults {
        let server = start(Dialect::S3);
        let store = client(&server, Dialect::S3);
        server.add_fault(fault.on(&[Operation::Put]).on_keys("k").times(1));
        store.put_opts(&Path::from("other"), "1".into(), create()).await.expect("another key");
        store.put_opts(&key(), "1".into(), create()).await.expect_err("the fault");
        assert_eq!(server.object(BUCKET, "k").is_some(), effect, "{status:?}");
        assert_eq!(statuses(&server), [Some(200), status]);
        store.put(&key(), "2".into()).await.expect("the fault is used up");
    }
}

#[tokio::test]
async fn missing_objects_can_be_denied() {
    let server = start(Dialect::S3);
    server.add_fault(Fault::absent_is_denied());
    let missing = client(&server, Dialect::S3).head(&key()).await;
    assert!(matches!(missing, Err(Error::PermissionDenied { .. })), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_held_write_takes_effect_although_its_client_is_gone() {
    let server = start(Dialect::S3);
    let store = client(&server, Dialect::S3);
    let hold = server.hold(Operation::Put, "k", Moment::BeforeEffect);
    let put = tokio::spawn(async move { store.put(&key(), "1".into()).await });
    assert!(tokio::task::block_in_place(|| hold.wait_for(1, LONG / 60)));
    assert!(server.objects(BUCKET).is_empty());
    put.abort();
    hold.release();
    wait_until(|| server.object(BUCKET, "k").is_some()).await;
}

#[tokio::test]
async fn a_late_write_is_subject_to_its_condition_at_that_time() {
    let server = start(Dialect::S3);
    let store = client(&server, Dialect::S3);
    server.add_fault(Fault::late(Duration::from_millis(200)).times(2));
    store.put_opts(&key(), "late".into(), create()).await.expect_err("no response");
    store.put_opts(&Path::from("free"), "late".into(), create()).await.expect_err("no response");
    store.put_opts(&key(), "in time".into(), create()).await.expect("created");
    wait_until(|| server.create_attempts().len() == 3).await;
    assert_eq!(server.object(BUCKET, "k").as_deref(), Some(&b"in time"[..]));
    assert_eq!(server.object(BUCKET, "free").as_deref(), Some(&b"late"[..]));
    assert!(server.double_wins().is_empty());
}

#[tokio::test]
async fn connections_are_refused_and_accepted_again() {
    let server = start(Dialect::S3);
    let store = client(&server, Dialect::S3);
    store.put(&key(), "1".into()).await.expect("written");
    server.refuse_connections();
    store.get(&key()).await.expect_err("refused");
    server.accept_connections().expect("the port is free");
    wait_until_found(&store).await;
}

async fn wait_until_found(store: &std::sync::Arc<dyn object_store::ObjectStore>) {
    for _ in 0..200 {
        if store.get(&key()).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the server did not come back");
}

async fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..200 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the condition did not become true within 10 s");
}
