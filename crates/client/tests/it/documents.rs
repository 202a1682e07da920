//! Documents as streams, over mTLS.

use std::io::{self, Read, Write};
use std::time::Duration;

use lockd_client::{AcquireOptions, Conditions, DocumentBody, Kind, Lease};
use lockd_server::testing::Proxy;
use tokio::io::AsyncWriteExt;

use crate::common::{MtlsServer, Protocol, over_all_protocols, unused_address};

/// Long enough for several chunks, and for more than the buffers of sockets and proxies.
const LARGE: usize = 20_000_000;

fn large() -> String {
    format!("\"{}\"", "x".repeat(LARGE - 2))
}

fn long() -> AcquireOptions {
    AcquireOptions { ttl: Some(Duration::from_secs(300)), ..AcquireOptions::default() }
}

async fn key_version(lease: &Lease) -> u64 {
    lease.get_state().await.expect("held").version
}

async fn bytes_files_and_streams_are_committed_and_read_in_chunks(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let lease = server.client().acquire("orders", &long()).await.expect("free");
    assert!(lease.get_state().await.expect("held").chunk().await.expect("nothing is there").is_none());
    let document = large();
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(document.as_bytes()).expect("space");
    io::Seek::rewind(&mut file).expect("a file");
    let asynchronous = DocumentBody::from_reader(io::Cursor::new(document.clone().into_bytes()));
    let blocking = DocumentBody::from_blocking_reader(io::Cursor::new(document.clone().into_bytes()));
    let bodies =
        [document.clone().into(), DocumentBody::from_file(file).expect("a file"), asynchronous, blocking];
    for body in bodies {
        let committed = lease.update_state(body, &Conditions::default()).await.expect("held");
        assert_eq!(committed.bytes, LARGE as u64);
        let mut reader = lease.get_state().await.expect("held");
        assert_eq!((reader.version, reader.bytes), (committed.new_version, Some(LARGE as u64)));
        assert_eq!(reader.etag, committed.new_state_etag);
        let (mut read, mut chunks) = (Vec::new(), 0);
        while let Some(chunk) = reader.chunk().await.expect("held") {
            read.extend_from_slice(&chunk);
            chunks += 1;
        }
        assert!(read == document.as_bytes() && chunks > 10, "{chunks} chunks");
        let mut copied = Vec::new();
        lease.get_state().await.expect("held").copy_to(&mut copied).await.expect("held");
        assert!(copied == document.as_bytes());
    }
}

async fn a_document_above_the_bound_is_not_collected(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let lease = server.client().acquire("orders", &long()).await.expect("free");
    lease.update_state("12345", &Conditions::default()).await.expect("held");
    let error = lease.get_state().await.expect("held").collect_up_to(4).await.expect_err("five bytes");
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    let read = lease.get_state().await.expect("held").collect_up_to(5).await.expect("five bytes");
    assert_eq!(read.document.as_deref(), Some(b"12345".as_slice()));
}

async fn a_file_whose_response_is_lost_is_sent_again_and_applied_once(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let lease = server.client_at(proxy.address).acquire("orders", &long()).await.expect("free");
    let before = key_version(&lease).await;
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(large().as_bytes()).expect("space");
    proxy.swallow(1);
    let body = DocumentBody::open(file.path()).expect("a file");
    let committed = lease.update_state(body, &Conditions::default()).await.expect("the second attempt");
    assert_eq!((committed.new_version, proxy.swallowed()), (before + 1, 1));
}

async fn a_stream_whose_response_is_lost_is_indeterminate(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let lease = server.client_at(proxy.address).acquire("orders", &long()).await.expect("free");
    let before = key_version(&lease).await;
    proxy.swallow(1);
    let body = DocumentBody::from_reader(io::Cursor::new(b"{}".to_vec()));
    let error = lease.update_state(body, &Conditions::default()).await.expect_err("it cannot be sent again");
    assert_eq!(error.kind(), Kind::Indeterminate, "{error}");
    assert!(error.to_string().contains("a stream, which cannot be sent again"), "{error}");
    assert_eq!(key_version(&lease).await, before + 1, "this time it was applied");
}

