//! `lockd mcp`: leases and documents for an AI agent, over the Model Context Protocol on standard input and output.
//!
//! **Invariant.** Every lease granted to this connection is in the [`lease_table::LeaseTable`], or in flight with a reserved
//! slot, until it is released or lost. When the connection ends, all leases are released before the program exits, as long
//! as a server responds.
//!
//! **What would break it.** A grant that arrives during shutdown: added to the table after the others were released, it
//! would never be released. So the table is closed first, a later grant is released by its own call, and shutdown waits for
//! all slots. A call cancelled by the client after its lease was added to the table: the response is lost and the lease
//! stays. So a repeated acquire returns the existing lease, and `reconcile` lists all of them. A lease granted at the moment
//! of a cancellation is retracted by the server, or expires.
//!
//! Standard output carries the protocol and nothing else. The modules in reading order: `tools` defines the tools and their
//! schemas; `handler` dispatches calls; `session` executes them; `lease_table` holds the leases; `messages` is the text of
//! the results.

mod tools;
mod handler;
mod session;
mod lease_table;
mod messages;

use std::sync::Arc;
use std::time::Duration;

use cli::remote::agents::AgentArgs;
use cli::remote::{CommandResult, ConnectionArgs, connect, duration, failed};
use rmcp::ServiceExt;
use rmcp::service::QuitReason;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::stdio_pipes;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::handler::Handler;
use self::session::{AgentSession, SessionLimits};
use crate::logs::{self, Format, Level};

/// Maximum length of a message. Longer ones are dropped and logged: without its id, a request cannot be replied to.
const LINE_BYTES_MAX: usize = 4 << 20;

#[derive(clap::Args)]
#[command(
    after_help = "The agent's MCP client starts this command and talks to it on standard input and output. Leases are renewed \
                  automatically while the connection is open, and released when it ends: at end of input, or by SIGTERM or \
                  SIGINT. Documents are limited to 256 KiB.\n\n\
                  Tools: acquire, release, who_holds, manifest, reconcile, state_get, state_update.\n\n\
                  Examples:\n  lockd mcp --server localhost:9341 --identity client.pem --root /repo\n  \
                  {\"mcpServers\": {\"lockd\": {\"command\": \"lockd\", \"args\": [\"mcp\"]}}}"
)]
pub(crate) struct Mcp {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(flatten)]
    agent: AgentArgs,
    /// Maximum number of leases held at the same time.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_leases: u32,
    /// Maximum wait of one tool call. MCP clients time out, many after a minute.
    #[arg(long, value_parser = duration, default_value = "50s")]
    max_wait: Duration,
}

/// Serves one connection.
pub(crate) fn run(args: &Mcp) -> CommandResult {
    let _logs =
        logs::start(Format::Text, Level::Warn, None).map_err(|what| cli::remote::Failure::new(1, what))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    let served = runtime.block_on(serve(args));
    // Does not wait for the thread that reads standard input: it cannot be interrupted.
    runtime.shutdown_background();
    served
}

async fn serve(args: &Mcp) -> CommandResult {
    let limits = SessionLimits { leases_max: args.max_leases, wait_max: args.max_wait };
    let agent = args.agent.begin("mcp", &args.connection)?;
    let client = connect(&args.connection)?;
    let session = Arc::new(AgentSession::new(client, args.connection.namespace.clone(), agent, limits));
    let mut stop = StopSignals::listen().map_err(|error| failed("listening for signals", &error))?;
    let served = tokio::select! {
        served = converse(Handler::new(Arc::clone(&session))) => served,
        () = stop.received() => Ok(()),
    };
    session.end(args.connection.answer_timeout()).await;
    served
}

/// Serves calls until the client closes its end.
async fn converse(handler: Handler) -> CommandResult {
    let (read, write) = stdio_pipes();
    let transport = AsyncRwTransport::new_server(read, write).with_max_line_length(LINE_BYTES_MAX);
    let running =
        handler.serve(transport).await.map_err(|error| failed("starting the MCP session", &error))?;
    match running.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => Err(failed("serving the MCP session", &error)),
        Ok(_) => Ok(()),
    }
}

/// SIGTERM and SIGINT.
struct StopSignals {
    terminated: Signal,
    interrupted: Signal,
}

impl StopSignals {
    fn listen() -> std::io::Result<StopSignals> {
        let (terminated, interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(StopSignals { terminated, interrupted })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminated.recv() => {}
            _ = self.interrupted.recv() => {}
        }
    }
}
