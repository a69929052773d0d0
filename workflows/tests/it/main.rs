//! The workflows over a real SQLite file, real segments, and a stand-in for S3: performed one by one, so that a test
//! can interrupt each at any call.

mod artifacts;
mod boxes;
mod cancelling;
mod compacting;
mod compacting_days;
mod crowd;
mod databases;
mod deleting;
mod deployments;
#[path = "../../../tests/src/dice.rs"]
mod dice;
mod drills;
#[path = "../../../tests/src/environment.rs"]
mod environment;
mod exports;
mod failing;
mod feedback;
mod files;
mod folds;
mod frozen;
mod home;
mod indexing;
mod keeping;
mod lines;
mod many;
mod postgres;
mod quarantine;
mod repeats;
mod resealing;
mod restarts;
mod revision_keys;
mod room;
mod runs;
#[path = "../../../crates/outbound/tests/it/s3.rs"]
mod s3;
mod scheduling;
mod server;
mod stopping;
mod sweeping;
mod thread_model;
mod threads;
mod visibility;
mod webhooks;
mod yard;
