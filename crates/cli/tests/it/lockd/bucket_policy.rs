//! The policy for S3 in docs/operating/object-storage.md: it has the rights that a server and the probe use, and no others.
//!
//! The object store counts requests by operation, and denies those of one operation on purpose. Which right an operation
//! needs is documented by AWS.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use objectserver::{Fault, ObjectServer, Operation};
use serde_json::{Value, json};

use crate::lockd::bucket::{CREDENTIALS, is_ready, object_server, post, request, serve, wait_ms};
use crate::lockd::support::{Ran, lockd};
use crate::running::until;

const PAGE: &str = include_str!("../../../../../docs/operating/object-storage.md");

/// The rights of the policy, by the resource that they are for.
fn policy() -> (BTreeSet<String>, BTreeSet<String>) {
    let (_, json) = PAGE.split_once("```json\n").expect("a policy");
    let policy: Value = serde_json::from_str(json.split("```").next().expect("its end")).expect("JSON");
    let statement = |number: usize, resource: &str| {
        let statement = &policy["Statement"][number];
        assert_eq!((&statement["Effect"], &statement["Resource"]), (&json!("Allow"), &json!(resource)));
        let actions = statement["Action"].as_array().expect("a list");
        actions.iter().map(|action| action.as_str().expect("a name").to_string()).collect()
    };
    assert_eq!(policy["Statement"].as_array().map(Vec::len), Some(2));
    (statement(0, "arn:aws:s3:::locks"), statement(1, "arn:aws:s3:::locks/prod/*"))
}

/// The rights that an operation needs: to the bucket, or to its objects.
fn rights(operation: Operation) -> (&'static [&'static str], &'static [&'static str]) {
    match operation {
        Operation::Put | Operation::UploadBegin | Operation::UploadPart | Operation::UploadComplete => {
            (&[], &["s3:PutObject"])
        }
        // Without the right to list, a missing object is denied.
        Operation::Get | Operation::Head => (&["s3:ListBucket"], &["s3:GetObject"]),
        Operation::List => (&["s3:ListBucket"], &[]),
        Operation::Delete | Operation::DeleteMany => (&[], &["s3:DeleteObject"]),
        Operation::UploadAbort => (&[], &["s3:AbortMultipartUpload"]),
        Operation::UploadList => (&["s3:ListBucketMultipartUploads"], &[]),
        Operation::Bucket => (&["s3:GetLifecycleConfiguration", "s3:GetBucketVersioning"], &[]),
        Operation::Copy | Operation::Unknown => (&["no such right"], &[]),
    }
}

fn probe(objects: &ObjectServer) -> Ran {
    let endpoint = objects.endpoint();
    let mut args = vec!["store", "probe", "s3://locks/test", "--output", "json", "--s3-endpoint", &endpoint];
    args.extend(["--s3-region", "us-east-1", "--s3-credential-process", CREDENTIALS]);
    lockd(&args)
}

/// The life of a server: documents, short and in parts, an upload whose client goes, collection, a second start.
fn live(objects: &ObjectServer) {
    let dir = tempfile::tempdir().expect("a directory");
    let flags = ["--gc-temps-interval", "100ms"];
    let server = serve(objects, dir.path(), &flags);
    let acquire = json!({"key": "doc", "ttl_seconds": 60});
    let (_, lease) = post(&server.address, "/v1/acquire", &acquire).expect("a response");
    let headers = format!("x-lease-id: {}\r\n", lease["lease_id"].as_str().expect("a credential"));
    for mebibytes in [0, 2, 11, 1] {
        let body = json!({"text": "x".repeat(mebibytes << 20)}).to_string();
        let written = request(&server.address, "POST /v1/update_state?key=doc", &headers, &body);
        assert_eq!(written.expect("a response").0, 200);
    }
    let mut stream = TcpStream::connect(&server.address).expect("it serves");
    let head = format!("POST /v1/update_state?key=doc HTTP/1.1\r\nhost: localhost\r\n{headers}");
    let head = format!("{head}content-type: application/json\r\ncontent-length: 20000000\r\n\r\n[\"");
    stream.write_all(head.as_bytes()).expect("sent");
    stream.write_all(&vec![b'x'; 12 << 20]).expect("sent");
    until("parts are uploaded", || !objects.open_uploads().is_empty());
    drop(stream);
    until("the upload is aborted", || objects.open_uploads().is_empty());
    until("replaced documents are deleted", || objects.counts().of(Operation::DeleteMany) > 0);
    until("old uploads are looked for", || objects.counts().of(Operation::UploadList) > 0);
    drop(server);
    let server = serve(objects, dir.path(), &flags);
    until("it serves again", || is_ready(&server.address));
    let mut read = TcpStream::connect(&server.address).expect("it serves");
    read.write_all(
        b"GET /v1/get_state?key=doc&public=1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    )
    .expect("sent");
    let mut response = Vec::new();
    read.read_to_end(&mut response).expect("a response");
    assert!(response.len() > 1 << 20, "{}", String::from_utf8_lossy(&response));
    wait_ms(300);
}

#[test]
fn the_policy_has_every_right_that_is_used_and_no_other() {
    let objects = object_server(0);
    let fit = probe(&objects);
    assert_eq!(fit.code, 0, "{}", fit.stderr);
    live(&objects);
    let used: Vec<Operation> =
        Operation::ALL.into_iter().filter(|operation| objects.counts().of(*operation) > 0).collect();
    let (mut bucket, mut names) = (BTreeSet::new(), BTreeSet::new());
    for operation in used {
        let rights = rights(operation);
        bucket.extend(rights.0.iter().map(ToString::to_string));
        names.extend(rights.1.iter().map(ToString::to_string));
    }
    assert_eq!((bucket, names), policy());
}

/// Without each of the rights to data, the probe fails or says what it could not do.
#[test]
fn the_probe_shows_which_right_is_missing() {
    for (operations, shown) in [
        (&[Operation::Put][..], "conditional_create"),
        (&[Operation::Get, Operation::Head][..], "missing_object"),
        (&[Operation::List][..], "list_after_put"),
        (&[Operation::Delete, Operation::DeleteMany][..], "head_after_delete"),
        (&[Operation::UploadBegin][..], "multipart"),
        (&[Operation::UploadAbort][..], "multipart"),
    ] {
        let objects = object_server(0);
        objects.add_fault(Fault::denied().on(operations));
        let ran = probe(&objects);
        let verdict = ran.stdout.lines().next().unwrap_or_default();
        let verdict: Value = serde_json::from_str(verdict).expect("JSON");
        let checks = verdict["checks"].as_array().expect("a list");
        let failed = checks.iter().find(|check| check["outcome"] == "failed").expect("one failed");
        assert_eq!((failed["name"].as_str(), ran.code), (Some(shown), 1), "{operations:?}: {failed}");
        assert!(failed["what"].as_str().expect("text").contains("den"), "{failed}");
    }
    let objects = object_server(0);
    objects.add_fault(Fault::denied().on(&[Operation::Bucket]));
    let ran = probe(&objects);
    assert!(ran.code == 0 && ran.stdout.contains("cannot be read"), "{}", ran.stdout);
}
