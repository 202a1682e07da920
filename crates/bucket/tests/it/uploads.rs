//! Uploads in parts: long blobs, failures on the way, and what dead writers leave.

use std::sync::Arc;
use std::time::Duration;

use bucket::{BucketOptions, Provider};
use objectserver::{Fault, Operation};
use store::object::{ObjectBlobs, Objects as _, ObjectsErrorKind, Part, RetryPolicy, Spool, UploadOptions};
use store::port::{BlobName, BlobStore as _, ErrorKind};

use crate::fixture::{client, client_with, kind, options, start, stored, wait_until};

const MIB: usize = 1 << 20;

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| u8::try_from(index % 251).expect("below 251")).collect()
}

#[test]
fn a_blob_of_12_mb_is_uploaded_in_parts_whose_failures_are_retried() {
    let directory = tempfile::tempdir().expect("a directory");
    let spool = Spool::open(directory.path()).expect("writable");
    for (provider, spool) in Provider::ALL
        .into_iter()
        .flat_map(|provider| [None, Some(spool.clone())].map(|spool| (provider, spool)))
    {
        let server = start(provider);
        let bucket = client(provider, &server);
        let part = |fault: Fault| fault.on(&[Operation::UploadPart]);
        let complete = |fault: Fault| fault.on(&[Operation::UploadComplete]);
        server.add_fault(part(Fault::error_before(503)).times(2));
        server.add_fault(part(Fault::response_lost()).times(1));
        server.add_fault(complete(Fault::error_after(500)).times(1));
        let uploads = UploadOptions::parts_of(5 * MIB);
        let blobs = ObjectBlobs::new(Arc::new(bucket.clone()), RetryPolicy::without_pause(6), uploads);
        let blobs = blobs.with_spool(spool);
        let (name, content) = (BlobName::new("doc/12").expect("a name"), bytes(12 * MIB));
        let mut writer = blobs.create(&name).expect("begun");
        content.chunks(MIB).for_each(|chunk| writer.write(chunk).expect("sent"));
        assert!(stored(&server, "blob/doc/12").is_none(), "{provider:?}: invisible until it is finished");
        assert_eq!(writer.finish().expect("finished"), content.len() as u64, "{provider:?}");
        assert!(stored(&server, "blob/doc/12") == Some(content), "{provider:?}");
        assert!(server.open_uploads().is_empty(), "{provider:?}");
        assert!(server.counts().of(Operation::UploadPart) >= 5, "{provider:?} {}", server.counts());
    }
}

/// A blob that one request creates is sent from the spool as well, and a lost response is cleared up by reading it back.
#[test]
fn a_spooled_blob_below_the_threshold_is_one_request_that_can_be_repeated() {
    let directory = tempfile::tempdir().expect("a directory");
    let spool = Spool::open(directory.path()).expect("writable");
    for provider in Provider::ALL {
        let server = start(provider);
        let bucket = client(provider, &server);
        let uploads = UploadOptions::parts_of(5 * MIB);
        let blobs = ObjectBlobs::new(Arc::new(bucket.clone()), RetryPolicy::without_pause(3), uploads);
        let blobs = blobs.with_spool(Some(spool.clone()));
        let create = |name: &str, content: &[u8]| {
            let mut writer = blobs.create(&BlobName::new(name).expect("a name")).expect("begun");
            writer.write(content).expect("spooled");
            writer.finish()
        };
        let content = bytes(3 * MIB);
        create("doc/1", &content).expect("created");
        assert_eq!(server.counts().total(), 1, "{provider:?} {}", server.counts());
        assert!(stored(&server, "blob/doc/1").as_ref() == Some(&content), "{provider:?}");
        server.add_fault(Fault::response_lost().on(&[Operation::Put]).times(1));
        create("doc/2", &content).expect("it is the same object");
        assert!(stored(&server, "blob/doc/2").as_ref() == Some(&content), "{provider:?}");
        let mut other = content.clone();
        other[2 * MIB] ^= 1;
        server.add_fault(Fault::error_before(503).on(&[Operation::Put]).times(1));
        assert_eq!(create("doc/2", &other).expect_err("another's").kind, ErrorKind::Taken, "{provider:?}");
    }
}

