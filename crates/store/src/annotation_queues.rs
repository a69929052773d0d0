//! Queues of trace runs that people are asked to judge.

use serde_json::value::RawValue;
use towpath_domain::{AnnotationQueueId, Rejection, TenantId, Timestamp, TraceRunId};

use crate::query::{Arg, Query};
use crate::segments::id_list;
use crate::{Error, Result, Tx};

/// Queues of one workspace.
const MAX_QUEUES: i64 = 10_000;
/// Trace runs of one queue.
const MAX_RUNS: i64 = 100_000;
/// Length limit in characters: what a queue's name may have.
pub const MAX_NAME_LENGTH: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct AnnotationQueue {
    /// Unique in the workspace.
    pub id: AnnotationQueueId,
    pub tenant_id: TenantId,
    /// Unique in the workspace.
    pub name: String,
    pub description: Option<String>,
    /// Instructions for reviewers.
    pub rubric_instructions: Option<String>,
    /// A JSON list of what is judged, as sent.
    pub rubric_items: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The fields of a new or changed queue; a change keeps fields that are `None`.
#[derive(Clone, Debug, Default)]
pub struct AnnotationQueueFields {
    pub name: Option<String>,
    pub description: Option<String>,
    pub rubric_instructions: Option<String>,
    /// A JSON list.
    pub rubric_items: Option<Box<RawValue>>,
}

fn check_name(name: &str) -> Result<(), Rejection> {
    if name.is_empty() || name.chars().count() > MAX_NAME_LENGTH || name.contains('\0') {
        let text = format!("expected 1 to {MAX_NAME_LENGTH} characters without NUL");
        return Err(Rejection::invalid("name", text));
    }
    Ok(())
}

/// # Errors
/// [`Error::Rejected`] for a bad name or too many queues, [`Error::Conflict`] if the name or id is taken.
pub async fn create(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: AnnotationQueueId,
    new: &AnnotationQueueFields,
) -> Result<AnnotationQueue> {
    let name = new.name.as_deref().unwrap_or_default();
    check_name(name)?;
    let count: i64 = on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM annotation_queue WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?;
    if count >= MAX_QUEUES {
        let text = format!("the workspace already has the maximum of {MAX_QUEUES} queues; delete some first");
        return Err(Rejection::rule("", text).into());
    }
    let now = tx.now();
    let made: Option<AnnotationQueue> = on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO annotation_queue (id, tenant_id, name, description, rubric_instructions, rubric_items, created_at,
                                       updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT DO NOTHING RETURNING ",
        columns!(annotation_queue)
    ))
    .bind(id)
    .bind(tenant)
    .bind(name)
    .bind(&new.description)
    .bind(&new.rubric_instructions)
    .bind(new.rubric_items.as_ref().map(|items| items.get()))
    .bind(now)
    .fetch_optional(conn)
    .await)?;
    let Some(made) = made else {
        let named = find_by_name(tx, tenant, name).await?;
        let taken = if named.is_some() {
            "annotation_queue.name"
        } else {
            "annotation_queue.id"
        };
        return Err(Error::Conflict {
            column: taken.to_owned(),
        });
    };
    Ok(made)
}

async fn find_by_name(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Option<AnnotationQueueId>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT id FROM annotation_queue WHERE tenant_id = $1 AND name = $2"
    )
    .bind(tenant)
    .bind(name)
    .fetch_optional(conn)
    .await)?)
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: AnnotationQueueId) -> Result<AnnotationQueue> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(annotation_queue),
        " FROM annotation_queue WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub ids: Vec<AnnotationQueueId>,
    /// Of exactly this name.
    pub name: Option<String>,
    /// With this in its name, case-insensitive.
    pub name_contains: Option<String>,
}

/// Queues, newest first.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    criteria: &Filter,
    limit: i64,
    offset: i64,
) -> Result<Vec<AnnotationQueue>> {
    let mut names = [&criteria.name, &criteria.name_contains].into_iter().flatten();
    if names.any(|name| name.contains('\0') || name.chars().count() > MAX_NAME_LENGTH) {
        return Ok(Vec::new());
    }
    let mut query = Query::new(
        tx,
        concat!(
            "SELECT ",
            columns!(annotation_queue),
            " FROM annotation_queue WHERE tenant_id = "
        ),
    );
    query.bind(Arg::Uuid(tenant.0));
    if !criteria.ids.is_empty() {
        query.push(" AND id").among(criteria.ids.iter().map(|id| id.0));
    }
    if let Some(name) = &criteria.name {
        query.push(" AND name = ").bind(Arg::Text(name.clone()));
    }
    if let Some(part) = &criteria.name_contains {
        query.push(" AND ").has_part("name", part);
    }
    query.push(" ORDER BY created_at DESC, id").page(limit, offset);
    query.fetch_all(tx).await
}

