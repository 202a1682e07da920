//! `lockd auth new`: creates a CA, and certificates of servers and clients.

use identity::{Authority, Cost, IssueContext, IssuedCertificate, Rights, ServerBundle, file};

use super::args::{NewCa, NewClient, NewServer};
use super::ca::Ca;
use super::view::IdentityReport;
use super::{fill, now, read_server};
use crate::notice;

const NOT_ENCRYPTED: &str = "note: the CA key is not encrypted; use --ca-pass-prompt to encrypt it";

pub(crate) fn server(args: &NewServer) -> Result<(), String> {
    let mut moment = IssueContext { now: now(), fill: &mut fill };
    let ca_out = args.ca_out();
    for path in ca_out.iter().chain([&args.out]) {
        file::check(path, args.write.existing())?;
    }
    let ca = match &ca_out {
        Some(file) if args.source.is_none() => Ca::create(args, file, &mut moment)?,
        _ => Ca::find(&args.source, &args.pass, None)?,
    };
    let bundle = ca.authority.issue_server(&args.cn, &args.hosts(), args.kind.get(), &mut moment)?;
    let bundle = write_server(args, &ca, bundle)?;
    if !ca.key.is_sealed() && (ca_out.is_some() || args.with_ca_key) {
        notice(NOT_ENCRYPTED);
    }
    let mut report = IdentityReport::about(&args.out);
    report.add_path("ca_file", ca_out.as_deref());
    report.add_server(&bundle);
    report.print(args.write.output.output);
    Ok(())
}

pub(crate) fn ca(args: &NewCa) -> Result<(), String> {
    let mut moment = IssueContext { now: now(), fill: &mut fill };
    file::check(&args.out, args.write.existing())?;
    let passphrase = args.pass.for_new_key()?;
    let authority = Authority::create(&args.cn, args.algorithm.into(), args.days, &mut moment)?;
    let sealing = passphrase.as_ref().map(|passphrase| (passphrase, Cost::DEFAULT));
    let text = authority.to_bundle(sealing, &mut moment)?.to_pem();
    file::write(&[(args.out.as_path(), text.as_str())], args.write.existing(), &mut fill)?;
    if sealing.is_none() {
        notice(NOT_ENCRYPTED);
    }
    let mut report = IdentityReport::about(&args.out);
    report.add_ca(authority.certificate());
    report.print(args.write.output.output);
    Ok(())
}

/// Writes the server's file and, if requested, the CA file; returns the server's bundle as written.
fn write_server(args: &NewServer, ca: &Ca, mut bundle: ServerBundle) -> Result<ServerBundle, String> {
    ca.record(&IssuedCertificate::of_server(&bundle))?;
    // The denylist is read under the lock: serials may have been revoked during the passphrase prompt.
    let _held = file::lock_beside(&args.out)?;
    if let Some(server) = &args.source.server_in {
        let server = read_server(server)?;
        let anchors = bundle.anchors().clone().with_all(server.anchors())?;
        bundle = bundle.with_anchors(anchors)?.with_denylist(server.denylist().clone());
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
    let ca = Ca::find(&args.source, &args.pass, None)?;
    let who = (args.role.into(), &rights);
    let mut bundle = ca.authority.issue_client(&args.cn, who, args.kind.get(), &mut moment)?;
    if let Some(server) = &args.source.server_in {
        // The client must trust the server, whose certificate may be of the CA before.
        let anchors = bundle.anchors().clone().with_all(read_server(server)?.anchors())?;
        bundle = bundle.with_anchors(anchors)?;
    }
    ca.record(&[IssuedCertificate::of_client(&bundle)])?;
    let text = bundle.to_pem();
    file::write(&[(args.out.as_path(), text.as_str())], args.write.existing(), &mut fill)?;
    let mut report = IdentityReport::about(&args.out);
    report.add_client(&bundle);
    report.print(args.write.output.output);
    Ok(())
}
