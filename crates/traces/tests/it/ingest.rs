//! From recorded and generated bodies through the write-ahead log to folded rows.

mod bounds;
mod catalog;
mod folding;
mod index;
mod log;
mod odd;
mod places;
mod recorded;
mod units;
mod upgrade;
mod world;
