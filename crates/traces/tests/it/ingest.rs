//! From recorded and generated bodies through the write-ahead log to folded rows.

mod catalog;
mod folding;
mod log;
mod recorded;
mod units;
mod upgrade;
mod world;
