//! The client and the probe against moto, a server of S3 that others have written. It runs with `LOCKD_LONG=1`, if
//! `moto_server` is in `target/moto-venv/bin`, where `.ci/moto` installs it, or in the `PATH`.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bucket::Provider;
use bucket::probe::{ProbeDepth, probe};
use store::conformance;
use store::object::{ObjectBlobs, RetryPolicy, Spool, UploadOptions};
use store::{BlobName, BlobStore as _};

use crate::fixture::{BUCKET, client_with, options, size, url, wait_until};

struct Moto {
    process: Child,
    port: u16,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program() -> Option<PathBuf> {
    let local = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/moto-venv/bin/moto_server");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|directory| directory.join("moto_server"));
    std::iter::once(local).chain(installed).find(|program| program.is_file())
}

fn start(program: &Path) -> Moto {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = free.local_addr().expect("bound").port();
    drop(free);
    let mut command = Command::new(program);
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let moto = Moto { process: command.spawn().expect("it starts"), port };
    wait_until("moto serves", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    moto
}

/// Creates the bucket: moto and `LocalStack` accept a request without a signature. Where it is denied, the bucket exists.
fn create_bucket(port: u16) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it serves");
    let request = format!(
        "PUT /{BUCKET} HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response);
    let is_created = ["HTTP/1.1 200", "HTTP/1.1 403"].iter().any(|status| response.starts_with(status));
    assert!(is_created, "{response}");
}

#[test]
fn moto_is_fit_and_blobs_on_it_conform() {
    if size(0, 1) == 0 {
        return;
    }
    let Some(program) = program() else {
        assert!(std::env::var_os("LOCKD_MOTO").is_none(), "moto_server is not installed; run .ci/moto");
        eprintln!("skipped: moto_server is not installed; run .ci/moto");
        return;
    };
    let moto = start(&program);
    check(moto.port);
}

/// For other servers, which are started by hand, by `.ci/localstack` or by `.ci/ceph`.
#[test]
fn the_s3_server_at_lockd_s3_port_is_fit_and_blobs_on_it_conform() {
    if let Ok(port) = std::env::var("LOCKD_S3_PORT") {
        check(port.parse().expect("the port of a server on 127.0.0.1"));
    }
}

fn check(port: u16) {
    create_bucket(port);
    let options = options(Provider::S3, &format!("http://127.0.0.1:{port}"));
    let report = probe(&url(Provider::S3), &options, &[], ProbeDepth::Full, "today", &mut |_| {});
    let report = report.expect("valid options");
    eprintln!("{report}");
    assert!(report.is_fit(), "{report}");
    assert!(report.left_behind.is_none(), "{report}");
    let bucket = Arc::new(client_with(Provider::S3, &options));
    let blobs = ObjectBlobs::new(bucket, RetryPolicy::without_pause(3), UploadOptions::parts_of(5 << 20));
    conformance::blobs(&blobs);
    let directory = tempfile::tempdir().expect("a directory");
    let blobs = blobs.with_spool(Some(Spool::open(directory.path()).expect("writable")));
    long_blob(&blobs);
}

/// Parts from a spool, without a signature of their bytes, and one request that reads all of them.
fn long_blob(blobs: &ObjectBlobs) {
    for (name, length) in [("doc/3", 3_000_000), ("doc/12", 12_000_000_u32)] {
        let (name, content) = (BlobName::new(name).expect("a name"), content(length));
        let mut writer = blobs.create(&name).expect("begun");
        content.chunks(300_000).for_each(|piece| writer.write(piece).expect("sent"));
        writer.finish().expect("finished");
        let mut reader = blobs.open_range(&name, 5..length.into()).expect("buckets have streams");
        assert!(reader.read(content.len()).expect("read") == content[5..], "length={length}");
        blobs.delete(&name).expect("deleted");
    }
}

fn content(length: u32) -> Vec<u8> {
    (0..length).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[2]).collect()
}
