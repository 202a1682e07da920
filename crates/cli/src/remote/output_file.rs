//! A file that a document is written to as it arrives.
//!
//! **Invariant.** The file has its old content, or all of the new one: a command that fails or is killed leaves no part of a
//! document, and no temporary file. The new content is in a file without a name until it is complete. On filesystems without
//! such files it has a temporary name, which a kill leaves behind.
//!
//! Devices and pipes are written directly.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use system::{file::sync_parent, hex, random};

/// A file that is being written.
pub(crate) struct OutputFile {
    file: File,
    then: Completion,
}

/// What makes the content visible when it is complete.
enum Completion {
    /// It is already.
    Nothing,
    /// A rename.
    Rename(Rename),
    /// A copy over a file whose directory may not be written.
    Copy(PathBuf),
}

struct Rename {
    path: PathBuf,
    /// The new file's name, in the same directory. It has none yet if `is_unnamed`.
    temporary: PathBuf,
    is_unnamed: bool,
    /// The mode of the file that is replaced.
    mode: Option<u32>,
}

impl OutputFile {
    pub(crate) fn create(path: &Path) -> io::Result<OutputFile> {
        let (path, mode) = match fs::metadata(path) {
            Ok(found) if found.is_file() => {
                // As for a write in place: a file that may not be written is not replaced.
                OpenOptions::new().write(true).open(path)?;
                (fs::canonicalize(path)?, Some(found.permissions().mode() & 0o7777))
            }
            Ok(_) => {
                let file = OpenOptions::new().write(true).open(path)?;
                return Ok(OutputFile { file, then: Completion::Nothing });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (path.to_path_buf(), None),
            Err(error) => return Err(error),
        };
        match OutputFile::beside(&path, mode) {
            Err(error) if mode.is_some() && error.kind() == io::ErrorKind::PermissionDenied => {
                let file = unnamed(&std::env::temp_dir()).ok_or(error)?;
                Ok(OutputFile { file, then: Completion::Copy(path) })
            }
            created => created,
        }
    }

    /// A new file in the directory of `path`.
    fn beside(path: &Path, mode: Option<u32>) -> io::Result<OutputFile> {
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_os_string();
        name.push(format!(".{}.tmp", hex::encode(&random::bytes::<8>())));
        let temporary = path.with_file_name(name);
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let (file, is_unnamed) = match unnamed(parent.unwrap_or(Path::new("."))) {
            Some(file) => (file, true),
            None => (OpenOptions::new().write(true).create_new(true).open(&temporary)?, false),
        };
        let rename = Rename { path: path.to_path_buf(), temporary, is_unnamed, mode };
        Ok(OutputFile { file, then: Completion::Rename(rename) })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// The content is complete.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        match &mut self.then {
            Completion::Nothing => return Ok(()),
            Completion::Rename(rename) => rename.complete(&self.file)?,
            Completion::Copy(path) => {
                self.file.rewind()?;
                let mut target = OpenOptions::new().write(true).truncate(true).open(path)?;
                io::copy(&mut self.file, &mut target)?;
            }
        }
        self.then = Completion::Nothing;
        Ok(())
    }
}

impl Rename {
    fn complete(&mut self, file: &File) -> io::Result<()> {
        if let Some(mode) = self.mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.sync_all()?;
        if self.is_unnamed {
            let opened = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
            rustix::fs::linkat(CWD, opened, CWD, &self.temporary, AtFlags::SYMLINK_FOLLOW)?;
            // From here on a failure has a file to remove.
            self.is_unnamed = false;
        }
        fs::rename(&self.temporary, &self.path)?;
        sync_parent(&self.path)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Completion::Rename(Rename { temporary, is_unnamed: false, .. }) = &self.then {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// A file without a name in this directory; `None` if there can be none.
fn unnamed(directory: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    rustix::fs::open(directory, flags, mode).ok().map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .expect("a list")
            .map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("out");
        let mut output = OutputFile::create(&path).expect("created");
        output.write(b"one").expect("written");
        assert!(!path.exists());
        output.finish().expect("complete");
        assert_eq!(
            (fs::read(&path).expect("there").as_slice(), names(dir.path())),
            (&b"one"[..], vec!["out".into()])
        );
    }

    #[test]
    fn a_file_that_is_not_finished_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("out");
        fs::write(&path, "old").expect("written");
        let mut output = OutputFile::create(&path).expect("created");
        output.write(b"new").expect("written");
        drop(output);
        assert_eq!(
            (fs::read(&path).expect("there").as_slice(), names(dir.path())),
            (&b"old"[..], vec!["out".into()])
        );
    }

    #[test]
    fn a_link_and_the_mode_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("ours");
        std::os::unix::fs::symlink("target", &link).expect("linked");
        let mut output = OutputFile::create(&link).expect("created");
        output.write(b"new").expect("written");
        output.finish().expect("complete");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        let found = fs::metadata(&path).expect("there").permissions().mode() & 0o7777;
        assert_eq!((fs::read(&path).expect("there").as_slice(), found), (&b"new"[..], 0o640));
    }

    #[test]
    fn a_device_is_written_and_a_directory_is_refused() {
        let mut output = OutputFile::create(Path::new("/dev/null")).expect("a device");
        output.write(b"gone").expect("written");
        output.finish().expect("complete");
        let dir = tempfile::tempdir().expect("a directory");
        assert!(OutputFile::create(dir.path()).is_err());
        assert!(OutputFile::create(&dir.path().join("none/out")).is_err(), "no such directory");
    }
}
