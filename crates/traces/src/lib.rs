//! Traces: from the bytes of ingest to rows, from rows to Parquet.
//!
//! Promises: a body that was answered with a 2xx lies on disk (or in the object store) as the client sent it, and
//! is registered in SQL; operations on one trace run may be folded in any order and any grouping and give one row.
//! Leaves to others: HTTP, when to fold (a durable job), and the bookkeeping of exports.

pub mod accept;
pub mod body;
pub mod columnar;
pub mod compact;
pub mod derive;
mod encoder;
pub mod feed;
pub mod fold;
pub mod hive;
pub mod lookup;
pub mod manifest;
pub mod metric;
pub mod multipart;
pub mod objects;
pub mod operation;
pub mod otlp;
pub mod parquet_file;
pub mod row;
pub mod run_index;
pub mod sample;
pub mod scan;
pub mod schema;
pub mod segment;
pub mod upload;
pub mod wal;

pub use towpath_domain::json;
