//! End-to-end tests of the real binary, and rules about the source tree.

mod backup;
mod crate_graph;
mod dependencies;
mod faults;
mod final_state;
mod idempotency;
mod ingest_fuzz;
mod kill;
mod large;
mod limits;
mod load;
mod lost_flush_job;
mod metrics;
mod operating;
mod redis_faults;
mod redis_wipe;
mod serving;
mod soak;
mod sources;
mod store_move;
mod tables;
mod telemetry;
mod tls;
mod tree;
mod words;
mod work_sharing;
