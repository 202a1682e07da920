//! Completions for shells, and manual pages: both made from the command line's own description, so that they are true.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

/// `completions`.
#[derive(Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// The script for the shell.
    pub fn script(&self, mut command: Command) -> Vec<u8> {
        let (name, mut script) = (command.get_name().to_owned(), Vec::new());
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        script
    }
}

/// `man`.
#[derive(Args)]
pub struct Man {
    /// The folder to write them to; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Man {
    /// Writes one page for each command.
    pub fn write(&self, command: Command) -> Result<(), String> {
        std::fs::create_dir_all(&self.out).map_err(|error| failed(&self.out, &error))?;
        // Without `help`, which would have a page for each page. Built, so that a page has the options of those above it.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let source = format!("{} {}", command.get_name(), command.get_version().unwrap_or_default());
        self.write_all(&command, source.trim_end())
    }

    fn write_all(&self, command: &Command, source: &str) -> Result<(), String> {
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            self.write_all(below, source)?;
        }
        let page = clap_mangen::Man::new(command.clone()).source(source);
        let path = self.out.join(page.get_filename());
        page.generate_to(&self.out).map(drop).map_err(|error| failed(&path, &error))
    }
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!("writing manual pages: {error}: path={}", path.display())
}
