//! Traces: one span per request, exported in batches to a collector by OTLP over HTTP.
//!
//! A slow or unreachable collector never delays requests: spans that do not fit into the export queue are dropped.

use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;

/// Timeout for the export of one batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Exports the remaining spans on drop.
pub(super) struct TraceGuard(SdkTracerProvider);

impl Drop for TraceGuard {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown_with_timeout(EXPORT_TIMEOUT) {
            crate::notice(&format!("the last traces could not be exported: {error}"));
        }
    }
}

/// A layer that exports spans to the collector at `endpoint`, such as `http://127.0.0.1:4318/v1/traces`.
pub(super) fn layer<S>(endpoint: &str) -> Result<(OpenTelemetryLayer<S, SdkTracer>, TraceGuard), String>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    if !endpoint.starts_with("http://") {
        return Err(format!(
            "only http:// collectors are supported: run one on this machine or a trusted network: otlp-endpoint={endpoint}"
        ));
    }
    let client = ExportClient {
        runtime: Handle::current(),
        inner: HyperClient::with_default_connector(EXPORT_TIMEOUT, None),
    };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint)
        .build()
        .map_err(|error| format!("{error}: otlp-endpoint={endpoint}"))?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("lockd").build())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("lockd"));
    Ok((layer, TraceGuard(provider)))
}

/// Runs the exporter's requests on the tokio runtime: the exporter calls from a thread of its own.
#[derive(Debug)]
struct ExportClient {
    runtime: Handle,
    inner: HyperClient,
}

#[async_trait]
impl HttpClient for ExportClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let inner = self.inner.clone();
        self.runtime.spawn(async move { inner.send_bytes(request).await }).await?
    }
}
