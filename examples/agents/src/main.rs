//! Three agents, each in its own process, edit one directory tree.
//!
//! `cargo run -p lockd-example-agents -- unguarded` loses edits, `cargo run -p lockd-example-agents -- guarded` does not. `README.md` explains why.

mod editor;
mod rendezvous;
mod tree;

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use lockd_server::{Config, Server};

use crate::tree::{AGENTS, Agent};

const USAGE: &str = "\
usage: agents unguarded [DIR]   three agents edit the same files, and edits are lost
       agents guarded [DIR]     they declare their files first, and no edit is lost

DIR is created, or must be empty, and is kept. Without it the files are in a temporary directory.";

/// Without lockd all agents reach the rendezvous: the timeout only makes a broken run fail.
const ALL_ARRIVED_TIMEOUT: Duration = Duration::from_secs(120);
/// With lockd no conflicting agent can arrive: no edit is lost, for any value.
const ARRIVAL_TIMEOUT: Duration = Duration::from_millis(300);

pub(crate) type ExampleResult = Result<(), Box<dyn Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        // The three child processes.
        ["edit", name, root] => editor::edit(name, Path::new(root), None).await,
        ["edit", name, root, server, identity] => {
            editor::edit(name, Path::new(root), Some((server, identity))).await
        }
        [how @ ("unguarded" | "guarded"), dir @ ..] if dir.len() < 2 => run(how, dir.first()).await,
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(how: &str, dir: Option<&&str>) -> ExampleResult {
    let temporary = tempfile::tempdir()?;
    let root = dir.map_or(temporary.path(), Path::new);
    tree::make(root)?;
    // Resources are named by absolute path.
    let root = root.canonicalize()?;
    if how == "guarded" {
        guarded(&root).await?;
    } else {
        unguarded(&root)?;
    }
    let (made, lost) = tree::account(&root)?;
    println!("{made} edits were made, {lost} were lost");
    Ok(())
}

fn unguarded(root: &Path) -> ExampleResult {
    rendezvous::host(start_all(root, None)?, ALL_ARRIVED_TIMEOUT, true)
}

async fn guarded(root: &Path) -> ExampleResult {
    let data = tempfile::tempdir()?;
    let config = Config { listen: "127.0.0.1:0".into(), ..Config::in_directory(data.path().join("lockd")) };
    // The first start creates a CA, and the identity file of a client.
    let identity = config.data_dir.join("client.pem");
    let mut lockd = Server::new(config)?;
    let server = format!("https://{}", lockd.start().await?);
    // Blocking is fine here: other threads serve.
    let result = start_all(root, Some((&server, &identity)))
        .and_then(|all| rendezvous::host(all, ARRIVAL_TIMEOUT, false));
    lockd.shutdown().await?;
    result
}

/// The address of the server, and the identity file.
type ServerArgs<'a> = Option<(&'a str, &'a Path)>;

fn start_all(root: &Path, server: ServerArgs<'_>) -> Result<Vec<(&'static Agent, Child)>, Box<dyn Error>> {
    AGENTS.iter().map(|agent| Ok((agent, start(agent, root, server)?))).collect()
}

fn start(agent: &Agent, root: &Path, server: ServerArgs<'_>) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("edit").arg(agent.name).arg(root);
    if let Some((server, identity)) = server {
        command.arg(server).arg(identity);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}
