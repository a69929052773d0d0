//! Where operations belong: in which project, and where in its order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::NaiveDate;
use object_store::path::Path;
use towpath_domain::trace::ProjectRef;
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
use towpath_store::segments::PlacedPart;
use towpath_store::{Store, projects, segments};

use super::{InnerError, Waiting};
use crate::columnar;
use crate::objects::Objects;
use crate::operation::Operation;
use crate::segment::Segment;

/// Where a trace run lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Its project.
    pub project: ProjectId,
    /// Where it sorts, which also gives its day.
    pub sort_time: Timestamp,
}

/// Places learnt during one fold.
pub struct Places<'a> {
    store: &'a Store,
    objects: &'a Objects,
    /// Of units that earlier builds registered.
    names: HashMap<(TenantId, String), Option<ProjectId>>,
    /// Projects that were looked up, and whether they were deleted.
    deleted: HashMap<(TenantId, ProjectId), bool>,
    /// Trace runs of this batch that say where they are, the first word first.
    batch: HashMap<(TenantId, TraceRunId), Vec<Place>>,
    /// Trace runs found in segments.
    catalog: HashMap<(TenantId, TraceRunId), Vec<Place>>,
    /// Trace runs that are sent into a project, and lie in another.
    elsewhere: HashMap<(TenantId, TraceRunId), Place>,
    /// What there is of the days that this batch touches.
    days: HashMap<(TenantId, NaiveDate), Vec<PlacedPart>>,
    opened: HashMap<Path, Segment>,
}

impl<'a> Places<'a> {
    pub fn new(store: &'a Store, objects: &'a Objects) -> Self {
        Self {
            store,
            objects,
            names: HashMap::new(),
            deleted: HashMap::new(),
            batch: HashMap::new(),
            catalog: HashMap::new(),
            elsewhere: HashMap::new(),
            days: HashMap::new(),
            opened: HashMap::new(),
        }
    }

    /// Looks which of these trace runs lie in another project than they are sent to. Whoever replays old traces into a
    /// new project sends the times of old, so it is enough to look at row groups of other projects that cover them:
    /// of what comes in as it happens there are none.
    pub async fn meet(&mut self, tenant: TenantId, operations: &[Operation]) -> Result<(), InnerError> {
        self.meet_projects(tenant, operations).await?;
        let mut sent: BTreeMap<NaiveDate, Vec<(TraceRunId, Place)>> = BTreeMap::new();
        for operation in operations {
            let project = self.project(tenant, operation.project.as_ref()).await?;
            let known = self.batch.contains_key(&(tenant, operation.id));
            if let (Some(project), Some(sort_time), false) = (project, operation.sort_time(), known) {
                let place = Place { project, sort_time };
                sent.entry(sort_time.day()).or_default().push((operation.id, place));
            }
        }
        for (day, runs) in sent {
            self.meet_day(tenant, day, &runs).await?;
        }
        Ok(())
    }

    /// Looks which of the projects that are named were deleted.
    async fn meet_projects(&mut self, tenant: TenantId, operations: &[Operation]) -> Result<(), InnerError> {
        let named: BTreeSet<ProjectId> = operations.iter().filter_map(named_id).collect();
        let unknown = |project: &ProjectId| !self.deleted.contains_key(&(tenant, *project));
        let new: Vec<ProjectId> = named.into_iter().filter(unknown).collect();
        if new.is_empty() {
            return Ok(());
        }
        let gone = self
            .store
            .read(async |tx| projects::deleted(tx, tenant, &new).await)
            .await?;
        for project in new {
            self.deleted.insert((tenant, project), gone.contains(&project));
        }
        Ok(())
    }

    /// Whether the project that it names was deleted. [`Self::meet`] has looked.
    pub fn is_deleted(&self, tenant: TenantId, operation: &Operation) -> bool {
        named_id(operation).is_some_and(|project| self.deleted.get(&(tenant, project)) == Some(&true))
    }

    async fn meet_day(
        &mut self,
        tenant: TenantId,
        day: NaiveDate,
        runs: &[(TraceRunId, Place)],
    ) -> Result<(), InnerError> {
        if !self.days.contains_key(&(tenant, day)) {
            let parts = self
                .store
                .read(async |tx| segments::live_of_day(tx, tenant, day).await)
                .await?;
            self.days.insert((tenant, day), parts);
        }
        let parts = self.days.get(&(tenant, day)).map(Vec::as_slice).unwrap_or_default();
        for placed in parts {
            let part = &placed.part;
            let covered = runs.iter().filter(|(_, place)| {
                place.project != part.project_id && (part.min_sort_time..=part.max_sort_time).contains(&place.sort_time)
            });
            let wanted: Vec<TraceRunId> = covered.map(|(run, _)| *run).collect();
            if wanted.is_empty() {
                continue;
            }
            let path = Path::from(placed.path.as_str());
            let segment = match self.opened.get(&path) {
                Some(segment) => segment.clone(),
                None => match Segment::open(self.objects.store().clone(), path.clone()).await {
                    Ok(segment) => segment,
                    // It was replaced and removed since the list was read.
                    Err(error) if is_gone(&error) => continue,
                    Err(error) => return Err(error.into()),
                },
            };
            self.opened.insert(path, segment.clone());
            let row_group = usize::try_from(part.row_group).unwrap_or_default();
            for located in segment.locate_in(row_group, &wanted).await? {
                let place = Place {
                    project: located.project,
                    sort_time: located.sort_time,
                };
                let known = self.elsewhere.entry((tenant, located.id)).or_insert(place);
                // The same one whatever the order they are found in.
                *known = place.min(*known);
            }
        }
        Ok(())
    }

