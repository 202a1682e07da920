//! `lockd store cost`: estimates the requests a month of a store in a bucket, and their price.

use std::time::Duration;

use bucket::cost::{Load, PRICES, Prices, estimate};
use cli::failure::{CommandResult, Failure};
use cli::output::{Output, print};
use lockd_server::settings::parse_size;
use serde_json::json;

#[derive(clap::Args)]
#[command(
    after_help = "The estimate has the requests of the log, of documents, of maintenance and of the servers' own records; storage \
                  and traffic between regions are not in it.\n\n\
                  Examples:\n  \
                  lockd store cost --acquires 10\n  \
                  lockd store cost --acquires 200 --renewals 50 --commit-interval 250ms --prices s3\n  \
                  lockd store cost --acquires 10 --servers 2 --takeover-silence 10s\n  \
                  lockd store cost --renewals 13000 --shards 4 --put-latency 8ms --prices s3-express"
)]
pub(crate) struct CostArgs {
    /// Leases acquired, and released later, per second.
    #[arg(long, value_name = "N", default_value_t = Load::default().acquires_per_second)]
    acquires: f64,
    /// Renewals per second.
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    renewals: f64,
    /// Updates of documents per second.
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    documents: f64,
    /// Size of a document.
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = parse_size)]
    document_size: u64,
    /// Number of shards over which the load is spread.
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: u32,
    /// Minimum interval between two appends, as for `lockd serve`.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    commit_interval: Duration,
    /// Time that a PUT takes; `lockd store probe` measures it.
    #[arg(long, value_name = "TIME", default_value = "60ms", value_parser = humantime::parse_duration)]
    put_latency: Duration,
    /// Number of servers of the store, stand-bys included.
    #[arg(long, value_name = "N", default_value_t = 1)]
    servers: u32,
    /// How long an owner is silent before a stand-by takes over, as for `lockd serve`.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    takeover_silence: Duration,
    /// Price list: s3, s3-express, gcs or azure.
    #[arg(long, value_name = "NAME", default_value = "s3", value_parser = parse_prices)]
    prices: &'static Prices,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

fn parse_prices(name: &str) -> Result<&'static Prices, String> {
    Prices::named(name).ok_or_else(|| {
        let names: Vec<&str> = PRICES.iter().map(|prices| prices.name).collect();
        format!("one of {} is needed", names.join(", "))
    })
}

/// Prints the estimate.
pub(crate) fn run(args: &CostArgs) -> CommandResult {
    let load = Load {
        acquires_per_second: args.acquires,
        renewals_per_second: args.renewals,
        documents_per_second: args.documents,
        document_bytes: args.document_size,
        shards: args.shards,
        commit_interval: args.commit_interval,
        put_latency: args.put_latency,
        servers: args.servers,
        takeover_silence: args.takeover_silence,
        ..Load::default()
    };
    let estimate = estimate(&load, args.prices).map_err(|what| Failure::new(2, what))?;
    let Prices { name, title, region, date, .. } = args.prices;
    let json =
        json!({"load": load, "estimate": estimate, "prices": {"name": name, "region": region, "date": date}});
    print(args.output, &json, || format!("{estimate}\nprices: {title}, {region}, {date}"))
}
