//! The files, their editors, and the edits that are left in them.

use std::fs;
use std::io;
use std::path::Path;

/// An agent.
#[derive(Debug)]
pub(crate) struct Agent {
    /// Its name.
    pub(crate) name: &'static str,
    /// The files that it edits, both at once.
    pub(crate) files: [&'static str; 2],
}

/// Each shares a file with each of the others. Locking one file after the other could deadlock: `ada` holds the first
/// and requests the second, `bob` holds the second and requests the third, `eve` holds the third and requests the first.
pub(crate) const AGENTS: [Agent; 3] = [
    Agent { name: "ada", files: ["CHANGES.md", "src/list.txt"] },
    Agent { name: "bob", files: ["src/list.txt", "src/menu.txt"] },
    Agent { name: "eve", files: ["src/menu.txt", "CHANGES.md"] },
];

/// Creates the files, each with one line.
pub(crate) fn make(root: &Path) -> io::Result<()> {
    fs::create_dir_all(root)?;
    if fs::read_dir(root)?.next().is_some() {
        return Err(io::Error::other(format!("directory is not empty: {}", root.display())));
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

/// The line that an agent appends to each of its files.
pub(crate) fn line_of(agent: &Agent) -> String {
    format!("- edited by {}\n", agent.name)
}

/// Replaces a file atomically, as editors do. Of two concurrent replacements the later one wins.
pub(crate) fn replace(root: &Path, file: &str, agent: &Agent, content: &str) -> io::Result<()> {
    let beside = root.join(format!("{file}.{}", agent.name));
    fs::write(&beside, content)?;
    fs::rename(beside, root.join(file))
}

/// Prints which edits are in each file. Returns the number of edits made and of edits lost.
pub(crate) fn account(root: &Path) -> io::Result<(usize, usize)> {
    let (mut made, mut lost) = (0, 0);
    for file in files() {
        let content = fs::read_to_string(root.join(file))?;
        let editors = AGENTS.iter().filter(|agent| agent.files.contains(&file));
        let (mut report, mut gone) = (Vec::new(), 0);
        for agent in editors {
            let is_there = content.contains(&line_of(agent));
            report.push(format!("{} {}", agent.name, if is_there { "kept" } else { "LOST" }));
            gone += usize::from(!is_there);
        }
        println!("{file}: {}", report.join(", "));
        (made, lost) = (made + report.len(), lost + gone);
    }
    Ok((made, lost))
}
