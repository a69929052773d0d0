//! Where operations belong: in which project, and where in its order.

use std::collections::{BTreeMap, HashMap};

use object_store::path::Path;
use towpath_domain::trace::ProjectRef;
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
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
    names: HashMap<(TenantId, String), Option<ProjectId>>,
    /// Trace runs of this batch that say where they are. One per project: the same id may live in several.
    batch: HashMap<(TenantId, TraceRunId), Vec<Place>>,
    /// Trace runs found in segments.
    catalog: HashMap<(TenantId, TraceRunId), Vec<Place>>,
}

impl<'a> Places<'a> {
    pub fn new(store: &'a Store, objects: &'a Objects) -> Self {
        Self {
            store,
            objects,
            names: HashMap::new(),
            batch: HashMap::new(),
            catalog: HashMap::new(),
        }
    }

    /// The place an operation knows by itself, which others of its trace run may then use.
    pub async fn own(&mut self, tenant: TenantId, operation: &Operation) -> Result<Option<Place>, InnerError> {
        let project = self.project(tenant, operation.project.as_ref()).await?;
        let place = project
            .zip(operation.sort_time())
            .map(|(project, sort_time)| Place { project, sort_time });
        if let Some(place) = place {
            let known = self.batch.entry((tenant, operation.id)).or_default();
            if !known.contains(&place) {
                known.push(place);
            }
        }
        Ok(place)
    }

    /// The place of an operation that may have to be told: in its own project if it names one, else in the first
    /// that knows the trace run.
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
        known.retain(|place| project.is_none_or(|project| place.project == project));
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
        // It was made when the unit was registered.
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

fn is_gone(error: &columnar::Error) -> bool {
    matches!(error.object_store(), Some(object_store::Error::NotFound { .. }))
}
