//! Logging: lines of text, without colours, or JSON on standard error, and OpenTelemetry traces if a collector is configured.

#[cfg(feature = "otel")]
mod otel;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub(crate) use lockd_server::settings::{LogFormat as Format, LogLevel as Level};

/// Keeps logging set up. Flushes the remaining traces on drop.
pub(crate) struct LogGuard {
    #[cfg(feature = "otel")]
    _trace_guard: Option<otel::TraceGuard>,
}

/// Installs the global subscriber. With a collector, must be called inside the tokio runtime that exports the traces.
pub(crate) fn start(format: Format, level: Level, collector: Option<&str>) -> Result<LogGuard, String> {
    let max = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = match format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    let registry = tracing_subscriber::registry().with(lines.with_filter(target_filter(max)));
    #[cfg(feature = "otel")]
    {
        let (layer, trace_guard) = collector.map(otel::layer).transpose()?.unzip();
        registry.with(layer.with_filter(target_filter(LevelFilter::DEBUG))).init();
        Ok(LogGuard { _trace_guard: trace_guard })
    }
    #[cfg(not(feature = "otel"))]
    {
        if collector.is_some() {
            return Err(
                "this lockd was built without OpenTelemetry support; rebuild it with --features otel".into(),
            );
        }
        registry.init();
        Ok(LogGuard {})
    }
}

/// Logs our own targets up to `max`, and libraries up to warnings only.
fn target_filter(max: LevelFilter) -> Targets {
    let others = max.min(LevelFilter::WARN);
    Targets::new().with_target("lockd", max).with_target("server", max).with_default(others)
}
