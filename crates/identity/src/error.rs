//! What can go wrong here. The message says it to people; the kind is for callers that act on it.

use std::fmt;
use std::io;
use std::path::Path;

/// What a caller may do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A file, a certificate or a text is not what it has to be.
    Invalid,
    /// The CA key is encrypted, and there is no passphrase.
    PassphraseNeeded,
    /// The passphrase is wrong, or the encrypted key was tampered with: nobody can tell which.
    PassphraseWrong,
    /// The file is there already.
    Exists,
    /// The file is not there.
    NotFound,
    /// The filesystem refused.
    Io,
}

/// A failure, with what to do next where there is something to do.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// What a caller may do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    /// What could not be done with a file or a folder, and why.
    pub fn io(what: &str, path: &Path, cause: &io::Error) -> Error {
        let kind = match cause.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("{what}: {cause}: file={}", path.display()))
    }

    /// The same, with the file that it is about.
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

/// For callers that only pass it on to people.
impl From<Error> for String {
    fn from(error: Error) -> String {
        error.message
    }
}
