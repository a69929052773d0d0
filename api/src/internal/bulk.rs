//! The same to many jobs.

use axum::extract::State;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId};
use towpath_store::{Store, jobs};

use crate::errors::{ApiError, Place};
use crate::extract::{Json, optional_object, whole};
use crate::internal::model::State as StateName;
use crate::internal::{Operated, act, plain};

/// Jobs of one request, each in a transaction of its own.
const MOST: usize = 1000;
/// Transactions at the same time.
const AT_ONCE: usize = 8;

/// What to do.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// Try again.
    Retry,
    /// Cancel.
    Cancel,
}

/// The same to many jobs, named or found.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bulk {
    action: Action,
    /// These jobs. Give either this or `filter`.
    #[schema(value_type = Option<Vec<Uuid>>, min_items = 1, max_items = 1000)]
    ids: Option<Vec<JobId>>,
    /// Jobs that fit. Give either this or `ids`.
    #[serde(default, deserialize_with = "optional_object")]
    filter: Option<Filter>,
    /// With `filter`: look at no more than so many, 1 to 1000, which is the default.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// With `filter`: the `next_cursor` of the answer before.
    #[schema(value_type = Option<Uuid>)]
    cursor: Option<JobId>,
}

/// Jobs that fit: at least one of these, and all that are given.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Filter {
    /// In this pool.
    #[schema(pattern = r"^[^\u0000]*$")]
    pool: Option<String>,
    /// Of this kind.
    #[schema(pattern = r"^[^\u0000]*$")]
    kind: Option<String>,
    /// In this state.
    #[schema(inline, value_type = Option<StateName>)]
    state: Option<JobState>,
    /// Of this workspace.
    #[schema(value_type = Option<Uuid>)]
    tenant: Option<TenantId>,
    /// In this lane.
    #[schema(pattern = r"^[^\u0000]*$")]
    lane: Option<String>,
}

/// How it went.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Outcome {
    /// Jobs it was done to.
    #[schema(minimum = 0)]
    done: usize,
    /// Jobs that refused, each with why.
    refused: Vec<Refused>,
    /// With `filter`: where to go on; null when all that fit were looked at.
    next_cursor: Option<String>,
}

/// A job that refused.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Refused {
    #[schema(value_type = Uuid)]
    id: JobId,
    reason: String,
}

/// Retry or cancel many jobs, each in a transaction of its own. With a filter, call it again with the cursor until
/// there is none.
#[utoipa::path(post, path = "/internal/jobs/bulk", tag = "jobs", security(("api_key" = []), ("bearer" = [])), request_body = Bulk,
    responses((status = 200, description = "How it went", body = Outcome), ApiError))]
pub(crate) async fn bulk(
    State(Operated { store, .. }): State<Operated>,
    Json(bulk): Json<Bulk>,
) -> Result<Json<Outcome>, ApiError> {
    let action = bulk.action;
    let limit = bulk.limit.map_or(Ok(MOST), usize::try_from);
    let limit = limit.ok().filter(|limit| (1..=MOST).contains(limit));
    let limit = limit.ok_or_else(|| wrong("limit", format!("expected 1 to {MOST}")))?;
    let (ids, next_cursor) = match (bulk.ids, bulk.filter) {
        (Some(ids), None) => {
            if ids.is_empty() || ids.len() > MOST {
                return Err(wrong("ids", format!("expected 1 to {MOST} ids")));
            }
            (ids, None)
        }
        (None, Some(filter)) => find(&store, filter, limit, bulk.cursor).await?,
        _ => return Err(ApiError::bad_request("give either ids or filter")),
    };
    let store = &store;
    let mut done = 0;
    let mut refused = Vec::new();
    let mut under_way = futures::stream::iter(ids)
        .map(|id| async move {
            let acted = match action {
                Action::Retry => act::retry_job(store, id).await,
                Action::Cancel => act::cancel_job(store, id).await,
            };
            (id, acted)
        })
        .buffered(AT_ONCE);
    while let Some((id, acted)) = under_way.next().await {
        match acted {
            Ok(()) => done += 1,
            // The job's own refusal; anything else is the server's trouble and ends it here.
            Err(error) if error.status().is_client_error() => refused.push(Refused {
                id,
                reason: error.text().to_owned(),
            }),
            Err(error) => return Err(error),
        }
    }
    Ok(Json(Outcome {
        done,
        refused,
        next_cursor,
    }))
}

async fn find(
    store: &Store,
    filter: Filter,
    limit: usize,
    cursor: Option<JobId>,
) -> Result<(Vec<JobId>, Option<String>), ApiError> {
    for (field, text) in [("pool", &filter.pool), ("kind", &filter.kind), ("lane", &filter.lane)] {
        plain("body", field, text.as_deref())?;
    }
    let filter = jobs::Filter {
        pool: filter.pool,
        kind: filter.kind,
        state: filter.state,
        tenant: filter.tenant,
        lane: filter.lane,
        ..jobs::Filter::default()
    };
    if filter == jobs::Filter::default() {
        // Everything there is, by mistake.
        return Err(ApiError::bad_request("filter: give at least one of its fields"));
    }
    let wanted = i64::try_from(limit).unwrap_or(i64::MAX) + 1;
    let found = store
        .read(async |tx| jobs::list(tx, &filter, cursor, wanted).await)
        .await?;
    let more = found.len() > limit;
    let ids: Vec<JobId> = found.into_iter().take(limit).map(|job| job.id).collect();
    let next = ids.last().filter(|_| more).map(ToString::to_string);
    Ok((ids, next))
}

fn wrong(field: &str, msg: String) -> ApiError {
    ApiError::invalid_at(vec![Place::from("body"), field.into()], "value_error", msg)
}
