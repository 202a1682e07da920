//! `lockd serve`, and `lockd config`, which shows the settings that it would use.

mod resolve;
mod settings;
mod supervisor;

use std::io::IsTerminal;
use std::net::SocketAddr;

use clap::ArgMatches;
use lockd_server::http::first_start;
use lockd_server::{Config, Server, StartError};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::resolve::{Source, resolve};
pub(crate) use self::settings::{Serve, flag};
use self::supervisor::Supervisor;
use crate::logs::{self, Format};
use crate::notice;
use cli::output::{Column, Output, rendered, table};

type ServeFailure = String;

/// After this many tasks a thread looks for sockets that have become ready. With the usual 61, a client with four busy
/// connections made others wait for 61 of its turns, several milliseconds, before their requests were noticed.
const EVENT_INTERVAL: u32 = 4;

/// Serves until a signal stops it. A failure comes with its exit code: 2 for invalid settings, 1 for the rest.
pub(crate) fn run(matches: &ArgMatches) -> Result<(), (u8, ServeFailure)> {
    let resolved = resolve(matches).map_err(|what| (2, what))?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().event_interval(EVENT_INTERVAL).build();
    let runtime = runtime.map_err(|error| (1, format!("no threads to serve with: {error}")))?;
    let entered = runtime.enter();
    let config = resolved.config;
    let logs = logs::start(config.log_format, config.log_level, config.otlp_endpoint.as_deref());
    let logs = logs.map_err(|what| (2, what))?;
    let served = runtime.block_on(serve(config));
    // The last spans are exported on the runtime.
    drop((logs, entered));
    // Does not wait for a store that was not closed in time.
    runtime.shutdown_background();
    served.map_err(|what| (1, what))
}

async fn serve(config: Config) -> Result<(), ServeFailure> {
    let failure = |error: StartError| error.to_string();
    // Before the recovery, which SIGHUP would end otherwise; SIGTERM and SIGINT may end it.
    let reload = listen(SignalKind::hangup())?;
    let supervisor = Supervisor::from_environment();
    supervisor.recovering();
    let mut server = Server::new(config).map_err(failure)?;
    let signals = ServerSignals::new(reload)?;
    let bound = server.start().await.map_err(failure)?;
    supervisor.ready(bound);
    let is_seen_by_a_person = std::io::stderr().is_terminal() && !supervisor.is_present();
    if server.config().log_format == Format::Text && is_seen_by_a_person {
        greet(server.config(), bound);
    }
    signals.wait(&server, &supervisor).await;
    supervisor.stopping();
    server.shutdown().await.map_err(|timeout| timeout.to_string())
}

struct ServerSignals {
    end: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl ServerSignals {
    fn new(reload: Signal) -> Result<ServerSignals, ServeFailure> {
        let (end, interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        Ok(ServerSignals { end, interrupt, reload })
    }

    /// Reloads on SIGHUP; returns on SIGTERM or SIGINT.
    async fn wait(mut self, server: &Server, supervisor: &Supervisor) {
        loop {
            tokio::select! {
                _ = self.end.recv() => return,
                _ = self.interrupt.recv() => return,
                // The server logs the outcome.
                _ = self.reload.recv() => supervisor.reload(|| server.reload()),
            }
        }
    }
}

fn listen(kind: SignalKind) -> Result<Signal, ServeFailure> {
    signal(kind).map_err(|error| format!("listening for signals: {error}"))
}

/// Prints a first command to try.
fn greet(config: &Config, bound: SocketAddr) {
    let host = if bound.ip().is_unspecified() { "localhost".to_string() } else { bound.ip().to_string() };
    let client = config.data_dir.join(first_start::CLIENT);
    let is_first_start = config.bundle.is_none() && config.tls_cert.is_none() && client.exists();
    let (what, shown) = match config.mtls {
        false => ("try it", " --mtls=false".to_string()),
        true if is_first_start => ("try it", format!(" --identity {}", client.display())),
        true => ("try it, with the identity file of a client", " --identity FILE".to_string()),
    };
    let port = bound.port();
    // As this program was called: it may not be in the PATH.
    let program = std::env::args().next().unwrap_or_else(|| "lockd".to_string());
    notice(&format!("{what}: {program} run --server {host}:{port}{shown} --key orders -- echo it is mine"));
}

/// Every setting and its source, as TOML or JSON.
pub(crate) fn show(matches: &ArgMatches, output: Output) -> Result<String, (u8, ServeFailure)> {
    let resolved = resolve(matches).map_err(|what| (2, what))?;
    let listed = resolved.listed();
    let entry = |(name, value, source): &(&str, Value, &Source)| {
        ((*name).to_string(), json!({"value": value, "source": source.to_string()}))
    };
    Ok(match output {
        Output::Text => toml(&listed),
        Output::Json => {
            let all: Map<String, Value> = listed.iter().map(entry).collect();
            serde_json::to_string_pretty(&all).expect("plain data") + "\n"
        }
        Output::Yaml => {
            let all: Map<String, Value> = listed.iter().map(entry).collect();
            rendered(output, &all, String::new)
        }
        Output::Table | Output::Wide => {
            let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
            let row = |(name, value, source): &(&str, Value, &Source)| {
                [(*name).to_string(), shown(value), source.to_string()]
            };
            table(&SETTING_COLUMNS, &listed.iter().map(row).collect::<Vec<_>>(), true)
        }
    })
}

const SETTING_COLUMNS: [Column<[String; 3]>; 3] = [
    Column::new("SETTING", |row| row[0].clone()),
    Column::new("VALUE", |row| row[1].clone()),
    Column::new("SOURCE", |row| row[2].clone()),
];

/// A settings file with these values. Strings, numbers and booleans are written in TOML as in JSON.
fn toml(listed: &[(&'static str, Value, &Source)]) -> String {
    let line = |(name, value, source): &(&str, Value, &Source)| match value {
        Value::Null => format!("# {name} is not set\n"),
        value => format!("{:<42} # {source}\n", format!("{name} = {value}")),
    };
    listed.iter().map(line).collect()
}
