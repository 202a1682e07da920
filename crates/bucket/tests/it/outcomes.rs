//! Every response to a conditional create, in every dialect: done, taken, or undecided, and never one for another.

use std::time::Duration;

use bucket::{BucketOptions, BucketUrl, Operation as Sent, Provider};
use objectserver::{Fault, Moment, Operation};
use store::object::{Objects, ObjectsErrorKind};

use crate::fixture::{
    BUCKET, LONG, PREFIX, client, client_with, kind, options, start, stored, url, wait_until,
};

use ObjectsErrorKind::{Conflict, Denied, NotFound, Taken, TimedOut, Unavailable};

/// What the server does, and what a creator is told.
struct Row {
    name: &'static str,
    fault: Option<Fault>,
    exists: bool,
    /// For S3, GCS and Azure.
    expected: [Option<ObjectsErrorKind>; 3],
    /// Whether the creator's bytes are stored.
    stored: bool,
}

fn row(
    name: &'static str,
    fault: impl Into<Option<Fault>>,
    expected: Option<ObjectsErrorKind>,
    stored: bool,
) -> Row {
    Row { name, fault: fault.into(), exists: false, expected: [expected; 3], stored }
}

fn rows() -> Vec<Row> {
    let exists = Row { exists: true, ..row("exists", None, Some(Taken), false) };
    let exists_409 = Row {
        exists: true,
        expected: [Some(Conflict), Some(Conflict), Some(Taken)],
        ..row("exists, as 409", Fault::existing_is_conflict(), None, false)
    };
    vec![
        row("created", None, None, true),
        exists,
        exists_409,
        row("409 of a concurrent request", Fault::spurious_conflict(), Some(Conflict), false),
        row("500 after the effect", Fault::error_after(500), Some(Unavailable), true),
        row("503 after the effect", Fault::error_after(503), Some(Unavailable), true),
        row("429 after the effect", Fault::error_after(429), Some(Unavailable), true),
        row("500 before the effect", Fault::error_before(500), Some(Unavailable), false),
        row("503 before the effect", Fault::error_before(503), Some(Unavailable), false),
        row("429 before the effect", Fault::error_before(429), Some(Unavailable), false),
        row("connection closed after the effect", Fault::response_lost(), Some(TimedOut), true),
        row("403", Fault::denied(), Some(Denied), false),
    ]
}

fn check_row(provider: Provider, row: Row) {
    let server = start(provider);
    let bucket = client(provider, &server);
    if row.exists {
        server.insert(BUCKET, &format!("{PREFIX}log/0/7"), "theirs");
    }
    if let Some(fault) = row.fault {
        server.add_fault(fault);
    }
    let told = kind(bucket.put_if_absent("log/0/7", b"ours"));
    assert_eq!(told, row.expected[provider as usize], "{provider:?} {}", row.name);
    let is_stored = stored(&server, "log/0/7").as_deref() == Some(b"ours");
    assert_eq!(is_stored, row.stored, "{provider:?} {}", row.name);
    assert_eq!(server.counts().of(Operation::Put), 1, "sent once: {provider:?} {}", row.name);
    assert_eq!((bucket.counts().get(Sent::Put), bucket.counts().total()), (1, 1));
}

#[test]
fn every_response_to_a_create_is_told_as_it_is() {
    for provider in Provider::ALL {
        for row in rows() {
            check_row(provider, row);
        }
    }
}

#[test]
fn a_create_that_arrives_late_is_undecided() {
    for provider in Provider::ALL {
        let server = start(provider);
        let bucket = client(provider, &server);
        server.add_fault(Fault::late(Duration::from_millis(100)).times(1));
        assert_eq!(kind(bucket.put_if_absent("log/0/7", b"ours")), Some(TimedOut), "{provider:?}");
        wait_until("the late put", || stored(&server, "log/0/7").as_deref() == Some(b"ours"));
        assert_eq!(kind(bucket.put_if_absent("log/0/7", b"ours")), Some(Taken), "{provider:?}");
    }
}

#[test]
fn a_request_without_a_response_in_time_is_undecided() {
    for provider in Provider::ALL {
        let server = start(provider);
        let timeout = Duration::from_millis(300);
        let bucket =
            client_with(provider, &BucketOptions { timeout, ..options(provider, &server.endpoint()) });
        server.insert(BUCKET, &format!("{PREFIX}a"), "x");
        let put = server.hold(Operation::Put, "", Moment::BeforeResponse);
        assert_eq!(kind(bucket.put_if_absent("log/0/7", b"ours")), Some(TimedOut), "{provider:?}");
        put.release();
        for operation in [Operation::Get, Operation::Head, Operation::List] {
            let hold = server.hold(operation, "", Moment::BeforeEffect);
            let told = match operation {
                Operation::Get => kind(bucket.get("a")),
                Operation::Head => kind(bucket.head("a")),
                _ => kind(bucket.list("", "")),
            };
            assert_eq!(told, Some(TimedOut), "{provider:?} {operation:?}");
            hold.release();
        }
    }
}

