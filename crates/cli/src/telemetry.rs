//! Log lines and metrics of the process.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};

/// Seconds; from a wake-up within one process to an export run of hours.
const DURATION_BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0, 14_400.0,
];

/// Starts logging, to the error output so that a command's own output stays clean, and says what was odd about the
/// settings.
///
/// # Errors
/// When logging was started already.
pub fn start_logging(config: &Config) -> anyhow::Result<()> {
    let settings = &config.settings;
    let filter = EnvFilter::try_new(&settings.log_filter).context("log.filter")?;
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let json = match settings.log_format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let started = if json {
        lines.json().flatten_event(true).with_current_span(false).try_init()
    } else {
        lines.compact().with_ansi(terminal).with_target(false).try_init()
    };
    started.map_err(anyhow::Error::from_boxed).context("logging")?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Starts collecting metrics; `/metrics` prints what the handle renders.
///
/// # Errors
/// When a recorder was installed already.
pub fn start_metrics() -> anyhow::Result<PrometheusHandle> {
    // Without buckets the exporter makes summaries, which cannot be added up over processes.
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), DURATION_BUCKETS)?
        .install_recorder()?;
    towpath_api::layers::describe_metrics();
    Ok(handle)
}
