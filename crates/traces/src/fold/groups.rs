//! Rows on their way into segments: by workspace, project and day.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};

use chrono::NaiveDate;
use object_store::path::Path;
use towpath_domain::{ProjectId, SegmentId, TenantId, TraceRunId};

use super::{FoldError, Folded, NewSegment, Place};
use crate::objects::Objects;
use crate::operation::Operation;
use crate::row::Row;
use crate::segment::{self, SegmentWriter};

/// Rows of one day, those of one trace run merged as they come. Each in a box: a row takes half a kilobyte without its
/// texts, which would be moved whenever the map grows and whenever rows are sorted.
type Day = HashMap<TraceRunId, Box<Row>>;

#[derive(Default)]
pub struct Groups {
    tenants: BTreeMap<TenantId, BTreeMap<(ProjectId, NaiveDate), Day>>,
    bytes: usize,
}

impl Groups {
    /// Bytes that lie here. What merging saves is not taken off again.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn add(&mut self, tenant: TenantId, place: Place, operation: Operation, seq: i64) {
        let mut row = Row::from_operation(operation, seq);
        row.place(place.sort_time);
        self.bytes += row.weight();
        let day = self
            .tenants
            .entry(tenant)
            .or_default()
            .entry((place.project, place.sort_time.day()))
            .or_default();
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

    /// Writes a segment for each workspace and starts anew.
    pub async fn flush<E>(
        &mut self,
        objects: &Objects,
        intend: &mut impl AsyncFnMut(TenantId, SegmentId, &Path) -> Result<(), E>,
        folded: &mut Folded,
    ) -> Result<(), FoldError<E>> {
        self.bytes = 0;
        while let Some((tenant, mut groups)) = self.tenants.pop_first() {
            let id = SegmentId::new();
            let path = segment::path(tenant, id);
            intend(tenant, id, &path).await.map_err(FoldError::Intend)?;
            let mut writer = SegmentWriter::new(objects.store().clone(), path.clone(), tenant)?;
            while let Some(((project, _), rows)) = groups.pop_first() {
                writer.write_group(project, rows.into_values()).await?;
            }
            let written = writer.finish().await?;
            objects.sync(&path).await?;
            folded.segments.push(NewSegment { tenant, id, written });
        }
        Ok(())
    }
}
