//! Locations of trace runs: project and sort time.
//!
//! Both are decided once per id, in order of acceptance: the first operation with a project and a start decides, and
//! later operations follow it. Flushes take the operations of a workspace in order of acceptance, so an id keeps the
//! location from an earlier flush, and within a flush the first suitable operation decides.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use towpath_domain::trace::ProjectRef;
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
use towpath_store::{Store, projects};

use super::{Body, MergeError};
use crate::objects::Objects;
use crate::operation::Operation;
use crate::run_index;

/// The location of a trace run. If an id has several, the smallest counts, in this order of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunLocation {
    /// Where it sorts, which also gives its day.
    pub sort_time: Timestamp,
    pub project: ProjectId,
}

/// What becomes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationTarget {
    /// It is applied to the trace run that is there.
    Run(RunLocation),
    /// No one has placed its trace run yet.
    Unknown,
    /// It would place its trace run in a project that was deleted.
    Deleted,
}

/// Places learnt during one flush.
pub struct RunLocations<'a> {
    store: &'a Store,
    objects: &'a Objects,
    /// Projects by name, for WAL segments of builds that stored no ids. `None` means deleted.
    names: HashMap<(TenantId, String), Option<ProjectId>>,
    /// Projects that were looked up, and whether they were deleted.
    deleted: HashMap<(TenantId, ProjectId), bool>,
    /// Trace runs that were looked up or located. `None` means not located yet.
    cache: HashMap<(TenantId, TraceRunId), Option<RunLocation>>,
    /// Trace runs that this flush placed.
    new_runs: BTreeMap<TenantId, Vec<TraceRunId>>,
}

impl<'a> RunLocations<'a> {
    pub fn new(store: &'a Store, objects: &'a Objects) -> Self {
        Self {
            store,
            objects,
            names: HashMap::new(),
            deleted: HashMap::new(),
            cache: HashMap::new(),
            new_runs: BTreeMap::new(),
        }
    }

    /// Loads the locations from earlier flushes for the trace runs of these bodies, and which of their projects were
    /// deleted. Call it before [`RunLocations::target`] for any of their operations.
    pub async fn preload(&mut self, bodies: &[Body]) -> Result<(), MergeError> {
        let mut wanted: BTreeMap<TenantId, BTreeSet<TraceRunId>> = BTreeMap::new();
        let mut projects: BTreeMap<TenantId, BTreeSet<ProjectId>> = BTreeMap::new();
        for (tenant, operation) in bodies.iter().flat_map(Body::operations) {
            if let Entry::Vacant(free) = self.cache.entry((tenant, operation.id)) {
                free.insert(None);
                wanted.entry(tenant).or_default().insert(operation.id);
            }
            if let Some(ProjectRef::Id(project)) = operation.project
                && !self.deleted.contains_key(&(tenant, project))
            {
                projects.entry(tenant).or_default().insert(project);
            }
        }
        for (tenant, named) in projects {
            let named: Vec<ProjectId> = named.into_iter().collect();
            let gone = self
                .store
                .read(async |tx| projects::deleted(tx, tenant, &named).await)
                .await?;
            for project in named {
                self.deleted.insert((tenant, project), gone.contains(&project));
            }
        }
        for (tenant, runs) in wanted {
            let runs: Vec<TraceRunId> = runs.into_iter().collect();
            for (run, place) in locate(self.store, self.objects, tenant, &runs).await? {
                let known = self.cache.entry((tenant, run)).or_default();
                // Earlier builds could give an id several locations: choose the same one regardless of their order.
                *known = Some(known.map_or(place, |other| other.min(place)));
            }
        }
        Ok(())
    }

    /// The location of an operation. The first operation with a project and a start locates an unknown trace run.
    pub async fn target(&mut self, tenant: TenantId, operation: &Operation) -> Result<OperationTarget, MergeError> {
        let key = (tenant, operation.id);
        if let Some(&Some(place)) = self.cache.get(&key) {
            return Ok(OperationTarget::Run(place));
        }
        let (Some(project), Some(sort_time)) = (&operation.project, operation.sort_time()) else {
            return Ok(OperationTarget::Unknown);
        };
        let Some(project) = self.project(tenant, project).await? else {
            return Ok(OperationTarget::Deleted);
        };
        let place = RunLocation { project, sort_time };
        self.cache.insert(key, Some(place));
        self.new_runs.entry(tenant).or_default().push(operation.id);
        Ok(OperationTarget::Run(place))
    }

    /// Where a trace run is, if that is known.
    pub fn cached(&self, tenant: TenantId, run: TraceRunId) -> Option<RunLocation> {
        self.cache.get(&(tenant, run)).copied().flatten()
    }

    /// Estimated memory of the entries. Hash tables are about half empty.
    pub fn bytes(&self) -> usize {
        let known = size_of::<((TenantId, TraceRunId), Option<RunLocation>)>() * 2;
        self.cache.len() * (known + size_of::<TraceRunId>())
    }

    /// The trace runs located since the last call, by workspace.
    pub fn take_new_runs(&mut self) -> BTreeMap<TenantId, Vec<TraceRunId>> {
        std::mem::take(&mut self.new_runs)
    }

    /// The project that is meant, unless it was deleted.
    async fn project(&mut self, tenant: TenantId, named: &ProjectRef) -> Result<Option<ProjectId>, MergeError> {
        let name = match named {
            ProjectRef::Id(id) => {
                let deleted = self.deleted.get(&(tenant, *id)).copied().unwrap_or_default();
                return Ok((!deleted).then_some(*id));
            }
            ProjectRef::Name(name) => name,
        };
        let key = (tenant, name.clone());
        if let Some(known) = self.names.get(&key) {
            return Ok(*known);
        }
        // The project was created under this name when the WAL segment was registered.
        let found = self
            .store
            .read(async |tx| projects::by_name(tx, tenant, name).await)
            .await?
            .map(|project| project.id);
        self.names.insert(key, found);
        Ok(found)
    }
}

/// As [`run_index::locate`].
pub async fn locate(
    store: &Store,
    objects: &Objects,
    tenant: TenantId,
    runs: &[TraceRunId],
) -> Result<Vec<(TraceRunId, RunLocation)>, MergeError> {
    Ok(run_index::locate(store, objects, tenant, runs).await?)
}
