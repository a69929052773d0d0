//! The index of trace runs: where each one is, by id.
//!
//! Every operation of a flush asks where its trace run is, and most trace runs are new, so "nowhere" must be cheap to
//! say. Segments are sorted by time and all of them would have to be asked. An index file is a Parquet object of
//! entries (id, sort time, project) sorted by id, with a bloom filter for each row group and pages of few rows:
//!
//! ```text
//! ids ──► ranges of files and row groups ──► bloom filters ──► one page for each id that a filter lets through
//!         (catalog, footers)                 (in memory)       (read from the object store)
//! ```
//! [`locate`] asks the live index files and the segments that no index file covers yet. Footers and filters stay in
//! memory, in the cache of the [`Objects`](crate::objects::Objects), so the next lookup reads nothing that this one has
//! read.
//!
//! Segments are the truth; an index file repeats what they say. It is [built](build()) from segments that were just
//! published, and files of one size are [merged](merge()) into one. An entry whose project was deleted since, or whose
//! day is past its retention, lives on until a merge drops it. A trace run may have the same entry in several files.
//!
//! A filter takes 2 to 4 MiB for each [`GROUP_ENTRIES`]. In a file of more than [`LARGE_ENTRIES`] it has 16 bits for
//! each entry and lets one of 800 unknown ids through; in others 30 or more, and lets one of 28,000 through. Nearly all
//! entries of a large workspace are in few files of the first kind, so those decide about memory (200 MB for a hundred
//! million trace runs), and the many files of the second kind cause no reads.

mod build;
pub(crate) mod cache;
mod file;
mod locate;
mod merge;
mod unindexed;
mod write;

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use object_store::path::Path;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use towpath_domain::{RunIndexId, TenantId, TraceRunId};

pub use build::{SegmentToIndex, build};
pub use locate::{LocateError, locate};
pub use merge::merge;
pub use write::Writer;

use crate::flush::RunLocation;

/// Most entries of a row group.
pub const GROUP_ENTRIES: usize = 1 << 20;

/// Files of more entries have thin filters.
pub const LARGE_ENTRIES: u64 = 16 << 20;

/// Entries of a page.
const PAGE_ENTRIES: usize = 4096;

/// The false positive rate of a thin filter, as estimated by its writer.
const THIN_FPP: f64 = 0.001;
const STRONG_FPP: f64 = 0.000_01;

/// The location of a trace run. In file order: by id, then by sort time and project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub id: TraceRunId,
    /// Where it is.
    pub location: RunLocation,
}

/// An index file that was written and waits to be made live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewIndexFile {
    /// The file.
    pub id: RunIndexId,
    pub path: Path,
    /// Trace runs in it.
    pub entries: u64,
    /// Size of the object.
    pub bytes: u64,
    /// The smallest id in it.
    pub first_run: TraceRunId,
    /// The largest id in it.
    pub last_run: TraceRunId,
}

impl NewIndexFile {
    /// What the catalog is told of it.
    #[must_use]
    pub fn catalog(&self) -> towpath_store::run_index::IndexFileRecord {
        let int = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        towpath_store::run_index::IndexFileRecord {
            id: self.id,
            entries: int(self.entries),
            bytes: int(self.bytes),
            first_run: self.first_run,
            last_run: self.last_run,
        }
    }
}

/// Key of an index file in the object store.
#[must_use]
pub fn path(tenant: TenantId, id: RunIndexId) -> Path {
    Path::from_iter(["index".to_owned(), tenant.to_string(), format!("{id}.parquet")])
}

/// Positions of columns.
mod position {
    pub const ID: usize = 0;
    pub const SORT_TIME: usize = 1;
    pub const PROJECT: usize = 2;
}

/// Bytes of an id.
const ID_BYTES: i32 = 16;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let fields = [
        Field::new("id", DataType::FixedSizeBinary(ID_BYTES), false),
        // Microseconds UTC.
        Field::new("sort_time", DataType::Int64, false),
        Field::new("project", DataType::FixedSizeBinary(ID_BYTES), false),
    ];
    Arc::new(Schema::new(fields.to_vec()))
});

/// How a file of about so many entries is written.
fn properties(entries: u64) -> WriterProperties {
    let id = ColumnPath::from("id");
    let fpp = if entries > LARGE_ENTRIES { THIN_FPP } else { STRONG_FPP };
    WriterProperties::builder()
        .set_created_by("towpath".to_owned())
        .set_compression(*ZSTD)
        .set_dictionary_enabled(false)
        .set_column_dictionary_enabled(ColumnPath::from("project"), true)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_column_statistics_enabled(id.clone(), EnabledStatistics::Page)
        .set_data_page_row_count_limit(PAGE_ENTRIES)
        // Row groups end where the writer says.
        .set_max_row_group_row_count(None)
        .set_column_bloom_filter_enabled(id.clone(), true)
        .set_column_bloom_filter_fpp(id.clone(), fpp)
        .set_column_bloom_filter_max_ndv(id, entries.clamp(1, GROUP_ENTRIES as u64))
        .build()
}

/// Ids of version 7 begin with their time; a higher level would find little else.
static ZSTD: LazyLock<Compression> =
    LazyLock::new(|| Compression::ZSTD(ZstdLevel::try_new(1).expect("level 1 lies between 1 and 22")));
