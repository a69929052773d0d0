//! A trace as a tree of runs on a time axis, with details of one run.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use towpath_domain::json::{decode, members};
use towpath_domain::{Timestamp, TraceRunId};
use towpath_query::{Direction, RunQuery, Snapshot};
use towpath_store::feedback::{self, Attachment, Feedback};
use towpath_traces::derive::{derive, derive_priced};
use towpath_traces::prices::{PriceTable, Pricer};
use towpath_traces::row::Row;
use uuid::Uuid;

use super::content::Content;
use super::figures::{dollars, latency, tokens, tone};
use super::project::find_project;
use crate::app::App;
use crate::errors::ApiError;
use crate::platform::attachments;
use crate::platform::runs::{Criteria, position};
use crate::ui::formatting;
use crate::ui::page::{PageError, PageRequest, PageResult, TRACES};

/// Maximum number of runs on the page.
const MOST: usize = 1000;
/// Maximum indentation.
const DEEPEST: usize = 14;
/// Width of the time axis.
const WIDTH: i64 = 1000;

#[derive(Template)]
#[template(path = "ui/trace.html")]
struct Page {
    project_id: String,
    workspace: String,
    project: String,
    trace: String,
    title: String,
    count: usize,
    more: bool,
    /// Cost of all runs of the trace.
    cost: Option<String>,
    tree: Vec<TreeRow>,
    run: RunDetail,
}

/// A run in the tree.
struct TreeRow {
    id: String,
    depth: usize,
    name: String,
    kind: String,
    tone: &'static str,
    status: String,
    latency: String,
    tokens: Option<String>,
    cost: Option<String>,
    chosen: bool,
    /// Offset from the start of the trace, in parts of [`WIDTH`].
    from: i64,
    width: i64,
}

/// Details of the selected run.
struct RunDetail {
    id: String,
    name: String,
    kind: String,
    status: String,
    tone: &'static str,
    error: Option<String>,
    facts: Vec<(&'static str, String)>,
    tags: Vec<String>,
    parts: Vec<(&'static str, Content, bool)>,
    feedback: Vec<FeedbackRow>,
    attachments: Vec<(String, String, String)>,
}

struct FeedbackRow {
    key: String,
    value: String,
    comment: Option<String>,
}

/// Data of the page.
struct TraceData {
    run: Row,
    rows: Vec<Row>,
    more: bool,
    cost: Option<i128>,
    feedback: Vec<Feedback>,
    attachments: Vec<Attachment>,
    prices: Arc<PriceTable>,
}

/// Workspace of the trace.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(in crate::ui) struct TraceQuery {
    workspace: String,
}

pub(in crate::ui) async fn page(
    State(app): State<App>,
    asked: PageRequest,
    Path((project_id, run)): Path<(String, String)>,
    Query(which): Query<TraceQuery>,
) -> PageResult {
    let project = find_project(&app, &project_id, &which.workspace).await?;
    let missing = || ApiError::not_found("run");
    let id: TraceRunId = run.parse().map_err(|_| PageError::from(missing()))?;
    let (tenant, of) = (project.tenant_id, project.id);
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant).await?;
        let mut places = snapshot.locate(&[id]).await?;
        places.retain(|(_, place)| place.project == of);
        let places: Vec<_> = places.into_iter().take(1).map(position).collect();
        let (_, run) = snapshot
            .rows(&places)
            .await?
            .pop()
            .ok_or_else(|| ApiError::not_found("run"))?;
        let trace = derive(&run).trace_id.unwrap_or(run.id().0);
        let criteria = Criteria {
            projects: vec![of],
            trace: Some(trace),
            ..Criteria::default()
        };
        let resolved = criteria.resolve(&snapshot).await?;
        let range = resolved.range.clone();
        let question = RunQuery {
            projects: resolved.projects,
            range: resolved.range,
            extent: resolved.within,
            predicate: resolved.predicate,
            direction: Direction::Oldest,
            after: None,
            limit: MOST,
        };
        let page = snapshot.page(&question).await?;
        let usage = snapshot.trace_usage(of, &BTreeSet::from([trace]), &range).await?;
        let mut rows: Vec<Row> = page.rows.into_iter().map(|(_, row)| row).collect();
        // In a very large trace the selected run is always shown.
        if !rows.iter().any(|row| row.id() == id) {
            rows.push(run.clone());
        }
        Ok(TraceData {
            feedback: snapshot.feedback(&[id]).await?,
            attachments: attached(&snapshot, id).await?,
            prices: Arc::clone(snapshot.prices()),
            more: page.next.is_some(),
            cost: usage.get(&trace).and_then(|usage| usage.costs[0]),
            rows,
            run,
        })
    });
    let read = read.await?;
    let derived = derive(&read.run);
    let mut pricer = Pricer::new(Arc::clone(&read.prices));
    let content = Page {
        project_id: project.id.to_string(),
        workspace: project.tenant_id.to_string(),
        project: project.name,
        trace: derived.trace_id.unwrap_or(read.run.id().0).to_string(),
        title: name(&read.rows.first().map_or_else(String::new, name_of)),
        count: read.rows.len(),
        more: read.more,
        cost: read.cost.map(dollars),
        tree: tree(&read.rows, id, &mut pricer),
        run: run_detail(&app, &read, &mut pricer),
    };
    asked.static_page("Trace", TRACES, &content)
}

