//! The engine against real databases. Every test runs on SQLite, and on PostgreSQL where `TOWPATH_TEST_POSTGRES`
//! names one.

#![expect(
    clippy::print_stdout,
    reason = "tests say what was skipped, and the figures they saw"
)]

mod batched_write;
mod cancelling;
mod children;
mod claims;
mod dispatch;
mod ends;
mod explaining;
mod fences;
mod growing;
mod history;
mod joining;
mod lanes;
mod leases;
mod limits;
mod model;
mod peers;
mod retries;
mod retrying;
mod steps;
mod storm;
mod support;
mod sweeps;
mod wakes;
