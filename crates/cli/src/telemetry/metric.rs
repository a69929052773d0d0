//! Metrics: the recorder, gauges that are polled, and descriptions.

use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use towpath_store::{Dialect, Store};

towpath_domain::metric_table! {
    fn describe;

    gauge BUILD_INFO = "towpath_build_info", "Always 1; the labels have the version, the database and the roles";
    gauge CONNECTIONS = "towpath_store_connections",
        "Database connections of this process; on SQLite those for reading";
    gauge TASKS = "towpath_runtime_tasks", "Live asynchronous tasks";
    gauge TASKS_WAITING = "towpath_runtime_queue_depth", "Tasks in the runtime's shared queue that wait for a thread";
    gauge THREADS = "towpath_runtime_threads", "Threads of the runtime";
    gauge SCRAPE = "towpath_scrape_seconds", "Time spent collecting the figures of the process for the last scrape";
}

/// Seconds, from a wake within one process to an export run of hours.
const DURATION_BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0, 14_400.0,
];
/// Group sizes.
const GROUP_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// Starts collecting metrics; the returned handle renders `/metrics`.
pub fn start() -> anyhow::Result<PrometheusHandle> {
    // Without buckets the exporter creates summaries, which cannot be summed over processes.
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), DURATION_BUCKETS)?
        .set_buckets_for_metric(Matcher::Suffix("_group".to_owned()), GROUP_BUCKETS)?
        .install_recorder()?;
    describe();
    towpath_api::metric::describe();
    towpath_compute::metric::describe();
    towpath_durable::metric::describe();
    towpath_store::metric::describe();
    towpath_traces::metric::describe();
    towpath_workers::metric::describe();
    towpath_workflows::metric::describe();
    towpath_scheduler::metric::describe();
    super::export::describe();
    Ok(handle)
}

/// Returns a function that sets gauges before each scrape: connections, the runtime and the process.
pub fn watch(store: Store, roles: String) -> impl Fn() + Send + Sync + 'static {
    let database = match store.dialect() {
        Dialect::Sqlite => "sqlite",
        Dialect::Postgres => "postgres",
    };
    metrics::gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION"), "database" => database, "roles" => roles)
        .set(1.0);
    let process = Collector::default();
    process.describe();
    let runtime = tokio::runtime::Handle::current().metrics();
    move || {
        let began = Instant::now();
        let open = store.connections();
        metrics::gauge!(CONNECTIONS, "state" => "busy").set(f64::from(open.busy));
        metrics::gauge!(CONNECTIONS, "state" => "idle").set(f64::from(open.idle));
        metrics::gauge!(TASKS).set(runtime.num_alive_tasks() as f64);
        metrics::gauge!(TASKS_WAITING).set(runtime.global_queue_depth() as f64);
        metrics::gauge!(THREADS).set(runtime.num_workers() as f64);
        process.collect();
        metrics::gauge!(SCRAPE).set(began.elapsed().max(Duration::from_nanos(1)).as_secs_f64());
    }
}