/// # Errors
/// [`Error::NotFound`], [`Error::Rejected`] for a bad name, [`Error::Conflict`] for a taken one.
pub async fn update(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: AnnotationQueueId,
    change: &AnnotationQueueFields,
) -> Result<AnnotationQueue> {
    if let Some(name) = &change.name {
        check_name(name)?;
        if find_by_name(tx, tenant, name).await?.is_some_and(|other| other != id) {
            return Err(Error::Conflict {
                column: "annotation_queue.name".to_owned(),
            });
        }
    }
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE annotation_queue SET name = COALESCE($3, name), description = COALESCE($4, description),
                rubric_instructions = COALESCE($5, rubric_instructions), rubric_items = COALESCE($6, rubric_items),
                updated_at = $7
         WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!(annotation_queue)
    ))
    .bind(tenant)
    .bind(id)
    .bind(&change.name)
    .bind(&change.description)
    .bind(&change.rubric_instructions)
    .bind(change.rubric_items.as_ref().map(|items| items.get()))
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Deletes a queue. The trace runs in it stay.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: AnnotationQueueId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM annotation_queue WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 0 { Err(Error::NotFound) } else { Ok(()) }
}

/// A trace run in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct QueuedRun {
    pub run_id: TraceRunId,
    /// When it was added.
    pub added_at: Timestamp,
}

/// Appends trace runs to a queue. A run that is already in it keeps its position.
///
/// # Errors
/// [`Error::NotFound`] if there is no such queue, [`Error::Rejected`] if it would hold too many.
pub async fn add(tx: &mut Tx<'_>, tenant: TenantId, queue: AnnotationQueueId, runs: &[TraceRunId]) -> Result<()> {
    get(tx, tenant, queue).await?;
    let now = tx.now();
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing ids.
        sqlite: "INSERT INTO annotation_queue_run (tenant_id, queue_id, run_id, added_at)
                 SELECT $1, $2, unhex(value, '-'), $4 FROM json_each($3) WHERE true ON CONFLICT DO NOTHING",
        postgres: "INSERT INTO annotation_queue_run (tenant_id, queue_id, run_id, added_at)
                   SELECT $1, $2, value::uuid, $4 FROM json_array_elements_text($3::json) ON CONFLICT DO NOTHING");
    let ids = id_list(runs.iter().map(|id| id.0));
    on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(queue)
        .bind(ids)
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
    if count(tx, tenant, queue).await? > MAX_RUNS {
        let text = format!("a queue may hold at most {MAX_RUNS} runs; remove some first");
        return Err(Rejection::rule("", text).into());
    }
    Ok(())
}

/// Trace runs of a queue in order of arrival.
pub async fn runs(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    queue: AnnotationQueueId,
    limit: i64,
    offset: i64,
) -> Result<Vec<QueuedRun>> {
    get(tx, tenant, queue).await?;
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT run_id, added_at FROM annotation_queue_run WHERE tenant_id = $1 AND queue_id = $2
         ORDER BY added_at, run_id LIMIT $3 + 0 OFFSET $4"
    )
    .bind(tenant)
    .bind(queue)
    .bind(limit)
    .bind(offset)
    .fetch_all(conn)
    .await)?)
}

/// How many trace runs a queue has.
pub async fn count(tx: &mut Tx<'_>, tenant: TenantId, queue: AnnotationQueueId) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM annotation_queue_run WHERE tenant_id = $1 AND queue_id = $2"
    )
    .bind(tenant)
    .bind(queue)
    .fetch_one(conn)
    .await)?)
}

/// Takes a trace run out of a queue.
pub async fn remove(tx: &mut Tx<'_>, tenant: TenantId, queue: AnnotationQueueId, run: TraceRunId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM annotation_queue_run WHERE tenant_id = $1 AND queue_id = $2 AND run_id = $3"
    )
    .bind(tenant)
    .bind(queue)
    .bind(run)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 0 { Err(Error::NotFound) } else { Ok(()) }
}
