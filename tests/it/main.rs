//! End-to-end tests of the real binary, and rules about the source tree.

mod aftermath;
mod arrows;
mod backup;
mod dependencies;
mod faults;
mod folding;
mod hints;
mod ingest_fuzz;
mod kill;
mod large;
mod limits;
mod load;
mod metrics;
mod once;
mod operating;
mod redis_faults;
mod serving;
mod sharing;
mod soak;
mod sources;
mod tables;
mod telemetry;
mod tls;
mod tree;