async fn attached(snapshot: &Snapshot, run: TraceRunId) -> Result<Vec<Attachment>, ApiError> {
    let tenant = snapshot.tenant();
    let stored = snapshot
        .store()
        .read(async |tx| feedback::attachments_of(tx, tenant, &[run]).await);
    let open = snapshot
        .open_attachments()
        .iter()
        .filter(|file| file.run_id == run)
        .cloned();
    let mut latest: HashMap<String, Attachment> = HashMap::new();
    for file in stored.await?.into_iter().chain(open) {
        match latest.get(&file.name) {
            Some(known) if known.seq >= file.seq => {}
            _ => drop(latest.insert(file.name.clone(), file)),
        }
    }
    let mut files: Vec<_> = latest.into_values().collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn name_of(row: &Row) -> String {
    row.fields().name.clone().unwrap_or_default()
}

fn name(text: &str) -> String {
    if text.is_empty() {
        "unnamed".to_owned()
    } else {
        text.to_owned()
    }
}

/// Runs as a tree, siblings in order of their start.
fn tree(rows: &[Row], chosen: TraceRunId, pricer: &mut Pricer) -> Vec<TreeRow> {
    let there: HashSet<Uuid> = rows.iter().map(|row| row.id().0).collect();
    let mut below: HashMap<Option<Uuid>, Vec<&Row>> = HashMap::new();
    let times = rows.iter().filter_map(|row| derive(row).start_time);
    let begin = times.clone().min();
    let end = rows
        .iter()
        .filter_map(|row| row.fields().end_time)
        .chain(times.max())
        .max();
    for row in rows {
        // A run whose parent is not shown is a root.
        let parent = derive(row)
            .parent_run_id
            .filter(|parent| there.contains(parent) && *parent != row.id().0);
        below.entry(parent).or_default().push(row);
    }
    let whole = begin
        .zip(end)
        .map(|(begin, end)| (begin, (end.micros() - begin.micros()).max(1)));
    let mut branches = Vec::with_capacity(rows.len());
    let mut open: Vec<(&Row, usize)> = Vec::new();
    let mut push = |open: &mut Vec<_>, parent: Option<Uuid>, depth: usize| {
        // Removed from the map, so that cycles end.
        open.extend(
            below
                .remove(&parent)
                .into_iter()
                .flatten()
                .rev()
                .map(|row| (row, depth)),
        );
    };
    push(&mut open, None, 0);
    loop {
        while let Some((row, depth)) = open.pop() {
            branches.push(branch(row, depth, chosen, whole, pricer));
            push(&mut open, Some(row.id().0), depth + 1);
        }
        // The rest are cycles.
        let Some(seen) =
            (branches.len() < rows.len()).then(|| branches.iter().map(|b| b.id.clone()).collect::<HashSet<_>>())
        else {
            return branches;
        };
        let stray = rows.iter().find(|row| !seen.contains(&row.id().to_string()));
        let Some(parent) = stray.and_then(|row| derive(row).parent_run_id) else {
            return branches;
        };
        push(&mut open, Some(parent), 0);
        if open.is_empty() {
            return branches;
        }
    }
}

fn branch(
    row: &Row,
    depth: usize,
    chosen: TraceRunId,
    whole: Option<(Timestamp, i64)>,
    pricer: &mut Pricer,
) -> TreeRow {
    let said = row.fields();
    let derived = derive_priced(row, pricer);
    let (from, width) = match (whole, derived.start_time) {
        (Some((begin, length)), Some(start)) => {
            let part = |micros: i64| (micros.clamp(0, length) as i128 * i128::from(WIDTH) / i128::from(length)) as i64;
            let from = part(start.micros() - begin.micros());
            let until = said.end_time.map_or(WIDTH, |end| part(end.micros() - begin.micros()));
            // A minimum width keeps short runs visible.
            (from.min(WIDTH - 6), (until - from).max(6))
        }
        _ => (0, 0),
    };
    TreeRow {
        id: row.id().to_string(),
        depth: depth.min(DEEPEST),
        name: name(&name_of(row)),
        kind: said.run_type.clone().unwrap_or_else(|| "chain".to_owned()),
        tone: tone(&derived.status),
        latency: latency(derived.start_time, said.end_time).unwrap_or_else(|| "open".to_owned()),
        tokens: tokens(&derived),
        cost: derived.usage.total_cost.map(dollars),
        chosen: row.id() == chosen,
        from,
        width,
        status: derived.status.into_owned(),
    }
}

fn run_detail(app: &App, read: &TraceData, pricer: &mut Pricer) -> RunDetail {
    let row = &read.run;
    let said = row.fields();
    let derived = derive_priced(row, pricer);
    let usage = &derived.usage;
    let [metadata, invocation, runtime] =
        ["metadata", "invocation_params", "runtime"].map(|name| row.extra_value(name));
    let sides = usage.prompt_tokens.zip(usage.completion_tokens);
    let counted = usage.total_tokens.map(|total| match sides {
        Some((went_in, came_out)) => {
            format!(
                "{} ({} in, {} out)",
                formatting::count(total),
                formatting::count(went_in),
                formatting::count(came_out)
            )
        }
        None => formatting::count(total),
    });
    let first_token = latency(derived.start_time, derived.first_token_time);
    let facts = [
        ("Started", derived.start_time.map(formatting::moment)),
        ("Latency", latency(derived.start_time, said.end_time)),
        ("First token after", first_token),
        ("Tokens", counted),
        ("Cost", usage.total_cost.map(dollars)),
        ("Run", Some(row.id().to_string())),
        ("Parent", derived.parent_run_id.map(|id| id.to_string())),
        ("Example", said.reference_example_id.map(|id| id.to_string())),
    ];
    let parts = [
        ("Inputs", said.inputs.as_deref(), true),
        ("Outputs", said.outputs.as_deref(), true),
        ("Metadata", metadata.as_deref(), false),
        ("Events", said.events.as_deref(), false),
        ("Invocation", invocation.as_deref(), false),
        ("Runtime", runtime.as_deref(), false),
        ("Serialized", said.serialized.as_deref(), false),
    ];
    RunDetail {
        id: row.id().to_string(),
        name: name(&name_of(row)),
        kind: said.run_type.clone().unwrap_or_else(|| "chain".to_owned()),
        tone: tone(&derived.status),
        error: said.error.clone().filter(|error| !error.is_empty()),
        facts: facts
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect(),
        tags: said.tags.clone().unwrap_or_default(),
        parts: parts
            .into_iter()
            .filter_map(|(name, json, open)| Some((name, Content::of(json)?, open)))
            .collect(),
        feedback: read.feedback.iter().map(feedback_row).collect(),
        attachments: read
            .attachments
            .iter()
            .map(|file| {
                (
                    file.name.clone(),
                    attachments::link(app, file),
                    formatting::bytes(file.bytes),
                )
            })
            .collect(),
        status: derived.status.into_owned(),
    }
}

fn feedback_row(feedback: &Feedback) -> FeedbackRow {
    let [score, value, comment] = members(&feedback.body, ["score", "value", "comment"]).unwrap_or_default();
    let shown = score.or(value).unwrap_or_default();
    FeedbackRow {
        key: feedback.key.clone(),
        value: decode(shown).unwrap_or(Cow::Borrowed(shown)).into_owned(),
        comment: comment.and_then(decode).map(Cow::into_owned),
    }
}
