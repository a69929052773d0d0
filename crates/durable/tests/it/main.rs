//! The engine against real databases. Every test runs on SQLite, and on PostgreSQL where `TOWPATH_TEST_POSTGRES`
//! names one.

mod cancelling;
mod children;
mod ends;
mod explaining;
mod fences;
mod lanes;
mod leases;
mod retries;
mod steps;
mod support;
