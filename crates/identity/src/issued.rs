//! The record of issued certificates: a file named `issued` beside the CA, one line for each certificate.
//!
//! It answers which certificates a lost file or a departed person had, so that they can be revoked without that file.
//!
//! **Invariant.** A certificate is recorded, durably, before its identity file is published. The file is only appended
//! to, with one write for each call, and has mode 0600.
//!
//! A line that cannot be read, such as one that a power cut tore, is skipped and reported with its number: the record must
//! stay usable in the emergency for which it exists.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustls::pki_types::UnixTime;

use crate::bundle::{ClientBundle, ServerBundle};
use crate::certificate::Name;
use crate::error::{Error, ErrorKind};
use crate::file;
use crate::rights::{Rights, Role};
use crate::serial::Serial;

const HEADER: &str = "# serial\tcn\tkind\trole\tnamespaces\tnot_after_unix\tca_serial\n";
/// Written for an empty list of namespaces.
const NONE: &str = "-";

/// The purpose that a certificate was issued for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuedKind {
    /// A client.
    Client,
    /// A server, for its clients.
    Server,
    /// A server, for forwarding to other servers.
    Forwarding,
}

impl IssuedKind {
    const ALL: [IssuedKind; 3] = [IssuedKind::Client, IssuedKind::Server, IssuedKind::Forwarding];

    /// The kind as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            IssuedKind::Client => "client",
            IssuedKind::Server => "server",
            IssuedKind::Forwarding => "forwarding",
        }
    }
}

/// One issued certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// Its serial.
    pub serial: Serial,
    /// Its common name.
    pub name: Name,
    /// Its purpose.
    pub kind: IssuedKind,
    /// Role of the identity; `server` for a server's own certificate.
    pub role: Role,
    /// Rights of the identity.
    pub rights: Rights,
    /// End of its validity.
    pub not_after: UnixTime,
    /// Serial of the CA that issued it.
    pub ca: Serial,
}

impl IssuedCertificate {
    /// The certificate of a client's file.
    pub fn of_client(bundle: &ClientBundle) -> IssuedCertificate {
        let identity = bundle.identity().clone();
        IssuedCertificate {
            serial: identity.serial,
            name: identity.name,
            kind: IssuedKind::Client,
            role: identity.role,
            rights: identity.rights,
            not_after: identity.not_after,
            ca: bundle.ca().serial(),
        }
    }

    /// The certificates of a server's file.
    pub fn of_server(bundle: &ServerBundle) -> Vec<IssuedCertificate> {
        let own =
            [(IssuedKind::Server, Some(bundle.server())), (IssuedKind::Forwarding, bundle.forwarding())];
        let recorded = own.into_iter().filter_map(|(kind, keyed)| Some((kind, keyed?.certificate())));
        let issued = recorded.map(|(kind, certificate)| IssuedCertificate {
            serial: certificate.serial(),
            name: certificate.name().clone(),
            kind,
            role: Role::Server,
            rights: Rights::none(),
            not_after: certificate.not_after(),
            ca: bundle.ca().serial(),
        });
        issued.collect()
    }
}

impl fmt::Display for IssuedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespaces = match self.rights.to_list() {
            list if list.is_empty() => NONE.to_string(),
            list => list,
        };
        let IssuedCertificate { serial, name, kind, role, not_after, ca, rights: _ } = self;
        let (kind, not_after) = (kind.as_str(), not_after.as_secs());
        write!(f, "{serial}\t{name}\t{kind}\t{role}\t{namespaces}\t{not_after}\t{ca}")
    }
}

impl FromStr for IssuedCertificate {
    type Err = Error;

    fn from_str(line: &str) -> Result<IssuedCertificate, Error> {
        let wrong = || Error::invalid(format!("not a line of issued certificates: line={line:?}"));
        let columns: Vec<&str> = line.split('\t').collect();
        let &[serial, name, kind, role, namespaces, not_after, ca] = &columns[..] else {
            return Err(wrong());
        };
        let kind = IssuedKind::ALL.into_iter().find(|known| known.as_str() == kind).ok_or_else(wrong)?;
        let seconds = not_after.parse().map_err(|_| wrong())?;
        Ok(IssuedCertificate {
            serial: serial.parse()?,
            name: name.parse()?,
            kind,
            role: role.parse()?,
            rights: Rights::from_list(if namespaces == NONE { "" } else { namespaces })?,
            not_after: UnixTime::since_unix_epoch(Duration::from_secs(seconds)),
            ca: ca.parse()?,
        })
    }
}

