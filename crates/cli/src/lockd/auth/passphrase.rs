//! The passphrase of the CA key: prompted for, or read from a file or a descriptor. It is zeroized after use, and never
//! taken from the command line, which other processes can read.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use identity::{CaKey, Passphrase, file};
use zeroize::Zeroizing;

use super::args::{ExportPassphrase, PassphraseSource};

impl PassphraseSource {
    /// The passphrase for a new key; `None` leaves it unencrypted.
    pub(crate) fn for_new_key(&self) -> Result<Option<Passphrase>, String> {
        let passphrase = self.choose()?;
        passphrase.as_ref().map_or(Ok(()), Passphrase::check_length)?;
        Ok(passphrase)
    }

    fn choose(&self) -> Result<Option<Passphrase>, String> {
        if !self.prompt {
            return self.read();
        }
        prompt_twice("Passphrase for the CA key: ", CA_FLAGS).map(Some)
    }

    /// The passphrase of an existing key; prompts if the key is encrypted and no source was given.
    pub(crate) fn for_key(&self, key: &CaKey) -> Result<Option<Passphrase>, String> {
        if !key.is_sealed() {
            return Ok(None);
        }
        match self.read()? {
            Some(passphrase) => Ok(Some(passphrase)),
            None => prompt("Passphrase of the CA key: ", CA_FLAGS).map(Some),
        }
    }

    fn read(&self) -> Result<Option<Passphrase>, String> {
        read(self.file.as_deref(), self.descriptor)
    }
}

/// The flags to name where there is no terminal.
const CA_FLAGS: &str = "--ca-pass-file or --ca-pass-fd";
const EXPORT_FLAGS: &str = "--pass-file or --pass-fd";

/// The passphrase of a file that is exported.
pub(super) fn for_export(source: &ExportPassphrase) -> Result<Passphrase, String> {
    match read(source.file.as_deref(), source.descriptor)? {
        Some(passphrase) => Ok(passphrase),
        None => prompt_twice("Passphrase for the new file: ", EXPORT_FLAGS),
    }
}

fn read(file: Option<&Path>, descriptor: Option<u32>) -> Result<Option<Passphrase>, String> {
    file.map_or(Ok(()), check_readers)?;
    let open = descriptor.map(|number| PathBuf::from(format!("/dev/fd/{number}")));
    file.or(open.as_deref()).map(first_line).transpose()
}

fn prompt_twice(question: &str, flags: &str) -> Result<Passphrase, String> {
    let first = prompt(question, flags)?;
    if first != prompt("Repeat the passphrase: ", flags)? {
        return Err("the passphrases do not match; try again".into());
    }
    Ok(first)
}

/// Refuses a file that other users may read.
fn check_readers(path: &Path) -> Result<(), String> {
    // A file that cannot be examined cannot be read either, which is reported with its name.
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    let mode = found.permissions().mode();
    if found.is_file() && mode & 0o077 != 0 {
        let shown = path.display();
        let what = format!("other users can read the passphrase; run `chmod 600 {shown}`");
        return Err(format!("{what}: file={shown} mode={:o}", mode & 0o777));
    }
    Ok(())
}

fn first_line(path: &Path) -> Result<Passphrase, String> {
    let text = file::read(path)?;
    let line = text.lines().next().unwrap_or_default();
    let passphrase = Passphrase::new(Zeroizing::new(line.to_string()));
    Ok(passphrase.map_err(|error| error.in_file(path))?)
}

fn prompt(question: &str, flags: &str) -> Result<Passphrase, String> {
    let answer = rpassword::prompt_password(question).map_err(|cause| {
        let advice = match flags {
            CA_FLAGS => "the passphrase of the CA key is needed, and there is no terminal to prompt on",
            _ => "a passphrase is needed, and there is no terminal to prompt on",
        };
        format!("{advice}; pass {flags}: {cause}")
    })?;
    Ok(Passphrase::new(Zeroizing::new(answer))?)
}
