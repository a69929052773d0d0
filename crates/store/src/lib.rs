//! All SQL of Towpath.
//!
//! Statements and functions are shared by SQLite and PostgreSQL wherever possible; a closure passed to [`Store::write`]
//! is one transaction, and success means *committed and on disk*; on SQLite many closures share one commit. The crate
//! does not decide what happens next: functions do what they are told and return how many rows changed.
//!
//! One module per subject, plain functions that take `&mut Tx` first and the tenant wherever a row has one.

#[macro_use]
mod tx;
#[macro_use]
mod columns;

mod connections;
mod error;
mod open;
mod postgres;
mod sqlite;

pub mod a2a_push_configs;
pub mod a2a_tasks;
pub mod access;
pub mod agent_stats;
pub mod annotation_queues;
pub mod artifacts;
pub mod assistants;
pub mod attempts;
pub mod backup;
pub mod baseline;
mod bulk;
mod caseless;
pub mod checkpoints;
pub mod comparative_experiments;
mod containment;
pub mod crons;
pub mod datasets;
pub mod deployment_keepers;
pub mod deployments;
pub mod destinations;
pub mod ended_sessions;
pub mod exports;
pub mod feedback;
pub mod feedback_configs;
pub mod feedback_tokens;
pub mod gauges;
pub mod idempotency;
pub mod image_pull_secrets;
pub mod image_tokens;
pub mod integrations;
pub mod item_vectors;
pub mod items;
pub mod jobs;
pub mod lanes;
pub mod leases;
pub mod listeners;
pub mod metric;
pub mod migrations;
pub mod model_prices;
pub mod move_store;
pub mod pending_patches;
pub mod placements;
pub mod pools;
pub mod projects;
pub mod prompts;
pub mod quarantine;
pub mod query;
pub mod revision_keys;
pub mod revision_logs;
pub mod revisions;
pub mod run_events;
pub mod run_index;
pub mod runs;
pub mod sandboxes;
pub mod schedules;
pub mod sealed;
pub mod sealing;
pub mod segments;
pub mod source_uploads;
pub mod steps;
pub mod sweep_cursors;
pub mod threads;
pub mod wal_segments;
pub mod workers;

pub use error::{Error, Result};
pub use open::{Options, Store};
pub use tx::{Conn, Dialect, Hints, Tx};
