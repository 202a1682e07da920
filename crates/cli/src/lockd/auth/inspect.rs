//! `lockd auth inspect`: shows the content of an identity file.

use super::args::Inspect;
use super::view::IdentityReport;
use super::{read_client, read_server};

pub(crate) fn server(args: &Inspect) -> Result<(), String> {
    let bundle = read_server(&args.input)?;
    let mut report = IdentityReport::about(&args.input);
    report.add_server(&bundle);
    report.add_serials("revoked", bundle.denylist());
    report.print(args.output.output);
    Ok(())
}

pub(crate) fn client(args: &Inspect) -> Result<(), String> {
    let bundle = read_client(&args.input)?;
    let mut report = IdentityReport::about(&args.input);
    report.add_client(&bundle);
    report.print(args.output.output);
    Ok(())
}
