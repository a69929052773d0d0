//! Paths from the root of a trace to runs whose sender did not report them.
//!
//! OpenTelemetry only names the parent of a span, and a child may arrive before its parent, in its own request. So
//! paths are not stored at ingest; they are derived at query time from the runs known by then.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use towpath_domain::trace::DottedOrderPart;
use towpath_domain::{ProjectId, Timestamp, TraceRunId};
use towpath_traces::derive::derive;
use towpath_traces::lookup::{Hit, SegmentQuery};
use towpath_traces::row::Row;
use towpath_traces::scan::merged_columns;
use towpath_traces::schema::Selection;
use uuid::Uuid;

use crate::page::Position;
use crate::{Result, Snapshot};

/// Maximum number of ancestors.
const HIGHEST: usize = 64;
/// Rows in memory at once.
const AT_ONCE: usize = 256;
/// Segments that are read before the paths are checked for completeness.
const SEGMENTS: usize = 16;
/// Maximum number of runs kept while segments are read. Beyond it, ancestors are looked up by their ids.
const MOST: usize = 1 << 18;
/// Columns of an ancestor that are read.
const COLUMNS: [&str; 3] = ["trace_id", "parent_run_id", "dotted_order"];

/// What is known of a run on the path.
#[derive(Clone, Debug)]
struct AncestryStep {
    start: Timestamp,
    parent: Option<Uuid>,
    /// The complete path to it, if its sender reported it.
    full_path: Option<Vec<DottedOrderPart>>,
}

type Steps = HashMap<(ProjectId, Uuid), AncestryStep>;

/// What one row group knows of a run; another one may know more.
#[derive(Clone, Copy, Debug)]
struct RunLineage {
    position: Position,
    parent: Option<Uuid>,
    is_root: bool,
    /// Whether its sender reported the complete path.
    has_full_path: bool,
}

type Trails = HashMap<(ProjectId, Uuid), RunLineage>;

impl Snapshot {
    /// Links from the root down to each of `rows` that has a parent and no `dotted_order`, if all runs in between are
    /// present.
    pub async fn ancestry(&self, rows: &[(ProjectId, Row)]) -> Result<HashMap<TraceRunId, Vec<DottedOrderPart>>> {
        let untold = |row: &Row| row.fields().dotted_order.is_none() && row.fields().parent_run_id.is_some();
        let asked: Vec<&(ProjectId, Row)> = rows.iter().filter(|(_, row)| untold(row)).collect();
        if asked.is_empty() {
            return Ok(HashMap::new());
        }
        let mut steps: Steps = rows.iter().filter_map(step).collect();
        let traces = asked.iter().filter_map(|(_, row)| derive(row).trace_id).collect();
        let asked: Vec<(ProjectId, Uuid)> = asked.iter().map(|(project, row)| (*project, row.id().0)).collect();
        let trails = self.trails(&asked, traces, &steps).await?;
        let above: BTreeSet<Position> = asked
            .iter()
            .flat_map(|run| find_path(*run, &steps, &trails).0)
            .collect();
        let above: Vec<Position> = above.into_iter().collect();
        let columns = merged_columns(&Selection::of(&COLUMNS).expect("they are exported columns"));
        for above in above.chunks(AT_ONCE) {
            // Merged, because another row group may have newer fields of a run.
            steps.extend(self.rows_of(above, columns.clone()).await?.iter().filter_map(step));
        }
        let found = asked
            .iter()
            .filter_map(|run| Some((TraceRunId(run.1), walk(*run, &steps).ok()?)));
        Ok(found.collect())
    }

    /// Ancestors of `asked`. The newest segments are read first, for all runs of the traces, until all paths are known.
    /// An ancestor in another trace, or in none, is looked up by its id.
    async fn trails(&self, asked: &[(ProjectId, Uuid)], traces: BTreeSet<Uuid>, steps: &Steps) -> Result<Trails> {
        let mut trails = Trails::new();
        let mut wanted = SegmentQuery {
            traces,
            ids: missing(asked, steps, &trails),
            lineage: true,
        };
        if wanted.ids.is_empty() {
            return Ok(trails);
        }
        let places = self.row_group_locations(&EVER).await?;
        let lookup = self.lookup();
        let mut looked: BTreeSet<TraceRunId> = BTreeSet::new();
        // Later rounds look up ids that were unknown when the first segments were read; data already read is kept.
        for _ in 0..HIGHEST {
            looked.extend(&wanted.ids);
            for places in places.chunks(SEGMENTS) {
                let mut asked_for = wanted.clone();
                loop {
                    for hit in lookup.search(places.to_vec(), &asked_for).await? {
                        if trails.len() < MOST || asked_for.ids.contains(&hit.key.id) {
                            note(&mut trails, &hit);
                        }
                    }
                    wanted.ids = missing(asked, steps, &trails);
                    if wanted.ids.is_empty() {
                        return Ok(trails);
                    }
                    if wanted.ids == asked_for.ids {
                        break;
                    }
                    // Runs stored together arrived together, so an ancestor may be in the same row group.
                    asked_for.ids.clone_from(&wanted.ids);
                    asked_for.traces.clear();
                }
            }
            wanted.ids.retain(|id| !looked.contains(id));
            if wanted.ids.is_empty() {
                break;
            }
            // All of their runs were found.
            wanted.traces.clear();
        }
        Ok(trails)
    }
}

