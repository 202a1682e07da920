//! A backup as one file: an uncompressed POSIX tar (ustar), which `tar xf` unpacks into a backup directory.
//!
//! **Invariant.** The manifest is the first member, and the others follow in its order. Nothing is unpacked that it does
//! not name, and every member is compared with its hash, when it is written and when it is read.
//!
//! **What is absent.** Links, devices, modes, owners and every extension of the format.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use store::disk::CopiedFile;

use crate::error::BackupError;
use crate::manifest::{FileEntry, Manifest, NAME};
use crate::pace::{Pace, Progress};
use crate::staging::Staging;
use crate::verify::{check_hash, outside, read_parts};

const BLOCK: usize = 512;
/// The largest member: its length has eleven octal digits.
const MEMBER_MAX: u64 = (1 << 33) - 1;
/// The longest name, without a prefix.
const NAME_MAX: usize = 100;
const MANIFEST_MAX: u64 = 1 << 30;
const PART: usize = 1 << 20;

/// Packs a verified backup directory, and reads the archive back.
pub(crate) fn pack(
    dir: &Path,
    manifest: &Manifest,
    archive: &Path,
    pace: &Pace<'_>,
) -> Result<(), BackupError> {
    pace.begin("packing", manifest.bytes());
    let mut out = CopiedFile::create(archive)?;
    let encoded = manifest.encode();
    let seconds = manifest.created_at_unix_ms / 1000;
    out.write(&header(NAME, encoded.len() as u64, seconds)?)?;
    out.write(&encoded)?;
    out.write(padding(encoded.len() as u64))?;
    for file in &manifest.files {
        out.write(&header(&file.path, file.bytes, seconds)?)?;
        let mut hasher = blake3::Hasher::new();
        read_parts(&file.below(dir).ok_or_else(|| outside(file))?, &mut |part| {
            hasher.update(part);
            pace.advance(part.len() as u64)?;
            Ok(out.write(part)?)
        })?;
        check_hash(file, &hasher)?;
        out.write(padding(file.bytes))?;
    }
    // The end of an archive.
    out.write(&[0; 2 * BLOCK])?;
    out.finish()?;
    pace.begin("verifying", manifest.bytes());
    ArchiveReader::open(archive)?.members(&mut |_, _| Ok(()), pace).map(drop)
}

/// Unpacks an archive into a directory.
pub(crate) fn unpack(archive: &Path, to: &Path, pace: &Pace<'_>) -> Result<Manifest, BackupError> {
    pace.begin("unpacking", std::fs::metadata(archive).map_or(0, |metadata| metadata.len()));
    let mut current: Option<(String, CopiedFile)> = None;
    let manifest = ArchiveReader::open(archive)?.members(
        &mut |file, part| {
            if current.as_ref().is_none_or(|(path, _)| *path != file.path) {
                if let Some((_, done)) = current.take() {
                    done.finish()?;
                }
                let path = file.below(to).ok_or_else(|| outside(file))?;
                current = Some((file.path.clone(), CopiedFile::create(&path)?));
            }
            Ok(current.as_mut().expect("it was just opened").1.write(part)?)
        },
        pace,
    )?;
    if let Some((_, done)) = current {
        done.finish()?;
    }
    let mut file = CopiedFile::create(&to.join(NAME))?;
    file.write(&manifest.encode())?;
    file.finish()?;
    Ok(manifest)
}

/// Unpacks an archive under a temporary name beside it, which is removed when the result is dropped.
pub(crate) fn unpack_beside(archive: &Path, progress: &dyn Progress) -> Result<Staging, BackupError> {
    let mut name = archive.file_name().unwrap_or_default().to_os_string();
    name.push(".d");
    let staging = Staging::new(&archive.with_file_name(name), false)?;
    unpack(archive, &staging.path, &Pace::unlimited(progress))?;
    Ok(staging)
}

struct ArchiveReader {
    path: PathBuf,
    input: BufReader<File>,
}

/// Gets every part of every member; an empty member is one empty part.
type OnPart<'a> = &'a mut dyn FnMut(&FileEntry, &[u8]) -> Result<(), BackupError>;

impl ArchiveReader {
    fn open(path: &Path) -> Result<ArchiveReader, BackupError> {
        let file = File::open(path).map_err(|error| BackupError::io(&error, "opening a file", path))?;
        Ok(ArchiveReader { path: path.to_path_buf(), input: BufReader::with_capacity(PART, file) })
    }

