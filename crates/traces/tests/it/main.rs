//! The traces crate as a whole.

mod columns;
mod counting;
mod fuzzed;
mod ingest;
