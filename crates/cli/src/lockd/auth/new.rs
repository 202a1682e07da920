//! `lockd auth new`: creates a CA, and certificates of servers and clients.

use identity::{IssueContext, Rights, ServerBundle, file};

use super::args::{NewClient, NewServer};
use super::ca::Ca;
use super::view::IdentityReport;
use super::{fill, now, read_server};
use crate::notice;

pub(crate) fn server(args: &NewServer) -> Result<(), String> {
    let mut moment = IssueContext { now: now(), fill: &mut fill };
    let ca_out = args.ca_out();
    for path in ca_out.iter().chain([&args.out]) {
        file::check(path, args.write.existing())?;
    }
    let ca = if args.source.is_none() {
        Ca::create(args, &mut moment)?
    } else {
        Ca::find(&args.source, &args.pass)?
    };
    let bundle = ca.authority.issue_server(&args.cn, &args.hosts(), args.kind.get(), &mut moment)?;
    let bundle = write_server(args, &ca, bundle)?;
    if !ca.key.is_sealed() && (ca_out.is_some() || args.with_ca_key) {
        notice("note: the CA key is not encrypted; use --ca-pass-prompt to encrypt it");
    }
    let mut report = IdentityReport::about(&args.out);
    report.add_path("ca_file", ca_out.as_deref());
    report.add_server(&bundle);
    report.print(args.write.output.output);
    Ok(())
}

/// Writes the server's file and, if requested, the CA file; returns the server's bundle as written.
fn write_server(args: &NewServer, ca: &Ca, mut bundle: ServerBundle) -> Result<ServerBundle, String> {
    // The denylist is read under the lock: serials may have been revoked during the passphrase prompt.
    let _held = file::lock_beside(&args.out)?;
    if let Some(server) = &args.source.server_in {
        bundle = bundle.with_denylist(read_server(server)?.denylist().clone());
    }
    if args.with_ca_key {
        bundle = bundle.with_ca_key(ca.key.clone());
    }
    let (text, ca_text, ca_out) = (bundle.to_pem(), ca.to_bundle().to_pem(), args.ca_out());
    let ca_file = ca_out.as_deref().map(|path| (path, ca_text.as_str()));
    let files: Vec<_> = ca_file.into_iter().chain([(args.out.as_path(), text.as_str())]).collect();
    file::write(&files, args.write.existing(), &mut fill)?;
    Ok(bundle)
}

pub(crate) fn client(args: &NewClient) -> Result<(), String> {
    let mut moment = IssueContext { now: now(), fill: &mut fill };
    let rights = Rights::new(args.namespace.iter().cloned())?;
    file::check(&args.out, args.write.existing())?;
    let ca = Ca::find(&args.source, &args.pass)?;
    let who = (args.role.into(), &rights);
    let bundle = ca.authority.issue_client(&args.cn, who, args.kind.get(), &mut moment)?;
    let text = bundle.to_pem();
    file::write(&[(args.out.as_path(), text.as_str())], args.write.existing(), &mut fill)?;
    let mut report = IdentityReport::about(&args.out);
    report.add_client(&bundle);
    report.print(args.write.output.output);
    Ok(())
}
