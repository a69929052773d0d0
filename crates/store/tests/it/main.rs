//! The store against real databases. SQLite always; PostgreSQL where `TOWPATH_TEST_POSTGRES` names one.

#![expect(
    clippy::print_stdout,
    reason = "tests say what was skipped, and the figures they saw"
)]

mod access;
mod agent;
mod bulk;
mod database;
mod dropped;
mod full;
mod items;
mod jobs;
mod library;
mod migrations;
mod overviews;
mod quarantine;
mod reading;
mod segments;
mod sessions;
mod slow;
mod sweeps;
mod units;
