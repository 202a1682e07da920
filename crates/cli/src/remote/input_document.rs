//! The document that a command reads from a file or from standard input, as it is sent.
//!
//! A file can be sent again after a broken connection. A pipe cannot.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use lockd_client::DocumentBody;

use super::documents::{POISON_PREFIX, failed_file, poisoned};
use super::{Failure, failed};

/// The longest part of another command's message that is shown, in bytes.
const MESSAGE_BYTES_MAX: u64 = 4096;

/// Opens a document in a file, or on standard input for `-`.
pub(crate) fn open(file: &Path) -> Result<DocumentBody, Failure> {
    if file.as_os_str() == "-" {
        let stdin = io::stdin().as_fd().try_clone_to_owned().map(File::from);
        return stdin.and_then(body).map_err(|error| failed("reading standard input", &error))?;
    }
    File::open(file).and_then(body).map_err(|error| failed_file("reading", file, &error))?
}

/// The failure if the content is the error message of another command.
fn body(mut file: File) -> io::Result<Result<DocumentBody, Failure>> {
    if file.metadata()?.is_file() {
        let mut begin = Vec::new();
        let start = io::Seek::stream_position(&mut file)?;
        (&mut FileAt(&file, start)).take(MESSAGE_BYTES_MAX).read_to_end(&mut begin)?;
        return match poisoned(&begin) {
            Some(failure) => Ok(Err(failure)),
            None => DocumentBody::from_file(file).map(Ok),
        };
    }
    let begin = first_bytes(&mut file)?;
    if begin == POISON_PREFIX {
        let mut message = begin;
        file.take(MESSAGE_BYTES_MAX).read_to_end(&mut message)?;
        return Ok(poisoned(&message).map_or_else(|| Ok(DocumentBody::from(message)), Err));
    }
    Ok(Ok(DocumentBody::from_blocking_reader(Cursor::new(begin).chain(file))))
}

/// Reads as long as the bytes could be those of an error message.
fn first_bytes(file: &mut File) -> io::Result<Vec<u8>> {
    let (mut begin, mut byte) = (Vec::new(), [0]);
    while begin.len() < POISON_PREFIX.len() && POISON_PREFIX.starts_with(&begin) {
        match file.read(&mut byte) {
            Ok(0) => break,
            Ok(_) => begin.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(begin)
}

/// Reads a file without moving its position.
struct FileAt<'a>(&'a File, u64);

impl Read for FileAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read_at(buffer, self.1)?;
        self.1 += read as u64;
        Ok(read)
    }
}
