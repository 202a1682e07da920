//! Three agents, each a process of its own, edit one tree of files.
//!
//! `cargo run -p agents -- unguarded` loses edits, `cargo run -p agents -- guarded` does not. `README.md` beside this
//! says why.

mod editor;
mod meeting;
mod tree;

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use server::{Config, Server};

use crate::tree::{AGENTS, Agent};

const USAGE: &str = "\
usage: agents unguarded [FOLDER]   three agents edit the same files, and edits are lost
       agents guarded [FOLDER]     they declare what they will touch first, and none is lost

FOLDER is made, or is empty, and stays. Without it the files are in a temporary one, and go.";

/// Without lockd all of them come: the time is there to fail by, should one of them break.
const UNTIL_ALL_CAME: Duration = Duration::from_secs(120);
/// With lockd nobody else can come. However long or short this is, nothing is lost.
const LONG_ENOUGH: Duration = Duration::from_millis(300);

pub(crate) type Done = Result<(), Box<dyn Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        // As it starts itself, three times.
        ["edit", name, root] => editor::edit(name, Path::new(root), None).await,
        ["edit", name, root, server] => editor::edit(name, Path::new(root), Some(server)).await,
        [how @ ("unguarded" | "guarded"), folder @ ..] if folder.len() < 2 => run(how, folder.first()).await,
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(how: &str, folder: Option<&&str>) -> Done {
    let temporary = tempfile::tempdir()?;
    let root = folder.map_or(temporary.path(), Path::new);
    tree::make(root)?;
    // Agents name files by their whole path: that is what tells them apart.
    let root = root.canonicalize()?;
    if how == "guarded" {
        guarded(&root).await?;
    } else {
        unguarded(&root)?;
    }
    let (made, lost) = tree::account(&root)?;
    println!("{made} edits were made, {lost} are lost");
    Ok(())
}

fn unguarded(root: &Path) -> Done {
    meeting::host(start_all(root, None)?, UNTIL_ALL_CAME, true)
}

async fn guarded(root: &Path) -> Done {
    let mut lockd = Server::new(Config::in_memory())?;
    let address = lockd.start().await?.to_string();
    // This thread is not one of those that serve: it may block.
    let done = start_all(root, Some(&address)).and_then(|all| meeting::host(all, LONG_ENOUGH, false));
    lockd.shutdown().await;
    done
}

fn start_all(root: &Path, server: Option<&str>) -> Result<Vec<(&'static Agent, Child)>, Box<dyn Error>> {
    AGENTS.iter().map(|agent| Ok((agent, start(agent, root, server)?))).collect()
}

fn start(agent: &Agent, root: &Path, server: Option<&str>) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("edit").arg(agent.name).arg(root).args(server);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}
