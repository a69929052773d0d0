//! Judgements on trace runs. New ones take the way of the traces themselves: durable first, a row when folded. Changes
//! are made to the row at once, so that a fold that is behind does not bring the old ones back.

pub mod given;
pub mod tokens;

use axum::extract::{Request, State};
use serde::Serialize;
use serde_json::{Map, Value, json};
use towpath_domain::{Timestamp, TraceRunId};
use towpath_query::feedback::later;
use towpath_query::{Reader, Snapshot};
use towpath_store::feedback::{self, Wanted};
use towpath_traces::accept::Route;
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, Pairs, Path};
use crate::platform::exports::MAX_OFFSET;
use crate::platform::ingest::{Answer, Ingested, take};

/// Trace runs whose feedback is listed at once.
const MOST_RUNS: usize = 1000;

/// Feedback: all that was sent, with what is known beside it.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Feedback(Map<String, Value>);

impl From<feedback::Feedback> for Feedback {
    fn from(row: feedback::Feedback) -> Self {
        let mut body: Map<String, Value> = serde_json::from_str(&row.body).unwrap_or_default();
        let modified = row.modified_at.unwrap_or(row.created_at);
        // What is not folded yet has no time of its own; the client said one, or it is now.
        let time = |body: &mut Map<String, Value>, name: &str, known: Timestamp, over: bool| {
            let said = body.get(name).is_some_and(|value| !value.is_null());
            if over || !said {
                body.insert(name.to_owned(), json!(known));
            }
        };
        time(&mut body, "created_at", row.created_at, false);
        time(&mut body, "modified_at", modified, row.modified_at.is_some());
        body.insert("id".to_owned(), json!(row.id));
        body.insert("key".to_owned(), json!(row.key));
        body.insert("run_id".to_owned(), json!(row.run_id));
        for name in [
            "trace_id",
            "session_id",
            "score",
            "value",
            "comment",
            "correction",
            "feedback_source",
        ] {
            body.entry(name).or_insert(Value::Null);
        }
        Self(body)
    }
}

/// Feedback on a trace run: `id` and `key` at least, `run_id`, `score`, `value`, `comment` and what else there is.
#[utoipa::path(post, path = "/feedback", tag = "feedback",
    request_body(content = ref("#/components/schemas/NewFeedback"), content_type = "application/json"),
    responses((status = 202, description = "On disk", body = Ingested), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, request: Request) -> Answer {
    take(&app, tenant, Route::Feedback, "Feedback ingested", request).await
}

