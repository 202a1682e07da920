//! `lockd auth revoke`: serials go on the denylist in the server's file.

use std::fs;

use identity::file::{self, Existing};
use identity::{Denylist, ServerBundle};

use super::args::Revoke;
use super::view::Answer;
use super::{fill, read_server};
use crate::say;

pub(crate) fn client(args: &Revoke) -> Result<(), String> {
    let out = args.out.as_ref().unwrap_or(&args.server_in);
    // Two who revoke at once must not lose each other's.
    let _held = file::lock_beside(out)?;
    let bundle = read_server(&args.server_in)?;
    let asked: Denylist = args.serials.iter().copied().collect();
    let changed = bundle.clone().with_denylist(bundle.denylist().union(&asked));
    let same = out == &args.server_in || fs::canonicalize(out).ok() == fs::canonicalize(&args.server_in).ok();
    let existing = if same { Existing::Replace } else { args.write.existing() };
    file::write(&[(out, changed.to_pem().as_str())], existing, &mut fill)?;
    warn_of_own(&bundle, &asked);
    let mut answer = Answer::about(out);
    answer.add_serials("revoked_now", &asked);
    answer.add_serials("revoked", changed.denylist());
    answer.print(args.write.output.output);
    Ok(())
}

fn warn_of_own(bundle: &ServerBundle, asked: &Denylist) {
    for own in [bundle.server(), bundle.forwarding()] {
        let certificate = own.certificate();
        if asked.contains(certificate.serial()) {
            let what = "note: that is this server's own certificate";
            say(&format!("{what}: purpose={} serial={}", certificate.purpose(), certificate.serial()));
        }
    }
}
