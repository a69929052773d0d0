//! What each durable job is: start, steps, settle, end.
//!
//! Promises: however a job ends, its business rows end with it; whatever a step does may be done twice and is there
//! once. Leaves to others: when a job runs and where (`durable`, `workers`), SQL (`store`), the formats (`traces`),
//! addresses of users (`outbound`).
//!
//! | job | lane | story |
//! |---|---|---|
//! | [`fold_units`] | `fold:<shard>`, one place | open units of the write-ahead log become segments |
//! | [`compact_day`] | `compact:<tenant>:<project>:<n>`, one place | row groups of a day become few, sorted from end to end |
//! | [`compact_days`] | as `compact_day` | the same for days of few rows, many in one segment |
//! | [`index_runs`] | `index:<workspace>`, one place | segments come into the index of trace runs by id |
//! | [`sweep_traces`] | none | days to compact, rows to forget, objects to remove |
//! | [`run_export`] | `exports:<workspace>` | fold what is open, pin, one [`export_part`] per UTC day, manifest |
//! | [`export_part`] | `export:<export>` | one day of an export: files, each exactly once |
//! | [`spawn_export`] | none | starts the export of an interval, records the next |
//! | [`clean_export`] | none | gives up uploads that nobody will finish |
//! | [`build_revision`] | `deployment:<deployment>`, one place | fetches, builds and rolls out a revision |
//! | [`delete_deployment`] | the same | tears a deployment down |
//! | [`box_start`], [`box_stop`], [`box_delete`] | `box:<box>`, one place | a box begins a life, ends it, goes |
//! | [`snapshot_capture`] | `box:<box>`, one place | the files of a box become a snapshot |
//! | [`snapshot_build`], [`snapshot_delete`] | `snapshot:<snapshot>`, one place | a snapshot of an image; one that goes |
//! | [`volume_clone`], [`volume_delete`] | `volume:<volume>`, one place | the files of a volume are copied; they go |
//! | [`pool_fill`] | `pool:<pool>`, one place | boxes are started ahead |
//! | [`reseal_secrets`] | `reseal_secrets`, one place | seals secrets anew under the first encryption key |
//!
//! And of an agent server ([`agent`]):
//!
//! | job | lane | story |
//! |---|---|---|
//! | [`run_agent`] | `thread:<thread>`, one place | performs a graph on a thread |
//! | [`send_webhook`] | none | tells an address that a run is over |
//! | [`send_push`] | none | tells an address where a task of the Agent2Agent protocol stands |
//! | [`fire_cron`] | none | starts a cron's run, records the next instant |
//! | [`sweep_agent`] | none | ends what has lived long enough |

pub mod a2a;
pub mod agent;
pub mod box_delete;
pub mod box_start;
pub mod box_stop;
pub mod boxes;
pub mod build_revision;
pub mod clean_export;
pub mod compact_day;
pub mod compact_days;
pub mod delete_deployment;
pub mod delete_destination;
pub mod delete_project;
pub mod deployment_log;
pub mod deployments;
pub mod export_part;
pub mod fire_cron;
pub mod fold_units;
pub mod heavy;
pub mod hosting;
pub mod images;
pub mod index_runs;
mod intents;
pub mod keep_boxes;
pub mod keep_deployments;
pub mod keeper;
pub mod metric;
pub mod pool_fill;
pub mod quarantine;
pub mod reseal_secrets;
pub mod run_agent;
pub mod run_export;
pub mod send_push;
pub mod send_webhook;
pub mod snapshot_build;
pub mod snapshot_capture;
pub mod snapshot_delete;
pub mod spawn_export;
pub mod sweep_agent;
pub mod sweep_archives;
pub mod sweep_traces;
pub mod thread_history;
pub mod thread_state;
pub mod tracer;
pub mod volume_clone;
pub mod volume_delete;
pub mod world;

use towpath_durable::Registry;

pub use world::World;

/// Every kind of job there is.
#[must_use]
pub fn registry() -> Registry<World> {
    Registry::default()
        .with::<fold_units::FoldUnits>()
        .with::<run_export::RunExport>()
        .with::<export_part::ExportPart>()
        .with::<clean_export::CleanExport>()
        .with::<spawn_export::SpawnExport>()
        .with::<compact_day::CompactDay>()
        .with::<compact_days::CompactDays>()
        .with::<index_runs::IndexRuns>()
        .with::<sweep_traces::SweepTraces>()
        .with::<build_revision::BuildRevision>()
        .with::<delete_deployment::DeleteDeployment>()
        .with::<reseal_secrets::ResealSecrets>()
        .with::<box_start::BoxStart>()
        .with::<box_stop::BoxStop>()
        .with::<box_delete::BoxDelete>()
        .with::<snapshot_build::SnapshotBuild>()
        .with::<snapshot_capture::SnapshotCapture>()
        .with::<snapshot_delete::SnapshotDelete>()
        .with::<volume_clone::VolumeClone>()
        .with::<volume_delete::VolumeDelete>()
        .with::<pool_fill::PoolFill>()
}
