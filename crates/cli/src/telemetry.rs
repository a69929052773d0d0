//! Log lines, spans and metrics of the process.

mod export;
mod fields;
mod lines;
mod metric;
mod spans;

use std::io::IsTerminal as _;

use anyhow::Context as _;
use towpath_domain::Clock;
use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use self::fields::HIDDEN;
use crate::config::{Config, LogFormat};

pub use export::Exporter;
pub use metric::{start as start_metrics, watch};

/// Starts logging to standard error, so that a command's output stays clean. Logs the warnings about the settings, and
/// exports spans if `telemetry.otlp_endpoint` is set. Close the returned exporter before the process ends.
pub fn start_logging(config: &Config) -> anyhow::Result<Exporter> {
    let settings = &config.settings;
    let filter = EnvFilter::try_new(&settings.log_filter).context("log.filter")?;
    let terminal = std::io::stderr().is_terminal();
    let json = match settings.log_format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let lines = json.then(|| lines::Lines::new(Clock::system(), lines::to_stderr));
    let text = (!json).then(|| {
        let fields = debug_fn(|writer, field, value| match field.name() {
            "message" => write!(writer, "{value:?}"),
            name if HIDDEN.contains(&name) => Ok(()),
            name => write!(writer, " {name}={value:?}"),
        });
        tracing_subscriber::fmt::layer()
            .compact()
            .with_ansi(terminal)
            .with_target(false)
            .fmt_fields(fields)
            .with_writer(std::io::stderr)
    });
    let (spans, exporter) = match &settings.otlp_endpoint {
        None => (None, Exporter::none()),
        Some(endpoint) => {
            let (send, receive) = tokio::sync::mpsc::channel(export::QUEUE_CAPACITY);
            let exporter = Exporter::start(endpoint, receive)?;
            let spans = spans::Spans::new(send).with_filter(filter_fn(is_traced));
            (Some(spans), exporter)
        }
    };
    tracing_subscriber::registry()
        .with(spans)
        .with(text.with_filter(filter.clone()))
        .with(lines.with_filter(filter))
        .try_init()
        .context("logging")?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    Ok(exporter)
}

/// Spans of this program at any level, and events in them.
fn is_traced(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("towpath") && (metadata.is_span() || *metadata.level() <= LevelFilter::INFO)
}
