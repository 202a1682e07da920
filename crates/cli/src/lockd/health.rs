//! `lockd health`: a probe for whatever starts and restarts servers.

use cli::remote::{Connection, Done, Output, connect, failed, print, told};
use client::Client;

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 it can grant leases, durably (with --alive: it answers); 13 it cannot, or not be reached; and those of `lockd --help`.\n\n\
                  Example:\n  lockd health --unix /run/lockd/lockd.sock\n  \
                  lockd health --server localhost:9341 --identity client.pem --timeout 2s"
)]
pub(crate) struct Health {
    #[command(flatten)]
    connection: Connection,
    /// Ask through this socket and no other way, which needs no certificate (`lockd serve --unix PATH`).
    #[arg(long, value_name = "PATH")]
    unix: Option<std::path::PathBuf>,
    /// Ask only whether it is alive: one that is full or stops is not to be restarted for that.
    #[arg(long)]
    alive: bool,
}

/// Asks, and says so by its exit code.
pub(crate) fn run(args: &Health) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    let client = match &args.unix {
        None => connect(&args.connection)?,
        Some(path) => {
            let path = std::path::absolute(path).map_err(|error| failed("finding this folder", &error))?;
            let socket = format!("unix:{}", path.display());
            let span = args.connection.answer_timeout();
            Client::builder().endpoint(socket).answer_timeout(span).build().map_err(told)?
        }
    };
    if args.alive {
        runtime.block_on(client.alive()).map_err(told)?;
        return print(Output::Text, &(), || "alive\n".into());
    }
    runtime.block_on(client.ready()).map_err(told)?;
    print(Output::Text, &(), || "ready\n".into())
}