/// Feedback of the workspace, newest first. It is there as soon as it was acknowledged.
#[utoipa::path(get, path = "/feedback", tag = "feedback",
    params(("run" = Option<Vec<Uuid>>, Query, description = "On one of these trace runs, at most 1000"),
           ("key" = Option<Vec<String>>, Query, description = "Under one of these names"),
           ("source" = Option<Vec<String>>, Query, description = "From one of these sources: `api`, `model`, …"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "At most so many; 100 is the default"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Skip so many")),
    responses((status = 200, description = "Feedback", body = Vec<Object>), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<Vec<Feedback>>, ApiError> {
    sent.only(&["run", "key", "source", "limit", "offset"])?;
    let named: Vec<TraceRunId> = sent
        .read::<Uuid>("run", "a UUID")?
        .into_iter()
        .map(TraceRunId)
        .collect();
    if named.len() > MOST_RUNS {
        return Err(ApiError::bad_request(format!("run: at most {MOST_RUNS} at once")));
    }
    let wanted = Wanted {
        keys: sent.all("key").map(str::to_owned).collect(),
        sources: sent.all("source").map(str::to_owned).collect(),
    };
    let limit = sent.number("limit", 1..=100)?.unwrap_or(100);
    let offset = sent.number("offset", 0..=MAX_OFFSET)?.unwrap_or(0);
    let now = app.clock.now();
    let read = app.reading.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        if named.is_empty() {
            return all(&snapshot, &wanted, limit, offset).await;
        }
        let mut given = snapshot.feedback(&named).await?;
        given.retain(|row| meets(row, &wanted));
        given.reverse();
        let (skip, most) = (usize::try_from(offset), usize::try_from(limit));
        let skipped = given.into_iter().skip(skip.unwrap_or(usize::MAX));
        Ok(skipped.take(most.unwrap_or(0)).collect())
    });
    let given: Vec<feedback::Feedback> = read.await?;
    Ok(Json(given.into_iter().map(|row| dated(row, now).into()).collect()))
}

/// What is not folded yet comes first, since it was accepted last.
async fn all(
    snapshot: &Snapshot,
    wanted: &Wanted,
    limit: i64,
    offset: i64,
) -> Result<Vec<feedback::Feedback>, ApiError> {
    let tenant = snapshot.tenant();
    let mut open = std::collections::HashMap::new();
    for row in snapshot.fresh_feedback() {
        later(&mut open, row);
    }
    let mut fresh = Vec::new();
    for row in open.into_values().filter(|row| meets(row, wanted)) {
        // Folded meanwhile, changed or taken back: then the table has the word.
        let stored = snapshot
            .store()
            .read(async |tx| feedback::find(tx, tenant, row.id).await)
            .await?;
        if stored.is_none() {
            fresh.push(row);
        }
    }
    fresh.sort_unstable_by_key(|row| std::cmp::Reverse((row.seq, row.id)));
    let count = i64::try_from(fresh.len()).unwrap_or(i64::MAX);
    let skip = usize::try_from(offset).unwrap_or(usize::MAX);
    let most = usize::try_from(limit).unwrap_or_default();
    let mut given: Vec<_> = fresh.into_iter().skip(skip).take(most).collect();
    let left = limit - i64::try_from(given.len()).unwrap_or(limit);
    if left > 0 {
        let offset = (offset - count).max(0);
        let stored = snapshot
            .store()
            .read(async |tx| feedback::list(tx, tenant, wanted, left, offset).await)
            .await?;
        given.extend(stored);
    }
    Ok(given)
}

fn meets(row: &feedback::Feedback, wanted: &Wanted) -> bool {
    let source = || {
        let body: Value = serde_json::from_str(&row.body).unwrap_or_default();
        body["feedback_source"]["type"].as_str().map(str::to_owned)
    };
    (wanted.keys.is_empty() || wanted.keys.contains(&row.key))
        && (wanted.sources.is_empty() || source().is_some_and(|source| wanted.sources.contains(&source)))
}

/// A row that is not in the table yet has no time: it came just now.
fn dated(mut row: feedback::Feedback, now: Timestamp) -> feedback::Feedback {
    if row.created_at.micros() == 0 {
        row.created_at = now;
    }
    row
}

/// One piece of feedback.
#[utoipa::path(get, path = "/feedback/{feedback_id}", tag = "feedback",
    params(("feedback_id" = Uuid, Path, description = "The feedback")),
    responses((status = 200, description = "The feedback", body = Object),
              (status = 404, description = "No such feedback in this workspace"), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant, Path(id): Path<Uuid>) -> Result<Json<Feedback>, ApiError> {
    let row = app.reading.run(move |reader| find(reader, tenant, id)).await?;
    Ok(Json(dated(row, app.clock.now()).into()))
}

async fn find(reader: Reader, tenant: Tenant, id: Uuid) -> Result<feedback::Feedback, ApiError> {
    let snapshot = reader.snapshot(tenant.id).await?;
    let found = snapshot.one_feedback(id).await?;
    found.ok_or_else(|| ApiError::not_found("feedback"))
}

/// Change feedback: what is named replaces what was there.
#[utoipa::path(patch, path = "/feedback/{feedback_id}", tag = "feedback", request_body = Object,
    params(("feedback_id" = Uuid, Path, description = "The feedback")),
    responses((status = 200, description = "Changed", body = Object),
              (status = 404, description = "No such feedback in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<Uuid>,
    Json(change): Json<Map<String, Value>>,
) -> Result<Json<Feedback>, ApiError> {
    let mut row = app.reading.run(move |reader| find(reader, tenant, id)).await?;
    let mut body: Map<String, Value> = serde_json::from_str(&row.body).unwrap_or_default();
    let fixed = [
        "id",
        "run_id",
        "key",
        "created_at",
        "modified_at",
        "trace_id",
        "session_id",
    ];
    body.extend(change.into_iter().filter(|(name, _)| !fixed.contains(&name.as_str())));
    row.body = Value::Object(body).to_string();
    app.store.write(async |tx| feedback::change(tx, &row).await).await?;
    let now = app.clock.now();
    row.modified_at = Some(now);
    Ok(Json(dated(row, now).into()))
}

/// Take feedback back.
#[utoipa::path(delete, path = "/feedback/{feedback_id}", tag = "feedback",
    params(("feedback_id" = Uuid, Path, description = "The feedback")),
    responses((status = 200, description = "Taken back", body = Object),
              (status = 404, description = "No such feedback in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(id): Path<Uuid>) -> Result<Json<Value>, ApiError> {
    let mut row = app.reading.run(move |reader| find(reader, tenant, id)).await?;
    row.deleted = true;
    app.store.write(async |tx| feedback::change(tx, &row).await).await?;
    Ok(Json(json!({"message": "Feedback deleted"})))
}
