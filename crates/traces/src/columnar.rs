//! What can go wrong between rows, segments and exported files.

use object_store::path::Path;
use parquet::errors::ParquetError;

/// Result of the columnar half of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An object cannot be read; for an export, a segment.
    #[error("cannot read {path}")]
    Read {
        /// Key of the object.
        path: Path,
        /// What the store said.
        source: Box<object_store::Error>,
    },
    /// An object cannot be written; for an export, at its destination.
    #[error("cannot write {path}")]
    Write {
        /// Key that was tried.
        path: Path,
        /// What the store said.
        source: Box<object_store::Error>,
    },
    /// A segment or an index file is corrupt or contains another tenant's rows.
    #[error("{path} is corrupt: {what}")]
    Corrupt {
        /// Key of the object.
        path: Path,
        /// What is wrong with it.
        what: String,
    },
    /// Columns do not hold what a row needs.
    #[error("stored columns are corrupt: {0}")]
    Columns(String),
    /// The location of a trace run is unknown: neither its `dotted_order` nor the catalog has it.
    #[error("trace run {0} has no place in the sort order")]
    NoLocation(towpath_domain::TraceRunId),
    /// The same range yielded different rows than before, so a file cannot be reproduced.
    #[error("rows differ from those recorded: {0}")]
    Diverged(String),
    /// The row filter failed.
    #[error("the filter cannot be evaluated")]
    Filter(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Related data of the rows cannot be read.
    #[error("related data of the rows cannot be read")]
    Enrichment(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Encoding or decoding Parquet.
    #[error("parquet")]
    Parquet(#[source] ParquetError),
    /// Handling columns in memory.
    #[error("arrow")]
    Arrow(#[from] arrow::error::ArrowError),
}

impl Error {
    /// What the object store said, where that is what failed.
    #[must_use]
    pub fn object_store(&self) -> Option<&object_store::Error> {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Whether there is no such object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self.object_store(), Some(object_store::Error::NotFound { .. }))
    }

    pub(crate) fn read(path: &Path, source: object_store::Error) -> Self {
        Self::Read {
            path: path.clone(),
            source: Box::new(source),
        }
    }

    pub(crate) fn write(path: &Path, source: object_store::Error) -> Self {
        Self::Write {
            path: path.clone(),
            source: Box::new(source),
        }
    }

    pub(crate) fn corrupt(path: &Path, what: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.clone(),
            what: what.into(),
        }
    }

    /// An error of the Parquet reader on `path`. The object store's error is nested in it.
    pub(crate) fn reading(path: &Path, error: ParquetError) -> Self {
        match error {
            ParquetError::External(inner) => match inner.downcast::<object_store::Error>() {
                Ok(source) => Self::Read {
                    path: path.clone(),
                    source,
                },
                Err(other) => Self::Parquet(ParquetError::External(other)),
            },
            other => Self::corrupt(path, other.to_string()),
        }
    }
}

impl From<ParquetError> for Error {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error)
    }
}
