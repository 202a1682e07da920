//! `lockd auth verify`: checks whether an identity file would be accepted now.
//!
//! Parsing already checks the chain, the purposes and the private keys; this module adds the validity period, revocation
//! and the file's permissions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use identity::{Certificate, Denylist, Error, KeyedCertificate, UnixTime};

use super::args::{Output, VerifyClient, VerifyServer};
use super::view::{IdentityReport, rfc3339};
use super::{now, read_client, read_denylist, read_server};

/// Certificates with less validity left get a note.
const SOON_SECONDS: u64 = 30 * 24 * 60 * 60;

/// The results of a check.
#[derive(Default)]
struct Findings {
    problems: Vec<String>,
    notes: Vec<String>,
    revoked: Denylist,
}

pub(crate) fn server(args: &VerifyServer) -> Result<(), String> {
    let mut findings = Findings::default();
    if let Err(error) = findings.check_server(args) {
        findings.problems.push(error.to_string());
    }
    findings.report(&args.input, &args.output)
}

pub(crate) fn client(args: &VerifyClient) -> Result<(), String> {
    let mut findings = Findings::default();
    if let Err(error) = findings.check_client(args) {
        findings.problems.push(error.to_string());
    }
    findings.report(&args.input, &args.output)
}

impl Findings {
    fn check_server(&mut self, args: &VerifyServer) -> Result<(), Error> {
        let now = now();
        let denylist = read_denylist(args.denylist_path.as_deref())?;
        let bundle = read_server(&args.input)?;
        self.problems = bundle.check(&denylist, now);
        self.revoked = bundle.denylist().union(&denylist);
        let own = bundle.own().map(KeyedCertificate::certificate);
        bundle.anchors().iter().chain(own).for_each(|certificate| self.note_end(certificate, now));
        if bundle.ca_key().is_some_and(|key| !key.is_sealed()) {
            self.notes.push(
                "the CA key is in the server's file, unencrypted: its readers can issue client certificates"
                    .into(),
            );
        }
        self.note_readers(&args.input);
        Ok(())
    }

    fn check_client(&mut self, args: &VerifyClient) -> Result<(), Error> {
        let now = now();
        let denylist = read_denylist(args.denylist_path.as_deref())?;
        let server = read_server(&args.server_in)?;
        self.revoked = server.denylist().union(&denylist);
        let bundle = read_client(&args.input)?;
        self.problems = server.check_client(&bundle, &denylist, now);
        self.note_end(bundle.client().certificate(), now);
        self.note_readers(&args.input);
        Ok(())
    }

    fn note_end(&mut self, certificate: &Certificate, now: UnixTime) {
        let left = certificate.not_after().as_secs().saturating_sub(now.as_secs());
        if (1..SOON_SECONDS).contains(&left) {
            let (name, until) = (certificate.name(), rfc3339(certificate.not_after()));
            self.notes.push(format!(
                "the certificate expires soon; run `lockd auth renew`: cn={name} not_after={until}"
            ));
        }
    }

    fn note_readers(&mut self, path: &Path) {
        let mode = fs::metadata(path).map_or(0, |found| found.permissions().mode());
        if mode & 0o077 != 0 {
            let what = "other users can access the file; run chmod 600 on it";
            self.notes.push(format!("{what}: file={} mode={:o}", path.display(), mode & 0o777));
        }
    }

    fn report(self, path: &Path, output: &Output) -> Result<(), String> {
        let count = self.problems.len();
        let mut report = IdentityReport::about(path);
        report.add_flag("ok", count == 0);
        report.add_list("problems", self.problems);
        report.add_list("notes", self.notes);
        report.add_serials("revoked", &self.revoked);
        report.print(output.output);
        match count {
            0 => Ok(()),
            _ => Err(format!("verification failed: file={} problems={count}", path.display())),
        }
    }
}