    /// Reads all members and compares them with the manifest.
    fn members(mut self, on_part: OnPart<'_>, pace: &Pace<'_>) -> Result<Manifest, BackupError> {
        let (name, bytes) = self.header()?;
        if name != NAME || bytes > MANIFEST_MAX {
            return Err(BackupError::Refused(format!(
                "not a backup: its first member is not {NAME}: file={}",
                self.path.display()
            )));
        }
        let mut encoded = Vec::new();
        self.member(bytes, &mut |part| {
            encoded.extend_from_slice(part);
            Ok(())
        })?;
        let manifest = Manifest::decode(&encoded, &self.path)?;
        for file in &manifest.files {
            let found = self.header()?;
            if found != (file.path.clone(), file.bytes) {
                return Err(self.damaged(&format!("it has {} instead of {}", found.0, file.path)));
            }
            let mut hasher = blake3::Hasher::new();
            on_part(file, &[])?;
            self.member(file.bytes, &mut |part| {
                hasher.update(part);
                pace.advance(part.len() as u64)?;
                on_part(file, part)
            })?;
            check_hash(file, &hasher)?;
        }
        self.end()?;
        Ok(manifest)
    }

    fn header(&mut self) -> Result<(String, u64), BackupError> {
        let mut block = [0; BLOCK];
        self.read(&mut block)?;
        decode_header(&block).ok_or_else(|| self.damaged("a header is invalid"))
    }

    fn member(
        &mut self,
        bytes: u64,
        on_part: &mut dyn FnMut(&[u8]) -> Result<(), BackupError>,
    ) -> Result<(), BackupError> {
        let mut left = bytes;
        let mut buffer = vec![0; PART];
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(PART).min(PART);
            self.read(&mut buffer[..length])?;
            on_part(&buffer[..length])?;
            left -= length as u64;
        }
        let padding = &mut buffer[..padding(bytes).len()];
        self.read(padding)?;
        if padding.iter().all(|byte| *byte == 0) {
            Ok(())
        } else {
            Err(self.damaged("its padding is not empty"))
        }
    }

    /// Two empty blocks, and nothing after them.
    fn end(&mut self) -> Result<(), BackupError> {
        let mut blocks = [0; 2 * BLOCK];
        self.read(&mut blocks)?;
        let is_over = matches!(self.input.read(&mut [0]), Ok(0));
        if blocks.iter().all(|byte| *byte == 0) && is_over {
            Ok(())
        } else {
            Err(self.damaged("it goes on after its end"))
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), BackupError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.damaged("it ends early"),
            _ => BackupError::io(&error, "reading a file", &self.path),
        })
    }

    fn damaged(&self, what: &str) -> BackupError {
        BackupError::Damaged(format!(
            "the archive is damaged: {what}; use another backup: file={}",
            self.path.display()
        ))
    }
}

/// Zeros up to the next block.
fn padding(bytes: u64) -> &'static [u8] {
    const ZEROS: [u8; BLOCK] = [0; BLOCK];
    let used = usize::try_from(bytes % BLOCK as u64).expect("less than a block");
    &ZEROS[..(BLOCK - used) % BLOCK]
}

/// A header of a regular file with mode 0600.
fn header(name: &str, bytes: u64, mtime: u64) -> Result<[u8; BLOCK], BackupError> {
    if name.len() > NAME_MAX || bytes > MEMBER_MAX {
        let what = "a file does not fit into an archive, whose files have up to 8 GiB; back up to a directory: file=";
        return Err(BackupError::Refused(format!("{what}{name}")));
    }
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    put(0, name.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{bytes:011o}\0").as_bytes());
    put(136, format!("{mtime:011o}\0").as_bytes());
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum = checksum(&block);
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

/// The name and the length of a member, if the header is one that [`header`] writes.
fn decode_header(block: &[u8; BLOCK]) -> Option<(String, u64)> {
    let name = block[..NAME_MAX].split(|byte| *byte == 0).next()?;
    let octal = |field: &[u8]| u64::from_str_radix(std::str::from_utf8(field).ok()?, 8).ok();
    let (bytes, mtime) = (octal(&block[124..135])?, octal(&block[136..147])?);
    let name = std::str::from_utf8(name).ok()?;
    let expected = header(name, bytes, mtime).ok()?;
    (expected == *block).then(|| (name.to_string(), bytes))
}

/// The sum of all bytes, with spaces in place of the sum itself.
fn checksum(block: &[u8; BLOCK]) -> u32 {
    block.iter().map(|byte| u32::from(*byte)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_and_every_byte_of_it_matters() {
        let block = header("store/log/0/0000000000000000.seg", 12345, 1_790_000_000).expect("fits");
        assert_eq!(decode_header(&block), Some(("store/log/0/0000000000000000.seg".into(), 12345)));
        for at in 0..BLOCK {
            let mut damaged = block;
            damaged[at] ^= 1;
            let found = decode_header(&damaged);
            assert_ne!(found, decode_header(&block), "byte {at}");
        }
        assert!(header(&"x".repeat(101), 1, 1).is_err() && header("x", 1 << 33, 1).is_err());
    }

    #[test]
    fn padding_fills_a_block() {
        for (bytes, length) in [(0, 0), (1, 511), (511, 1), (512, 0), (513, 511)] {
            assert_eq!(padding(bytes).len(), length, "{bytes}");
        }
    }
}
