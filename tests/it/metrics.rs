//! What `/metrics` says: the families of docs/metrics.md, bounded labels, values that move.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde_json::json;
use towpath_tests::{Api, Layout, World, until};

use crate::load::{PATIENCE, project};
use crate::tree;

/// Documented, and only there once something special happened: a failure, a fault, a Redis, a PostgreSQL, a pause.
const SPECIAL: [&str; 37] = [
    "towpath_build_program_seconds",
    "towpath_dead_letters_total",
    "towpath_deployment_agents",
    "towpath_deployment_restarts_total",
    "towpath_deployment_step_seconds",
    "towpath_dispatch_claimed_total",
    "towpath_dispatch_pushed_total",
    "towpath_dispatch_refills_total",
    "towpath_dispatch_stale_total",
    "towpath_dispatch_taken_total",
    "towpath_dispatch_up",
    "towpath_dispatch_window_ids",
    "towpath_gateway_held_seconds",
    "towpath_agent_event_streams",
    "towpath_hints_dropped_total",
    "towpath_lane_waits_total",
    "towpath_limited_total",
    "towpath_limits_counted_apart_total",
    "towpath_limits_shared",
    "towpath_object_store_errors_total",
    "towpath_queue_paused",
    "towpath_redis_reconnects_total",
    "towpath_redis_up",
    "towpath_sandbox_connections",
    "towpath_sandbox_held_seconds",
    "towpath_sandbox_start_seconds",
    "towpath_sandboxes",
    "towpath_sign_ins_total",
    "towpath_spans_dropped_total",
    "towpath_steps_total",
    "towpath_store_errors_total",
    "towpath_sweep_errors_total",
    "towpath_leases_expired_total",
    "towpath_wal_failed_flushes_total",
    "towpath_wal_missing_segments_total",
    "towpath_wal_damaged_frames_total",
    "towpath_stale_writes_refused_total",
];

/// Labels that a scrape adds to a histogram.
const OF_HISTOGRAMS: [&str; 1] = ["le"];

#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
    /// Whole series, as written, with its value.
    series: BTreeMap<String, f64>,
}

#[tokio::test]
async fn a_working_server_shows_its_families_and_their_values_move() {
    let world = World::embedded().await;
    let before = scrape(&world.api).await;
    work(&world.api).await;
    // Gauges about the whole system are set every few seconds.
    let after = until("the gauges of the scheduler", PATIENCE, async || {
        let families = scrape(&world.api).await;
        families.contains_key("towpath_jobs").then_some(families)
    })
    .await;

    let documented = documented();
    let ours: Vec<&String> = after.keys().filter(|name| name.starts_with("towpath_")).collect();
    assert!(ours.len() >= 45, "{} families: {ours:?}", ours.len());
    for name in &ours {
        let family = &after[*name];
        let (kind, labels) = documented
            .get(*name)
            .unwrap_or_else(|| panic!("{name} is not in docs/metrics.md"));
        assert_eq!(&family.kind, kind, "{name}");
        assert!(
            family.labels.is_subset(labels),
            "{name} has {:?}, documented are {labels:?}",
            family.labels
        );
        assert!(!family.help.is_empty(), "{name} has no HELP");
        let suffixed = match kind.as_str() {
            "counter" => name.ends_with("_total"),
            "histogram" => name.ends_with("_seconds") || name.ends_with("_group"),
            _ => !name.ends_with("_total"),
        };
        assert!(suffixed, "{name} is a {kind}");
    }
    for name in documented.keys().filter(|name| !SPECIAL.contains(&name.as_str())) {
        assert!(after.contains_key(name), "{name} is documented and not shown");
    }
    for name in [
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_open_fds",
    ] {
        assert!(after.contains_key(name), "{name}");
    }

    for moved in [
        "towpath_http_requests_total",
        "towpath_http_request_seconds",
        "towpath_ingest_items_total",
        "towpath_ingest_bytes_total",
        "towpath_wal_segments_total",
        "towpath_wal_bytes_total",
        "towpath_wal_flush_seconds",
        "towpath_flushed_wal_segments_total",
        "towpath_flushed_operations_total",
        "towpath_segments_written_total",
        "towpath_segment_rows_total",
        "towpath_jobs_enqueued_total",
        "towpath_jobs_claimed_total",
        "towpath_jobs_finished_total",
        "towpath_job_attempts_total",
        "towpath_job_wait_seconds",
        "towpath_job_run_seconds",
        "towpath_checkpoints_total",
        "towpath_wakes_sent_total",
        "towpath_export_rows_total",
        "towpath_export_bytes_total",
        "towpath_export_files_total",
        "towpath_object_store_seconds",
        "towpath_store_seconds",
        "towpath_store_commit_seconds",
    ] {
        assert!(total(&after, moved) > total(&before, moved), "{moved} did not move");
    }
    assert!(total(&after, "towpath_export_rows_total") >= 1.0);
    let busy_and_free = total(&after, "towpath_worker_slots");
    assert!(busy_and_free >= 10.0, "{busy_and_free} slots");
    assert!(
        total(&after, "towpath_dependency_up") >= 2.0,
        "database and objects are up"
    );
    world.stop().await;
}

