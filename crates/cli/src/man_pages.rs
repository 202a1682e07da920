//! Shell completions and man pages, both generated from the clap command tree.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

/// The arguments of `completions`.
#[derive(Args)]
pub struct Completions {
    /// Shell to generate completions for.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// The completion script.
    pub fn script(&self, mut command: Command) -> Vec<u8> {
        let (name, mut script) = (command.get_name().to_owned(), Vec::new());
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        script
    }
}

/// The arguments of `man`.
#[derive(Args)]
pub struct Man {
    /// Directory to write the pages to; created if missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Man {
    /// Writes one page for each command.
    pub fn write(&self, command: Command) -> Result<(), String> {
        std::fs::create_dir_all(&self.out).map_err(|error| failed(&self.out, &error))?;
        // Without the `help` subcommand, which would double the pages. Built, so that pages include global options.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let source = format!("{} {}", command.get_name(), command.get_version().unwrap_or_default());
        self.write_all(&command, source.trim_end())
    }

    fn write_all(&self, command: &Command, source: &str) -> Result<(), String> {
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            self.write_all(subcommand, source)?;
        }
        let page = clap_mangen::Man::new(command.clone()).source(source);
        let path = self.out.join(page.get_filename());
        page.generate_to(&self.out).map(drop).map_err(|error| failed(&path, &error))
    }
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!("writing man pages: {error}: path={}", path.display())
}
