//! What a server says while it runs: lines for people, or for machines, on standard error; and traces, where there is a
//! collector for them.

#[cfg(feature = "otel")]
mod otel;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub(crate) use server::settings::{LogFormat as Format, LogLevel as Level};

/// What is logged is written as long as this lives. Dropped, it sends the traces that are left.
pub(crate) struct Logs {
    #[cfg(feature = "otel")]
    _traces: Option<otel::Traces>,
}

/// From now on, what is logged is written. To be called on the runtime that sends traces, if there is somewhere to send
/// them to.
pub(crate) fn start(format: Format, level: Level, collector: Option<&str>) -> Result<Logs, String> {
    let most = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = match format {
        Format::Text => lines.with_ansi(is_terminal()).boxed(),
        Format::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    let registry = tracing_subscriber::registry().with(lines.with_filter(ours(most)));
    #[cfg(feature = "otel")]
    {
        let (layer, traces) = collector.map(otel::layer).transpose()?.unzip();
        registry.with(layer.with_filter(ours(LevelFilter::DEBUG))).init();
        Ok(Logs { _traces: traces })
    }
    #[cfg(not(feature = "otel"))]
    {
        if collector.is_some() {
            return Err("this lockd was built without OpenTelemetry; build it with --features otel".into());
        }
        registry.init();
        Ok(Logs {})
    }
}

/// What libraries say of themselves is worth a line when something is wrong.
fn ours(most: LevelFilter) -> Targets {
    let others = most.min(LevelFilter::WARN);
    Targets::new().with_target("lockd", most).with_target("server", most).with_default(others)
}

fn is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none()
}
