//! Segments: immutable Parquet objects of trace runs.
//!
//! A segment belongs to one tenant. Each of its row groups has rows of exactly one (project, UTC day), sorted by
//! [`Key`](crate::row::Key), each id once; many rows become several row groups with consecutive key ranges. The columns
//! are the 29 exported ones in `v1` order and types, then the internal ones (see [`schema`](crate::schema)).
//! `start_time` holds the sort time, which the footer states. Bloom filters on `id` and `trace_id` serve lookups by id;
//! those of all row groups are together before the footer. The SQL catalog stores a [`Part`] for each row group, so
//! most questions are answered without opening the object.

mod locate;
mod object;
mod read;
mod search;
mod write;

use std::sync::LazyLock;

use chrono::NaiveDate;
use object_store::path::Path;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;
use towpath_domain::{ProjectId, SegmentId, TenantId, Timestamp};

pub use locate::Located;
pub(crate) use object::Object;
pub(crate) use read::Footer;
pub use read::{Batches, Segment};
pub(crate) use search::Filters;
pub use search::{Hit, Lineage};
pub(crate) use write::properties;
pub use write::{SegmentWriter, write};

/// Most rows of a row group.
pub const GROUP_ROWS: usize = 20_480;

/// Approximate size limit of a row group in bytes of values, so that one fits into memory. A single row may be larger.
pub const GROUP_BYTES: usize = 32 << 20;

/// Key of a segment in the object store.
#[must_use]
pub fn path(tenant: TenantId, segment: SegmentId) -> Path {
    Path::from_iter(["segments".to_owned(), tenant.to_string(), format!("{segment}.parquet")])
}

/// What the catalog keeps about one row group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Position in the segment.
    pub row_group: usize,
    /// Project of all its rows.
    pub project: ProjectId,
    /// UTC day of all its rows.
    pub day: NaiveDate,
    /// How many rows.
    pub rows: u64,
    /// Sort time of the first row.
    pub min_sort_time: Timestamp,
    /// Sort time of the last row.
    pub max_sort_time: Timestamp,
    /// Lowest sequence of an operation in it.
    pub min_seq: i64,
    /// Highest sequence of an operation in it.
    pub max_seq: i64,
}

/// A segment that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub path: Path,
    /// Its size in bytes.
    pub bytes: u64,
    /// All of its rows.
    pub rows: u64,
    /// Its row groups in order.
    pub parts: Vec<Part>,
    /// The [version](crate::prices::PriceTable::version) of the prices by which its costs were computed.
    pub price_version: i64,
}

/// Columns with repeating values, for which a dictionary pays off.
const REPEATING: [&[&str]; 12] = [
    &["tenant_id"],
    &["session_id"],
    &["reference_example_id"],
    &["name"],
    &["run_type"],
    &["status"],
    &["trace_tier"],
    &["tags", "list", "element"],
    &["feedback_stats"],
    &["prompt_tokens"],
    &["completion_tokens"],
    &["total_tokens"],
];

/// Columns of long texts, whose minimum and maximum are useless for pruning.
const LONG: [&str; 6] = ["inputs", "outputs", "error", "extra", "events", "_tp_serialized"];

/// Properties shared by segments and exported files: plain encodings and version 1 data pages, which every reader
/// supports, and a fixed author, so that a reproduced file has the same bytes.
pub(crate) fn common_properties() -> WriterPropertiesBuilder {
    let mut properties = WriterProperties::builder()
        .set_created_by("towpath".to_owned())
        .set_dictionary_enabled(false);
    for column in REPEATING {
        let column = ColumnPath::new(column.iter().map(ToString::to_string).collect());
        properties = properties.set_column_dictionary_enabled(column, true);
    }
    for column in LONG {
        properties = properties.set_column_statistics_enabled(ColumnPath::from(column), EnabledStatistics::None);
    }
    properties
}

/// Footer key of segments whose column `start_time` holds the sort time, as shown. In segments of older servers it
/// holds the sent value.
const STARTS: (&str, &str) = ("towpath.start_time", "sort_time");

/// What says so.
pub(crate) fn starts_derived() -> KeyValue {
    KeyValue::new(STARTS.0.to_owned(), STARTS.1.to_owned())
}

/// Level 3 of zstd is as fast as level 1 on these texts, and the result is a third smaller.
pub(crate) static ZSTD: LazyLock<Compression> =
    LazyLock::new(|| Compression::ZSTD(ZstdLevel::try_new(3).expect("level 3 lies between 1 and 22")));
