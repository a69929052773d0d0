//! Feedback on trace runs. New feedback is accepted like traces: durable first, a row after the flush. Changes update
//! the row at once, so that a late flush does not restore the old values.

pub mod submission;
pub mod tokens;

use axum::extract::{Request, State};
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use towpath_domain::json::Object;
use towpath_domain::{Timestamp, TraceRunId};
use towpath_query::feedback::keep_latest;
use towpath_query::{Reader, Snapshot};
use towpath_store as store;
use towpath_store::feedback::{self, Filter};
use towpath_traces::accept::Route;
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, JsonObject, Pairs, Path};
use crate::platform::ingest::{Answer, Ingested, accept_body};
use crate::platform::paging;

/// Maximum number of trace runs in one request.
const MOST_RUNS: usize = 1000;

/// Feedback as it was sent, with the fields that the server adds.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Feedback(Box<RawValue>);

impl TryFrom<feedback::Feedback> for Feedback {
    type Error = ApiError;

    fn try_from(row: feedback::Feedback) -> Result<Self, ApiError> {
        let unreadable = || ApiError::from(store::Error::corrupt("feedback", "body", row.id));
        let mut body = Object::parse(&row.body).map_err(|_| unreadable())?;
        let modified = row.modified_at.unwrap_or(row.created_at);
        // Unflushed feedback has no time of its own: use the client's time, or now.
        for (name, known, over) in [
            ("created_at", row.created_at, false),
            ("modified_at", modified, row.modified_at.is_some()),
        ] {
            if over || body.get(name).is_none() {
                body.set(name, json!(known).to_string());
            }
        }
        body.set("id", json!(row.id).to_string());
        body.set("key", json!(row.key).to_string());
        body.set("run_id", json!(row.run_id).to_string());
        for name in [
            "trace_id",
            "session_id",
            "score",
            "value",
            "comment",
            "correction",
            "feedback_source",
        ] {
            if !body.has(name) {
                body.set(name, "null");
            }
        }
        RawValue::from_string(body.to_string())
            .map(Self)
            .map_err(|_| unreadable())
    }
}

/// Create feedback on a trace run. Requires `id` and `key`.
#[utoipa::path(post, path = "/feedback", tag = "feedback",
    request_body(content = ref("#/components/schemas/NewFeedback"), content_type = "application/json"),
    responses((status = 202, description = "Stored durably", body = Ingested), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, request: Request) -> Answer {
    accept_body(&app, tenant, Route::Feedback, "Feedback ingested", request).await
}

/// List feedback of the workspace, newest first. Acknowledged feedback is visible at once.
#[utoipa::path(get, path = "/feedback", tag = "feedback",
    params(("run" = Option<Vec<Uuid>>, Query, description = "Trace run ids, at most 1000"),
           ("key" = Option<Vec<String>>, Query, description = "Feedback keys"),
           ("source" = Option<Vec<String>>, Query, description = "Sources: `api`, `model`, …"),
           ("limit" = Option<i64>, Query, minimum = 1, maximum = 100, description = "Maximum results; default 100"),
           ("offset" = Option<i64>, Query, minimum = 0, maximum = 1_000_000_000, description = "Results to skip")),
    responses((status = 200, description = "Feedback", body = Vec<Object>), ApiError))]
pub async fn list(State(app): State<App>, tenant: Tenant, sent: Pairs) -> Result<Json<Vec<Feedback>>, ApiError> {
    sent.only(&["run", "key", "source", "limit", "offset"])?;
    let named: Vec<TraceRunId> = sent
        .read::<Uuid>("run", "a UUID")?
        .into_iter()
        .map(TraceRunId)
        .collect();
    if named.len() > MOST_RUNS {
        return Err(ApiError::bad_request(format!("run: expected at most {MOST_RUNS}")));
    }
    let wanted = Filter {
        keys: sent.all("key").map(str::to_owned).collect(),
        sources: sent.all("source").map(str::to_owned).collect(),
    };
    let (limit, offset) = paging::of(&sent)?;
    let now = app.clock.now();
    let read = app.queries.run(move |reader| async move {
        let snapshot = reader.snapshot(tenant.id).await?;
        if named.is_empty() {
            return all(&snapshot, &wanted, limit, offset).await;
        }
        let mut given = snapshot.feedback(&named).await?;
        given.retain(|row| matches_query(row, &wanted));
        given.reverse();
        let (skip, most) = (usize::try_from(offset), usize::try_from(limit));
        let skipped = given.into_iter().skip(skip.unwrap_or(usize::MAX));
        Ok(skipped.take(most.unwrap_or(0)).collect())
    });
    let given: Vec<feedback::Feedback> = read.await?;
    let shown = given
        .into_iter()
        .map(|row| Feedback::try_from(with_received_time(row, now)));
    Ok(Json(shown.collect::<Result<_, ApiError>>()?))
}

