//! The durable jobs: start, steps, settle, end.
//!
//! Guarantees: however a job ends, its business rows end with it. Steps may run twice, and their effects happen once.
//! Scheduling is in `durable` and `workers`, SQL in `store`, file formats in `traces`, and calls to users' addresses in
//! `outbound`.
//!
//! | module | lane | description |
//! |---|---|---|
//! | [`flush_wal`] | `flush:<shard>`, one slot | flushes open WAL segments into trace segments |
//! | [`compact_day`] | `compact:<tenant>:<project>:<n>`, one slot | merges the row groups of a day into a few sorted ones |
//! | [`compact_days`] | as `compact_day` | the same for several small days, in one segment |
//! | [`reprice_days`] | `reprice:<workspace>`, one slot | computes costs again after a change of prices |
//! | [`index_runs`] | `index:<workspace>`, one slot | adds segments to the run index |
//! | [`sweep_traces`] | none | compacts days, deletes expired rows, removes objects |
//! | [`run_export`] | `exports:<workspace>` | flushes, pins, one [`export_part`] per UTC day, manifest |
//! | [`export_part`] | `export:<export>` | one day of an export: files, each exactly once |
//! | [`spawn_export`] | none | starts the export of an interval, records the next |
//! | [`clean_export`] | none | aborts unfinished uploads |
//! | [`build_revision`] | `deployment:<deployment>`, one slot | fetches, builds and rolls out a revision |
//! | [`delete_deployment`] | the same | deletes a deployment |
//! | [`start_box`], [`stop_box`], [`delete_box`] | `box:<box>`, one slot | starts, stops and deletes a sandbox |
//! | [`capture_snapshot`] | `box:<box>`, one slot | captures the files of a sandbox as a snapshot |
//! | [`build_snapshot`], [`delete_snapshot`] | `snapshot:<snapshot>`, one slot | builds a snapshot from an image; deletes one |
//! | [`clone_volume`], [`delete_volume`] | `volume:<volume>`, one slot | copies the files of a volume; deletes them |
//! | [`fill_pool`] | `pool:<pool>`, one slot | starts sandboxes in advance |
//! | [`reseal_secrets`] | `reseal_secrets`, one slot | seals secrets again under the first encryption key |
//!
//! Jobs of an agent server ([`agent`]):
//!
//! | module | lane | description |
//! |---|---|---|
//! | [`run_agent`] | `thread:<thread>`, one slot | runs a graph on a thread |
//! | [`send_webhook`] | none | notifies an address about the end of a run |
//! | [`send_push`] | none | notifies an address about the state of an Agent2Agent task |
//! | [`fire_cron`] | none | starts a cron's run, records the next firing |
//! | [`embed_items`] | none | embeds items of the store |
//! | [`sweep_agent`] | none | deletes expired data |

pub mod a2a;
pub mod agent;
mod agent_services;
pub mod build_revision;
pub mod build_snapshot;
pub mod capture_snapshot;
pub mod clean_export;
pub mod clone_volume;
pub mod compact_day;
pub mod compact_days;
pub mod cpu_pool;
pub mod delete_box;
pub mod delete_deployment;
pub mod delete_destination;
pub mod delete_project;
pub mod delete_snapshot;
pub mod delete_volume;
pub mod deployment_host;
pub mod deployment_log;
pub mod deployments;
pub mod embed_items;
pub mod export_part;
pub mod fill_pool;
pub mod fire_cron;
pub mod flush_wal;
pub mod images;
pub mod index_runs;
pub mod item_index;
mod job_chain;
pub mod keeper;
pub mod metric;
pub mod quarantine;
pub mod reconcile_boxes;
pub mod reconcile_deployments;
mod reloadable;
pub mod reprice_days;
pub mod reseal_secrets;
pub mod run_agent;
pub mod run_export;
pub mod sandbox_host;
pub mod sandbox_nodes;
pub mod send_push;
pub mod send_webhook;
pub mod services;
pub mod spawn_export;
pub mod start_box;
pub mod stop_box;
pub mod sweep_agent;
pub mod sweep_archives;
pub mod sweep_traces;
mod text_time;
pub mod thread_history;
pub mod thread_state;
pub mod tracer;
mod write_intents;

use towpath_durable::Registry;

pub use services::Services;

/// Every kind of job there is.
#[must_use]
pub fn registry() -> Registry<Services> {
    Registry::default()
        .with::<flush_wal::FlushWal>()
        .with::<run_export::RunExport>()
        .with::<export_part::ExportPart>()
        .with::<clean_export::CleanExport>()
        .with::<spawn_export::SpawnExport>()
        .with::<compact_day::CompactDay>()
        .with::<compact_days::CompactDays>()
        .with::<reprice_days::RepriceDays>()
        .with::<index_runs::IndexRuns>()
        .with::<sweep_traces::SweepTraces>()
        .with::<build_revision::BuildRevision>()
        .with::<delete_deployment::DeleteDeployment>()
        .with::<reseal_secrets::ResealSecrets>()
        .with::<start_box::StartBox>()
        .with::<stop_box::StopBox>()
        .with::<delete_box::DeleteBox>()
        .with::<build_snapshot::BuildSnapshot>()
        .with::<capture_snapshot::CaptureSnapshot>()
        .with::<delete_snapshot::DeleteSnapshot>()
        .with::<clone_volume::CloneVolume>()
        .with::<delete_volume::DeleteVolume>()
        .with::<fill_pool::FillPool>()
}
