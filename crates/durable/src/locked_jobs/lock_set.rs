//! The rows to lock for a change of jobs, collected without locks.

use std::collections::BTreeMap;

use towpath_domain::JobId;
use towpath_store::{self as store, Tx, jobs, lanes};

use super::LockedJobs;
use crate::lane::Lane;

/// Maximum number of descendants per generation. An export has one child per day; this is 270 years of them.
const FAMILY: i64 = 100_000;

/// Up to this number, lanes are locked one by one.
const FEW_LANES: usize = 4;

pub(super) struct LockSet {
    /// Lanes, with their slots if the caller knows them.
    lanes: BTreeMap<String, Option<i64>>,
    /// The jobs and their open descendants.
    pub(super) family: Vec<JobId>,
    pub(super) parents: Vec<JobId>,
}

impl LockSet {
    pub(super) fn new(ids: &[JobId], more: &[Lane]) -> Self {
        Self {
            lanes: more.iter().map(|lane| (lane.key.clone(), Some(lane.limit))).collect(),
            family: ids.to_vec(),
            parents: Vec::new(),
        }
    }

    pub(super) fn add_lane(&mut self, lane: Option<String>) {
        if let Some(lane) = lane {
            self.lanes.entry(lane).or_default();
        }
    }

    pub(super) async fn for_job(tx: &mut Tx<'_>, id: JobId, more: &[Lane]) -> store::Result<Option<Self>> {
        let Some(job) = jobs::get(tx, id).await? else {
            return Ok(None);
        };
        let mut wanted = Self::new(&[id], more);
        wanted.parents.extend(job.parent_id);
        wanted.add_lane(job.lane);
        Ok(Some(wanted))
    }

    /// One statement for each generation.
    pub(super) async fn for_families(tx: &mut Tx<'_>, ids: &[JobId], more: &[Lane]) -> store::Result<Self> {
        let mut wanted = Self::new(&[], more);
        for (id, lane, parent) in jobs::lanes_and_parents(tx, ids).await? {
            wanted.family.push(id);
            wanted.parents.extend(parent);
            wanted.add_lane(lane);
        }
        let mut generation = wanted.family.clone();
        while !generation.is_empty() {
            let children = jobs::open_children(tx, &generation, FAMILY).await?;
            generation = children.iter().map(|child| child.id).collect();
            wanted.family.extend(&generation);
            children.into_iter().for_each(|child| wanted.add_lane(child.lane));
        }
        Ok(wanted)
    }

    /// Locks lanes sorted by key, then jobs sorted by id.
    pub(super) async fn lock(self, tx: &mut Tx<'_>) -> store::Result<LockedJobs> {
        if self.lanes.len() > FEW_LANES {
            // A lane with unknown slots has a job in it, so it exists and keeps its limit.
            let lanes: Vec<_> = self
                .lanes
                .into_iter()
                .map(|(key, places)| (key, places.unwrap_or(1)))
                .collect();
            lanes::lock_all(tx, &lanes).await?;
        } else {
            for (key, places) in &self.lanes {
                match places {
                    Some(places) => drop(lanes::lock(tx, key, *places).await?),
                    None => lanes::lock_unread(tx, key).await?,
                }
            }
        }
        let mut ids = self.family;
        ids.extend(self.parents);
        let jobs = jobs::lock(tx, &ids)
            .await?
            .into_iter()
            .map(|job| (job.id, job))
            .collect();
        Ok(LockedJobs { jobs })
    }
}
