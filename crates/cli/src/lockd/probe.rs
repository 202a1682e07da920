//! `lockd store probe`: tests whether an object store can be trusted with a log.

use bucket::BucketUrl;
use bucket::probe::{ProbeDepth, probe};
use cli::failure::{CommandResult, Failure};
use cli::output::{Output, print};
use cli::progress::CountProgress;
use cli::times;

use crate::bucket_flags::BucketFlags;

#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 the store is fit; 1 it is not, and why is printed; 2 wrong usage.\n\n\
                  Examples:\n  \
                  lockd store probe s3://locks/prod\n  \
                  lockd store probe s3://locks/prod --s3-endpoint http://127.0.0.1:9000 --s3-region us-east-1\n  \
                  lockd store probe gs://locks/prod --output json > verdict.json")]
pub(crate) struct ProbeArgs {
    /// Bucket and prefix: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
    #[arg(value_name = "URL", value_parser = parse_url)]
    url: BucketUrl,
    /// Run only the checks that a server repeats at each start with an existing store.
    #[arg(long)]
    short: bool,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    bucket: BucketFlags,
}

fn parse_url(text: &str) -> Result<BucketUrl, String> {
    BucketUrl::parse(text).ok_or_else(|| {
        "not the URL of a bucket; use s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
            .to_string()
    })
}

/// Probes the store, and prints the verdict.
pub(crate) fn run(args: &ProbeArgs) -> CommandResult {
    let depth = if args.short { ProbeDepth::Short } else { ProbeDepth::Full };
    let bar = CountProgress::new("requests", args.output);
    let report = probe(&args.url, &args.bucket.options(), &[], depth, &times::now(), &mut |progress| {
        bar.set(progress.requests, progress.requests_expected);
    });
    drop(bar);
    let report = report.map_err(|what| Failure::new(2, what))?;
    print(args.output, &report.to_json(), || report.to_string())?;
    if report.is_fit() {
        Ok(())
    } else {
        Err(Failure::new(1, "the object store is not fit for a log of lockd"))
    }
}
