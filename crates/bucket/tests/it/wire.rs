//! What is sent: headers, addresses, and the number of requests.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bucket::{BucketOptions, Encryption, Operation as Sent, PinnedAddress, Provider};
use objectserver::Operation;
use store::object::{ObjectBlobs, Objects as _, RetryPolicy, Spool, UploadOptions};
use store::{BlobName, BlobStore as _};

use crate::fixture::{client, client_with, options, start};

/// A server that sends the head of each request to the test, and responds with 200. Returns its endpoint.
fn capture() -> (String, Receiver<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    let (send, heads) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).unwrap_or_default() == 0 {
                    break;
                }
            }
            let head = head.to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let _ = reader.read_exact(&mut vec![0; length.unwrap_or_default()]);
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            );
            if send.send(head).is_err() {
                return;
            }
        }
    });
    (endpoint, heads)
}

fn next(heads: &Receiver<String>) -> String {
    heads.recv_timeout(Duration::from_secs(20)).expect("a request")
}

#[test]
fn encryption_is_demanded_of_every_object_that_is_created() {
    let header = "x-amz-server-side-encryption: ";
    let key_header = "x-amz-server-side-encryption-aws-kms-key-id: ";
    for (encryption, algorithm, key) in [
        (Encryption::Bucket, None, None),
        (Encryption::Aes256, Some("aes256"), None),
        (Encryption::Kms(None), Some("aws:kms"), None),
        (Encryption::Kms(Some("key-1".into())), Some("aws:kms"), Some("key-1")),
    ] {
        let (endpoint, heads) = capture();
        let options = BucketOptions { encryption, ..options(Provider::S3, &endpoint) };
        let bucket = client_with(Provider::S3, &options);
        bucket.put_if_absent("a", b"x").expect("created");
        let create = next(&heads);
        assert!(create.contains("if-none-match: *"), "{create}");
        let _ = bucket.begin_upload("b");
        for head in [create, next(&heads)] {
            let value = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
            assert_eq!((value(header), value(key_header)), (algorithm, key), "{head}");
        }
        let _ = bucket.get("a");
        assert!(!next(&heads).contains(header), "only writes");
    }
}

/// A blob of 2 MiB that is written through a spool: one request.
fn put_spooled(bucket: &bucket::Bucket) {
    let directory = tempfile::tempdir().expect("a directory");
    let uploads = UploadOptions::parts_of(5 << 20);
    let blobs = ObjectBlobs::new(Arc::new(bucket.clone()), RetryPolicy::without_pause(1), uploads);
    let blobs = blobs.with_spool(Some(Spool::open(directory.path()).expect("writable")));
    let mut writer = blobs.create(&BlobName::new("doc/1").expect("a name")).expect("begun");
    writer.write(&vec![b'7'; 2 << 20]).expect("spooled");
    writer.finish().expect("created");
}

/// The library does not see the bytes of a spooled request, so it must not sign them: it would sign zeros.
#[test]
fn spooled_requests_have_condition_and_encryption_and_no_signature_of_their_bytes() {
    let (endpoint, heads) = capture();
    let options = BucketOptions { encryption: Encryption::Aes256, ..options(Provider::S3, &endpoint) };
    let bucket = client_with(Provider::S3, &options);
    put_spooled(&bucket);
    let head = next(&heads);
    for line in [
        "x-amz-content-sha256: unsigned-payload",
        "x-amz-server-side-encryption: aes256",
        "if-none-match: *",
        "content-length: 2097152",
    ] {
        assert!(head.lines().any(|found| found == line), "{line} in {head}");
    }
    assert!(!head.contains("transfer-encoding"), "{head}");
    bucket.put_if_absent("log/0/1", b"x").expect("created");
    let head = next(&heads);
    assert!(head.contains("x-amz-content-sha256: ") && !head.contains("unsigned"), "{head}");
}

#[test]
fn the_condition_is_that_of_the_dialect() {
    for (provider, condition) in [
        (Provider::S3, "if-none-match: *"),
        (Provider::Gcs, "x-goog-if-generation-match: 0"),
        (Provider::Azure, "if-none-match: *"),
    ] {
        let (endpoint, heads) = capture();
        let bucket = client_with(provider, &options(provider, &endpoint));
        bucket.put_if_absent("a", b"x").expect("created");
        let head = next(&heads);
        assert!(head.lines().any(|line| line == condition), "{provider:?} {head}");
        assert!(head.contains("authorization: "), "{provider:?} {head}");
        bucket.put("a", b"x").expect("written");
        let head = next(&heads);
        assert!(head.lines().all(|line| line != condition), "{provider:?} {head}");
    }
}

#[test]
fn a_session_token_is_sent() {
    let (endpoint, heads) = capture();
    let credentials = bucket::StaticCredentials::AccessKey {
        id: "id".into(),
        secret: "secret".into(),
        session_token: Some("token".into()),
    };
    let options = BucketOptions { credentials: Some(credentials), ..options(Provider::S3, &endpoint) };
    let _ = client_with(Provider::S3, &options).get("a");
    let head = next(&heads);
    assert!(head.contains("x-amz-security-token: token") && head.contains("credential=id/"), "{head}");
    assert!(!head.contains("secret"), "{head}");
}

#[test]
fn requests_go_to_the_pinned_address() {
    for provider in Provider::ALL {
        let server = start(provider);
        for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            if !server.addresses().iter().any(|served| served.ip() == address) {
                eprintln!("skipped: this machine has no {address}");
                continue;
            }
            let pinned = Some(PinnedAddress { host: "localhost".into(), address });
            let options = BucketOptions { address: pinned, ..options(provider, &server.endpoint_by_name()) };
            client_with(provider, &options).put_if_absent(&format!("at/{address}"), b"x").expect("created");
            let attempts = server.create_attempts();
            assert_eq!(attempts.last().map(|attempt| attempt.address.ip()), Some(address), "{provider:?}");
        }
    }
}

/// Each call is one request, and is counted once, by its operation.
#[test]
fn requests_are_counted_by_operation() {
    for provider in Provider::ALL {
        let server = start(provider);
        let bucket = client(provider, &server);
        bucket.put_if_absent("a", b"12345").expect("created");
        bucket.put_if_absent("a", b"12345").expect_err("exists");
        bucket.put("b", b"12345").expect("written");
        bucket.get("a").expect("read");
        bucket.get_range("a", 1, 2).expect("read");
        bucket.get("missing").expect_err("missing");
        bucket.head("a").expect("found");
        bucket.list("", "").expect("listed");
        bucket.delete("b").expect("deleted");
        let counts = bucket.counts();
        let of = |operation| counts.get(operation);
        assert_eq!((of(Sent::Put), of(Sent::Get), of(Sent::Head), of(Sent::List)), (3, 3, 1, 1));
        assert_eq!(of(Sent::Delete) + of(Sent::DeleteMany), 1, "{provider:?}");
        assert_eq!((counts.total(), server.counts().total()), (9, 9), "{provider:?} {}", server.counts());
        let mut upload = bucket.begin_upload("c").expect("begun");
        upload.put_part(0, &store::object::Part::from(b"part".to_vec())).expect("sent");
        upload.complete().expect("completed");
        // An upload of Azure begins with its first part.
        let requests = if provider == Provider::Azure { 2 } else { 3 };
        assert_eq!(counts.get(Sent::Upload), requests, "{provider:?}");
        assert_eq!(server.counts().of(Operation::UploadComplete), 1);
        assert_eq!(counts.get(Sent::Other), 0);
    }
}
