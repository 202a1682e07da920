//! Servers and clients for tests.

use std::sync::mpsc::channel;
use std::time::Duration;

use bucket::{Bucket, BucketOptions, BucketUrl, Provider, StaticCredentials};
use objectserver::{Dialect, ObjectServer, ServerOptions};
use store::object::{Objects as _, ObjectsError, ObjectsErrorKind};

pub(crate) const BUCKET: &str = "trial";
/// The prefix of the store in the bucket.
pub(crate) const PREFIX: &str = "prod/eu/";
pub(crate) const LONG: Duration = Duration::from_secs(3600);

pub(crate) fn dialect(provider: Provider) -> Dialect {
    match provider {
        Provider::S3 => Dialect::S3,
        Provider::Gcs => Dialect::Gcs,
        Provider::Azure => Dialect::Azure,
    }
}

pub(crate) fn start(provider: Provider) -> ObjectServer {
    start_with(ServerOptions::new(dialect(provider), BUCKET))
}

pub(crate) fn start_with(options: ServerOptions) -> ObjectServer {
    ObjectServer::start(options).expect("a free port")
}

pub(crate) fn url(provider: Provider) -> BucketUrl {
    BucketUrl::parse(&format!("{}://{BUCKET}/{PREFIX}", provider.scheme())).expect("a URL")
}

pub(crate) fn options(provider: Provider, endpoint: &str) -> BucketOptions {
    let credentials = match provider {
        Provider::S3 => {
            StaticCredentials::AccessKey { id: "any".into(), secret: "any".into(), session_token: None }
        }
        Provider::Gcs => StaticCredentials::BearerToken("any".into()),
        Provider::Azure => StaticCredentials::AccountKey { account: "account".into(), key: "a2V5".into() },
    };
    BucketOptions {
        region: Some("us-east-1".into()),
        endpoint: Some(endpoint.into()),
        credentials: Some(credentials),
        ..BucketOptions::default()
    }
}

pub(crate) fn client(provider: Provider, server: &ObjectServer) -> Bucket {
    client_with(provider, &options(provider, &server.endpoint()))
}

pub(crate) fn client_with(provider: Provider, options: &BucketOptions) -> Bucket {
    Bucket::new(&url(provider), options).expect("valid options")
}

/// The bytes of one of the store's objects.
pub(crate) fn stored(server: &ObjectServer, name: &str) -> Option<Vec<u8>> {
    server.object(BUCKET, &format!("{PREFIX}{name}")).map(Into::into)
}

pub(crate) fn kind<T>(result: Result<T, ObjectsError>) -> Option<ObjectsErrorKind> {
    result.err().map(|error| error.kind)
}

/// Waits until the condition holds, for 20 s at most.
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..400 {
        if condition() {
            return;
        }
        pause(Duration::from_millis(50));
    }
    panic!("it did not happen within 20 s: {what}");
}

pub(crate) fn pause(duration: Duration) {
    let (_open, never) = channel::<()>();
    let _ = never.recv_timeout(duration);
}

/// The size of a randomised test: `usual`, or `long` with `LOCKD_LONG=1` in the environment.
pub(crate) fn size(usual: u32, long: u32) -> u32 {
    if std::env::var("LOCKD_LONG").is_ok_and(|value| value == "1") { long } else { usual }
}

/// A directory bucket failed later, with an error of the probe's list check.
#[test]
fn directory_buckets_are_refused_by_name() {
    let options = options(Provider::S3, "http://127.0.0.1:1");
    for (text, is_refused) in [
        ("s3://locks--use1-az4--x-s3/prod", true),
        ("s3://locks--x-s3-copy/prod", false),
        ("s3://locks/x--x-s3", false),
    ] {
        let refused = Bucket::new(&BucketUrl::parse(text).expect("a URL"), &options).err();
        let is_named = refused.as_ref().is_some_and(|what| what.contains("directory buckets"));
        assert_eq!(is_named, is_refused, "{text} {refused:?}");
    }
}

#[test]
fn credentials_of_another_store_are_refused() {
    let options = options(Provider::S3, "http://127.0.0.1:1");
    let error = Bucket::new(&url(Provider::Gcs), &options).err().expect("refused");
    assert!(error.contains("of=s3://"), "{error}");
    let google = BucketOptions { endpoint: Some("https://storage.googleapis.com".into()), ..options };
    let error = Bucket::new(&url(Provider::S3), &google).err().expect("refused");
    assert!(error.contains("gs://trial"), "{error}");
    assert!(
        kind(client_with(Provider::S3, &self::options(Provider::S3, "http://127.0.0.1:1")).get("a"))
            .is_some()
    );
}
