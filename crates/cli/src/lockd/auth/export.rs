//! `lockd auth export`: a client's identity for a browser.

use std::path::PathBuf;

use clap::Args;
use identity::file;

use super::args::{ExportPassphrase, WriteArgs};
use super::passphrase;
use super::view::IdentityReport;
use super::{fill, read_client};

#[derive(Args)]
#[command(
    after_help = "The passphrase protects the file on its way into the browser, which asks for it; delete the file then.\n\n\
                        Example:\n  lockd auth export --in client.pem --p12 client.p12\n  \
                        lockd auth export --in client.pem --p12 client.p12 --pass-file pass.txt"
)]
pub(crate) struct Export {
    /// Identity file of the client.
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,
    /// File to write the identity to, as PKCS#12.
    #[arg(long, value_name = "FILE")]
    p12: PathBuf,
    #[command(flatten)]
    pass: ExportPassphrase,
    #[command(flatten)]
    write: WriteArgs,
}

pub(crate) fn export(args: &Export) -> Result<(), String> {
    file::check(&args.p12, args.write.existing())?;
    let client = read_client(&args.input)?;
    let passphrase = passphrase::for_export(&args.pass)?;
    let bytes = client.to_pkcs12(&passphrase, &mut fill).map_err(|error| error.in_file(&args.input))?;
    file::write_bytes(&args.p12, &bytes, args.write.existing(), &mut fill)?;
    let mut report = IdentityReport::about(&args.p12);
    report.add_client(&client);
    report.print(args.write.output.output);
    Ok(())
}
