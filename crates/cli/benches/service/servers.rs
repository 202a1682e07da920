//! The measured servers: lockd, and an empty server on the same stack.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::RawQuery;
use axum::routing::{get, post};
use http_body_util::channel::Channel;

/// The argument that makes this program the empty server.
pub(crate) const EMPTY: &str = "empty-server";

/// A server process, killed on drop.
pub(crate) struct Running {
    child: Child,
    pub(crate) address: String,
    dir: tempfile::TempDir,
}

impl Running {
    /// lockd with a temporary data directory.
    pub(crate) fn start(args: &[&str]) -> Running {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockd"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path());
        command.args(args).env("XDG_CONFIG_HOME", dir.path());
        Running::spawn(command, dir)
    }

    /// The empty server: reads the body, and responds with as many bytes as a grant has.
    pub(crate) fn empty() -> Running {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(EMPTY);
        Running::spawn(command, tempfile::tempdir().expect("a directory"))
    }

    fn spawn(mut command: Command, dir: tempfile::TempDir) -> Running {
        let mut child = command.stderr(Stdio::piped()).stdin(Stdio::null()).spawn().expect("the program");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let serving = lines.find_map(|line| line.ok().filter(|line| line.contains("url=http")));
        let serving = serving.expect("it serves");
        let address =
            serving.split("://").nth(1).and_then(|rest| rest.split(' ').next()).expect("an address");
        let address = address.to_string();
        // Drains the log, so that the server never blocks on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Running { child, address, dir }
    }

    /// The client identity file that the first start creates.
    pub(crate) fn identity(&self) -> std::path::PathBuf {
        self.dir.path().join("client.pem")
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Peak resident memory in bytes.
    pub(crate) fn peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// CPU time of its threads.
    pub(crate) fn cpu(&self) -> Duration {
        cpu(&self.child.id().to_string())
    }

    fn memory(&self, line: &str) -> u64 {
        let status =
            std::fs::read_to_string(Path::new("/proc").join(self.child.id().to_string()).join("status"));
        let status = status.expect("it runs");
        let figure = status.lines().find_map(|text| text.strip_prefix(line)).expect("a figure");
        figure.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }
}

/// CPU time of the threads of a process, given by its pid or `self`.
pub(crate) fn cpu(process: &str) -> Duration {
    let tasks = std::fs::read_dir(Path::new("/proc").join(process).join("task")).expect("it runs");
    let ran = |task: std::io::Result<std::fs::DirEntry>| -> u64 {
        let schedstat = std::fs::read_to_string(task.expect("it runs").path().join("schedstat"));
        // A thread may exit between the listing and the read.
        schedstat.ok().and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or_default()
    };
    Duration::from_nanos(tasks.map(ran).sum())
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the empty server until it is killed.
pub(crate) fn serve_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        eprintln!("serving url=http://{} nothing", listener.local_addr().expect("bound"));
        let answer = async |_: Bytes| ([("content-type", "application/json")], "x".repeat(400));
        let app = Router::new()
            .route("/v1/acquire", post(answer))
            .route("/v1/release", post(answer))
            .route("/file", get(file));
        axum::serve(axum::serve::ListenerExt::tap_io(listener, |tcp| drop(tcp.set_nodelay(true))), app)
            .await
            .expect("it serves");
    });
}

/// Streams the file named in the query, in chunks of the size that lockd reads.
async fn file(RawQuery(path): RawQuery) -> Body {
    let path = path.expect("a path");
    let (mut send, body) = Channel::<Bytes, std::io::Error>::new(2);
    tokio::spawn(async move {
        let mut file = Some(std::fs::File::open(path).expect("it is there"));
        loop {
            let mut source = file.take().expect("it comes back");
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; 256 << 10];
                let read = source.read(&mut piece).expect("it is there");
                piece.truncate(read);
                (source, piece)
            });
            let (source, piece) = read.await.expect("it can be read");
            file = Some(source);
            if piece.is_empty() || send.send_data(piece.into()).await.is_err() {
                return;
            }
        }
    });
    Body::new(body)
}
