//! `lockd reload`: the server reads its identity file and denylist again.

use cli::remote::{CommandResult, Failure, Output, client_failure, failed, print};
use lockd_client::{Client, Error};

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 the files are in use; 1 the reload was refused, and nothing was changed; 13 the server is \
                  unreachable; others as in `lockd --help`.\n\n\
                  Example:\n  lockd reload --unix /run/lockd/lockd.sock"
)]
pub(crate) struct ReloadArgs {
    /// Unix socket of the server (`lockd serve --unix PATH`).
    #[arg(long, value_name = "PATH")]
    unix: std::path::PathBuf,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Reloads; when it returns, revoked certificates are refused everywhere.
pub(crate) fn run(args: &ReloadArgs) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    let path = std::path::absolute(&args.unix).map_err(|error| failed("resolving --unix", &error))?;
    let client = Client::builder().endpoint(format!("unix:{}", path.display())).build();
    let client = client.map_err(client_failure)?;
    let reloaded = runtime.block_on(client.reload()).map_err(refused_or_failed)?;
    print(args.output, &reloaded, || {
        format!(
            "reloaded: revoked={} unrevoked={} connections_closed={}\n",
            reloaded.revoked, reloaded.unrevoked, reloaded.connections_closed
        )
    })
}

fn refused_or_failed(error: Error) -> Failure {
    match error.refusal() {
        Some(refusal) if refusal.error == api::Code::InvalidState => {
            let refusal = Box::new(refusal.clone());
            Failure { code: 1, message: refusal.detail.clone(), refusal: Some(refusal), is_shown: false }
        }
        _ => client_failure(error),
    }
}
