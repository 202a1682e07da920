//! `lockd auth renew`: issues the certificates of an identity file again.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use identity::file::{self, Existing};
use identity::{Days, IssueContext, IssuedCertificate};

use super::args::{CaSource, PassphraseSource, WriteArgs};
use super::ca::Ca;
use super::identity_file::IdentityFile;
use super::view::IdentityReport;
use super::{fill, now};

#[derive(Args)]
#[command(after_help = "Example:\n  \
                        lockd auth renew --in server.pem\n  \
                        lockd auth renew --in client1.pem --server-in server.pem\n  \
                        lockd auth renew --in client1.pem --ca-in new/ca.pem")]
pub(crate) struct Renew {
    /// Identity file to renew: a server's or a client's.
    #[arg(long = "in", value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// File to write the result to; by default it replaces --in, with its owner and mode.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    source: CaSource,
    #[command(flatten)]
    pass: PassphraseSource,
    /// Validity in days, limited by that of the CA [default: as long as before].
    #[arg(long, value_name = "N")]
    days: Option<Days>,
    #[command(flatten)]
    write: WriteArgs,
}

pub(crate) fn renew(args: &Renew) -> Result<(), String> {
    let out = args.out.as_ref().unwrap_or(&args.input);
    let same = fs::canonicalize(out).ok() == fs::canonicalize(&args.input).ok();
    let existing = if same { Existing::Replace } else { args.write.existing() };
    file::check(out, existing)?;
    let ca = args.find_ca()?;
    // The file is read under the lock: it may have changed during the passphrase prompt.
    let _held = file::lock_beside(out)?;
    let mut moment = IssueContext { now: now(), fill: &mut fill };
    let renewed = match IdentityFile::read(&args.input)? {
        IdentityFile::Server(old) => {
            IdentityFile::Server(Box::new(ca.authority.renew_server(&old, args.days, &mut moment)?))
        }
        IdentityFile::Client(old) => {
            IdentityFile::Client(Box::new(ca.authority.renew_client(&old, args.days, &mut moment)?))
        }
    };
    ca.record(&issued(&renewed))?;
    file::write(&[(out, renewed.to_pem().as_str())], existing, &mut fill)?;
    report(out, &renewed, args);
    Ok(())
}

impl Renew {
    /// The named CA, or the one of the file itself.
    fn find_ca(&self) -> Result<Ca, String> {
        let is_server = matches!(IdentityFile::read(&self.input)?, IdentityFile::Server(_));
        if self.source.is_none() && is_server {
            let own = CaSource {
                server_in: Some(self.input.clone()),
                ca_in: None,
                issued: self.source.issued.clone(),
            };
            return Ca::find(&own, &self.pass, None);
        }
        Ca::find(&self.source, &self.pass, Some(&self.input))
    }
}

fn issued(renewed: &IdentityFile) -> Vec<IssuedCertificate> {
    match renewed {
        IdentityFile::Server(bundle) => IssuedCertificate::of_server(bundle),
        IdentityFile::Client(bundle) => vec![IssuedCertificate::of_client(bundle)],
    }
}

fn report(out: &Path, renewed: &IdentityFile, args: &Renew) {
    let mut report = IdentityReport::about(out);
    match renewed {
        IdentityFile::Server(bundle) => report.add_server(bundle),
        IdentityFile::Client(bundle) => report.add_client(bundle),
    }
    report.add_text("in_force", "running servers and clients that use this file apply it within seconds");
    report.print(args.write.output.output);
}