    /// The place an operation knows by itself, which others of its trace run may then use.
    pub async fn own(&mut self, tenant: TenantId, operation: &Operation) -> Result<Option<Place>, InnerError> {
        let project = self.project(tenant, operation.project.as_ref()).await?;
        let place = project
            .zip(operation.sort_time())
            .map(|(project, sort_time)| Place { project, sort_time });
        let Some(place) = place else { return Ok(None) };
        let elsewhere = self.elsewhere.get(&(tenant, operation.id)).copied();
        let known = self.batch.entry((tenant, operation.id)).or_default();
        let first = elsewhere.or_else(|| known.first().copied());
        let place = first.filter(|first| first.project != place.project).unwrap_or(place);
        if !known.contains(&place) {
            known.push(place);
        }
        Ok(Some(place))
    }

    /// The place of an operation that may have to be told: in the project it names if the trace run is there, else in
    /// the first that knows it.
    pub async fn of(&mut self, tenant: TenantId, operation: &Operation) -> Result<Option<Place>, InnerError> {
        let project = self.project(tenant, operation.project.as_ref()).await?;
        if operation.project.is_some() && project.is_none() {
            return Ok(None); // Its project is gone.
        }
        let key = (tenant, operation.id);
        let mut known: Vec<Place> = [&self.batch, &self.catalog]
            .into_iter()
            .filter_map(|places| places.get(&key))
            .flatten()
            .copied()
            .collect();
        // An id names one trace run: sent into another project, it is still the one that is known.
        if known.iter().any(|place| Some(place.project) == project) {
            known.retain(|place| Some(place.project) == project);
        }
        // The smallest, so that it is the same one whatever the order things were met in.
        Ok(known.into_iter().min())
    }

    /// Asks the catalog for trace runs that the batch itself does not know.
    pub async fn look_up(&mut self, waiting: &[Waiting]) -> Result<(), InnerError> {
        let mut wanted: BTreeMap<TenantId, Vec<TraceRunId>> = BTreeMap::new();
        for waiting in waiting {
            if self.of(waiting.tenant, &waiting.operation).await?.is_none() {
                wanted.entry(waiting.tenant).or_default().push(waiting.operation.id);
            }
        }
        for (tenant, mut runs) in wanted {
            runs.sort_unstable();
            runs.dedup();
            for (run, place) in locate(self.store, self.objects, tenant, &runs).await? {
                self.catalog.entry((tenant, run)).or_default().push(place);
            }
        }
        Ok(())
    }

    /// The trace runs of this batch that know where they are, by workspace.
    pub fn met(&self) -> BTreeMap<TenantId, Vec<TraceRunId>> {
        let mut met: BTreeMap<TenantId, Vec<TraceRunId>> = BTreeMap::new();
        for &(tenant, run) in self.batch.keys() {
            met.entry(tenant).or_default().push(run);
        }
        met
    }

    async fn project(&mut self, tenant: TenantId, named: Option<&ProjectRef>) -> Result<Option<ProjectId>, InnerError> {
        let name = match named {
            None => return Ok(None),
            Some(ProjectRef::Id(id)) => return Ok(Some(*id)),
            Some(ProjectRef::Name(name)) => name,
        };
        let key = (tenant, name.clone());
        if let Some(known) = self.names.get(&key) {
            return Ok(*known);
        }
        // It was made when the unit was registered, and had this name then.
        let found = self
            .store
            .read(async |tx| projects::by_name(tx, tenant, name).await)
            .await?;
        if found.is_none() {
            tracing::error!(tenant.id = %tenant, project.name = name, "trace runs for a project that is not there");
        }
        let found = found.map(|project| project.id);
        self.names.insert(key, found);
        Ok(found)
    }
}

/// Looks for trace runs by id in the live segments of a workspace, newest first, until all are found. The same one
/// may be found in several projects of one segment.
///
/// # Errors
/// The catalog or a segment cannot be read.
pub async fn locate(
    store: &Store,
    objects: &Objects,
    tenant: TenantId,
    runs: &[TraceRunId],
) -> Result<Vec<(TraceRunId, Place)>, InnerError> {
    let live = store.read(async |tx| segments::live(tx, tenant).await).await?;
    let mut wanted = runs.to_vec();
    let mut found = Vec::new();
    for segment in live {
        if wanted.is_empty() {
            break;
        }
        let path = Path::from(segment.path.as_str());
        let opened = match Segment::open(objects.store().clone(), path).await {
            Ok(opened) => opened,
            // It was replaced and removed since the list was read; what is in it lies elsewhere by now.
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        let located = opened.locate(&wanted).await?;
        wanted.retain(|run| !located.iter().any(|located| located.id == *run));
        found.extend(located.into_iter().map(|at| {
            (
                at.id,
                Place {
                    project: at.project,
                    sort_time: at.sort_time,
                },
            )
        }));
    }
    Ok(found)
}

/// The project that an operation names by its id, as all do that were registered by this build.
fn named_id(operation: &Operation) -> Option<ProjectId> {
    match operation.project {
        Some(ProjectRef::Id(project)) => Some(project),
        _ => None,
    }
}

fn is_gone(error: &columnar::Error) -> bool {
    matches!(error.object_store(), Some(object_store::Error::NotFound { .. }))
}
