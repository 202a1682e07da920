//! One agent's process: reads its files, waits at the rendezvous, appends a line to each, and writes them back.

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use lockd_client::api::agents::{Intent, Manifest};
use lockd_client::{Client, DeclareOutcome, Lease};

use crate::ExampleResult;
use crate::tree::{AGENTS, Agent, line_of, replace};

/// Maximum time of retries.
const RETRY_TIMEOUT: Duration = Duration::from_secs(120);

/// Edits the files of the agent of this name; with a server, under one lease over all of them.
pub(crate) async fn edit(name: &str, root: &Path, server: Option<(&str, &str)>) -> ExampleResult {
    let agent = AGENTS.iter().find(|agent| agent.name == name);
    let agent = agent.ok_or_else(|| format!("no such agent: name={name}"))?;
    let Some((server, identity)) = server else { return read_and_write(agent, root, || true).map(drop) };
    let client = Client::connect(server, identity).await?;
    loop {
        let lease = declare(&client, agent, root).await?;
        let was_written = read_and_write(agent, root, || lease.is_live())?;
        lease.release().await?;
        if was_written {
            return Ok(());
        }
    }
}

/// Declares all of the agent's files at once. An attempt that dies is retried with its age, so that eventually it is
/// the oldest.
async fn declare(client: &Client, agent: &Agent, root: &Path) -> Result<Lease, Box<dyn Error>> {
    let intent = |file: &&str| Intent { predicate: "MUTATES".to_string(), object: format!("FILE:{file}") };
    let manifest = Manifest {
        agent_id: agent.name.to_string(),
        session_id: format!("{}-{}", agent.name, std::process::id()),
        root: Some(root.to_str().ok_or("the directory's path is not UTF-8")?.to_string()),
        intents: agent.files.iter().map(intent).collect(),
        reason: Some("append a line".to_string()),
        ..Manifest::default()
    };
    match client.declare(&manifest, RETRY_TIMEOUT).await? {
        DeclareOutcome::Granted(lease) => Ok(lease),
        DeclareOutcome::NotGranted(judged) => {
            Err(format!("{} was not granted its lease: verdict={:?}", agent.name, judged.verdict).into())
        }
    }
}

/// Returns whether it has written. It does not write if its lease has expired before.
fn read_and_write(agent: &Agent, root: &Path, may_write: impl Fn() -> bool) -> Result<bool, Box<dyn Error>> {
    let read = |file: &&'static str| Ok((*file, fs::read_to_string(root.join(file))?));
    let found = agent.files.iter().map(read).collect::<io::Result<Vec<_>>>()?;
    rendezvous()?;
    if !may_write() {
        return Ok(false);
    }
    for (file, content) in found {
        replace(root, file, agent, &(content + &line_of(agent)))?;
    }
    Ok(true)
}

/// Reports that it is between its read and its write, and waits for the parent to continue.
fn rendezvous() -> ExampleResult {
    println!("waiting");
    io::stdout().flush()?;
    match io::stdin().read_line(&mut String::new())? {
        0 => Err("the parent process has ended".into()),
        _ => Ok(()),
    }
}
