//! Errors: a message for people, and a kind for callers.

use std::fmt;
use std::io;
use std::path::Path;

/// Kind of an [`Error`], for callers that handle it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A file, a certificate or a text is invalid.
    Invalid,
    /// The CA key is encrypted, and no passphrase was given.
    PassphraseNeeded,
    /// The passphrase is wrong, or the encrypted key was tampered with; the two cannot be distinguished.
    PassphraseWrong,
    /// The file already exists.
    Exists,
    /// The file does not exist.
    NotFound,
    /// Another I/O error.
    Io,
}

/// An error, whose message says what to do next where possible.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// The kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// A file, a certificate, a setting or a text is invalid.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    /// A file that should be there is not.
    pub fn missing(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::NotFound, message)
    }

    /// An I/O error on a file or directory.
    pub fn io(what: &str, path: &Path, cause: &io::Error) -> Error {
        let kind = match cause.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("{what}: {cause}: file={}", path.display()))
    }

    /// Adds the file to the message.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Error {
        use fmt::Write as _;
        let separator = if self.message.contains('=') { " " } else { ": " };
        write!(self.message, "{separator}file={}", path.display()).expect("writing to a string");
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// For callers that only show the message.
impl From<Error> for String {
    fn from(error: Error) -> String {
        error.message
    }
}
