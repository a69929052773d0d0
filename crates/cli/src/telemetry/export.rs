//! Exports finished spans to an OpenTelemetry collector: OTLP, protobuf over HTTP.
//!
//! A slow or unavailable collector loses spans, which are counted. It never affects requests or jobs.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use opentelemetry::KeyValue;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use url::Url;

pub const QUEUE_CAPACITY: usize = 4096;
const BATCH: usize = 512;
/// How long a batch waits for more spans.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Time limit of one request, and of the last one at the end of the process.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

towpath_domain::metric_table! {
    pub fn describe;

    counter EXPORTED = "towpath_spans_exported_total", "Spans accepted by the collector", from_start;
    counter DROPPED = "towpath_spans_dropped_total",
        "Spans lost because too many waited (full) or the collector did not accept them (collector)";
}

/// Exports spans until it is closed.
pub struct Exporter(Option<(JoinHandle<()>, mpsc::Sender<()>)>);

impl Exporter {
    pub const fn none() -> Self {
        Self(None)
    }

    /// Exports `spans` to the collector at `endpoint`. An address without a path gets the standard path.
    pub fn start(endpoint: &str, spans: mpsc::Receiver<SpanData>) -> anyhow::Result<Self> {
        let exporter = exporter(endpoint)?;
        let (close, closed) = mpsc::channel(1);
        let task = tokio::spawn(run(exporter, spans, closed));
        Ok(Self(Some((task, close))))
    }

    /// Exports the remaining spans, with a time limit of some seconds.
    pub async fn close(self) {
        let Some((task, close)) = self.0 else { return };
        let _ = close.send(()).await;
        let _ = tokio::time::timeout(REQUEST_TIMEOUT, task).await;
    }
}

fn exporter(endpoint: &str) -> anyhow::Result<SpanExporter> {
    let mut url = Url::parse(endpoint).context("telemetry.otlp_endpoint")?;
    if matches!(url.path(), "" | "/") {
        url.set_path("/v1/traces");
    }
    // The operator chose the address; the guard for users' addresses does not apply.
    let client = reqwest::Client::builder()
        .timeout(REQUEST_TIMEOUT)
        .build()
        .context("a client for telemetry.otlp_endpoint")?;
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(url.as_str())
        .with_timeout(REQUEST_TIMEOUT)
        .with_http_client(Client(client))
        .build()
        .context("telemetry.otlp_endpoint")?;
    let resource = Resource::builder()
        .with_service_name("towpath")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())))
        .build();
    exporter.set_resource(&resource);
    Ok(exporter)
}

async fn run(exporter: SpanExporter, mut spans: mpsc::Receiver<SpanData>, mut closed: mpsc::Receiver<()>) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut open = true;
    while open {
        tokio::select! {
            biased;
            _ = closed.recv() => open = false,
            Some(first) = spans.recv() => {
                batch.push(first);
                let full = async {
                    while batch.len() < BATCH {
                        match spans.recv().await {
                            Some(span) => batch.push(span),
                            None => break,
                        }
                    }
                };
                tokio::select! {
                    () = full => {}
                    () = tokio::time::sleep(BATCH_DELAY) => {}
                    _ = closed.recv() => open = false,
                }
                send(&exporter, &mut batch).await;
            }
            else => return,
        }
    }
    spans.close();
    while let Ok(span) = spans.try_recv() {
        batch.push(span);
        if batch.len() == BATCH {
            send(&exporter, &mut batch).await;
        }
    }
    send(&exporter, &mut batch).await;
}

async fn send(exporter: &SpanExporter, batch: &mut Vec<SpanData>) {
    if batch.is_empty() {
        return;
    }
    let spans = std::mem::replace(batch, Vec::with_capacity(BATCH));
    let count = spans.len() as u64;
    match exporter.export(spans).await {
        Ok(()) => metrics::counter!(EXPORTED).increment(count),
        Err(error) => {
            dropped("collector", count);
            tracing::warn!(%error, spans = count, "the collector did not accept spans; they are dropped");
        }
    }
}

/// Counts lost spans.
pub fn dropped(reason: &'static str, spans: u64) {
    metrics::counter!(DROPPED, "reason" => reason).increment(spans);
}

/// Adapts the HTTP client of the tree to the exporter's interface.
#[derive(Debug)]
struct Client(reqwest::Client);

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, HttpError> {
        let mut response = self.0.execute(request.try_into()?).await?;
        let mut answer = http::Response::builder().status(response.status());
        if let Some(headers) = answer.headers_mut() {
            std::mem::swap(headers, response.headers_mut());
        }
        Ok(answer.body(response.bytes().await?)?)
    }
}
