//! The traces crate as a whole.

mod columns;
mod fuzzed;
mod ingest;
