//! Row groups with the runs of some traces, so that queries about them read nothing else.
//!
//! The root of a trace may have any id and may be missing, and its runs may start at any time. So their places cannot
//! be derived: segments are searched for them, see [`towpath_traces::lookup`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use object_store::path::Path;
use towpath_domain::{ProjectId, Timestamp};
use towpath_store::segments;
use towpath_traces::lookup::{self, RowGroupLocation};
use towpath_traces::scan::PartRef;
use uuid::Uuid;

use crate::snapshot::{Part, Snapshot, day};
use crate::{Error, Result};

/// Attempts, in case a segment is compacted and removed meanwhile.
const TRIES: usize = 3;

/// Row groups with the runs of some traces, including their updates.
#[derive(Clone, Debug, Default)]
pub struct Extent {
    parts: Arc<HashMap<ProjectId, Vec<Part>>>,
    bounds: Option<(Timestamp, Timestamp)>,
}

impl Extent {
    /// Projects in which runs were found, in order.
    #[must_use]
    pub fn projects(&self) -> Vec<ProjectId> {
        let mut projects: Vec<ProjectId> = self.parts.keys().copied().collect();
        projects.sort_unstable();
        projects
    }

    /// The part of `range` from the first to the last run.
    #[must_use]
    pub fn clip_range(&self, range: &Range<Timestamp>) -> Range<Timestamp> {
        match self.bounds {
            Some((first, last)) => range.start.max(first)..range.end.min(after(last)),
            None => range.start..range.start,
        }
    }

    /// Row groups of a project that may contain starts in a range.
    fn parts(&self, project: ProjectId, range: &Range<Timestamp>) -> Vec<Part> {
        let own = self.parts.get(&project).into_iter().flatten();
        own.filter(|part| part.overlaps(range)).cloned().collect()
    }
}

fn after(time: Timestamp) -> Timestamp {
    Timestamp::from_micros(time.micros().saturating_add(1))
}

impl Snapshot {
    /// Finds the runs of `traces` that start in `range`, in `projects` or in the whole workspace.
    pub async fn extent(
        &self,
        traces: &BTreeSet<Uuid>,
        projects: Option<&[ProjectId]>,
        range: &Range<Timestamp>,
    ) -> Result<Extent> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.search(traces, projects, range).await {
                // A compaction replaced it since it was listed; its rows are elsewhere.
                Err(Error::Columnar(error)) if tries < TRIES && is_gone(&error) => {}
                found => return found,
            }
        }
    }

    async fn search(
        &self,
        traces: &BTreeSet<Uuid>,
        projects: Option<&[ProjectId]>,
        range: &Range<Timestamp>,
    ) -> Result<Extent> {
        let places = match projects {
            Some(projects) => {
                let parts = self.parts_of(projects, range).await?;
                let parts: Vec<PartRef> = parts.into_values().flatten().map(|part| part.at).collect();
                lookup::row_group_locations(&parts)
            }
            None => self.row_group_locations(range).await?,
        };
        let lookup = self.lookup();
        let mut found = HashMap::new();
        let mut bounds: Option<(Timestamp, Timestamp)> = None;
        for (project, runs) in lookup.traces(places, traces).await? {
            let Some((first, last)) = runs.bounds() else { continue };
            let (first, last) = (first.sort_time, last.sort_time);
            bounds = Some(bounds.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
            // Read again: the row groups may have been deleted or replaced.
            let mut parts = self.parts(project, first, after(last)).await?;
            let known = parts.iter().map(|part| part.at.clone()).collect();
            let held = lookup.parts(known, &runs).await?;
            let held: HashSet<(Path, usize)> = held.into_iter().map(|part| (part.path, part.row_group)).collect();
            parts.retain(|part| held.contains(&(part.at.path.clone(), part.at.row_group)));
            found.insert(project, parts);
        }
        Ok(Extent {
            parts: Arc::new(found),
            bounds,
        })
    }

    /// All segments with rows on the days of a range, the newest first.
    pub(crate) async fn row_group_locations(&self, range: &Range<Timestamp>) -> Result<Vec<RowGroupLocation>> {
        let (tenant, first, last) = (self.tenant(), day(range.start), day(range.end));
        let live = self
            .store()
            .read(async |tx| segments::live_within(tx, tenant, first, last).await)
            .await?;
        let live = live.iter().map(|segment| Path::from(segment.path.as_str()));
        let mut open: Vec<Path> = self.open_paths().cloned().collect();
        open.dedup();
        let paths = open.into_iter().chain(live);
        Ok(paths.map(|path| RowGroupLocation { path, row_groups: None }).collect())
    }

    /// Row groups of each of `projects` that may contain starts in a range; limited to an extent if there is one.
    pub(crate) async fn scope(
        &self,
        projects: &[ProjectId],
        range: &Range<Timestamp>,
        within: Option<&Extent>,
    ) -> Result<HashMap<ProjectId, Vec<Part>>> {
        match within {
            None => self.parts_of(projects, range).await,
            Some(extent) => {
                let parts = projects.iter().map(|project| (*project, extent.parts(*project, range)));
                Ok(parts.collect())
            }
        }
    }
}

fn is_gone(error: &towpath_traces::columnar::Error) -> bool {
    matches!(error.object_store(), Some(object_store::Error::NotFound { .. }))
}
