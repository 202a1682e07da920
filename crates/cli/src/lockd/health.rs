//! `lockd health`: a liveness and readiness probe for supervisors.

use cli::remote::{CommandResult, ConnectionArgs, Output, client_failure, connect, failed, print};
use lockd_client::Client;

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 the server can grant leases durably (with --alive: it responds); 13 it cannot, or is unreachable; others as in `lockd --help`.\n\n\
                  Example:\n  lockd health --unix /run/lockd/lockd.sock\n  \
                  lockd health --server localhost:9341 --identity client.pem --timeout 2s"
)]
pub(crate) struct HealthArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Use only this Unix socket, which needs no certificate (`lockd serve --unix PATH`).
    #[arg(long, value_name = "PATH")]
    unix: Option<std::path::PathBuf>,
    /// Check liveness only: a restart does not help a server that is out of disk space or shutting down.
    #[arg(long)]
    alive: bool,
    /// Format of the output.
    #[arg(long, env = "LOCKD_CLIENT_OUTPUT", value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Probes the server; the exit code is the result.
pub(crate) fn run(args: &HealthArgs) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    let client = match &args.unix {
        None => connect(&args.connection)?,
        Some(path) => {
            let path = std::path::absolute(path).map_err(|error| failed("resolving --unix", &error))?;
            let socket = format!("unix:{}", path.display());
            let span = args.connection.answer_timeout();
            Client::builder().endpoint(socket).answer_timeout(span).build().map_err(client_failure)?
        }
    };
    if args.alive {
        runtime.block_on(client.alive()).map_err(client_failure)?;
        return print(args.output, &serde_json::json!({"alive": true}), || "alive\n".into());
    }
    runtime.block_on(client.ready()).map_err(client_failure)?;
    print(args.output, &serde_json::json!({"ready": true}), || "ready\n".into())
}
