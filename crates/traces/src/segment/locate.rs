//! Finding trace runs by id alone.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray};
use chrono::NaiveDate;
use futures::TryStreamExt;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowPredicateFn, RowFilter};
use parquet::bloom_filter::Sbbf;
use towpath_domain::{ProjectId, Timestamp, TraceRunId};

use super::Segment;
use crate::columnar::{Error, Result};
use crate::row;
use crate::schema::position;

/// Where a trace run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    pub id: TraceRunId,
    pub project: ProjectId,
    /// Its UTC day.
    pub day: NaiveDate,
    /// Its sort time. Pass it to [`Row::location`](crate::row::Row::location) for an operation without one.
    pub sort_time: Timestamp,
    /// Its place in the tree, where the stored row knows it.
    pub dotted_order: Option<String>,
    /// Row group it was found in.
    pub row_group: usize,
}

impl Segment {
    /// Finds trace runs by id: first in the bloom filter of each row group, and only if that matches in the column
    /// itself. An id may be in several row groups, even of several projects.
    pub async fn locate(&self, ids: &[TraceRunId]) -> Result<Vec<Located>> {
        let mut found = Vec::new();
        for row_group in 0..self.row_groups() {
            let wanted = self.perhaps(row_group, ids).await?;
            if !wanted.is_empty() {
                found.extend(self.search(row_group, wanted).await?);
            }
        }
        Ok(found)
    }

    /// The smallest and the largest id of a row group, if its statistics have them.
    pub(crate) fn id_range(&self, row_group: usize) -> Option<(TraceRunId, TraceRunId)> {
        let statistics = self
            .metadata()
            .row_groups()
            .get(row_group)?
            .column(position::ID)
            .statistics()?;
        let id = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
        // Cut short, they would be no ids.
        Some((id(statistics.min_bytes_opt()?)?, id(statistics.max_bytes_opt()?)?))
    }

    /// The one project of a row group.
    pub(crate) fn project(&self, row_group: usize) -> Result<ProjectId> {
        let named = || {
            let group = self.metadata().row_groups().get(row_group)?;
            let statistics = group.column(position::SESSION_ID).statistics()?;
            let (min, max) = (statistics.min_bytes_opt()?, statistics.max_bytes_opt()?);
            let project = std::str::from_utf8(min).ok()?.parse().ok()?;
            (min == max).then_some(project)
        };
        named().ok_or_else(|| Error::corrupt(self.path(), format!("row group {row_group} has more than one project")))
    }

    /// The bloom filter on the ids of a row group, where it has one.
    pub(crate) async fn id_filter(&self, row_group: usize) -> Result<Option<Sbbf>> {
        self.builder()
            .get_row_group_column_bloom_filter(row_group, position::ID)
            .await
            .map_err(|error| Error::reading(self.path(), error))
    }

    /// The trace runs of a row group.
    pub async fn ids(&self, row_group: usize) -> Result<Vec<TraceRunId>> {
        let schema = self.metadata().file_metadata().schema_descr_ptr();
        let mut batches = self
            .builder()
            .with_row_groups(vec![row_group])
            .with_projection(ProjectionMask::roots(&schema, [position::ID]))
            .build()
            .map_err(|error| Error::reading(self.path(), error))?;
        let mut ids = Vec::new();
        while let Some(batch) = batches
            .try_next()
            .await
            .map_err(|error| Error::reading(self.path(), error))?
        {
            for id in batch.column(0).as_string::<i32>().iter().flatten() {
                let parsed = id.parse().map_err(|_| Error::Columns(format!("`{id}` is not an id")))?;
                ids.push(TraceRunId(parsed));
            }
        }
        Ok(ids)
    }

    /// Those of `ids` that the bloom filter doesn't rule out.
    async fn perhaps(&self, row_group: usize, ids: &[TraceRunId]) -> Result<HashSet<String>> {
        let filter = self.id_filter(row_group).await?;
        let texts = ids.iter().map(ToString::to_string);
        Ok(texts
            .filter(|id| filter.as_ref().is_none_or(|filter| filter.check(id.as_str())))
            .collect())
    }

    async fn search(&self, row_group: usize, wanted: HashSet<String>) -> Result<Vec<Located>> {
        let schema = self.metadata().file_metadata().schema_descr_ptr();
        let wanted = Arc::new(wanted);
        let is_wanted = ArrowPredicateFn::new(ProjectionMask::roots(&schema, [position::ID]), move |batch| {
            let ids = batch.column(0).as_string::<i32>();
            Ok(ids
                .iter()
                .map(|id| Some(id.is_some_and(|id| wanted.contains(id))))
                .collect::<BooleanArray>())
        });
        let columns = [
            position::ID,
            position::SESSION_ID,
            position::DOTTED_ORDER,
            position::SORT_TIME,
        ];
        let mut batches = self
            .builder()
            .with_row_groups(vec![row_group])
            .with_projection(ProjectionMask::roots(&schema, columns))
            .with_row_filter(RowFilter::new(vec![Box::new(is_wanted)]))
            .build()
            .map_err(|error| Error::reading(self.path(), error))?;
        let mut found = Vec::new();
        while let Some(batch) = batches
            .try_next()
            .await
            .map_err(|error| Error::reading(self.path(), error))?
        {
            let (projects, orders) = (batch.column(1).as_string::<i32>(), batch.column(2).as_string::<i32>());
            for (index, key) in row::keys(&batch)?.into_iter().enumerate() {
                let project = projects.value(index);
                found.push(Located {
                    id: key.id,
                    project: project
                        .parse()
                        .map_err(|_| Error::Columns(format!("`{project}` is not an id")))?,
                    day: key.sort_time.day(),
                    sort_time: key.sort_time,
                    dotted_order: orders.is_valid(index).then(|| orders.value(index).to_owned()),
                    row_group,
                });
            }
        }
        Ok(found)
    }
}
