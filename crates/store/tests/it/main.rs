//! The store against real databases. SQLite always; PostgreSQL where `TOWPATH_TEST_POSTGRES` names one.

mod access;
mod database;
mod dropped;
mod full;
mod reading;
