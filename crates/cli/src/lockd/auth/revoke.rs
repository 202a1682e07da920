//! `lockd auth revoke` and `lockd auth unrevoke`: edit the denylist in the server's file, or in clients' files.

use std::fs;
use std::path::Path;

use identity::bundle::leaf_certificates;
use identity::file::{self, Existing};
use identity::{Denylist, IssuedCertificate, IssuedKind, Name, Serial, ServerBundle, TrustAnchors};

use super::args::{Revoke, RevokeServer, Selection};
use super::view::IdentityReport;
use super::{fill, now, read_client, read_server, record};
use crate::notice;

pub(crate) fn client(args: &Revoke) -> Result<(), String> {
    let (bundle, selected) = edit(args, "revoked_now", Denylist::with_revoked)?;
    warn_if_own(&bundle, &selected);
    notice("note: servers that use this file apply it within 5 s; at once: lockd reload --unix PATH");
    Ok(())
}

pub(crate) fn unrevoke_client(args: &Revoke) -> Result<(), String> {
    let (bundle, selected) = edit(args, "unrevoked_now", Denylist::with_unrevoked)?;
    for serial in selected.iter().filter(|serial| !bundle.denylist().contains(*serial)) {
        notice(&format!("note: this serial was not revoked in the file: serial={serial}"));
    }
    Ok(())
}

/// Edits the denylist, writes and reports the file. Returns the file as it was, and the selected serials.
fn edit(
    args: &Revoke,
    what: &'static str,
    change: fn(&Denylist, &[Serial]) -> Denylist,
) -> Result<(ServerBundle, Denylist), String> {
    let out = args.out.as_ref().unwrap_or(&args.server_in);
    let anchors = read_server(&args.server_in)?.anchors().clone();
    let selected = args.selection.serials(&args.server_in, &anchors, |kind| kind == IssuedKind::Client)?;
    let serials: Vec<Serial> = selected.iter().collect();
    // Concurrent revocations must not overwrite each other.
    let _held = file::lock_beside(out)?;
    let bundle = read_server(&args.server_in)?;
    let changed = bundle.clone().with_denylist(change(bundle.denylist(), &serials));
    let same = out == &args.server_in || fs::canonicalize(out).ok() == fs::canonicalize(&args.server_in).ok();
    let existing = if same { Existing::Replace } else { args.write.existing() };
    file::write(&[(out, changed.to_pem().as_str())], existing, &mut fill)?;
    let mut report = IdentityReport::about(out);
    report.add_serials(what, &selected);
    report.add_serials("revoked", changed.denylist());
    report.add_text("in_force", "running servers that use this file apply it within seconds");
    report.print(args.write.output.output);
    Ok((bundle, selected))
}

pub(crate) fn server(args: &RevokeServer) -> Result<(), String> {
    for path in &args.client_in {
        let anchors = read_client(path)?.anchors().clone();
        let added = args.selection.serials(path, &anchors, |kind| kind != IssuedKind::Client)?;
        let _held = file::lock_beside(path)?;
        let bundle = read_client(path)?;
        let changed = bundle.clone().with_denylist(bundle.denylist().union(&added));
        file::write(&[(path, changed.to_pem().as_str())], Existing::Replace, &mut fill)?;
        let mut report = IdentityReport::about(path);
        report.add_serials("revoked_now", &added);
        report.add_serials("revoked", changed.denylist());
        report.add_text("in_force", "running clients that use this file apply it within seconds");
        report.print(args.output.output);
    }
    Ok(())
}

impl Selection {
    /// The serials of all selected certificates. Names are looked up among the recorded certificates of those kinds.
    fn serials(
        &self,
        identity_file: &Path,
        anchors: &TrustAnchors,
        kind: impl Fn(IssuedKind) -> bool,
    ) -> Result<Denylist, String> {
        let mut found = self.serials.clone();
        for path in &self.files {
            let certificates = leaf_certificates(&file::read(path)?).map_err(|error| error.in_file(path))?;
            if certificates.is_empty() {
                return Err(format!("no certificate to revoke: file={}", path.display()));
            }
            found.extend(certificates.iter().map(identity::Certificate::serial));
        }
        if !self.cn.is_empty() {
            let issued = record::read(&self.record, Some(identity_file), Some(anchors))?;
            for name in &self.cn {
                found.extend(serials_of(name, issued.iter().filter(|one| kind(one.kind)))?);
            }
        }
        Ok(found.into_iter().collect())
    }
}

/// The unexpired certificates with this name.
fn serials_of<'a>(
    name: &Name,
    issued: impl Iterator<Item = &'a IssuedCertificate>,
) -> Result<Vec<Serial>, String> {
    let now = now();
    let unexpired = issued.filter(|one| one.name == *name && now <= one.not_after);
    let found: Vec<Serial> = unexpired.map(|one| one.serial).collect();
    if found.is_empty() {
        let what = "no unexpired certificate with this name is recorded; `lockd auth list` shows all";
        return Err(format!("{what}: cn={name}"));
    }
    Ok(found)
}

fn warn_if_own(bundle: &ServerBundle, added: &Denylist) {
    for own in bundle.own() {
        let certificate = own.certificate();
        if added.contains(certificate.serial()) {
            let what = "note: this serial is of the server's own certificate";
            notice(&format!("{what}: purpose={} serial={}", certificate.purpose(), certificate.serial()));
        }
    }
}
