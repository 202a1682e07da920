//! A document of 100 MB passes through the client in both directions without being held in memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::lockd::serve::Running;

/// The server's limit is 100,000,000.
const DOCUMENT_BYTES: usize = 99_999_990;
/// Below 16 MB. The pages of the program itself count, as many as the kernel maps at once. Measured in a release build: 14.5
/// to 15.4 MB, of which 9.5 MB are pages of the program, 2 MB those of libc and libm, and 2.9 MB anonymous. A build without
/// packed relocations (`build.rs`), for a glibc before 2.36, needs 1 MB more.
///
/// Without optimisations 21.8 to 23.0 MiB; a client that makes the flags of the server's commands needs more than 30.
const RESIDENT_KIB_MAX: u64 = if cfg!(debug_assertions) { 28 << 10 } else { 16_000_000 >> 10 };
/// Memory without the pages of the program: buffers and connections. Measured: 2.8 MiB in a release build, 4.0 otherwise.
const ANONYMOUS_KIB_MAX: u64 = 5 << 10;

struct Client<'a> {
    server: &'a Running,
    data: &'a Path,
    /// What `acquire` exported.
    lease_id: String,
}

impl Client<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        command.arg("client").args(args).stdin(Stdio::null()).stdout(Stdio::null());
        command.env("LOCKD_CLIENT_SERVER", &self.server.address).env("LOCKD_CLIENT_LEASE_ID", &self.lease_id);
        command.env("LOCKD_CLIENT_KEY", "orders").env("LOCKD_CLIENT_IDENTITY", self.data.join("client.pem"));
        command
    }
}

/// The most memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Default)]
struct MemoryPeak {
    resident: u64,
    anonymous: u64,
}

/// Waits for a process, and returns its peak.
fn peak(mut child: Child) -> MemoryPeak {
    let mut peak = MemoryPeak::default();
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let found = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.trim().strip_suffix(" kB"))
                .and_then(|kib| kib.parse().ok())
                .unwrap_or(0)
        };
        peak.resident = peak.resident.max(found("VmHWM:"));
        peak.anonymous = peak.anonymous.max(found("RssAnon:"));
        if let Some(status) = child.try_wait().expect("ours") {
            assert!(status.success(), "{status}");
            assert!(peak.resident > 0, "it was seen while it ran");
            return peak;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn write_document(path: &Path) {
    let mut file = BufWriter::new(File::create(path).expect("a file"));
    file.write_all(b"\"").expect("space");
    let chunk = vec![b'x'; DOCUMENT_BYTES / 10];
    for _ in 0..10 {
        file.write_all(&chunk).expect("space");
    }
    file.write_all(b"\"").expect("space");
    file.flush().expect("space");
}

fn assert_same(a: &Path, b: &Path) {
    let same = Command::new("cmp").arg(a).arg(b).status().expect("cmp");
    assert!(same.success(), "the document is as it was sent");
}

#[test]
fn a_document_of_100_mb_is_not_held_in_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, sent, received) =
        (dir.path().join("data"), dir.path().join("sent"), dir.path().join("received"));
    let server = Running::start(&data, &[]);
    write_document(&sent);
    let mut client = Client { server: &server, data: &data, lease_id: String::new() };
    let mut acquire = client.command(&["acquire", "--ttl", "300s", "--output", "json", "orders"]);
    let acquired = acquire.stdout(Stdio::piped()).output().expect("it runs");
    let granted: serde_json::Value = serde_json::from_slice(&acquired.stdout).expect("a grant");
    client.lease_id = granted["lease_id"].as_str().expect("a credential").to_string();
    let open = || File::open(&sent).expect("a file");

    let (sent_text, received_text) = (sent.to_str().expect("UTF-8"), received.to_str().expect("UTF-8"));
    let from_file = client.command(&["update", "orders", "-i", sent_text]).spawn().expect("it runs");
    let mut peaks = vec![("update -i", peak(from_file))];
    let mut pipe = Command::new("cat").stdin(open()).stdout(Stdio::piped()).spawn().expect("cat");
    let piped = pipe.stdout.take().expect("piped");
    let from_pipe = client.command(&["update", "orders"]).stdin(piped).spawn().expect("it runs");
    peaks.push(("update < pipe", peak(from_pipe)));
    pipe.wait().expect("it has ended");
    let to_file = client.command(&["get", "orders", "-o", received_text]).spawn().expect("it runs");
    peaks.push(("get -o", peak(to_file)));
    assert_same(&sent, &received);
    let redirected = File::create(&received).expect("a file");
    let to_output = client.command(&["get", "orders"]).stdout(redirected).spawn().expect("it runs");
    peaks.push(("get >", peak(to_output)));
    assert_same(&sent, &received);
    println!("peaks in KiB: {peaks:?}");
    assert!(peaks.iter().all(|(_, peak)| peak.resident < RESIDENT_KIB_MAX), "{peaks:?}");
    assert!(peaks.iter().all(|(_, peak)| peak.anonymous < ANONYMOUS_KIB_MAX), "{peaks:?}");
}
