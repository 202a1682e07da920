//! `lockd store hand-over`: a server hands its shards over to another server of the bucket.

use cli::remote::{CommandResult, ConnectionArgs, Failure, Output, client_failure, connect, failed, print};
use lockd_client::Error;

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 the shards are handed over; 1 no other server is known, or the store has one server only; 13 the server is \
                  unreachable; 14 the caller is not an operator of all namespaces; others as in `lockd --help`.\n\n\
                  Examples:\n  lockd store hand-over --server one:9341\n  lockd store hand-over --server one:9341 --shard 3"
)]
pub(crate) struct HandOverArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Number of the shard, of any server [default: all shards that the server owns].
    #[arg(long, value_name = "N")]
    shard: Option<u32>,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Returns when the server no longer owns the shards.
pub(crate) fn run(args: &HandOverArgs) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    let handed_over = runtime.block_on(async {
        let client = connect(&args.connection)?;
        client.hand_over(args.shard).await.map_err(refused_or_failed)
    })?;
    print(args.output, &handed_over, || {
        let shards: Vec<String> = handed_over.shards.iter().map(ToString::to_string).collect();
        if shards.is_empty() {
            "the server owns no shard\n".into()
        } else {
            format!("handed over: shards={}\n", shards.join(","))
        }
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
