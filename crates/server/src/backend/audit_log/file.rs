//! The file of the audit log: appended, rotated by size, and reopened when another program has rotated it.
//!
//! **Invariant.** The file contains whole lines only: after a failed write it is cut back to its length before, and a line
//! that a crash has torn is removed by the next start. It is a regular file of mode 0600 that no other server appends to. At
//! most `keep` rotated files exist beside it, as `FILE.1` (the newest) to `FILE.keep`, each of at most `bytes_max` unless one
//! write was longer.
//!
//! **What would break it.** Opening without `O_NONBLOCK`: a pipe put in the place of the file would block the thread for
//! good. Following the descriptor alone: after `mv` by logrotate the lines would go on to the file that was moved away.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use system::file::OWNER_ONLY;

use super::line::is_stop;
use super::writer::AuditSink;

/// Where the file is, and how it is rotated.
#[derive(Clone, Debug)]
pub(crate) struct AuditFileOptions {
    pub(crate) path: PathBuf,
    /// The size at which it is rotated.
    pub(crate) bytes_max: u64,
    /// The number of rotated files.
    pub(crate) keep: u32,
}

/// The open file.
pub(crate) struct AuditFile {
    options: AuditFileOptions,
    /// `None` after a failure: it is opened again with the next write.
    file: Option<File>,
    previous: PreviousRun,
}

/// How the run of the server before this one ended, by the last line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreviousRun {
    /// It wrote everything, and then that it stopped.
    Stopped,
    /// The file ends in the middle of a run: entries may be missing.
    Interrupted,
    /// The file is empty: it is new, or another program has rotated it.
    Unknown,
}

/// Why the file cannot be used when the server starts.
#[derive(Debug)]
pub struct AuditFileError(PathBuf, io::Error);

impl fmt::Display for AuditFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AuditFileError(path, error) = self;
        write!(f, "the audit log cannot be opened; name another file with --audit-log: {error}: ")?;
        write!(f, "path={}", path.display())
    }
}

impl std::error::Error for AuditFileError {}

impl AuditFile {
    /// Opens or creates the file.
    pub(crate) fn open(options: AuditFileOptions) -> Result<AuditFile, AuditFileError> {
        match open(&options.path).and_then(|file| Ok((repair(&file, &options.path)?, file))) {
            Ok((previous, file)) => Ok(AuditFile { options, file: Some(file), previous }),
            Err(error) => Err(AuditFileError(options.path, error)),
        }
    }

    /// How the run before this one ended.
    pub(crate) fn previous(&self) -> PreviousRun {
        self.previous
    }

    /// The file at its path, opened anew if another one is there by now, and rotated if it would become too large.
    fn current(&mut self, added: usize) -> io::Result<&mut File> {
        let path = &self.options.path;
        let is_current = |file: &File| Ok::<_, io::Error>(is_same(&file.metadata()?, path.metadata().ok()));
        let is_current = self.file.as_ref().map(is_current).transpose()?.unwrap_or(false);
        if !is_current {
            self.file = None;
            self.file = Some(open(path)?);
        }
        let length = self.file.as_ref().expect("it was just opened").metadata()?.len();
        if length > 0 && length.saturating_add(added as u64) > self.options.bytes_max {
            self.rotate()?;
        }
        Ok(self.file.as_mut().expect("it was just opened"))
    }

    fn rotate(&mut self) -> io::Result<()> {
        let path = &self.options.path;
        if let Some(file) = self.file.take() {
            file.sync_data()?;
        }
        match self.options.keep {
            0 => std::fs::remove_file(path)?,
            keep => {
                for number in (1..keep).rev() {
                    rename_if_exists(&rotated(path, number), &rotated(path, number + 1))?;
                }
                std::fs::rename(path, rotated(path, 1))?;
            }
        }
        self.file = Some(open(path)?);
        Ok(())
    }
}

impl AuditSink for AuditFile {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let file = self.current(lines.len())?;
        let before = file.metadata()?.len();
        let written = file.write_all(lines);
        if written.is_err() {
            // Needs no space. If it fails as well, the rest of a line stays, and a reader skips that line.
            let _ = file.set_len(before);
        }
        written
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }

    fn name(&self) -> String {
        self.options.path.display().to_string()
    }
}

fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(OWNER_ONLY).custom_flags(flags);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| io::Error::other("another process writes to it"))?;
    Ok(file)
}

/// The bytes that are read at once, from the end on.
const TAIL_BYTES: u64 = 64 << 10;

/// Removes the rest of a line that a crash has torn, and reads the last line.
fn repair(file: &File, path: &Path) -> io::Result<PreviousRun> {
    let length = file.metadata()?.len();
    if length == 0 {
        return Ok(PreviousRun::Unknown);
    }
    let reader = File::open(path)?;
    let whole = line_start(&reader, length)?;
    if whole < length {
        // Bytes that never were a line of this log belong to another program: nothing is removed.
        let mut first = [0];
        reader.read_exact_at(&mut first, whole)?;
        return match first[0] {
            b'{' | 0 => file.set_len(whole),
            _ => (&*file).write_all(b"\n"),
        }
        .map(|()| PreviousRun::Interrupted);
    }
    let begin = line_start(&reader, length - 1)?;
    // The line of a stop is short.
    let mut line = vec![0; usize::try_from((length - begin).min(TAIL_BYTES)).expect("it is small")];
    reader.read_exact_at(&mut line, begin)?;
    Ok(if is_stop(&line) { PreviousRun::Stopped } else { PreviousRun::Interrupted })
}

