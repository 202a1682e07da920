//! `lockd mcp`: leases and documents for an AI agent, over the Model Context Protocol on standard input and output.
//!
//! **Invariant.** Whatever was granted to this connection is in [`held::Held`], or on its way there with a slot of its own,
//! until it is given back or lost. When the connection ends, all of it is given back before the program ends, for as long
//! as a server answers.
//!
//! **What would break it.** A grant that arrives while the connection ends: were it put with the others after those were
//! given back, nobody would give it back. So the table is closed first, whoever comes later gives back what it brought, and
//! the end waits for all slots. A call that its client cancels when its lease is already in the table: nobody reads the
//! answer, and the lease stays. So whoever asks again is told which lease it has, and `reconcile` lists all of them. What a
//! server grants in the moment in which a call is cancelled it takes back, or else it runs out.
//!
//! Standard output has the protocol and nothing else. The modules in reading order: `tools` is what an agent may call, with
//! its schemas; `handler` takes calls; `desk` does them; `held` has the leases; `words` says what came of it.

mod tools;
mod handler;
mod session;
mod held;
mod messages;

use std::sync::Arc;
use std::time::Duration;

use cli::remote::agents::AgentArgs;
use cli::remote::{Connection, Done, connect, duration, failed};
use rmcp::ServiceExt;
use rmcp::service::QuitReason;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::stdio_pipes;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::handler::Handler;
use self::session::{Desk, Limits};
use crate::logs::{self, Format, Level};

/// The longest message. Longer ones are dropped, with a line in the log: no part of them is read, so nobody can be told.
const LINE_BYTES_MAX: usize = 4 << 20;

#[derive(clap::Args)]
#[command(
    after_help = "It speaks on standard input and output, and is started by the agent's client. Leases renew themselves while \
                  the connection lives, and are given back when it ends: at the end of the input, or by SIGTERM or SIGINT. \
                  Documents have at most 256 KiB here.\n\n\
                  Tools: acquire, release, who_holds, manifest, reconcile, state_get, state_update.\n\n\
                  Examples:\n  lockd mcp --server localhost:9341 --identity client.pem --root /repo\n  \
                  {\"mcpServers\": {\"lockd\": {\"command\": \"lockd\", \"args\": [\"mcp\"]}}}"
)]
pub(crate) struct Mcp {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    agent: AgentArgs,
    /// The most leases at once.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_leases: u32,
    /// The longest that a tool may wait. Clients give up on a tool after some time, many after a minute.
    #[arg(long, value_parser = duration, default_value = "50s")]
    max_wait: Duration,
}

/// Serves one connection.
pub(crate) fn run(args: &Mcp) -> Done {
    let _logs = logs::start(Format::Text, Level::Warn, None).map_err(|what| (1, what))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    let served = runtime.block_on(serve(args));
    // A thread that reads from a terminal cannot be interrupted: nobody waits for it.
    runtime.shutdown_background();
    served
}

async fn serve(args: &Mcp) -> Done {
    let limits = Limits { leases_max: args.max_leases, wait_max: args.max_wait };
    let agent = args.agent.begin("mcp", &args.connection)?;
    let client = connect(&args.connection)?;
    let desk = Arc::new(Desk::new(client, args.connection.namespace.clone(), agent, limits));
    let mut stop = Stop::listen().map_err(|error| failed("listening for signals", &error))?;
    let served = tokio::select! {
        served = converse(Handler::new(Arc::clone(&desk))) => served,
        () = stop.asked() => Ok(()),
    };
    desk.end(args.connection.answer_timeout()).await;
    served
}

/// Until the client closes its end.
async fn converse(handler: Handler) -> Done {
    let (read, write) = stdio_pipes();
    let transport = AsyncRwTransport::new_server(read, write).with_max_line_length(LINE_BYTES_MAX);
    let running = handler.serve(transport).await.map_err(|error| failed("beginning to speak MCP", &error))?;
    match running.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => Err(failed("speaking MCP", &error)),
        Ok(_) => Ok(()),
    }
}

/// Somebody wants it to end.
struct Stop {
    terminated: Signal,
    interrupted: Signal,
}

impl Stop {
    fn listen() -> std::io::Result<Stop> {
        let (terminated, interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Stop { terminated, interrupted })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminated.recv() => {}
            _ = self.interrupted.recv() => {}
        }
    }
}
