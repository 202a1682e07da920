//! JSON or YAML.

use std::path::Path;

use clap::ValueEnum;
use cli::remote::{Failure, misused};

/// How a document is written down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// As the server has it.
    Json,
    /// For people to edit.
    Yaml,
}

impl Format {
    /// What was asked for, or what the file's name says, or else JSON.
    pub(crate) fn of(asked: Option<Format>, file: &Path) -> Format {
        let name = file.extension().map(|name| name.to_string_lossy().to_ascii_lowercase());
        let named = match name.as_deref() {
            Some("yaml" | "yml") => Format::Yaml,
            _ => Format::Json,
        };
        asked.unwrap_or(named)
    }

    pub(crate) fn extension(self) -> &'static str {
        match self {
            Format::Json => "json",
            Format::Yaml => "yaml",
        }
    }

    /// The document as it is to be written. JSON stays byte for byte.
    pub(crate) fn write(self, json: &[u8]) -> Result<Vec<u8>, Failure> {
        match self {
            Format::Json => Ok(json.to_vec()),
            // There is no document: nothing is what stands for that.
            Format::Yaml if json.is_empty() => Ok(Vec::new()),
            Format::Yaml => yamljson::from_json(json).map(String::into_bytes).map_err(refused),
        }
    }

    /// The document as people edit it.
    pub(crate) fn write_for_people(self, json: &[u8]) -> Result<Vec<u8>, Failure> {
        match self {
            Format::Json => yamljson::indent(json).map_err(refused),
            Format::Yaml => self.write(json),
        }
    }

    /// JSON, from what was read. The server judges what is JSON already.
    pub(crate) fn read(self, text: Vec<u8>) -> Result<Vec<u8>, Failure> {
        match self {
            Format::Json => Ok(text),
            Format::Yaml => yamljson::to_json(&text).map(String::into_bytes).map_err(refused),
        }
    }
}

fn refused(error: impl std::fmt::Display) -> Failure {
    misused(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_says_what_is_in_it() {
        for (name, format) in [
            ("dump.yaml", Format::Yaml),
            ("a/b.YML", Format::Yaml),
            ("dump.json", Format::Json),
            ("-", Format::Json),
            ("yaml", Format::Json),
            ("/dev/stdin", Format::Json),
        ] {
            assert_eq!(Format::of(None, Path::new(name)), format, "{name}");
        }
        assert_eq!(Format::of(Some(Format::Yaml), Path::new("a.json")), Format::Yaml);
    }
}
