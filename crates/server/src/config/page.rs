//! The reference page of settings, docs/reference/settings.md, made from the table.

use std::fmt::Write;

use super::Config;
use crate::settings::{Setting, Syntax};

const HEAD: &str = "# Settings of `lockd serve`

<!-- Made from the table in crates/server/src/config.rs; `UPDATE_DOCS=1 cargo test -p lockd-server --lib config` rewrites it. -->

Each setting is a flag, an environment variable and a key in the settings file. A flag takes precedence over its variable,
and that over the file. The file is TOML: the names of flags without their dashes, as `lockd config` prints them. It is the
one named by `--config` (`LOCKD_CONFIG`), or else the first that exists of `$XDG_CONFIG_HOME/lockd/lockd.toml`
(`~/.config/lockd/lockd.toml`) and `/etc/lockd/lockd.toml`.

`lockd config` shows the value of every setting and its source. A value out of range is refused at start, with exit code 2.

Durations are written as `30s` or `1h 30m`, sizes as `16MB`, `64KiB` or a number of bytes. A switch is `true` or `false`;
its flag alone means `true`.

";

/// The text of the page.
pub fn page() -> String {
    let mut text = String::from(HEAD);
    for setting in Config::SETTINGS {
        entry(&mut text, setting).expect("a string takes all");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn entry(text: &mut String, setting: &Setting<Config>) -> std::fmt::Result {
    writeln!(text, "## `--{} {}`\n", setting.name, setting.value_name)?;
    writeln!(text, "{}.\n", setting.help)?;
    writeln!(text, "- Variable: `{}`", setting.variable)?;
    match setting.default_text() {
        Some(note) if setting.default_note.is_some() => writeln!(text, "- Default: {note}")?,
        Some(value) => writeln!(text, "- Default: `{value}`")?,
        None => writeln!(text, "- Default: not set")?,
    }
    if let Some(range) = setting.range {
        writeln!(text, "- Range: {range}")?;
    }
    if let Syntax::Choice(choices) = setting.syntax {
        writeln!(text, "- Values:")?;
        for choice in choices {
            writeln!(text, "  - `{}`: {}", choice.name, choice.help)?;
        }
    }
    writeln!(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page in the repository is the one that the table makes.
    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/settings.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::create_dir_all(std::path::Path::new(path).parent().expect("a directory")).expect("made");
            std::fs::write(path, page()).expect("written");
        }
        let written = std::fs::read_to_string(path).expect("docs/reference/settings.md");
        assert!(
            written == page(),
            "out of date; UPDATE_DOCS=1 cargo test -p lockd-server --lib config rewrites it"
        );
    }
}
