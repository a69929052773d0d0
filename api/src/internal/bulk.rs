//! The same to many jobs.

use axum::extract::State;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId};
use towpath_store::{Store, jobs};

use crate::errors::{ApiError, LocSegment};
use crate::extract::{Json, optional_object, whole};
use crate::internal::job_stores::JobStores;
use crate::internal::model::State as StateName;
use crate::internal::{actions, plain};

/// Maximum number of jobs in one request, each in its own transaction.
const MOST: usize = 1000;
/// Number of concurrent transactions.
const AT_ONCE: usize = 8;

#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    Retry,
    Cancel,
}

/// An action on many jobs, by ids or filter.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BulkJobRequest {
    action: Action,
    /// Job ids. Send either this or `filter`.
    #[schema(value_type = Option<Vec<Uuid>>, min_items = 1, max_items = 1000)]
    ids: Option<Vec<JobId>>,
    /// Filter of jobs. Send either this or `ids`.
    #[serde(default, deserialize_with = "optional_object")]
    filter: Option<Filter>,
    /// With `filter`: maximum number of jobs to check, 1 to 1000; default 1000.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// With `filter`: the `next_cursor` of the previous response.
    #[schema(value_type = Option<Uuid>)]
    cursor: Option<JobId>,
}

/// Filter of jobs: at least one field; all given ones must match.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Filter {
    #[schema(pattern = r"^[^\u0000]*$")]
    pool: Option<String>,
    #[schema(pattern = r"^[^\u0000]*$")]
    kind: Option<String>,
    #[schema(inline, value_type = Option<StateName>)]
    state: Option<JobState>,
    /// Workspace.
    #[schema(value_type = Option<Uuid>)]
    tenant: Option<TenantId>,
    #[schema(pattern = r"^[^\u0000]*$")]
    lane: Option<String>,
}

/// Result of the action.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct BulkJobResult {
    /// Jobs on which the action succeeded.
    #[schema(minimum = 0)]
    done: usize,
    /// Jobs on which it failed, with the reason.
    refused: Vec<JobRefusal>,
    /// With `filter`: cursor of the next request; null after the last job.
    next_cursor: Option<String>,
}

/// A job on which the action failed.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct JobRefusal {
    #[schema(value_type = Uuid)]
    id: JobId,
    reason: String,
}

/// Retry or cancel many jobs, each in its own transaction. With a filter, repeat the request with the cursor until it
/// is null.
#[utoipa::path(post, path = "/internal/jobs/bulk", tag = "jobs", security(("api_key" = []), ("bearer" = [])), request_body = BulkJobRequest,
    responses((status = 200, description = "The result", body = BulkJobResult), ApiError))]
pub(crate) async fn bulk(
    State(JobStores { store, .. }): State<JobStores>,
    Json(bulk): Json<BulkJobRequest>,
) -> Result<Json<BulkJobResult>, ApiError> {
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
        _ => return Err(ApiError::bad_request("send either ids or filter")),
    };
    let store = &store;
    let mut done = 0;
    let mut refused = Vec::new();
    let mut under_way = futures::stream::iter(ids)
        .map(|id| async move {
            let acted = match action {
                Action::Retry => actions::retry_job(store, id).await,
                Action::Cancel => actions::cancel_job(store, id).await,
            };
            (id, acted)
        })
        .buffered(AT_ONCE);
    while let Some((id, acted)) = under_way.next().await {
        match acted {
            Ok(()) => done += 1,
            // The job's own refusal; anything else is the server's trouble and ends it here.
            Err(error) if error.status().is_client_error() => refused.push(JobRefusal {
                id,
                reason: error.text().to_owned(),
            }),
            Err(error) => return Err(error),
        }
    }
    Ok(Json(BulkJobResult {
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
        return Err(ApiError::bad_request("filter: expected at least one field"));
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
    ApiError::invalid_at(vec![LocSegment::from("body"), field.into()], "value_error", msg)
}
