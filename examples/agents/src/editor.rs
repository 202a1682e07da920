//! One agent's process: it reads its files, meets the others if they come, adds its line to what it read, and writes.

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use api::agents::{Intent, Manifest};
use client::{Client, Declared, Lease};

use crate::Done;
use crate::tree::{AGENTS, Agent, line_of, replace};

/// How long it comes again, before it gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Edits the files of the agent of this name, with a server: under a lease over all of them.
pub(crate) async fn edit(name: &str, root: &Path, server: Option<&str>) -> Done {
    let agent = AGENTS.iter().find(|agent| agent.name == name);
    let agent = agent.ok_or_else(|| format!("there is no such agent: name={name}"))?;
    let Some(server) = server else { return read_and_write(agent, root, || true).map(drop) };
    let client = Client::builder().plain().endpoint(server).build()?;
    loop {
        let lease = declare(&client, agent, root).await?;
        let was_written = read_and_write(agent, root, || lease.is_live())?;
        lease.release().await?;
        if was_written {
            return Ok(());
        }
    }
}

/// Everything that it will touch, at once. Where it has to die it comes again as old as it was: in time it is the oldest.
async fn declare(client: &Client, agent: &Agent, root: &Path) -> Result<Lease, Box<dyn Error>> {
    let intent = |file: &&str| Intent { predicate: "MUTATES".to_string(), object: format!("FILE:{file}") };
    let manifest = Manifest {
        agent_id: agent.name.to_string(),
        session_id: format!("{}-{}", agent.name, std::process::id()),
        root: Some(root.to_str().ok_or("the folder's name is not UTF-8")?.to_string()),
        intents: agent.files.iter().map(intent).collect(),
        reason: Some("adds a line".to_string()),
        ..Manifest::default()
    };
    match client.declare(&manifest, PATIENCE).await? {
        Declared::Granted { lease, .. } => Ok(lease),
        Declared::Not(judged) => Err(format!("{} gave up: {:?}", agent.name, judged.verdict).into()),
    }
}

/// Returns whether it has written: not if it was so slow that it may not write any more.
fn read_and_write(agent: &Agent, root: &Path, may: impl Fn() -> bool) -> Result<bool, Box<dyn Error>> {
    let read = |file: &&'static str| Ok((*file, fs::read_to_string(root.join(file))?));
    let found = agent.files.iter().map(read).collect::<io::Result<Vec<_>>>()?;
    meet()?;
    if !may() {
        return Ok(false);
    }
    for (file, content) in found {
        replace(root, file, agent, &(content + &line_of(agent)))?;
    }
    Ok(true)
}

/// Says that it is here, between its read and its write, and waits for a word to go on.
fn meet() -> Done {
    println!("here");
    io::stdout().flush()?;
    match io::stdin().read_line(&mut String::new())? {
        0 => Err("whoever started this is gone".into()),
        _ => Ok(()),
    }
}
