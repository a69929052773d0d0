//! Where trace runs lie: in which project, and where in its order.
//!
//! Both are decided once per id, by the order of acceptance alone: the first operation that states a project and a
//! start decides, and every later operation is applied where the trace run lies. Folds take the operations of a
//! workspace in their order of acceptance, so an id that an earlier fold has placed keeps its place, and among the
//! operations of one fold the first one that can place the id does.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use towpath_domain::trace::ProjectRef;
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
use towpath_store::{Store, projects};

use super::{Body, InnerError};
use crate::objects::Objects;
use crate::operation::Operation;
use crate::run_index;

/// Where a trace run lies. Of several places of one id the smallest counts, in this order of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Where it sorts, which also gives its day.
    pub sort_time: Timestamp,
    /// Its project.
    pub project: ProjectId,
}

/// What becomes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// It is applied to the trace run that lies there.
    At(Place),
    /// Nobody has placed its trace run yet.
    Unknown,
    /// It would place its trace run in a project that was deleted.
    Deleted,
}

/// Places learnt during one fold.
pub struct Places<'a> {
    store: &'a Store,
    objects: &'a Objects,
    /// Projects by name, in units of builds that kept no ids. `None` was deleted.
    names: HashMap<(TenantId, String), Option<ProjectId>>,
    /// Projects that were looked up, and whether they were deleted.
    deleted: HashMap<(TenantId, ProjectId), bool>,
    /// Trace runs that were looked up or placed. `None` lies nowhere yet.
    known: HashMap<(TenantId, TraceRunId), Option<Place>>,
    /// Trace runs that this fold placed.
    placed: BTreeMap<TenantId, Vec<TraceRunId>>,
}

impl<'a> Places<'a> {
    pub fn new(store: &'a Store, objects: &'a Objects) -> Self {
        Self {
            store,
            objects,
            names: HashMap::new(),
            deleted: HashMap::new(),
            known: HashMap::new(),
            placed: BTreeMap::new(),
        }
    }

    /// Learns where earlier folds have placed the trace runs of these bodies, and which of their projects were deleted.
    /// Has to come before [`Places::place`] of any of their operations.
    pub async fn look_up(&mut self, bodies: &[Body]) -> Result<(), InnerError> {
        let mut wanted: BTreeMap<TenantId, BTreeSet<TraceRunId>> = BTreeMap::new();
        let mut projects: BTreeMap<TenantId, BTreeSet<ProjectId>> = BTreeMap::new();
        for (tenant, operation) in bodies.iter().flat_map(Body::operations) {
            if let Entry::Vacant(free) = self.known.entry((tenant, operation.id)) {
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
                let known = self.known.entry((tenant, run)).or_default();
                // Data of builds that placed an id more than once: the same one whatever the order they are found in.
                *known = Some(known.map_or(place, |other| other.min(place)));
            }
        }
        Ok(())
    }

    /// Where an operation belongs. The first one of an unknown trace run that states a project and a start places it.
    pub async fn place(&mut self, tenant: TenantId, operation: &Operation) -> Result<Placement, InnerError> {
        let key = (tenant, operation.id);
        if let Some(&Some(place)) = self.known.get(&key) {
            return Ok(Placement::At(place));
        }
        let (Some(project), Some(sort_time)) = (&operation.project, operation.sort_time()) else {
            return Ok(Placement::Unknown);
        };
        let Some(project) = self.project(tenant, project).await? else {
            return Ok(Placement::Deleted);
        };
        let place = Place { project, sort_time };
        self.known.insert(key, Some(place));
        self.placed.entry(tenant).or_default().push(operation.id);
        Ok(Placement::At(place))
    }

    /// Where a trace run lies, if that is known.
    pub fn of(&self, tenant: TenantId, run: TraceRunId) -> Option<Place> {
        self.known.get(&(tenant, run)).copied().flatten()
    }

    /// About how many bytes of memory the entries take. Tables of this sort are half empty.
    pub fn bytes(&self) -> usize {
        let known = size_of::<((TenantId, TraceRunId), Option<Place>)>() * 2;
        self.known.len() * (known + size_of::<TraceRunId>())
    }

    /// The trace runs that this fold placed since it was last asked, by workspace.
    pub fn take_placed(&mut self) -> BTreeMap<TenantId, Vec<TraceRunId>> {
        std::mem::take(&mut self.placed)
    }

    /// The project that is meant, unless it was deleted.
    async fn project(&mut self, tenant: TenantId, named: &ProjectRef) -> Result<Option<ProjectId>, InnerError> {
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
        // It was made when the unit was registered, and had this name then.
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
///
/// # Errors
/// The catalog, an index file or a segment cannot be read.
pub async fn locate(
    store: &Store,
    objects: &Objects,
    tenant: TenantId,
    runs: &[TraceRunId],
) -> Result<Vec<(TraceRunId, Place)>, InnerError> {
    Ok(run_index::locate(store, objects, tenant, runs).await?)
}
