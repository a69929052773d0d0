//! The store against real databases. SQLite always; PostgreSQL where `TOWPATH_TEST_POSTGRES` names one.

#![expect(
    clippy::print_stdout,
    reason = "tests say what was skipped, and the figures they saw"
)]

mod access;
mod agent;
mod bulk;
mod database;
mod deletion;
mod dropped;
mod full;
mod item_vectors;
mod items;
mod jobs;
mod keepers;
mod leases;
mod library;
mod lists;
mod migrations;
mod move_store;
mod overviews;
mod pools;
mod prices;
mod quarantine;
mod reading;
mod sandboxes;
mod sealed;
mod segments;
mod sessions;
mod slow;
mod sources;
mod sweeps;
mod wal_segments;
