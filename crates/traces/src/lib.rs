//! Traces: from ingest to rows, from rows to Parquet.
//!
//! A body answered with a 2xx is on disk (or in the object store) as sent and registered in SQL; operations on a trace
//! run may be flushed in any order and grouping and yield the same row. HTTP, the scheduling of flushes (a durable job)
//! and the bookkeeping of exports are elsewhere.

pub mod accept;
pub mod body;
pub mod columnar;
pub mod compact;
pub mod derive;
mod encoder;
pub mod flush;
pub mod hive;
pub mod lookup;
pub mod manifest;
pub mod metric;
pub mod multipart;
pub mod objects;
pub mod operation;
pub mod otlp;
pub mod parquet_file;
pub mod prices;
pub mod row;
pub mod row_source;
pub mod run_index;
pub mod sample;
pub mod scan;
pub mod schema;
pub mod segment;
pub mod upload;
pub mod wal;

pub use towpath_domain::json;
