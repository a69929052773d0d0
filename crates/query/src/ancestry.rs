//! The way from the root of a trace to runs whose sender did not tell it.
//!
//! OpenTelemetry names the parent of a span and no further, and spans come in any order: a child before its parent, in a
//! request of its own. So nothing is written down when they come in; the way is found when somebody asks, with what is
//! known by then.

use std::collections::{BTreeMap, HashMap, HashSet};

use towpath_domain::trace::Link;
use towpath_domain::{ProjectId, Timestamp, TraceRunId};
use towpath_traces::derive::derive;
use towpath_traces::row::{Key, Row};
use uuid::Uuid;

use crate::page::Position;
use crate::{Result, Snapshot};

/// Runs above each other that are looked for. Each takes a look at the catalog unless it is known already.
const HIGHEST: usize = 64;
/// Whole rows in memory at once.
const AT_ONCE: usize = 32;

/// What is known of a run on the way.
#[derive(Clone, Debug)]
struct Step {
    start: Timestamp,
    parent: Option<Uuid>,
    /// The whole way to it, where its sender told it.
    told: Option<Vec<Link>>,
}

type Steps = HashMap<(ProjectId, Uuid), Step>;

impl Snapshot {
    /// Links from the root down to each of `rows` that has a parent and no `dotted_order`, as far as all runs between are
    /// there.
    ///
    /// # Errors
    /// The catalog or a segment cannot be read.
    pub async fn ancestry(&self, rows: &[(ProjectId, Row)]) -> Result<HashMap<TraceRunId, Vec<Link>>> {
        let untold = |row: &Row| row.fields().dotted_order.is_none() && row.fields().parent_run_id.is_some();
        let asked: Vec<(ProjectId, Uuid)> = rows
            .iter()
            .filter(|(_, row)| untold(row))
            .map(|(project, row)| (*project, row.id().0))
            .collect();
        if asked.is_empty() {
            return Ok(HashMap::new());
        }
        let mut steps: Steps = rows.iter().filter_map(step).collect();
        let mut looked = HashSet::new();
        for _ in 0..HIGHEST {
            let missing = asked.iter().filter_map(|run| walk(*run, &steps).err());
            let mut missing: Vec<(ProjectId, Uuid)> = missing.flatten().collect();
            missing.retain(|run| looked.insert(*run));
            if missing.is_empty() {
                break;
            }
            self.look_up(&missing, &mut steps).await?;
        }
        let found = asked
            .iter()
            .filter_map(|run| Some((TraceRunId(run.1), walk(*run, &steps).ok()?)));
        Ok(found.collect())
    }

    async fn look_up(&self, missing: &[(ProjectId, Uuid)], steps: &mut Steps) -> Result<()> {
        let wanted: HashSet<_> = missing.iter().copied().collect();
        let mut ids: Vec<TraceRunId> = missing.iter().map(|(_, id)| TraceRunId(*id)).collect();
        ids.sort_unstable();
        ids.dedup();
        // The first place of each, as a trace run that came in pieces may be told to have several.
        let mut places: BTreeMap<(ProjectId, TraceRunId), Timestamp> = BTreeMap::new();
        for (id, place) in self.locate(&ids).await? {
            if wanted.contains(&(place.project, id.0)) {
                places.entry((place.project, id)).or_insert(place.sort_time);
            }
        }
        let places: Vec<Position> = places
            .into_iter()
            .map(|((project, id), sort_time)| Position {
                key: Key { sort_time, id },
                project,
            })
            .collect();
        for places in places.chunks(AT_ONCE) {
            steps.extend(self.rows(places).await?.iter().filter_map(step));
        }
        Ok(())
    }
}

fn step((project, row): &(ProjectId, Row)) -> Option<((ProjectId, Uuid), Step)> {
    let told = row.fields().dotted_order.as_deref();
    let told = told.and_then(|order| towpath_domain::trace::links(order).collect::<Option<Vec<_>>>());
    let step = Step {
        start: row.key()?.sort_time,
        parent: derive(row).parent_run_id,
        told,
    };
    Some(((*project, row.id().0), step))
}

/// The way down to a run; the first run above it that is not known, where there is one. A way in a circle has neither.
fn walk(run: (ProjectId, Uuid), steps: &Steps) -> std::result::Result<Vec<Link>, Option<(ProjectId, Uuid)>> {
    let (project, mut at) = run;
    let mut up: Vec<Link> = Vec::new();
    loop {
        let step = steps.get(&(project, at)).ok_or(Some((project, at)))?;
        if let Some(told) = &step.told {
            return Ok(told.iter().copied().chain(up.into_iter().rev()).collect());
        }
        if up.len() == HIGHEST || up.iter().any(|link| link.id == at) {
            return Err(None);
        }
        up.push(Link {
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
            let step = Step {
                start: Timestamp::from_micros(i64::try_from(*id).unwrap()),
                parent: parent.map(Uuid::from_u128),
                told: None,
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
        // One above says the whole way.
        let root = Link {
            start: Timestamp::from_micros(0),
            id: Uuid::from_u128(9),
        };
        let own = Link {
            start: Timestamp::from_micros(4),
            id: Uuid::from_u128(4),
        };
        let told = Step {
            start: own.start,
            parent: None,
            told: Some(vec![root, own]),
        };
        steps.insert((ProjectId::nil(), own.id), told);
        assert_eq!(way(5, &steps), Ok(vec![9, 4, 5]));
    }
}
