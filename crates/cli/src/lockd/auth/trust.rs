//! `lockd auth trust`: adds a CA to an identity file, or removes one, while one CA is replaced by another.

use std::path::{Path, PathBuf};

use clap::Args;
use identity::bundle::ca_certificates;
use identity::file::{self, Existing};
use identity::{Certificate, Serial};

use super::args::Output;
use super::fill;
use super::identity_file::IdentityFile;
use super::view::IdentityReport;

#[derive(Args)]
#[group(id = "change", required = true, multiple = true, args = ["add", "remove"])]
#[command(after_help = "Example:\n  \
                        lockd auth trust --in server.pem --add new/ca.pem\n  \
                        lockd auth trust --in server.pem --remove old/ca.pem")]
pub(crate) struct TrustArgs {
    /// Identity file to change: a server's or a client's. Its owner and mode stay.
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,
    /// CA to trust too: its file, with or without its key. Repeatable.
    #[arg(long, value_name = "FILE")]
    add: Vec<PathBuf>,
    /// CA to trust no longer: its file, or its serial. Repeatable.
    #[arg(long, value_name = "CA")]
    remove: Vec<String>,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn trust(args: &TrustArgs) -> Result<(), String> {
    let _held = file::lock_beside(&args.input)?;
    let identity = IdentityFile::read(&args.input)?;
    let mut anchors = identity.anchors().clone();
    for path in &args.add {
        anchors = read_cas(path)?.into_iter().try_fold(anchors, identity::TrustAnchors::with)?;
    }
    for text in &args.remove {
        anchors = removed(text)?.into_iter().try_fold(anchors, identity::TrustAnchors::without)?;
    }
    let trusted = anchors.iter().map(|ca| format!("cn={} serial={}", ca.name(), ca.serial())).collect();
    let changed = identity.with_anchors(anchors)?;
    file::write(&[(args.input.as_path(), changed.to_pem().as_str())], Existing::Replace, &mut fill)?;
    let mut report = IdentityReport::about(&args.input);
    report.add_list("trusts", trusted);
    report.add_text("in_force", "running servers and clients that use this file apply it within seconds");
    report.print(args.output.output);
    Ok(())
}

fn read_cas(path: &Path) -> Result<Vec<Certificate>, String> {
    Ok(ca_certificates(&file::read(path)?).map_err(|error| error.in_file(path))?)
}

/// The serials of the CAs in a file, or the serial that the text is.
fn removed(text: &str) -> Result<Vec<Serial>, String> {
    let path = Path::new(text);
    if path.exists() {
        return Ok(read_cas(path)?.iter().map(Certificate::serial).collect());
    }
    let serial = text.parse().map_err(|_| format!("neither a CA's file nor a serial: ca={text:?}"))?;
    Ok(vec![serial])
}