async fn a_stream_that_breaks_before_its_end_is_not_applied(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let lease = server.client_at(proxy.address).acquire("orders", &long()).await.expect("free");
    let before = key_version(&lease).await;
    let (mut writer, reader) = tokio::io::duplex(1024);
    let update = async {
        let body = DocumentBody::from_reader(reader);
        lease.update_state(body, &Conditions::default()).await.expect_err("the connection broke")
    };
    let breaking = async {
        writer.write_all(&[b'1'; 4096]).await.expect("it is read");
        proxy.break_connections();
    };
    let (error, ()) = tokio::join!(update, breaking);
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("a stream, which cannot be sent again"), "{error}");
    assert_eq!(key_version(&lease).await, before);
}

async fn a_stream_of_which_nothing_was_read_is_sent_to_the_next_server(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let dead = format!("https://{}", unused_address().await);
    let builder = server.builder().endpoint(dead).endpoint(server.url());
    let held = server.client().acquire("orders", &long()).await.expect("free");
    let client = builder.build().expect("valid");
    let body = DocumentBody::from_blocking_reader(io::Cursor::new(b"7".to_vec()));
    let committed =
        client.update_state("orders", None, held.credential(), body, &Conditions::default()).await;
    assert_eq!(committed.expect("the second server").bytes, 1);
}

async fn a_reader_that_fails_is_named_and_nothing_is_applied(protocol: Protocol) {
    struct Failing(bool);
    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) {
                return Err(io::Error::other("the tape is torn"));
            }
            buffer[0] = b'1';
            Ok(1)
        }
    }
    let server = MtlsServer::start(protocol).await;
    let lease = server.client().acquire("orders", &long()).await.expect("free");
    let before = key_version(&lease).await;
    let body = DocumentBody::from_blocking_reader(Failing(false));
    let error = lease.update_state(body, &Conditions::default()).await.expect_err("it fails");
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    assert!(error.to_string().contains("the tape is torn"), "{error}");
    assert_eq!(key_version(&lease).await, before);
}

async fn a_read_goes_on_where_its_connection_broke(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let lease = server.client_at(proxy.address).acquire("orders", &long()).await.expect("free");
    let document = large();
    lease.update_state(document.clone(), &Conditions::default()).await.expect("held");
    let mut reader = lease.get_state().await.expect("held");
    let (mut read, mut breaks) = (Vec::new(), 0);
    while let Some(chunk) = reader.chunk().await.expect("it goes on") {
        read.extend_from_slice(&chunk);
        if read.len() > (breaks + 1) * LARGE / 8 && breaks < 3 {
            proxy.break_connections();
            breaks += 1;
        }
    }
    assert!(read == document.as_bytes() && breaks == 3);
}

/// The rest of another version would make a document that never was.
async fn a_read_whose_connection_broke_fails_if_the_document_has_changed(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let lease = server.client().acquire("orders", &long()).await.expect("free");
    lease.update_state(large(), &Conditions::default()).await.expect("held");
    let mut reader = server.client_at(proxy.address).get_public_state("orders", None).await.expect("allowed");
    reader.chunk().await.expect("a chunk").expect("a chunk");
    lease.update_state(large().replace('x', "y"), &Conditions::default()).await.expect("held");
    proxy.break_connections();
    let error = loop {
        match reader.chunk().await {
            Ok(chunk) => assert!(chunk.is_some(), "the first version was read to its end"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::Fenced, "{error}");
}

over_all_protocols! {
    bytes_files_and_streams_are_committed_and_read_in_chunks
    a_document_above_the_bound_is_not_collected
    a_file_whose_response_is_lost_is_sent_again_and_applied_once
    a_stream_whose_response_is_lost_is_indeterminate
    a_stream_that_breaks_before_its_end_is_not_applied
    a_stream_of_which_nothing_was_read_is_sent_to_the_next_server
    a_reader_that_fails_is_named_and_nothing_is_applied
    a_read_goes_on_where_its_connection_broke
    a_read_whose_connection_broke_fails_if_the_document_has_changed
}