/// The content of a record.
#[derive(Debug, Default)]
pub struct IssuedRecord {
    /// The certificates, in the order of issue.
    pub certificates: Vec<IssuedCertificate>,
    /// Numbers of the lines that cannot be read; the first line has number 1.
    pub unreadable: Vec<usize>,
}

impl IssuedRecord {
    /// Where the certificates of a CA are recorded, given the file that has its key.
    pub fn path_beside(ca_file: &Path) -> PathBuf {
        ca_file.with_file_name("issued")
    }

    /// Reads a record; `None` if there is no such file.
    pub fn read(path: &Path) -> Result<Option<IssuedRecord>, Error> {
        match file::read(path) {
            Ok(text) => Ok(Some(IssuedRecord::parse(&text))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parse(text: &str) -> IssuedRecord {
        let mut record = IssuedRecord::default();
        let is_entry = |line: &str| !line.is_empty() && !line.starts_with('#');
        for (index, line) in text.lines().enumerate().filter(|(_, line)| is_entry(line)) {
            match line.parse() {
                Ok(certificate) => record.certificates.push(certificate),
                Err(_) => record.unreadable.push(index + 1),
            }
        }
        record
    }

    /// Appends certificates, durably. Call it before the identity file that holds them is published.
    pub fn append(path: &Path, certificates: &[IssuedCertificate]) -> Result<(), Error> {
        let failed = |cause: io::Error| {
            Error::io(
                "the record of issued certificates cannot be written; name another with --issued",
                path,
                &cause,
            )
        };
        append_lines(path, certificates).map_err(failed)
    }
}

fn append_lines(path: &Path, certificates: &[IssuedCertificate]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut record = options.read(true).append(true).create(true).mode(file::OWNER_ONLY).open(path)?;
    let mut text = match last_byte(&mut record)? {
        None => HEADER.to_string(),
        Some(b'\n') => String::new(),
        // A torn line ends here, so that it does not take the next one with it.
        Some(_) => "\n".to_string(),
    };
    text.extend(certificates.iter().map(|certificate| format!("{certificate}\n")));
    record.write_all(text.as_bytes())?;
    record.sync_all()?;
    File::open(file::parent(path))?.sync_all()
}

fn last_byte(record: &mut File) -> io::Result<Option<u8>> {
    if record.metadata()?.len() == 0 {
        return Ok(None);
    }
    record.seek(SeekFrom::End(-1))?;
    let mut byte = [0];
    record.read_exact(&mut byte)?;
    Ok(Some(byte[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str, namespaces: &[&str]) -> IssuedCertificate {
        let rights = Rights::new(namespaces.iter().map(|text| text.parse().expect(text))).expect("few");
        IssuedCertificate {
            serial: "40ff".parse().expect("a serial"),
            name: name.parse().expect("a name"),
            kind: IssuedKind::Client,
            role: Role::Operator,
            rights,
            not_after: UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000)),
            ca: "0a".parse().expect("a serial"),
        }
    }

    #[test]
    fn any_certificate_is_read_back_as_it_was_recorded() {
        for (name, namespaces) in [
            ("ada", &["default:rw"][..]),
            ("a b, c", &["*:rwpm", "a,b:r", "a:b:w", "tab\u{2009}:p"]),
            ("#1", &[]),
            ("-", &["-:r"]),
        ] {
            let issued = certificate(name, namespaces);
            let line = issued.to_string();
            assert_eq!(line.lines().count(), 1);
            assert_eq!(line.parse::<IssuedCertificate>().expect(&line), issued, "{line}");
        }
    }

    #[test]
    fn a_torn_line_is_skipped_and_does_not_take_the_next_one_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("issued");
        IssuedRecord::append(&path, &[certificate("ada", &[]), certificate("bob", &["x:r"])])
            .expect("written");
        let whole = std::fs::read(&path).expect("there");
        std::fs::write(&path, &whole[..whole.len() - 9]).expect("torn");
        IssuedRecord::append(&path, &[certificate("eve", &[])]).expect("written");
        let record = IssuedRecord::read(&path).expect("readable").expect("there");
        let names: Vec<&str> = record.certificates.iter().map(|issued| issued.name.as_str()).collect();
        assert_eq!((names, record.unreadable), (vec!["ada", "eve"], vec![3]));
    }

    #[test]
    fn a_record_that_does_not_exist_is_told_from_an_empty_one() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(IssuedRecord::read(&dir.path().join("issued")).expect("no failure").is_none());
    }
}