/// Where the line begins that has the byte before `end`: after the last line break before it.
fn line_start(file: &File, end: u64) -> io::Result<u64> {
    let mut end = end;
    while end > 0 {
        let begin = end.saturating_sub(TAIL_BYTES);
        let mut part = vec![0; usize::try_from(end - begin).expect("it is small")];
        file.read_exact_at(&mut part, begin)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(begin + at as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

fn is_same(open: &Metadata, named: Option<Metadata>) -> bool {
    named.is_some_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino()))
}

/// `FILE.1` is the newest.
fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(format!(".{number}"));
    name.into()
}

fn rename_if_exists(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn audit_file(dir: &Path, bytes_max: u64, keep: u32) -> AuditFile {
        let options = AuditFileOptions { path: dir.join("audit.log"), bytes_max, keep };
        AuditFile::open(options).expect("a file")
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn it_is_rotated_by_size_and_kept_by_count_and_no_line_is_split() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut file = audit_file(dir.path(), 20, 2);
        for line in ["one\n", "two\n", "three is a longer line\n", "four\n", "five\n"] {
            file.append(line.as_bytes()).expect("space");
        }
        let path = dir.path().join("audit.log");
        assert_eq!(read(&path), "four\nfive\n");
        assert_eq!(read(&rotated(&path, 1)), "three is a longer line\n");
        assert_eq!(read(&rotated(&path, 2)), "one\ntwo\n");
        file.append(b"six, which is too long\n").expect("space");
        assert_eq!(read(&rotated(&path, 2)), "three is a longer line\n");
        assert!(!rotated(&path, 3).exists(), "two are kept");
        for path in [path.clone(), rotated(&path, 1)] {
            assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn with_nothing_kept_the_file_begins_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut file = audit_file(dir.path(), 8, 0);
        file.append(b"one two\n").expect("space");
        file.append(b"three\n").expect("space");
        assert_eq!(read(&dir.path().join("audit.log")), "three\n");
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
    }

    /// logrotate moves the file away. The lines went on to the file that was moved.
    #[test]
    fn a_file_that_was_moved_or_removed_is_opened_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut file = audit_file(dir.path(), 1000, 1);
        let (path, moved) = (dir.path().join("audit.log"), dir.path().join("moved"));
        file.append(b"one\n").expect("space");
        std::fs::rename(&path, &moved).expect("moved");
        file.append(b"two\n").expect("space");
        assert_eq!((read(&moved).as_str(), read(&path).as_str()), ("one\n", "two\n"));
        std::fs::remove_file(&path).expect("removed");
        file.append(b"three\n").expect("space");
        assert_eq!(read(&path), "three\n");
    }

    /// SIGKILL in the middle of a write, or a power failure, leaves part of a line. The next start appended its own line to it,
    /// so both were lost to every reader.
    #[test]
    fn a_line_that_a_crash_has_torn_is_removed_by_the_next_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        let long = format!("{{\"owner\":\"{}", "o".repeat(200_000));
        for (before, torn) in [("", "{\"kin"), ("{}\n", "{"), ("{}\n{}\n", &long), ("{}\n", "\0\0\0")] {
            std::fs::write(&path, format!("{before}{torn}")).expect("written");
            let mut file = audit_file(dir.path(), 1 << 20, 1);
            assert_eq!(file.previous(), PreviousRun::Interrupted, "{before}{torn}");
            file.append(b"one\n").expect("space");
            assert_eq!(read(&path), format!("{before}one\n"));
        }
        std::fs::write(&path, "not of this log").expect("written");
        audit_file(dir.path(), 1 << 20, 1).append(b"one\n").expect("space");
        assert_eq!(read(&path), "not of this log\none\n", "nothing is removed");
    }

    #[test]
    fn the_last_line_tells_how_the_run_before_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let previous = |content: &str| {
            std::fs::write(dir.path().join("audit.log"), content).expect("written");
            audit_file(dir.path(), 1000, 1).previous()
        };
        let (stop, grant) = ("{\"kind\":\"server\",\"event\":\"stopped\"}\n", "{\"event\":\"granted\"}\n");
        assert_eq!(previous(""), PreviousRun::Unknown);
        assert_eq!(previous(stop), PreviousRun::Stopped);
        assert_eq!(previous(&format!("{grant}{stop}")), PreviousRun::Stopped);
        assert_eq!(previous(&format!("{stop}{grant}")), PreviousRun::Interrupted);
        assert_eq!(
            previous(&format!("{stop}{{\"event\":\"{}\"}}\n", "x".repeat(100_000))),
            PreviousRun::Interrupted
        );
        assert_eq!(previous(&format!("{stop}\n")), PreviousRun::Interrupted);
    }

    #[test]
    fn a_directory_a_pipe_and_a_file_in_use_are_refused_and_nothing_blocks() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = |name: &str| {
            let options = AuditFileOptions { path: dir.path().join(name), bytes_max: 1000, keep: 1 };
            AuditFile::open(options).map(drop).expect_err(name).to_string()
        };
        std::fs::create_dir(dir.path().join("folder")).expect("made");
        assert!(open("folder").contains("Is a directory"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .expect("a pipe");
        assert!(open("pipe").contains("--audit-log"));
        assert!(open("missing/file").contains("No such file"));
        let _first = audit_file(dir.path(), 1000, 1);
        assert!(open("audit.log").contains("another process writes to it"));
    }
}
