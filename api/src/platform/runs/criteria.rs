//! What a query asks for, put together from the fields of its body.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use towpath_domain::filter::{Check, Field, Filter, Test, Value};
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
use towpath_query::{Extent, Position, Predicate, Snapshot};
use towpath_store::projects;
use towpath_traces::fold::Place;
use towpath_traces::row::Key;
use uuid::Uuid;

use crate::errors::ApiError;

/// How far before the range of a query the root of a trace is looked for, and how far around it its other runs; and how
/// long before a run those may start that it is the parent of.
const SLACK: Duration = Duration::from_secs(24 * 3600);
/// Projects that are listed at once where none is named.
const PROJECTS: i64 = 1000;
/// Ids that can be asked for at once.
const MOST_IDS: usize = 1000;

/// What is asked for; all of it has to hold.
#[derive(Clone, Debug, Default)]
pub struct Criteria {
    /// In these projects.
    pub projects: Vec<ProjectId>,
    /// These trace runs.
    pub ids: Vec<TraceRunId>,
    /// Of this trace.
    pub trace: Option<Uuid>,
    /// Directly below this one.
    pub parent: Option<Uuid>,
    /// Made from one of these examples.
    pub references: Vec<Uuid>,
    /// Of this type.
    pub run_type: Option<String>,
    /// With an error, or without.
    pub error: Option<bool>,
    /// Without a parent, or with one.
    pub is_root: Option<bool>,
    /// Started at this time or later…
    pub start: Option<Timestamp>,
    /// … and before this one.
    pub end: Option<Timestamp>,
    /// Text to be found.
    pub query: Option<String>,
    /// In the filter language.
    pub filter: Option<String>,
    /// Of the root of the trace.
    pub trace_filter: Option<String>,
    /// Of some run of the trace.
    pub tree_filter: Option<String>,
}

/// Criteria, looked up.
#[derive(Debug)]
pub struct Resolved {
    pub projects: Vec<ProjectId>,
    pub range: Range<Timestamp>,
    /// The row groups that matter, where that is known.
    pub within: Option<Extent>,
    pub predicate: Predicate,
    /// Where the ids asked for are, if any were.
    pub places: Option<Vec<Position>>,
}

/// Understands a filter. An empty one is none.
pub fn parse(field: &str, text: Option<&str>) -> Result<Option<Filter>, ApiError> {
    let text = text.filter(|text| !text.trim().is_empty());
    text.map(|text| Filter::parse(text).map_err(|error| ApiError::bad_request(format!("{field}: {error}"))))
        .transpose()
}

fn test(field: Field, check: Check) -> Filter {
    Filter::Test(Test { field, check })
}

impl Criteria {
    /// Everything but the filters on traces, as one filter.
    fn filter(&self) -> Result<Option<Filter>, ApiError> {
        let mut parts = Vec::new();
        let same = |field, value: Option<Value>| value.map(|value| test(field, Check::Equal(value)));
        parts.extend(same(Field::RunType, self.run_type.clone().map(Value::Text)));
        parts.extend(same(Field::IsRoot, self.is_root.map(Value::Bool)));
        parts.extend(same(Field::TraceId, self.trace.map(Value::Id)));
        parts.extend(same(Field::ParentRunId, self.parent.map(Value::Id)));
        parts.extend(self.error.map(|error| {
            let check = if error {
                Check::NotEqual(Value::Null)
            } else {
                Check::Equal(Value::Null)
            };
            test(Field::Error, check)
        }));
        if !self.references.is_empty() {
            let values = self.references.iter().copied().map(Value::Id).collect();
            parts.push(test(Field::ReferenceExample, Check::In(values)));
        }
        let words = self.query.as_deref().map(str::trim).filter(|query| !query.is_empty());
        parts.extend(words.map(|words| test(Field::Everything, Check::Search(words.to_owned()))));
        parts.extend(parse("filter", self.filter.as_deref())?);
        Ok((!parts.is_empty()).then_some(Filter::And(parts)))
    }

    /// Refuses what cannot be read before anything is.
    pub fn admit(&self) -> Result<(), ApiError> {
        self.filter()?;
        parse("trace_filter", self.trace_filter.as_deref())?;
        parse("tree_filter", self.tree_filter.as_deref())?;
        if self.ids.len() > MOST_IDS {
            return Err(ApiError::bad_request(format!("id: at most {MOST_IDS} at once")));
        }
        let nothing = self.projects.is_empty()
            && self.ids.is_empty()
            && self.references.is_empty()
            && self.trace.is_none()
            && self.parent.is_none();
        if nothing {
            let text = "at least one of session, id, parent_run, trace or reference_example must be given";
            return Err(ApiError::bad_request(text));
        }
        Ok(())
    }

