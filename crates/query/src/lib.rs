//! Reads traces: filters over columns, pages of rows, statistics.
//!
//! Guarantees: a query sees everything that was acknowledged before it began, flushed or not, and each trace run once
//! with all its updates. Memory is bounded by a page and the limits of a scan, however many row groups overlap and
//! however large open WAL segments are. The runs of a trace are found in any segment without reading row groups that
//! have none. Filters are compiled with keys and values as values, never as text. HTTP and authorization are not part
//! of this crate.

mod ancestry;
pub mod extent;
pub mod feedback;
mod overlay;
pub mod page;
pub mod predicate;
mod row_fetcher;
pub mod snapshot;
pub mod statistics;
mod subtree_usage;
pub mod threads;
mod trace_usage;

pub use extent::Extent;
pub use page::{Direction, Page, Position, RunQuery};
pub use predicate::Predicate;
pub use snapshot::{Bounds, Reader, Snapshot};
pub use threads::ThreadSummary;
pub use trace_usage::{TraceUsage, UsageTotal};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Open WAL segments have more data than a reader loads, because the flush is behind. A retry helps.
    #[error("too much recently sent data is waiting for its flush; retry later")]
    FlushBehind,
    /// A filter on traces matches more of them than are kept in memory.
    #[error("the filter matches more than {limit} traces; narrow the range of start times")]
    TooManyTraces { limit: usize },
    /// The traces of a page have more runs than are kept in memory.
    #[error("the traces of these runs have more than {limit} runs; query fewer runs, or without include_subtree_usage")]
    TooManyRuns { limit: usize },
    #[error(transparent)]
    Store(#[from] towpath_store::Error),
    #[error(transparent)]
    Columnar(#[from] towpath_traces::columnar::Error),
    /// WAL segments and the catalog.
    #[error(transparent)]
    Flush(#[from] towpath_traces::flush::FlushError<std::convert::Infallible>),
    /// Evaluating a filter over columns.
    #[error("the filter cannot be evaluated")]
    Filter(#[from] datafusion_common::DataFusionError),
    #[error("arrow")]
    Arrow(#[from] arrow::error::ArrowError),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
