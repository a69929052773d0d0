//! The same to many entries.

use axum::extract::State;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use towpath_domain::{QuarantineId, TenantId};
use towpath_store::quarantine as stored;

use super::{cursor, cursor_after, drop_entry, retry_entry};
use crate::app::App;
use crate::errors::{ApiError, LocSegment};
use crate::extract::{Json, whole};

/// Maximum number of entries in one request, each in its own transaction.
const MOST: usize = 1000;
/// Number of concurrent transactions.
const AT_ONCE: usize = 8;

#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = QuarantineAction)]
pub(crate) enum Action {
    Retry,
    /// Drop permanently.
    Drop,
}

/// An action on many entries, by ids or all.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = QuarantineBulk)]
pub(crate) struct BulkEntryRequest {
    action: Action,
    /// Entry ids. Send either this or `all`.
    #[schema(value_type = Option<Vec<Uuid>>, min_items = 1, max_items = 1000)]
    ids: Option<Vec<QuarantineId>>,
    /// All entries. Send either this or `ids`.
    #[serde(default)]
    all: bool,
    /// With `all`: only those of this workspace.
    #[schema(value_type = Option<Uuid>)]
    tenant: Option<TenantId>,
    /// With `all`: maximum number of entries to check, 1 to 1000; default 1000.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// With `all`: the `next_cursor` of the previous response.
    #[schema(pattern = "^[0-9]{1,16}(_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}){2}$")]
    cursor: Option<String>,
}

/// Result of the action.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineOutcome)]
pub(crate) struct BulkEntryResult {
    /// Entries on which the action succeeded.
    #[schema(minimum = 0)]
    done: usize,
    /// Operations, feedback and attachments in them.
    #[schema(minimum = 0)]
    items: i64,
    /// Entries on which it failed, with the reason.
    refused: Vec<EntryRefusal>,
    /// With `all`: cursor of the next request; null after the last entry.
    next_cursor: Option<String>,
}

/// An entry on which the action failed.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = QuarantineRefused)]
pub(crate) struct EntryRefusal {
    #[schema(value_type = Uuid)]
    id: QuarantineId,
    reason: String,
}

/// Retry or drop many entries, each in its own transaction. With `all`, repeat the request with the cursor until it is
/// null.
#[utoipa::path(post, path = "/internal/quarantine/bulk", tag = "quarantine", security(("api_key" = []), ("bearer" = [])), request_body = BulkEntryRequest,
    responses((status = 200, description = "The result", body = BulkEntryResult), ApiError))]
pub(crate) async fn bulk(
    State(app): State<App>,
    Json(bulk): Json<BulkEntryRequest>,
) -> Result<Json<BulkEntryResult>, ApiError> {
    let action = bulk.action;
    let limit = bulk.limit.map_or(Ok(MOST), usize::try_from);
    let limit = limit.ok().filter(|limit| (1..=MOST).contains(limit));
    let limit = limit.ok_or_else(|| wrong("limit", format!("expected 1 to {MOST}")))?;
    let (ids, next_cursor) = match (bulk.ids, bulk.all) {
        (Some(ids), false) => {
            if ids.is_empty() || ids.len() > MOST {
                return Err(wrong("ids", format!("expected 1 to {MOST} ids")));
            }
            if bulk.tenant.is_some() || bulk.cursor.is_some() {
                return Err(ApiError::bad_request("tenant and cursor: only allowed with all"));
            }
            (ids, None)
        }
        (None, true) => find(&app, bulk.tenant, limit, bulk.cursor.as_deref()).await?,
        _ => return Err(ApiError::bad_request("send either ids or all: true")),
    };
    let app = &app;
    let mut outcome = BulkEntryResult {
        done: 0,
        items: 0,
        refused: Vec::new(),
        next_cursor,
    };
    let mut under_way = futures::stream::iter(ids)
        .map(|id| async move {
            let acted = match action {
                Action::Retry => retry_entry(app, id).await,
                Action::Drop => drop_entry(app, id).await,
            };
            (id, acted)
        })
        .buffered(AT_ONCE);
    while let Some((id, acted)) = under_way.next().await {
        match acted {
            Ok(entry) => {
                outcome.done += 1;
                outcome.items += entry.items;
            }
            // The entry's own refusal; anything else is the server's trouble and ends it here.
            Err(error) if error.status().is_client_error() => outcome.refused.push(EntryRefusal {
                id,
                reason: error.text().to_owned(),
            }),
            Err(error) => return Err(error),
        }
    }
    Ok(Json(outcome))
}

async fn find(
    app: &App,
    tenant: Option<TenantId>,
    limit: usize,
    after: Option<&str>,
) -> Result<(Vec<QuarantineId>, Option<String>), ApiError> {
    // The text stands in the body here.
    let after = after.map(cursor).transpose();
    let after = after.map_err(|_| wrong("cursor", "expected the next_cursor of an earlier response".to_owned()))?;
    let wanted = i64::try_from(limit).unwrap_or(i64::MAX) + 1;
    let mut found = app
        .store
        .read(async |tx| stored::list_after(tx, tenant, after, wanted).await)
        .await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(cursor_after);
    Ok((found.into_iter().map(|entry| entry.id).collect(), next))
}

fn wrong(field: &str, msg: String) -> ApiError {
    ApiError::invalid_at(vec![LocSegment::from("body"), field.into()], "value_error", msg)
}