#[test]
fn a_store_that_refuses_connections_is_unavailable() {
    for provider in Provider::ALL {
        let server = start(provider);
        let bucket = client(provider, &server);
        server.refuse_connections();
        assert_eq!(kind(bucket.put_if_absent("a", b"x")), Some(Unavailable), "{provider:?}");
        assert_eq!(kind(bucket.get("a")), Some(Unavailable), "{provider:?}");
        assert_eq!(kind(bucket.list("", "")), Some(Unavailable), "{provider:?}");
        server.accept_connections().expect("the port is free");
        bucket.put_if_absent("a", b"x").expect("created");
    }
}

#[test]
fn a_missing_bucket_is_denied_and_named() {
    for provider in Provider::ALL {
        let server = start(provider);
        let missing = BucketUrl { bucket: "missing".into(), ..url(provider) };
        let bucket =
            bucket::Bucket::new(&missing, &options(provider, &server.endpoint())).expect("valid options");
        let error = bucket.put_if_absent("a", b"x").expect_err("no bucket");
        assert_eq!(error.kind, Denied, "{provider:?}");
        assert!(error.what.contains("no such bucket"), "{error}");
        assert_eq!(kind(bucket.list("", "")), Some(Denied), "{provider:?}");
        assert_eq!(kind(bucket.get("a")), Some(NotFound), "{provider:?}");
    }
}

/// What a server does to a reading call, and what the caller is told.
#[test]
fn every_response_to_a_read_is_told_as_it_is() {
    type Call = fn(&dyn Objects) -> Option<ObjectsErrorKind>;
    let calls: [(Operation, Call); 4] = [
        (Operation::Get, |bucket| kind(bucket.get("a"))),
        (Operation::Get, |bucket| kind(bucket.get_range("a", 1, 2))),
        (Operation::Head, |bucket| kind(bucket.head("a"))),
        (Operation::List, |bucket| kind(bucket.list("", ""))),
    ];
    let faults = || {
        [
            (Fault::error_before(500), Some(Unavailable)),
            (Fault::error_before(503), Some(Unavailable)),
            (Fault::error_before(429), Some(Unavailable)),
            (Fault::response_lost(), Some(TimedOut)),
            (Fault::denied(), Some(Denied)),
            (Fault::delay(Duration::from_millis(1)), None),
        ]
    };
    for provider in Provider::ALL {
        let server = start(provider);
        let bucket = client(provider, &server);
        server.insert(BUCKET, &format!("{PREFIX}a"), "12345");
        for (operation, call) in calls {
            for (fault, expected) in faults() {
                server.clear_faults();
                server.reset_counts();
                let shown = format!("{provider:?} {operation:?} {fault:?}");
                server.add_fault(fault);
                assert_eq!(call(&bucket), expected, "{shown}");
                assert_eq!((server.counts().of(operation), server.counts().total()), (1, 1), "{shown}");
            }
        }
    }
}

#[test]
fn a_missing_object_is_not_found_and_without_the_right_to_list_denied() {
    for provider in Provider::ALL {
        let server = start(provider);
        let bucket = client(provider, &server);
        for denied in [false, true] {
            if denied {
                server.add_fault(Fault::absent_is_denied());
            }
            let expected = Some(if denied { Denied } else { NotFound });
            assert_eq!(kind(bucket.get("a")), expected, "{provider:?}");
            assert_eq!(kind(bucket.get_range("a", 0, 1)), expected, "{provider:?}");
            assert_eq!(kind(bucket.head("a")), expected, "{provider:?}");
        }
        let error = bucket.head("a").expect_err("denied");
        assert!(error.what.contains("s3:ListBucket"), "{error}");
        assert_eq!(kind(bucket.delete("a")), None, "{provider:?}");
    }
}

/// A create whose response is held, and a second client: the first one is told the truth in the end.
#[test]
fn of_a_slow_and_a_quick_creator_one_wins() {
    for provider in Provider::ALL {
        let server = start(provider);
        let (slow, quick) = (client(provider, &server), client(provider, &server));
        let hold = server.hold(Operation::Put, "", Moment::BeforeEffect);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| kind(slow.put_if_absent("log/0/7", b"slow")));
            assert!(hold.wait_for(1, LONG / 60));
            server.insert(BUCKET, &format!("{PREFIX}log/0/7"), "quick");
            hold.release();
            assert_eq!(waiting.join().expect("no panic"), Some(Taken), "{provider:?}");
        });
        assert_eq!(kind(quick.put_if_absent("log/0/7", b"again")), Some(Taken), "{provider:?}");
        assert!(server.double_wins().is_empty());
    }
}
