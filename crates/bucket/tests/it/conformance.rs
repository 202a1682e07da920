//! The store's conformance suite over a bucket, in each dialect.

use std::sync::Arc;

use bucket::{Bucket, Provider};
use store::conformance;
use store::object::{ObjectBlobs, ObjectLog, ObjectOptions, RetryPolicy, UploadOptions, WriterId};

use crate::fixture::{client, start};

fn open(bucket: &Bucket, shard: u32, writer: u128) -> ObjectLog {
    let options = ObjectOptions { index_batches: 16, ..ObjectOptions::new(shard, 7, WriterId(writer)) };
    ObjectLog::open(Arc::new(bucket.clone()), options, RetryPolicy::without_pause(3)).expect("readable")
}

fn conforms(provider: Provider) {
    let server = start(provider);
    let bucket = client(provider, &server);
    let mut writer = 1;
    conformance::log(open(&bucket, 0, writer), |log| {
        drop(log);
        writer += 1;
        open(&bucket, 0, writer)
    });
    conformance::reads_while_appending(open(&bucket, 1, 1));
    let uploads = UploadOptions::parts_of(5 << 20);
    conformance::blobs(&ObjectBlobs::new(Arc::new(bucket), RetryPolicy::without_pause(3), uploads));
    assert!(server.double_wins().is_empty());
}

#[test]
fn a_log_and_blobs_on_s3_conform() {
    conforms(Provider::S3);
}

#[test]
fn a_log_and_blobs_on_gcs_conform() {
    conforms(Provider::Gcs);
}

#[test]
fn a_log_and_blobs_on_azure_conform() {
    conforms(Provider::Azure);
}