/// The begin of an upload of Azure sends nothing. It was taken for a request that was not sent, and every long blob
/// failed.
#[test]
fn an_upload_begins_in_every_dialect_and_is_aborted_in_the_background_if_dropped() {
    for provider in Provider::ALL {
        let server = start(provider);
        let bucket = client(provider, &server);
        let mut upload = bucket.begin_upload("blob/doc/1").expect("begun");
        upload.put_part(0, &Part::from(b"part".to_vec())).expect("sent");
        assert_eq!(server.open_uploads().len(), 1, "{provider:?}");
        drop(upload);
        if provider == Provider::Azure {
            assert_eq!(server.counts().of(Operation::UploadAbort), 0, "Azure has no abort");
        } else {
            wait_until("the abort", || server.open_uploads().is_empty());
        }
        assert!(stored(&server, "blob/doc/1").is_none());
    }
}

#[test]
fn parts_can_be_repeated_and_a_completion_is_told_as_it_is() {
    for provider in Provider::ALL {
        let server = start(provider);
        let bucket = client(provider, &server);
        let mut upload = bucket.begin_upload("blob/doc/1").expect("begun");
        let part = |fill: u8| Part::from(vec![fill; 5 * MIB]);
        server.add_fault(Fault::error_after(503).on(&[Operation::UploadPart]).times(1));
        assert_eq!(kind(upload.put_part(0, &part(1))), Some(ObjectsErrorKind::Unavailable), "{provider:?}");
        upload.put_part(0, &part(2)).expect("sent");
        upload.put_part(1, &Part::from(b"end".to_vec())).expect("sent");
        server.add_fault(Fault::response_lost().on(&[Operation::UploadComplete]).times(1));
        assert_eq!(kind(upload.complete()), Some(ObjectsErrorKind::TimedOut), "{provider:?}");
        let content = stored(&server, "blob/doc/1").expect("completed");
        assert!(content.len() == 5 * MIB + 3 && content[0] == 2 && content.ends_with(b"end"), "{provider:?}");
    }
}

#[test]
fn old_uploads_are_aborted_and_young_ones_are_not() {
    for provider in [Provider::S3, Provider::Gcs] {
        let server = start(provider);
        let bucket = client(provider, &server);
        let leave = |name: &str| {
            let mut upload = bucket.begin_upload(name).expect("begun");
            upload.put_part(0, &Part::from(b"part".to_vec())).expect("sent");
            std::mem::forget(upload);
        };
        leave("blob/doc/old");
        leave("other/old");
        server.age_uploads(Duration::from_secs(23 * 3600));
        assert_eq!(bucket.abort_old_uploads("blob/"), Ok(0), "{provider:?}");
        server.age_uploads(Duration::from_secs(2 * 3600));
        leave("blob/doc/young");
        assert_eq!(bucket.abort_old_uploads("blob/"), Ok(1), "{provider:?}");
        let left: Vec<String> = server.open_uploads().into_iter().map(|upload| upload.key).collect();
        assert_eq!(left.len(), 2, "{provider:?} {left:?}");
        assert!(left.iter().all(|key| !key.ends_with("doc/old")), "{provider:?} {left:?}");
        server.add_fault(Fault::denied().on(&[Operation::UploadList]));
        assert_eq!(kind(bucket.abort_old_uploads("blob/")), Some(ObjectsErrorKind::Denied), "{provider:?}");
    }
    let server = start(Provider::Azure);
    assert_eq!(client(Provider::Azure, &server).abort_old_uploads("blob/"), Ok(0), "it forgets parts itself");
    assert_eq!(server.counts().total(), 0);
}

/// The time limit is that of one request, and not that of a blob.
#[test]
fn a_slow_upload_may_take_longer_than_one_request() {
    let provider = Provider::S3;
    let server = start(provider);
    let timeout = Duration::from_secs(2);
    let bucket = client_with(provider, &BucketOptions { timeout, ..options(provider, &server.endpoint()) });
    server.add_fault(Fault::delay(Duration::from_millis(700)));
    let mut upload = bucket.begin_upload("blob/doc/1").expect("begun");
    upload.put_part(0, &Part::from(vec![0; 5 * MIB])).expect("sent");
    upload.put_part(1, &Part::from(b"end".to_vec())).expect("sent");
    upload.complete().expect("completed");
}
