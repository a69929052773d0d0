//! Rows, segments, scans and exported files, from generated operations to what a reader sees.

mod expected;
mod files;
pub mod generate;
mod lookups;
mod memory;
mod prices;
mod rows;
mod scans;
mod segments;
mod shown;
mod splices;
mod starts;
mod world;
