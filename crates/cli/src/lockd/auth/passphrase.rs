//! The passphrase of the CA's key: asked for, or read from a file or a descriptor. It is wiped after use, and is
//! never on a command line, where every process could read it.

use std::path::{Path, PathBuf};

use identity::{CaKey, Passphrase, file};
use zeroize::Zeroizing;

use super::args::Pass;

impl Pass {
    /// For a key to come: none, if none was asked for.
    pub(crate) fn for_new_key(&self) -> Result<Option<Passphrase>, String> {
        if !self.prompt {
            return self.read();
        }
        let first = prompt("Passphrase for the CA key: ")?;
        if first != prompt("The same again: ")? {
            return Err("the two passphrases differ; try again".into());
        }
        Ok(Some(first))
    }

    /// For a key that is there. Whoever gave no flag is asked, if there is somebody.
    pub(crate) fn for_key(&self, key: &CaKey) -> Result<Option<Passphrase>, String> {
        if !key.is_sealed() {
            return Ok(None);
        }
        match self.read()? {
            Some(passphrase) => Ok(Some(passphrase)),
            None => prompt("Passphrase of the CA key: ").map(Some),
        }
    }

    fn read(&self) -> Result<Option<Passphrase>, String> {
        let open = self.descriptor.map(|number| PathBuf::from(format!("/dev/fd/{number}")));
        let path = self.file.as_ref().or(open.as_ref());
        path.map(|path| first_line(path)).transpose()
    }
}

fn first_line(path: &Path) -> Result<Passphrase, String> {
    let text = file::read(path)?;
    let line = text.lines().next().unwrap_or_default();
    let passphrase = Passphrase::new(Zeroizing::new(line.to_string()));
    Ok(passphrase.map_err(|error| error.in_file(path))?)
}

fn prompt(question: &str) -> Result<Passphrase, String> {
    let answer = rpassword::prompt_password(question).map_err(|cause| {
        let advice = "the CA key's passphrase is needed, and nobody can be asked";
        format!("{advice}; give --ca-pass-file or --ca-pass-fd: {cause}")
    })?;
    Ok(Passphrase::new(Zeroizing::new(answer))?)
}
