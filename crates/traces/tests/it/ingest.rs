//! From recorded and generated bodies through the write-ahead log to flushed rows.

mod bounds;
mod catalog;
mod faulty_store;
mod folding;
mod index;
mod locations;
mod log;
mod recorded;
mod upgrade;
mod wal_segments;
mod world;
