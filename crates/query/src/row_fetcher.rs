//! Reads complete rows by their keys.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::path::Path;
use towpath_domain::ProjectId;
use towpath_traces::row::{Key, Row, RowReader};
use towpath_traces::scan::PartRef;
use towpath_traces::segment::Segment;

use crate::snapshot::{Part, Snapshot};
use crate::{Result, page::Position};

/// Maximum number of cached keys of row groups.
const MOST_KEYS: usize = 2 << 20;

/// Rows with smaller gaps are read together.
const GAP: usize = 8;

/// Reads rows piece by piece, and keeps opened row groups for the next piece.
pub struct RowFetcher<'a> {
    snapshot: &'a Snapshot,
    parts: &'a HashMap<ProjectId, Vec<Part>>,
    /// Positions in the schema of segments.
    columns: Vec<usize>,
    keys: HashMap<(Path, usize), Arc<Vec<Key>>>,
    /// Number of cached keys.
    cached_keys: usize,
}

impl<'a> RowFetcher<'a> {
    pub fn new(snapshot: &'a Snapshot, parts: &'a HashMap<ProjectId, Vec<Part>>, columns: Vec<usize>) -> Self {
        Self {
            snapshot,
            parts,
            columns,
            keys: HashMap::new(),
            cached_keys: 0,
        }
    }

    async fn open(&mut self, project: ProjectId, at: &PartRef) -> Result<(Segment, Arc<Vec<Key>>)> {
        let segment = self.snapshot.open(&at.path).await?;
        let place = (at.path.clone(), at.row_group);
        if let Some(keys) = self.keys.get(&place) {
            return Ok((segment, Arc::clone(keys)));
        }
        segment.check_owner(at.row_group, self.snapshot.tenant(), project)?;
        let keys = Arc::new(segment.keys(at.row_group).await?);
        if self.cached_keys + keys.len() > MOST_KEYS {
            self.keys.clear();
            self.cached_keys = 0;
        }
        self.cached_keys += keys.len();
        self.keys.insert(place, Arc::clone(&keys));
        Ok((segment, keys))
    }

    /// Reads the rows at `positions`, each merged from all its parts, in the requested order. Missing rows are left
    /// out.
    pub async fn rows(&mut self, positions: &[Position]) -> Result<Vec<(ProjectId, Row)>> {
        let parts = self.parts;
        let mut wanted: BTreeMap<ProjectId, Vec<Key>> = BTreeMap::new();
        for position in positions {
            wanted.entry(position.project).or_default().push(position.key);
        }
        let mut found: HashMap<Position, Row> = HashMap::with_capacity(positions.len());
        for (project, mut keys) in wanted {
            keys.sort_unstable();
            for part in parts.get(&project).into_iter().flatten() {
                let from = keys.partition_point(|key| key.sort_time < part.at.min_sort_time);
                let to = keys.partition_point(|key| key.sort_time <= part.at.max_sort_time);
                if from >= to {
                    continue;
                }
                let (segment, stored) = self.open(project, &part.at).await?;
                let ranges = ranges(&stored, &keys[from..to]);
                if ranges.is_empty() {
                    continue;
                }
                // Read together: filtered runs are often close, and many share a page.
                let mut batches = segment.pieces(part.at.row_group, &self.columns, &ranges)?;
                while let Some(batch) = batches.try_next().await? {
                    let reader = RowReader::new(&batch)?;
                    for index in 0..batch.num_rows() {
                        let row = reader.row(index)?;
                        let Some(key) = row.key().filter(|key| keys[from..to].binary_search(key).is_ok()) else {
                            continue;
                        };
                        let position = Position { key, project };
                        let row = match found.remove(&position) {
                            Some(other) => other.merge(row),
                            None => row,
                        };
                        found.insert(position, row);
                    }
                }
            }
        }
        Ok(positions
            .iter()
            .filter_map(|position| Some((position.project, found.remove(position)?)))
            .collect())
    }
}

/// Ranges of positions in sorted `stored` that contain the sorted `wanted`.
fn ranges(stored: &[Key], wanted: &[Key]) -> Vec<std::ops::Range<usize>> {
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    for at in wanted.iter().filter_map(|key| stored.binary_search(key).ok()) {
        match ranges.last_mut() {
            Some(last) if at <= last.end + GAP => last.end = last.end.max(at + 1),
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use towpath_domain::{Timestamp, TraceRunId};

    use super::*;

    #[test]
    fn neighbours_are_read_together() {
        let key = |at: i64| Key {
            sort_time: Timestamp::from_micros(at),
            id: TraceRunId::nil(),
        };
        let stored: Vec<Key> = (0..100).map(key).collect();
        let wanted: Vec<Key> = [1, 2, 9, 50, 200].map(key).to_vec();
        assert_eq!(ranges(&stored, &wanted), [1..10, 50..51]);
    }
}
