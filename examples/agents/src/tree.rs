//! The files, who edits which, and whose edits are still in them.

use std::fs;
use std::io;
use std::path::Path;

/// One who edits.
#[derive(Debug)]
pub(crate) struct Agent {
    /// What it is called.
    pub(crate) name: &'static str,
    /// What it edits: all of it in one go.
    pub(crate) files: [&'static str; 2],
}

/// Each shares a file with each of the others. Whoever locked one file after the other could close a ring: `ada` has
/// the first and wants the second, `bob` has the second and wants the third, `eve` has the third and wants the first.
pub(crate) const AGENTS: [Agent; 3] = [
    Agent { name: "ada", files: ["CHANGES.md", "src/list.txt"] },
    Agent { name: "bob", files: ["src/list.txt", "src/menu.txt"] },
    Agent { name: "eve", files: ["src/menu.txt", "CHANGES.md"] },
];

/// Makes the files, each with one line.
pub(crate) fn make(root: &Path) -> io::Result<()> {
    fs::create_dir_all(root)?;
    if fs::read_dir(root)?.next().is_some() {
        return Err(io::Error::other(format!("the folder is not empty: {}", root.display())));
    }
    fs::create_dir(root.join("src"))?;
    for file in files() {
        fs::write(root.join(file), format!("{file}\n"))?;
    }
    Ok(())
}

/// All files.
pub(crate) fn files() -> impl Iterator<Item = &'static str> {
    AGENTS.iter().map(|agent| agent.files[0])
}

/// The line that an agent adds to each of its files.
pub(crate) fn line_of(agent: &Agent) -> String {
    format!("- edited by {}\n", agent.name)
}

/// Puts a file in place whole, as editors do. Two that do it at once do not mix: the later one wins.
pub(crate) fn replace(root: &Path, file: &str, agent: &Agent, content: &str) -> io::Result<()> {
    let beside = root.join(format!("{file}.{}", agent.name));
    fs::write(&beside, content)?;
    fs::rename(beside, root.join(file))
}

/// Says of each file who is in it, and returns how many edits there were and how many are lost.
pub(crate) fn account(root: &Path) -> io::Result<(usize, usize)> {
    let (mut made, mut lost) = (0, 0);
    for file in files() {
        let content = fs::read_to_string(root.join(file))?;
        let editors = AGENTS.iter().filter(|agent| agent.files.contains(&file));
        let (mut said, mut gone) = (Vec::new(), 0);
        for agent in editors {
            let is_there = content.contains(&line_of(agent));
            said.push(format!("{} {}", agent.name, if is_there { "is there" } else { "IS LOST" }));
            gone += usize::from(!is_there);
        }
        println!("{file}: {}", said.join(", "));
        (made, lost) = (made + said.len(), lost + gone);
    }
    Ok((made, lost))
}
