//! `lockd-objectserver`: the object store in memory as a program, for trying lockd by hand.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use objectserver::{Dialect, ObjectServer, ServerOptions};
use tokio::signal::unix::{SignalKind, signal};

/// An object store in memory, on loopback, for trials: nothing is kept when it ends, and any credentials are accepted.
#[derive(Debug, Parser)]
#[command(name = "lockd-objectserver", version, after_help = EXAMPLE)]
struct Arguments {
    /// Loopback address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000", value_parser = parse_loopback)]
    listen: SocketAddr,
    /// Bucket (Azure: container) that exists; may be repeated
    #[arg(long = "bucket", value_name = "NAME", required = true)]
    buckets: Vec<String>,
    /// Latency added to every request
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    latency: Duration,
    /// Protocol
    #[arg(long, value_enum, default_value = "s3")]
    dialect: DialectName,
}

const EXAMPLE: &str = "Example:
  lockd-objectserver --listen 127.0.0.1:9000 --bucket trial --latency 30ms --dialect s3
  curl -X PUT --data hello http://127.0.0.1:9000/trial/greeting
  curl http://127.0.0.1:9000/trial/greeting

It serves until it receives SIGINT or SIGTERM, and then prints how many requests it has received.";

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DialectName {
    /// Amazon S3, path style
    S3,
    /// Google Cloud Storage, XML API
    Gcs,
    /// Azure Blob Storage
    Azure,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "lockd-objectserver: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let dialect = match arguments.dialect {
        DialectName::S3 => Dialect::S3,
        DialectName::Gcs => Dialect::Gcs,
        DialectName::Azure => Dialect::Azure,
    };
    let options = ServerOptions {
        buckets: arguments.buckets.clone(),
        latency: arguments.latency,
        port: arguments.listen.port(),
        ..ServerOptions::new(dialect, "")
    };
    let server = ObjectServer::start(options).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen: {error} address={}", arguments.listen))
    })?;
    writeln!(
        io::stdout(),
        "serving endpoint={} buckets={} latency={}",
        server.endpoint(),
        arguments.buckets.join(","),
        humantime::format_duration(arguments.latency)
    )?;
    wait_for_signal()?;
    writeln!(io::stdout(), "stopped {}", server.counts())
}

fn wait_for_signal() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(())
    })
}

fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "write an address and a port, as 127.0.0.1:9000".to_owned())?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("it checks no credentials, so it listens on 127.0.0.1 and [::1] only".to_owned())
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 30ms or 2s"))
}
