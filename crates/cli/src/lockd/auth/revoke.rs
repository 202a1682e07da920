//! `lockd auth revoke` and `lockd auth unrevoke`: edit the denylist in the server's file.

use std::fs;

use identity::file::{self, Existing};
use identity::{Denylist, Serial, ServerBundle};

use super::args::Revoke;
use super::view::IdentityReport;
use super::{fill, read_server};
use crate::notice;

pub(crate) fn client(args: &Revoke) -> Result<(), String> {
    let bundle = edit(args, "revoked_now", Denylist::with_revoked)?;
    warn_if_own(&bundle, &args.serials);
    notice("note: servers that use this file apply it within 5 s; at once: lockd reload --unix PATH");
    Ok(())
}

pub(crate) fn unrevoke_client(args: &Revoke) -> Result<(), String> {
    let bundle = edit(args, "unrevoked_now", Denylist::with_unrevoked)?;
    for serial in args.serials.iter().filter(|serial| !bundle.denylist().contains(**serial)) {
        notice(&format!("note: this serial was not revoked in the file: serial={serial}"));
    }
    Ok(())
}

/// Edits the denylist, writes and reports the file; returns the file as it was.
fn edit(
    args: &Revoke,
    what: &'static str,
    change: fn(&Denylist, &[Serial]) -> Denylist,
) -> Result<ServerBundle, String> {
    let out = args.out.as_ref().unwrap_or(&args.server_in);
    // Concurrent revocations must not overwrite each other.
    let _held = file::lock_beside(out)?;
    let bundle = read_server(&args.server_in)?;
    let changed = bundle.clone().with_denylist(change(bundle.denylist(), &args.serials));
    let same = out == &args.server_in || fs::canonicalize(out).ok() == fs::canonicalize(&args.server_in).ok();
    let existing = if same { Existing::Replace } else { args.write.existing() };
    file::write(&[(out, changed.to_pem().as_str())], existing, &mut fill)?;
    let mut report = IdentityReport::about(out);
    report.add_serials(what, &args.serials.iter().copied().collect());
    report.add_serials("revoked", changed.denylist());
    report.print(args.write.output.output);
    Ok(bundle)
}

fn warn_if_own(bundle: &ServerBundle, added: &[Serial]) {
    for own in [bundle.server(), bundle.forwarding()] {
        let certificate = own.certificate();
        if added.contains(&certificate.serial()) {
            let what = "note: this serial is of the server's own certificate";
            notice(&format!("{what}: purpose={} serial={}", certificate.purpose(), certificate.serial()));
        }
    }
}
