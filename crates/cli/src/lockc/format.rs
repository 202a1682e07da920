//! Conversion between a document's JSON and the JSON or YAML of a file.

use std::path::Path;

use clap::ValueEnum;
use cli::remote::{Failure, usage_error};

/// The file format of a document.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// The bytes that the server stores.
    Json,
    /// YAML 1.2, easier to edit.
    Yaml,
}

impl Format {
    /// The explicit format, else the one of the file's extension, else JSON.
    pub(crate) fn of(explicit: Option<Format>, file: &Path) -> Format {
        let name = file.extension().map(|name| name.to_string_lossy().to_ascii_lowercase());
        let named = match name.as_deref() {
            Some("yaml" | "yml") => Format::Yaml,
            _ => Format::Json,
        };
        explicit.unwrap_or(named)
    }

    pub(crate) fn extension(self) -> &'static str {
        match self {
            Format::Json => "json",
            Format::Yaml => "yaml",
        }
    }

    /// The document in this format. JSON stays byte for byte.
    pub(crate) fn write(self, json: &[u8]) -> Result<Vec<u8>, Failure> {
        match self {
            Format::Json => Ok(json.to_vec()),
            // No document: empty output, as for JSON.
            Format::Yaml if json.is_empty() => Ok(Vec::new()),
            Format::Yaml => yamljson::from_json(json).map(String::into_bytes).map_err(refused),
        }
    }

    /// The document indented for an editor.
    pub(crate) fn write_indented(self, json: &[u8]) -> Result<Vec<u8>, Failure> {
        match self {
            Format::Json => yamljson::indent(json).map_err(refused),
            Format::Yaml => self.write(json),
        }
    }

    /// Converts a file's content to JSON. JSON input is validated by the server.
    pub(crate) fn read(self, text: Vec<u8>) -> Result<Vec<u8>, Failure> {
        match self {
            Format::Json => Ok(text),
            Format::Yaml => yamljson::to_json(&text).map(String::into_bytes).map_err(refused),
        }
    }
}

fn refused(error: impl std::fmt::Display) -> Failure {
    usage_error(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_of_a_file_selects_the_format() {
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
