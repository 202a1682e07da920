//! `lockd auth inspect`: what is in an identity file.

use super::args::Inspect;
use super::view::Answer;
use super::{read_client, read_server};

pub(crate) fn server(args: &Inspect) -> Result<(), String> {
    let bundle = read_server(&args.input)?;
    let mut answer = Answer::about(&args.input);
    answer.add_server(&bundle);
    answer.add_serials("revoked", bundle.denylist());
    answer.print(args.output.output);
    Ok(())
}

pub(crate) fn client(args: &Inspect) -> Result<(), String> {
    let bundle = read_client(&args.input)?;
    let mut answer = Answer::about(&args.input);
    answer.add_client(&bundle);
    answer.print(args.output.output);
    Ok(())
}
