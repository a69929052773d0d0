//! Rows that have one of some ids, or are of one of some traces.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray};
use bytes::Bytes;
use futures::TryStreamExt;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowPredicateFn, RowFilter};
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::bloom_filter::Sbbf;
use towpath_domain::ProjectId;
use uuid::Uuid;

use super::Segment;
use crate::columnar::{Error, Result};
use crate::row::{self, Key};
use crate::schema::position;

/// Approximate bytes of filters per request, including gaps.
const FILTERS: u64 = 8 << 20;

/// A row that was looked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Row group it was found in.
    pub row_group: usize,
    pub project: ProjectId,
    pub key: Key,
    /// Its place in the tree, where that was asked for.
    pub lineage: Option<Lineage>,
}

/// The position of a run in the tree of its trace, as far as its row knows.
#[derive(Clone, Debug, PartialEq)]
pub struct Lineage {
    /// Whether it is a root.
    pub is_root: Option<bool>,
    /// The run above it.
    pub parent: Option<Uuid>,
    /// All runs above it and itself.
    pub dotted_order: Option<String>,
}

/// Bloom filters of one column, for some row groups. `None` if a row group has none.
#[derive(Clone, Debug, Default)]
pub struct Filters(BTreeMap<usize, Option<Arc<Sbbf>>>);

impl Filters {
    /// Whether a row group may have one of `texts`.
    pub fn may_have(&self, row_group: usize, texts: &[String]) -> bool {
        match self.0.get(&row_group) {
            Some(Some(filter)) => texts.iter().any(|text| filter.check(text.as_str())),
            _ => !texts.is_empty(),
        }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let filters = self.0.values().flatten();
        // A block has 32 bytes.
        filters.map(|filter| filter.num_blocks() * 32 + size_of::<Sbbf>()).sum()
    }
}

impl Segment {
    /// Whether one of `texts` is between the smallest and largest value of an id column.
    pub(crate) fn spans(&self, row_group: usize, column: usize, texts: &[String]) -> bool {
        let group = self.metadata().row_groups().get(row_group);
        let statistics = group.and_then(|group| group.column(column).statistics());
        let bounds = statistics.and_then(|known| known.min_bytes_opt().zip(known.max_bytes_opt()));
        match bounds {
            Some((least, most)) => texts
                .iter()
                .any(|text| least <= text.as_bytes() && text.as_bytes() <= most),
            None => !texts.is_empty(),
        }
    }

    /// Adds the missing filters of a column to `filters`. They are adjacent, so one request fetches those of many row
    /// groups.
    pub(crate) async fn read_filters(&self, column: usize, row_groups: &[usize], filters: &mut Filters) -> Result<()> {
        let mut missing: Vec<(usize, Range<u64>)> = Vec::new();
        for row_group in row_groups {
            if filters.0.contains_key(row_group) {
                continue;
            }
            match self.filter_range(*row_group, column)? {
                Some(range) => missing.push((*row_group, range)),
                None => drop(filters.0.insert(*row_group, None)),
            }
        }
        // In file order, so that the store can join them.
        missing.sort_unstable_by_key(|(_, range)| range.start);
        let mut rest = missing.as_slice();
        while let Some((_, first)) = rest.first() {
            let near = rest.partition_point(|(_, range)| range.end - first.start <= FILTERS);
            let (missing, later) = rest.split_at(near.max(1));
            rest = later;
            let ranges = missing.iter().map(|(_, range)| range.clone()).collect();
            let mut object = self.object();
            let read = object.get_byte_ranges(ranges).await;
            let read: Vec<Bytes> = read.map_err(|error| Error::reading(self.path(), error))?;
            for ((row_group, _), bytes) in missing.iter().zip(read) {
                let filter = Sbbf::from_bytes(&bytes).map_err(|error| Error::reading(self.path(), error))?;
                filters.0.insert(*row_group, Some(Arc::new(filter)));
            }
        }
        Ok(())
    }

    /// Where the bloom filter of a column is, header and all.
    fn filter_range(&self, row_group: usize, column: usize) -> Result<Option<Range<u64>>> {
        self.rows_of(row_group)?;
        let column = self.metadata().row_group(row_group).column(column);
        let at = column.bloom_filter_offset().zip(column.bloom_filter_length());
        let range = at.and_then(|(start, length)| {
            let start = u64::try_from(start).ok()?;
            Some(start..start + u64::try_from(length).ok()?)
        });
        Ok(range)
    }

    /// Rows of a row group that belong to one of `traces` or have one of `ids`.
    pub(crate) async fn hits(
        &self,
        row_group: usize,
        traces: &[String],
        ids: &[String],
        lineage: bool,
    ) -> Result<Vec<Hit>> {
        let schema = self.metadata().file_metadata().schema_descr_ptr();
        let own = |texts: &[String]| -> HashSet<String> { texts.iter().cloned().collect() };
        let (traces, ids) = (own(traces), own(ids));
        let looked_at = if ids.is_empty() {
            vec![position::TRACE_ID]
        } else {
            vec![position::ID, position::TRACE_ID]
        };
        let is_wanted = ArrowPredicateFn::new(ProjectionMask::roots(&schema, looked_at), move |batch| {
            let of = batch.column(batch.num_columns() - 1).as_string::<i32>();
            let own = (batch.num_columns() > 1).then(|| batch.column(0).as_string::<i32>());
            Ok((0..batch.num_rows())
                .map(|row| {
                    let hit = own.is_some_and(|own| ids.contains(own.value(row)));
                    Some(hit || (of.is_valid(row) && traces.contains(of.value(row))))
                })
                .collect::<BooleanArray>())
        });
        let mut columns = vec![position::ID, position::SESSION_ID, position::SORT_TIME];
        if lineage {
            columns.extend([position::PARENT_RUN_ID, position::IS_ROOT, position::DOTTED_ORDER]);
        }
        let mut batches = self
            .builder()
            .with_row_groups(vec![row_group])
            .with_projection(ProjectionMask::roots(&schema, columns))
            .with_row_filter(RowFilter::new(vec![Box::new(is_wanted)]))
            .build()
            .map_err(|error| Error::reading(self.path(), error))?;
        let mut hits = Vec::new();
        while let Some(batch) = batches
            .try_next()
            .await
            .map_err(|error| Error::reading(self.path(), error))?
        {
            let text = |name: &str| batch.column_by_name(name).map(AsArray::as_string::<i32>);
            let projects = text("session_id").ok_or_else(|| Error::Columns("session_id is missing".to_owned()))?;
            let (parents, orders) = (text("parent_run_id"), text("dotted_order"));
            let roots = batch.column_by_name("is_root").map(AsArray::as_boolean);
            for (row, key) in row::keys(&batch)?.into_iter().enumerate() {
                let project = projects.value(row);
                let parent = parents.filter(|parents| parents.is_valid(row));
                let order = orders.filter(|orders| orders.is_valid(row));
                hits.push(Hit {
                    row_group,
                    project: project
                        .parse()
                        .map_err(|_| Error::Columns(format!("`{project}` is not an id")))?,
                    key,
                    lineage: lineage.then(|| Lineage {
                        is_root: roots.filter(|roots| roots.is_valid(row)).map(|roots| roots.value(row)),
                        parent: parent.and_then(|parents| parents.value(row).parse().ok()),
                        dotted_order: order.map(|orders| orders.value(row).to_owned()),
                    }),
                });
            }
        }
        Ok(hits)
    }
}
