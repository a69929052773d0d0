//! Rows, segments, scans and exported files, from generated operations to what a reader sees.

mod expected;
mod files;
pub mod generate;
mod rows;
mod scans;
mod segments;
mod shown;
mod splices;
mod world;
