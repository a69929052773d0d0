//! Reading traces back: filters over columns, pages of rows, statistics.
//!
//! Promises: a query sees everything that was acknowledged before it began, folded or not, each trace run once and
//! with all that was said about it; memory is bounded by a page and what a scan may keep, however many row groups overlap
//! and whatever open units unpack to; the runs of a trace are found wherever they lie, without reading row groups that
//! hold none; filters are compiled with their keys and values as values, never as text. Leaves to others: HTTP, and who
//! may ask.

mod ancestry;
pub mod extent;
pub mod feedback;
mod overlay;
pub mod page;
mod pick;
pub mod predicate;
pub mod snapshot;
pub mod statistics;

pub use extent::Extent;
pub use page::{Direction, Page, Position, Question};
pub use predicate::Predicate;
pub use snapshot::{Bounds, Reader, Snapshot};

/// What can go wrong while reading.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More lies in open units than a reader takes into memory, and folding is behind. Trying again helps.
    #[error("too much of what was just sent is still to be folded")]
    Behind,
    /// A filter on traces matches more of them than are kept in memory.
    #[error("the filter matches more than {limit} traces; narrow the range of start times")]
    TooManyTraces {
        /// How many are kept.
        limit: usize,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] towpath_store::Error),
    /// Segments.
    #[error(transparent)]
    Columnar(#[from] towpath_traces::columnar::Error),
    /// Units and the catalog.
    #[error(transparent)]
    Unfolded(#[from] towpath_traces::fold::FoldError<std::convert::Infallible>),
    /// Evaluating a filter over columns.
    #[error("the filter cannot be evaluated")]
    Filter(#[from] datafusion_common::DataFusionError),
    /// Handling columns in memory.
    #[error("arrow")]
    Arrow(#[from] arrow::error::ArrowError),
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