/// Unflushed feedback comes first, since it was accepted last.
async fn all(
    snapshot: &Snapshot,
    wanted: &Filter,
    limit: i64,
    offset: i64,
) -> Result<Vec<feedback::Feedback>, ApiError> {
    let tenant = snapshot.tenant();
    let mut open = std::collections::HashMap::new();
    for row in snapshot.unstored_feedback() {
        keep_latest(&mut open, row);
    }
    let mut fresh = Vec::new();
    for row in open.into_values().filter(|row| matches_query(row, wanted)) {
        // Feedback that was flushed, changed or deleted meanwhile is read from the table.
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

fn matches_query(row: &feedback::Feedback, wanted: &Filter) -> bool {
    (wanted.keys.is_empty() || wanted.keys.contains(&row.key))
        && (wanted.sources.is_empty()
            || feedback::source(&row.body).is_some_and(|source| wanted.sources.contains(&source)))
}

/// Sets the current time for feedback that is not in the table yet.
fn with_received_time(mut row: feedback::Feedback, now: Timestamp) -> feedback::Feedback {
    if row.created_at.micros() == 0 {
        row.created_at = now;
    }
    row
}

/// Get one piece of feedback.
#[utoipa::path(get, path = "/feedback/{feedback_id}", tag = "feedback",
    params(("feedback_id" = Uuid, Path, description = "The feedback")),
    responses((status = 200, description = "The feedback", body = Object),
              (status = 404, description = "No such feedback in this workspace"), ApiError))]
pub async fn get(State(app): State<App>, tenant: Tenant, Path(id): Path<Uuid>) -> Result<Json<Feedback>, ApiError> {
    let row = app.queries.run(move |reader| find(reader, tenant, id)).await?;
    Ok(Json(Feedback::try_from(with_received_time(row, app.clock.now()))?))
}

async fn find(reader: Reader, tenant: Tenant, id: Uuid) -> Result<feedback::Feedback, ApiError> {
    let snapshot = reader.snapshot(tenant.id).await?;
    let found = snapshot.one_feedback(id).await?;
    found.ok_or_else(|| ApiError::not_found("feedback"))
}

/// The latest accepted state of feedback, if it is not flushed yet.
async fn fresh(reader: Reader, tenant: Tenant, id: Uuid) -> Result<Option<feedback::Feedback>, ApiError> {
    let snapshot = reader.snapshot(tenant.id).await?;
    Ok(snapshot.unstored_feedback_by_id(id).cloned())
}

/// Fields that cannot be changed: subject and creation time.
const FIXED: [&str; 7] = [
    "id",
    "run_id",
    "key",
    "created_at",
    "modified_at",
    "trace_id",
    "session_id",
];

/// Change feedback. Fields that are sent replace the stored ones.
#[utoipa::path(patch, path = "/feedback/{feedback_id}", tag = "feedback", request_body = Object,
    params(("feedback_id" = Uuid, Path, description = "The feedback")),
    responses((status = 200, description = "Updated", body = Object),
              (status = 404, description = "No such feedback in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<Uuid>,
    change: JsonObject,
) -> Result<Json<Feedback>, ApiError> {
    let open = app.queries.run(move |reader| fresh(reader, tenant, id)).await?;
    let mut changed = change.members();
    changed.remove(&FIXED);
    let row = app
        .store
        .write(async |tx| feedback::update_body(tx, tenant.id, id, open.as_ref(), &changed).await)
        .await
        .map_err(not_changed_error)?;
    Ok(Json(Feedback::try_from(row)?))
}

/// Maps an error of a change.
fn not_changed_error(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("feedback"),
        error @ store::Error::Corrupt { .. } => {
            tracing::error!(%error, "cannot change feedback: the stored row is corrupt");
            let text = "the stored feedback is unreadable and was not changed; delete it and create it again";
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
        error => error.into(),
    }
}

/// Delete feedback.
#[utoipa::path(delete, path = "/feedback/{feedback_id}", tag = "feedback",
    params(("feedback_id" = Uuid, Path, description = "The feedback")),
    responses((status = 200, description = "Deleted", body = Object),
              (status = 404, description = "No such feedback in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(id): Path<Uuid>) -> Result<Json<Value>, ApiError> {
    let open = app.queries.run(move |reader| fresh(reader, tenant, id)).await?;
    app.store
        .write(async |tx| feedback::delete(tx, tenant.id, id, open.as_ref()).await)
        .await
        .map_err(not_changed_error)?;
    Ok(Json(json!({"message": "Feedback deleted"})))
}