    /// Looks up where to look.
    pub async fn resolve(&self, snapshot: &Snapshot) -> Result<Resolved, ApiError> {
        self.admit()?;
        let filter = self.filter()?;
        let bounds = filter.as_ref().map_or((None, None), Filter::start_bounds);
        let first = self.start.into_iter().chain(bounds.0).max();
        let last = match (self.end, bounds.1) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let mut range =
            first.unwrap_or(Timestamp::from_micros(i64::MIN))..last.unwrap_or(Timestamp::from_micros(i64::MAX));
        let tenant = snapshot.tenant();
        let mut projects = self.projects.clone();
        let mut places: Option<Vec<Position>> = None;
        let mut within: Option<Extent> = None;
        let traces = filter.as_ref().and_then(Filter::traces);
        if !self.ids.is_empty() {
            let mut found = snapshot.locate(&self.ids).await?;
            found.retain(|(_, place)| projects.is_empty() || projects.contains(&place.project));
            projects = found.iter().map(|(_, place)| place.project).collect();
            places = Some(found.into_iter().map(position).collect());
        } else if let Some(traces) = &traces {
            let named = (!projects.is_empty()).then_some(projects.as_slice());
            // Filters on traces look at runs around the range, too.
            let wide = range.start.minus(SLACK)..range.end.plus(SLACK);
            let extent = snapshot.extent(traces, named, &wide).await?;
            if projects.is_empty() {
                projects = extent.projects();
            }
            within = Some(extent);
        } else if let Some(run) = self.parent {
            let mut found = snapshot.locate(&[TraceRunId(run)]).await?;
            found.retain(|(_, place)| projects.is_empty() || projects.contains(&place.project));
            if let Some(begin) = found.iter().map(|(_, place)| place.sort_time).min() {
                // What belongs to it starts after it, but for clocks that differ.
                range.start = range.start.max(begin.minus(SLACK));
                if projects.is_empty() {
                    projects = found.iter().map(|(_, place)| place.project).collect();
                }
            }
        }
        projects.sort_unstable();
        projects.dedup();
        let projects = there(
            snapshot,
            tenant,
            projects,
            places.is_some() || within.is_some() || !self.projects.is_empty(),
        )
        .await?;
        if let Some(missing) = self
            .projects
            .iter()
            .find(|asked| places.is_none() && !projects.contains(asked))
        {
            tracing::debug!(project.id = %missing, "no such project");
            return Err(ApiError::not_found("session"));
        }
        if let Some(places) = &mut places {
            places.retain(|place: &Position| projects.contains(&place.project) && range.contains(&place.key.sort_time));
        }
        let traces = self.traces(snapshot, &projects, &range, within.as_ref()).await?;
        if let Some(extent) = &within {
            range = extent.narrow(&range);
        }
        Ok(Resolved {
            predicate: Predicate::new(filter.as_ref(), &traces)?,
            projects,
            range,
            within,
            places,
        })
    }

    /// The traces that the filters on traces leave.
    async fn traces(
        &self,
        snapshot: &Snapshot,
        projects: &[ProjectId],
        range: &Range<Timestamp>,
        within: Option<&Extent>,
    ) -> Result<Vec<Arc<HashSet<Uuid>>>, ApiError> {
        let mut sets = Vec::new();
        let wide = range.start.minus(SLACK)..range.end.plus(SLACK);
        if let Some(filter) = parse("trace_filter", self.trace_filter.as_deref())? {
            let root = test(Field::IsRoot, Check::Equal(Value::Bool(true)));
            let predicate = Predicate::new(Some(&Filter::And(vec![root, filter])), &[])?;
            let until_end = wide.start..range.end;
            sets.push(snapshot.traces(projects, until_end, within, &predicate).await?);
        }
        if let Some(filter) = parse("tree_filter", self.tree_filter.as_deref())? {
            let predicate = Predicate::new(Some(&filter), &[])?;
            sets.push(snapshot.traces(projects, wide, within, &predicate).await?);
        }
        Ok(sets)
    }
}

/// A place as a position.
pub fn position((id, place): (TraceRunId, Place)) -> Position {
    Position {
        key: Key {
            sort_time: place.sort_time,
            id,
        },
        project: place.project,
    }
}

/// Those of `projects` that are there; all of the workspace where none was named.
async fn there(
    snapshot: &Snapshot,
    tenant: TenantId,
    projects: Vec<ProjectId>,
    named: bool,
) -> Result<Vec<ProjectId>, ApiError> {
    let store = snapshot.store();
    if projects.is_empty() && !named {
        let mut all: Vec<projects::Listed> = Vec::new();
        loop {
            let after = all.last().copied();
            let next = store
                .read(async |tx| projects::next(tx, tenant, after, PROJECTS).await)
                .await?;
            if next.is_empty() {
                return Ok(all.into_iter().map(|project| project.id).collect());
            }
            all.extend(next);
        }
    }
    Ok(store
        .read(async |tx| projects::existing(tx, tenant, &projects).await)
        .await?)
}
