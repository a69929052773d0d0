//! Judgements on trace runs. New ones take the way of the traces themselves: durable first, a row when folded. Changes
//! are made to the row at once, so that a fold that is behind does not bring the old ones back.

pub mod given;
pub mod tokens;

use axum::extract::{Request, State};
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use towpath_domain::json::Object;
use towpath_domain::{Timestamp, TraceRunId};
use towpath_query::feedback::later;
use towpath_query::{Reader, Snapshot};
use towpath_store as store;
use towpath_store::feedback::{self, Wanted};
use towpath_traces::accept::Route;
use uuid::Uuid;

use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::{Json, JsonObject, Pairs, Path};
use crate::platform::exports::MAX_OFFSET;
use crate::platform::ingest::{Answer, Ingested, take};

/// Trace runs whose feedback is listed at once.
const MOST_RUNS: usize = 1000;

/// Feedback: all that was sent, as it was sent, with what is known beside it.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Feedback(Box<RawValue>);

impl TryFrom<feedback::Feedback> for Feedback {
    type Error = ApiError;

    fn try_from(row: feedback::Feedback) -> Result<Self, ApiError> {
        let unreadable = || ApiError::from(store::Error::corrupt("feedback", "body", row.id));
        let mut body = Object::parse(&row.body).map_err(|_| unreadable())?;
        let modified = row.modified_at.unwrap_or(row.created_at);
        // What is not folded yet has no time of its own; the client said one, or it is now.
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
    let shown = given.into_iter().map(|row| Feedback::try_from(dated(row, now)));
    Ok(Json(shown.collect::<Result<_, ApiError>>()?))
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
    (wanted.keys.is_empty() || wanted.keys.contains(&row.key))
        && (wanted.sources.is_empty()
            || feedback::source(&row.body).is_some_and(|source| wanted.sources.contains(&source)))
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
    Ok(Json(Feedback::try_from(dated(row, app.clock.now()))?))
}

async fn find(reader: Reader, tenant: Tenant, id: Uuid) -> Result<feedback::Feedback, ApiError> {
    let snapshot = reader.snapshot(tenant.id).await?;
    let found = snapshot.one_feedback(id).await?;
    found.ok_or_else(|| ApiError::not_found("feedback"))
}

/// Feedback as it was accepted last, if that is not folded yet.
async fn fresh(reader: Reader, tenant: Tenant, id: Uuid) -> Result<Option<feedback::Feedback>, ApiError> {
    let snapshot = reader.snapshot(tenant.id).await?;
    Ok(snapshot.one_fresh(id).cloned())
}

/// Members that say what feedback is about, and when it was given.
const FIXED: [&str; 7] = [
    "id",
    "run_id",
    "key",
    "created_at",
    "modified_at",
    "trace_id",
    "session_id",
];

/// Change feedback: what is named replaces what was there.
#[utoipa::path(patch, path = "/feedback/{feedback_id}", tag = "feedback", request_body = Object,
    params(("feedback_id" = Uuid, Path, description = "The feedback")),
    responses((status = 200, description = "Changed", body = Object),
              (status = 404, description = "No such feedback in this workspace"), ApiError))]
pub async fn update(
    State(app): State<App>,
    tenant: Tenant,
    Path(id): Path<Uuid>,
    change: JsonObject,
) -> Result<Json<Feedback>, ApiError> {
    let open = app.reading.run(move |reader| fresh(reader, tenant, id)).await?;
    let mut changed = change.members();
    changed.remove(&FIXED);
    let row = app
        .store
        .write(async |tx| feedback::amend(tx, tenant.id, id, open.as_ref(), &changed).await)
        .await
        .map_err(unchanged)?;
    Ok(Json(Feedback::try_from(row)?))
}

/// Why feedback is as it was.
fn unchanged(error: store::Error) -> ApiError {
    match error {
        store::Error::NotFound => ApiError::not_found("feedback"),
        error @ store::Error::Corrupt { .. } => {
            tracing::error!(%error, "feedback cannot be changed");
            let text = "the stored feedback cannot be read, so nothing of it was changed; delete it and give it again";
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
        error => error.into(),
    }
}

/// Take feedback back.
#[utoipa::path(delete, path = "/feedback/{feedback_id}", tag = "feedback",
    params(("feedback_id" = Uuid, Path, description = "The feedback")),
    responses((status = 200, description = "Taken back", body = Object),
              (status = 404, description = "No such feedback in this workspace"), ApiError))]
pub async fn delete(State(app): State<App>, tenant: Tenant, Path(id): Path<Uuid>) -> Result<Json<Value>, ApiError> {
    let open = app.reading.run(move |reader| fresh(reader, tenant, id)).await?;
    app.store
        .write(async |tx| feedback::take_back(tx, tenant.id, id, open.as_ref()).await)
        .await
        .map_err(unchanged)?;
    Ok(Json(json!({"message": "Feedback deleted"})))
}