#[tokio::test]
async fn strangers_add_no_series_and_ids_are_no_labels() {
    // One after another they send more wrong keys than an address may.
    let plan = World::plan(Layout::Embedded).env("TOWPATH_HTTP_FAILED_KEYS_PER_MINUTE", "0");
    let world = plan.start().await.expect("the embedded world needs no server");
    work(&world.api).await;
    probe(&world.api, 0..20).await;
    // A scrape is a request too, and shows in the next one.
    scrape(&world.api).await;
    let before = series(&scrape(&world.api).await);
    probe(&world.api, 20..220).await;
    let after = series(&scrape(&world.api).await);
    let new: Vec<&String> = after
        .difference(&before)
        // The clock continues meanwhile: what it and idle workers show for the first time is not the strangers'.
        .filter(|series| series.contains("http") || series.contains("ingest") || series.contains("sign_ins"))
        .collect();
    assert!(new.is_empty(), "{new:?}");
    for series in &after {
        let tenant = world.tenant.to_string();
        assert!(!series.contains(&tenant) && !series.contains("private"), "{series}");
        let digits = series.split(|c: char| !c.is_ascii_hexdigit() && c != '-');
        assert!(!digits.into_iter().any(|part| part.len() == 36), "{series}");
    }
    assert!(after.len() < 2500, "{} series", after.len());
    world.stop().await;
}

/// What a stranger may send: paths, ids, methods, tenants.
async fn probe(api: &Api, numbers: std::ops::Range<u32>) {
    let base = api.base().strip_prefix("http://").unwrap().parse().unwrap();
    for n in numbers {
        let tenant = format!("0199a5c4-0000-7000-8000-{n:012}");
        let stranger = Api::new(base, &format!("some-key-that-is-made-up-{n:012}"), &tenant);
        stranger.get(&format!("/private/{n}")).await;
        stranger.get(&format!("/api/v1/bulk-exports/{tenant}")).await;
        api.get(&format!("/sessions/{tenant}")).await;
        let method: Method = format!("PRIVATE{n}").parse().unwrap();
        let _ = api.request(method, "/runs", None).await;
        stranger.post("/runs", &json!({ "id": n })).await;
        let session = stranger.post("/auth/session", &json!({})).await;
        assert_eq!(session.status, 401, "{}", session.body);
    }
}

/// One trace run in, one export of it out.
async fn work(api: &Api) {
    let destination = api.file_destination("metered").await;
    let sent = json!({
        "id": "0199a5c4-0000-7000-8000-000000000003", "name": "root", "run_type": "chain", "session_name": "metered",
        "trace_id": "0199a5c4-0000-7000-8000-000000000003", "inputs": {}, "start_time": "2026-02-01T10:00:00Z",
        "dotted_order": "20260201T100000000000Z0199a5c4-0000-7000-8000-000000000003",
    });
    api.post("/runs", &sent).await.expect(202);
    let body = json!({
        "bulk_export_destination_id": destination, "session_id": project(api, "metered").await,
        "start_time": "2026-02-01T00:00:00Z", "end_time": "2026-02-02T00:00:00Z",
    });
    let export = api.post("/api/v1/bulk-exports", &body).await.expect(200);
    let ended = api.export_ended(export["id"].as_str().unwrap(), PATIENCE).await;
    assert_eq!(ended["status"], "COMPLETED", "{ended}");
}

/// The table of docs/metrics.md: name to type and labels.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let text = tree::read("docs/metrics.md");
    let rows = text.lines().filter(|line| line.starts_with("| `towpath_"));
    let table: BTreeMap<_, _> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let labels = cells[3].split(',').map(|label| label.trim().trim_matches('`'));
            let labels = labels.filter(|label| !label.is_empty()).map(str::to_owned).collect();
            (cells[1].trim_matches('`').to_owned(), (cells[2].to_owned(), labels))
        })
        .collect();
    assert!(table.len() > 30, "the table was not read");
    table
}

async fn scrape(api: &Api) -> BTreeMap<String, Family> {
    let text = api.text("/metrics").await;
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            help.clone_into(&mut families.entry(name.to_owned()).or_default().help);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            kind.clone_into(&mut families.entry(name.to_owned()).or_default().kind);
        } else if !line.is_empty() {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|suffix| name.strip_suffix(suffix))
                .find(|name| families.get(*name).is_some_and(|family| family.kind == "histogram"))
                .unwrap_or(name);
            let family = families
                .get_mut(family)
                .unwrap_or_else(|| panic!("no TYPE of {series}"));
            family.labels.extend(labels(series));
            family.series.insert(series.to_owned(), value.parse().unwrap());
        }
    }
    families
}

fn labels(series: &str) -> impl Iterator<Item = String> {
    let inside = series
        .split_once('{')
        .map_or("", |(_, inside)| inside.trim_end_matches('}'));
    // No value of ours has a quote in it, so a quote ends one.
    let parts = inside.split('"').step_by(2);
    parts
        .map(|part| part.trim_start_matches(',').trim_end_matches('='))
        .filter(|name| !name.is_empty() && !OF_HISTOGRAMS.contains(name))
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .into_iter()
}

fn series(families: &BTreeMap<String, Family>) -> BTreeSet<String> {
    families
        .values()
        .flat_map(|family| family.series.keys().cloned())
        .collect()
}

/// The sum over a family: of counters and gauges their values, of histograms how many were observed.
fn total(families: &BTreeMap<String, Family>, name: &str) -> f64 {
    let Some(family) = families.get(name) else { return 0.0 };
    let counted = |series: &&String| family.kind != "histogram" || series.starts_with(&format!("{name}_count"));
    family
        .series
        .keys()
        .filter(counted)
        .map(|series| family.series[series])
        .sum()
}
