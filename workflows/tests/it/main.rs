//! The workflows with a real database, real segments and a fake S3. Jobs are performed one by one, so that a test can
//! interrupt each at any call.

mod artifacts;
mod boxes;
mod bulk_statements;
mod cancelling;
mod compact_days;
mod compacting;
mod databases;
mod deleting;
mod deployment_fixture;
mod deployments;
mod disk_space;
mod drills;
mod embedding;
#[path = "../../../tests/src/environment.rs"]
mod environment;
mod exports;
mod failing;
mod feedback;
mod files;
mod fixture;
mod flushes;
mod frozen;
mod indexing;
mod keeper_lease;
mod log_lines;
mod many_deployments;
mod postgres;
mod quarantine;
#[path = "../../../tests/src/random.rs"]
mod random;
mod repeats;
mod repricing;
mod resealing;
mod restarts;
mod revision_keys;
mod runs;
#[path = "../../../crates/outbound/tests/it/s3.rs"]
mod s3;
mod sandbox_nodes;
mod scheduling;
mod server;
mod stopping;
mod sweeping;
mod thread_model;
mod threads;
mod visibility;
mod webhooks;
