//! Criteria of a query, combined from the fields of its body.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use towpath_domain::filter::{Comparison, Condition, Field, Filter, Value};
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId};
use towpath_query::{Extent, Position, Predicate, Snapshot};
use towpath_store::projects;
use towpath_traces::flush::RunLocation;
use towpath_traces::row::Key;
use uuid::Uuid;

use crate::errors::ApiError;

/// How far outside of the time range the root and other runs of a trace are searched, and how long before a run its
/// parent may start.
pub const SLACK: Duration = Duration::from_secs(24 * 3600);

/// Where the runs of traces may start whose root runs start between two times.
pub(super) fn around(first: Timestamp, last: Timestamp) -> Range<Timestamp> {
    first.minus(SLACK)..last.plus(SLACK)
}

/// Maximum number of projects if none is named.
const PROJECTS: i64 = 1000;
/// Maximum number of ids in one query.
const MOST_IDS: usize = 1000;

/// Criteria of a query; all must hold.
#[derive(Clone, Debug, Default)]
pub struct Criteria {
    pub projects: Vec<ProjectId>,
    pub ids: Vec<TraceRunId>,
    pub trace: Option<Uuid>,
    /// One of these traces.
    pub traces: Vec<Uuid>,
    /// One of these threads.
    pub threads: Vec<String>,
    /// Only runs that name a thread.
    pub has_thread: bool,
    /// Parent run.
    pub parent: Option<Uuid>,
    /// Example ids.
    pub references: Vec<Uuid>,
    pub run_type: Option<String>,
    /// With or without an error.
    pub error: Option<bool>,
    /// Root runs only, or child runs only.
    pub is_root: Option<bool>,
    /// Started at or after this time.
    pub start: Option<Timestamp>,
    /// Started before this time.
    pub end: Option<Timestamp>,
    /// Text to find.
    pub query: Option<String>,
    /// Filter expression.
    pub filter: Option<String>,
    /// Filter for the root run of the trace.
    pub trace_filter: Option<String>,
    /// Filter for any run of the trace.
    pub tree_filter: Option<String>,
}

/// Criteria with resolved projects and locations.
#[derive(Debug)]
pub struct ResolvedCriteria {
    pub projects: Vec<ProjectId>,
    pub range: Range<Timestamp>,
    /// Relevant row groups, if known.
    pub within: Option<Extent>,
    pub predicate: Predicate,
    /// Positions of the requested ids, if any.
    pub positions: Option<Vec<Position>>,
}

/// Parses a filter. An empty text is no filter.
pub fn parse(field: &str, text: Option<&str>) -> Result<Option<Filter>, ApiError> {
    let text = text.filter(|text| !text.trim().is_empty());
    text.map(|text| Filter::parse(text).map_err(|error| ApiError::bad_request(format!("{field}: {error}"))))
        .transpose()
}

fn test(field: Field, check: Comparison) -> Filter {
    Filter::Condition(Condition {
        field,
        comparison: check,
    })
}

impl Criteria {
    /// All criteria except the trace filters, as one filter.
    fn filter(&self) -> Result<Option<Filter>, ApiError> {
        let mut parts = Vec::new();
        let same = |field, value: Option<Value>| value.map(|value| test(field, Comparison::Equal(value)));
        parts.extend(same(Field::RunType, self.run_type.clone().map(Value::Text)));
        parts.extend(same(Field::IsRoot, self.is_root.map(Value::Bool)));
        parts.extend(same(Field::TraceId, self.trace.map(Value::Id)));
        parts.extend(same(Field::ParentRunId, self.parent.map(Value::Id)));
        parts.extend(self.error.map(|error| {
            let check = if error {
                Comparison::NotEqual(Value::Null)
            } else {
                Comparison::Equal(Value::Null)
            };
            test(Field::Error, check)
        }));
        if !self.traces.is_empty() {
            let values = self.traces.iter().copied().map(Value::Id).collect();
            parts.push(test(Field::TraceId, Comparison::In(values)));
        }
        if self.has_thread {
            parts.push(test(Field::ThreadId, Comparison::NotEqual(Value::Null)));
        }
        if !self.threads.is_empty() {
            let values = self.threads.iter().cloned().map(Value::Text).collect();
            parts.push(test(Field::ThreadId, Comparison::In(values)));
        }
        if !self.references.is_empty() {
            let values = self.references.iter().copied().map(Value::Id).collect();
            parts.push(test(Field::ReferenceExample, Comparison::In(values)));
        }
        let words = self.query.as_deref().map(str::trim).filter(|query| !query.is_empty());
        parts.extend(words.map(|words| test(Field::Everything, Comparison::Search(words.to_owned()))));
        parts.extend(parse("filter", self.filter.as_deref())?);
        Ok((!parts.is_empty()).then_some(Filter::And(parts)))
    }

    /// Rejects invalid criteria before anything is read.
    pub fn admit(&self) -> Result<(), ApiError> {
        self.filter()?;
        parse("trace_filter", self.trace_filter.as_deref())?;
        parse("tree_filter", self.tree_filter.as_deref())?;
        if self.ids.len() > MOST_IDS {
            return Err(ApiError::bad_request(format!("id: expected at most {MOST_IDS}")));
        }
        if self.traces.len() > MOST_IDS {
            return Err(ApiError::bad_request(format!("trace_ids: expected at most {MOST_IDS}")));
        }
        let nothing = self.projects.is_empty()
            && self.ids.is_empty()
            && self.references.is_empty()
            && self.trace.is_none()
            && self.parent.is_none();
        if nothing {
            let text = "expected at least one of session, id, parent_run, trace or reference_example";
            return Err(ApiError::bad_request(text));
        }
        Ok(())
    }

    /// Resolves projects and locations.
    pub async fn resolve(&self, snapshot: &Snapshot) -> Result<ResolvedCriteria, ApiError> {
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
            // Filters on traces also read runs around the range.
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
                // Child runs start after their parent, except for clock differences.
                range.start = range.start.max(begin.minus(SLACK));
                if projects.is_empty() {
                    projects = found.iter().map(|(_, place)| place.project).collect();
                }
            }
        }
        projects.sort_unstable();
        projects.dedup();
        let projects = existing_projects(
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
            range = extent.clip_range(&range);
        }
        Ok(ResolvedCriteria {
            predicate: Predicate::new(filter.as_ref(), &traces)?,
            projects,
            range,
            within,
            positions: places,
        })
    }

    /// Traces that pass the trace filters.
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
            let root = test(Field::IsRoot, Comparison::Equal(Value::Bool(true)));
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

/// A run location as position.
pub fn position((id, place): (TraceRunId, RunLocation)) -> Position {
    Position {
        key: Key {
            sort_time: place.sort_time,
            id,
        },
        project: place.project,
    }
}

/// The existing ones of `projects`; all projects of the workspace if none is named.
async fn existing_projects(
    snapshot: &Snapshot,
    tenant: TenantId,
    projects: Vec<ProjectId>,
    named: bool,
) -> Result<Vec<ProjectId>, ApiError> {
    let store = snapshot.store();
    if projects.is_empty() && !named {
        let mut all: Vec<projects::ProjectSummary> = Vec::new();
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
