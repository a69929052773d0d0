//! Collects rows for segments by workspace, project and day.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;

use chrono::NaiveDate;
use object_store::path::Path;
use towpath_domain::{ProjectId, SegmentId, TenantId, TraceRunId};
use towpath_store::Store;

use super::{FlushError, FlushResult, NewSegment, RunLocation};
use crate::objects::Objects;
use crate::operation::Operation;
use crate::prices::PriceBook;
use crate::row::Row;
use crate::segment::{self, SegmentWriter};

/// Rows of one day, merged per trace run. Boxed: a row takes half a kilobyte without its texts, which would be moved
/// whenever the map grows or rows are sorted.
type Day = HashMap<TraceRunId, Box<Row>>;

#[derive(Default)]
pub struct Groups {
    tenants: BTreeMap<TenantId, BTreeMap<(ProjectId, NaiveDate), Day>>,
    bytes: usize,
    count: usize,
}

impl Groups {
    /// Bytes of the collected rows. Savings by merging are not subtracted.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Row groups that they make at least.
    pub const fn count(&self) -> usize {
        self.count
    }

    pub fn add(&mut self, tenant: TenantId, place: RunLocation, operation: Operation, seq: i64) {
        let mut row = Row::from_operation(operation, seq);
        row.location(place.sort_time);
        self.bytes += row.weight();
        let day = self
            .tenants
            .entry(tenant)
            .or_default()
            .entry((place.project, place.sort_time.day()))
            .or_insert_with(|| {
                self.count += 1;
                Day::default()
            });
        match day.entry(row.id()) {
            Entry::Vacant(free) => {
                free.insert(Box::new(row));
            }
            Entry::Occupied(known) => {
                let (id, earlier) = known.remove_entry();
                day.insert(id, Box::new(earlier.merge(row)));
            }
        }
    }

    /// Writes segments for each workspace. The number of row groups in a segment is bounded: its footer is read as a
    /// whole, and the format numbers them with 16 bits.
    pub async fn write<E>(
        mut self,
        store: &Store,
        objects: &Objects,
        prices: &PriceBook,
        segment_groups: usize,
        intend: &mut impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
        folded: &mut FlushResult,
    ) -> Result<(), FlushError<E>> {
        while let Some((tenant, mut groups)) = self.tenants.pop_first() {
            let prices = prices.table(store, tenant).await?;
            while !groups.is_empty() {
                let id = SegmentId::new();
                let path = segment::path(tenant, id);
                intend(tenant, id, &path).await.map_err(FlushError::Intend)?;
                let writer = SegmentWriter::new(objects.store().clone(), path.clone(), tenant)?;
                let mut writer = writer.with_prices(Arc::clone(&prices));
                while writer.row_groups() < segment_groups
                    && let Some(((project, _), rows)) = groups.pop_first()
                {
                    writer.write_group(project, rows.into_values()).await?;
                }
                let written = writer.finish().await?;
                objects.sync(&path).await?;
                folded.segments.push(NewSegment { tenant, id, written });
            }
        }
        Ok(())
    }
}