const EVER: Range<Timestamp> = Timestamp::from_micros(i64::MIN)..Timestamp::from_micros(i64::MAX);

/// Merges what a row group knows of a run.
fn note(trails: &mut Trails, hit: &Hit) {
    let Some(lineage) = &hit.lineage else { return };
    let trail = RunLineage {
        position: Position {
            key: hit.key,
            project: hit.project,
        },
        parent: lineage.parent,
        is_root: lineage.is_root == Some(true),
        has_full_path: lineage.dotted_order.is_some(),
    };
    let known = trails.entry((hit.project, hit.key.id.0)).or_insert(trail);
    known.parent = known.parent.or(trail.parent);
    known.is_root |= trail.is_root;
    known.has_full_path |= trail.has_full_path;
}

/// Ids of the nearest unknown ancestors of `asked`.
fn missing(asked: &[(ProjectId, Uuid)], steps: &Steps, trails: &Trails) -> BTreeSet<TraceRunId> {
    let missing = asked.iter().filter_map(|run| find_path(*run, steps, trails).1);
    missing.map(TraceRunId).collect()
}

/// Positions of ancestors that must be read, and the nearest unknown one.
fn find_path(run: (ProjectId, Uuid), steps: &Steps, trails: &Trails) -> (Vec<Position>, Option<Uuid>) {
    let (project, mut at) = run;
    let mut above = Vec::new();
    for _ in 0..=HIGHEST {
        let parent = match (steps.get(&(project, at)), trails.get(&(project, at))) {
            (Some(step), _) if step.full_path.is_some() => return (above, None),
            (Some(step), _) => step.parent,
            (None, Some(trail)) => {
                above.push(trail.position);
                if trail.has_full_path {
                    return (above, None);
                }
                // Another row group knows its parent, or that it is the root.
                if trail.parent.is_none() && !trail.is_root {
                    return (above, Some(at));
                }
                trail.parent
            }
            (None, None) => return (above, Some(at)),
        };
        let Some(parent) = parent else { break };
        at = parent;
    }
    (above, None)
}

fn step((project, row): &(ProjectId, Row)) -> Option<((ProjectId, Uuid), AncestryStep)> {
    let told = row.fields().dotted_order.as_deref();
    let told = told.and_then(|order| towpath_domain::trace::dotted_order_parts(order).collect::<Option<Vec<_>>>());
    let step = AncestryStep {
        start: row.key()?.sort_time,
        parent: derive(row).parent_run_id,
        full_path: told,
    };
    Some(((*project, row.id().0), step))
}

/// The path down to a run, or its nearest unknown ancestor. A cyclic path has neither.
fn walk(run: (ProjectId, Uuid), steps: &Steps) -> std::result::Result<Vec<DottedOrderPart>, Option<(ProjectId, Uuid)>> {
    let (project, mut at) = run;
    let mut up: Vec<DottedOrderPart> = Vec::new();
    loop {
        let step = steps.get(&(project, at)).ok_or(Some((project, at)))?;
        if let Some(told) = &step.full_path {
            return Ok(told.iter().copied().chain(up.into_iter().rev()).collect());
        }
        if up.len() == HIGHEST || up.iter().any(|link| link.id == at) {
            return Err(None);
        }
        up.push(DottedOrderPart {
            start: step.start,
            id: at,
        });
        match step.parent {
            Some(parent) => at = parent,
            None => return Ok(up.into_iter().rev().collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(of: &[(u128, Option<u128>)]) -> Steps {
        let steps = of.iter().map(|(id, parent)| {
            let step = AncestryStep {
                start: Timestamp::from_micros(i64::try_from(*id).unwrap()),
                parent: parent.map(Uuid::from_u128),
                full_path: None,
            };
            ((ProjectId::nil(), Uuid::from_u128(*id)), step)
        });
        steps.collect()
    }

    fn way(id: u128, steps: &Steps) -> std::result::Result<Vec<u128>, Option<u128>> {
        let links = walk((ProjectId::nil(), Uuid::from_u128(id)), steps);
        links
            .map(|links| links.iter().map(|link| link.id.as_u128()).collect())
            .map_err(|missing| missing.map(|(_, id)| id.as_u128()))
    }

    #[test]
    fn a_way_is_found_stops_at_what_is_missing_and_never_turns_in_a_circle() {
        let mut steps = known(&[
            (1, None),
            (2, Some(1)),
            (3, Some(2)),
            (5, Some(4)),
            (7, Some(8)),
            (8, Some(7)),
        ]);
        assert_eq!(way(3, &steps), Ok(vec![1, 2, 3]));
        assert_eq!(way(1, &steps), Ok(vec![1]));
        assert_eq!(way(5, &steps), Err(Some(4)));
        assert_eq!(way(7, &steps), Err(None));
        // An ancestor has the complete path.
        let root = DottedOrderPart {
            start: Timestamp::from_micros(0),
            id: Uuid::from_u128(9),
        };
        let own = DottedOrderPart {
            start: Timestamp::from_micros(4),
            id: Uuid::from_u128(4),
        };
        let told = AncestryStep {
            start: own.start,
            parent: None,
            full_path: Some(vec![root, own]),
        };
        steps.insert((ProjectId::nil(), own.id), told);
        assert_eq!(way(5, &steps), Ok(vec![9, 4, 5]));
    }
}
