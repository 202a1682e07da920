//! `lockd auth revoke`: adds serials to the denylist in the server's file.

use std::fs;

use identity::file::{self, Existing};
use identity::{Denylist, ServerBundle};

use super::args::Revoke;
use super::view::IdentityReport;
use super::{fill, read_server};
use crate::notice;

pub(crate) fn client(args: &Revoke) -> Result<(), String> {
    let out = args.out.as_ref().unwrap_or(&args.server_in);
    // Concurrent revocations must not overwrite each other.
    let _held = file::lock_beside(out)?;
    let bundle = read_server(&args.server_in)?;
    let added: Denylist = args.serials.iter().copied().collect();
    let changed = bundle.clone().with_denylist(bundle.denylist().union(&added));
    let same = out == &args.server_in || fs::canonicalize(out).ok() == fs::canonicalize(&args.server_in).ok();
    let existing = if same { Existing::Replace } else { args.write.existing() };
    file::write(&[(out, changed.to_pem().as_str())], existing, &mut fill)?;
    warn_if_own(&bundle, &added);
    let mut report = IdentityReport::about(out);
    report.add_serials("revoked_now", &added);
    report.add_serials("revoked", changed.denylist());
    report.print(args.write.output.output);
    Ok(())
}

fn warn_if_own(bundle: &ServerBundle, added: &Denylist) {
    for own in [bundle.server(), bundle.forwarding()] {
        let certificate = own.certificate();
        if added.contains(certificate.serial()) {
            let what = "note: this serial is of the server's own certificate";
            notice(&format!("{what}: purpose={} serial={}", certificate.purpose(), certificate.serial()));
        }
    }
}
