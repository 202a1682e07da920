//! Server processes: started with a fresh data folder, ended with the bench.
//!
//! **Invariant.** No server outlives the bench. A server is a process group of its own, so that Ctrl-C reaches the bench
//! first; `Drop` ends the group. If the bench is killed, the kernel ends the server (`setpriv --pdeathsig`).
//! **What would break it.** Spawning from a thread that ends early: the signal follows the thread, not the process.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::system::{Client, Environment, Error, Result, System};
use crate::usage;

/// Starting includes a JVM and `initdb` on a machine that may be busy.
const START_DEADLINE: Duration = Duration::from_secs(120);

/// A running server.
pub struct Server {
    system: Arc<dyn System>,
    environment: Environment,
    folder: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

impl Server {
    /// Starts a server with a fresh data folder.
    pub async fn start(system: Arc<dyn System>, environment: &Environment) -> Result<Server> {
        let prefix = format!("lockd-bench-{}-", system.name());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(&environment.data)?;
        share_folder(folder.path())?;
        system.prepare(folder.path())?;
        let port = free_port()?;
        let mut server = Server { system, environment: environment.clone(), folder, port, child: None };
        server.spawn()?;
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// The system that it runs.
    pub fn system(&self) -> &dyn System {
        &*self.system
    }

    /// Its address on loopback.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its data folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A client, with a connection of its own unless the system says otherwise.
    pub async fn connect(&self, session: Duration) -> Result<Box<dyn Client>> {
        self.system.connect(&self.address(), session).await
    }

    /// Many clients; connections are opened one after the other, so that no backlog overflows.
    pub async fn clients(&self, count: usize, session: Duration) -> Result<Vec<Box<dyn Client>>> {
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(self.connect(session).await?);
        }
        Ok(clients)
    }

    /// CPU time of its processes.
    pub fn cpu(&self) -> Duration {
        self.pid().map_or(Duration::ZERO, usage::tree_cpu)
    }

    /// Resident memory of its processes, in bytes.
    pub fn memory(&self) -> u64 {
        self.pid().map_or(0, usage::tree_memory)
    }

    /// The process that the bench started.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills the server as a crash would, starts it again on the same folder, and returns how long it took from the
    /// start to the first response.
    pub async fn crash_and_restart(&mut self) -> Result<Duration> {
        self.end();
        let began = Instant::now();
        self.spawn()?;
        self.wait_until_ready().await?;
        Ok(began.elapsed())
    }

    fn spawn(&mut self) -> Result<()> {
        let command = self.system.command(&self.environment, self.folder.path(), self.port);
        let log = std::fs::File::options().create(true).append(true).open(self.log())?;
        let mut command = with_parent(&command);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        self.child = Some(command.spawn().map_err(|error| Error::Failed(format!("start: {error}")))?);
        Ok(())
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            let ready =
                tokio::time::timeout(Duration::from_secs(60), self.system.set_up(&self.address())).await;
            let cause = match ready {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => format!("{error:?}"),
                Err(_) => "no response".to_string(),
            };
            let child = self.child.as_mut().ok_or_else(|| Error::failed("not started"))?;
            if let Some(status) = child.try_wait()? {
                return Err(Error::Failed(format!("the server ended: {status}; {}", self.log_tail())));
            }
            if Instant::now() > deadline {
                return Err(Error::Failed(format!("not ready: {cause}; {}", self.log_tail())));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join(" | ")
    }

    /// Kills all its processes and waits for the one that the bench started.
    fn end(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let all = usage::tree(child.id());
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        // Backends of PostgreSQL are groups of their own.
        let below: Vec<Pid> =
            all.iter().skip(1).filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)).collect();
        for pid in &below {
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
        let _ = child.wait();
        // They are children of the bench now ([`adopt_orphans`]).
        for pid in below {
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes this process the parent of processes whose own parent was killed, so that it can wait for them.
pub fn adopt_orphans() {
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Prefixes the command so that the kernel kills the server if the bench dies.
fn with_parent(command: &Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

/// A server that may not run as root reads and writes the folder as another user.
fn share_folder(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The first line that a program prints with these arguments.
pub fn version_of(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::Failed(format!("{program}: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout).to_string();
    if !output.status.success() {
        return Err(Error::Failed(format!("{program}: {}", output.status)));
    }
    Ok(text.lines().next().unwrap_or_default().trim().to_string())
}
