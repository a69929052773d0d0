//! Assistants: graphs with their settings, each change a version.

mod names;

use serde_json::{Map, Value};
use sqlx::FromRow;
use towpath_domain::{AssistantId, TenantId, Timestamp};

use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

pub use names::{AssistantName, names};

/// An assistant in its current version.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Assistant {
    pub id: AssistantId,
    pub tenant_id: TenantId,
    /// The graph it runs.
    pub graph_id: String,
    pub name: String,
    pub description: Option<String>,
    /// JSON object: tags, `recursion_limit`, `configurable`.
    pub config: String,
    /// JSON object: the graph's static context.
    pub context: String,
    /// JSON object of the client's.
    pub metadata: String,
    /// The version in use.
    pub version: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The versioned content of an assistant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssistantContent {
    /// The graph it runs.
    pub graph_id: String,
    pub name: String,
    pub description: Option<String>,
    /// JSON object.
    pub config: String,
    /// JSON object.
    pub context: String,
    /// JSON object.
    pub metadata: String,
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub graph_id: Option<String>,
    /// Of one of these graphs; empty means any.
    pub graphs: Vec<String>,
    /// Whose name contains this, whatever its case (on SQLite, of ASCII letters).
    pub name: Option<String>,
    /// Whose metadata contains this; `$and` and `$or` are lists of such filters.
    pub metadata: Map<String, Value>,
}

/// The sort order of a list; ties are sorted by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    Id,
    #[default]
    Created,
    /// When it was changed.
    Updated,
    Name,
    Graph,
}

impl Order {
    const fn text(self, ascending: bool) -> &'static str {
        match (self, ascending) {
            (Self::Id, true) => "id",
            (Self::Id, false) => "id DESC",
            (Self::Created, true) => "created_at, id",
            (Self::Created, false) => "created_at DESC, id DESC",
            (Self::Updated, true) => "updated_at, id",
            (Self::Updated, false) => "updated_at DESC, id DESC",
            (Self::Name, true) => "name, id",
            (Self::Name, false) => "name DESC, id DESC",
            (Self::Graph, true) => "graph_id, id",
            (Self::Graph, false) => "graph_id DESC, id DESC",
        }
    }
}

/// Creates an assistant, version 1. `None` if its id is taken.
pub async fn create(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: AssistantId,
    new: &AssistantContent,
) -> Result<Option<Assistant>> {
    let now = tx.now();
    let made: Option<Assistant> = on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO assistant (id, tenant_id, graph_id, name, description, config, context, metadata, version,
                                created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1, $9, $9) ON CONFLICT DO NOTHING RETURNING ",
        columns!(assistant)
    ),)
    .bind(id)
    .bind(tenant)
    .bind(&new.graph_id)
    .bind(&new.name)
    .bind(&new.description)
    .bind(&new.config)
    .bind(&new.context)
    .bind(&new.metadata)
    .bind(now)
    .fetch_optional(conn)
    .await)?;
    if let Some(assistant) = &made {
        keep_version(tx, assistant).await?;
    }
    Ok(made)
}

/// Ensures that a graph has its default assistant. If no client has changed it, it gets the name and description of the
/// current configuration.
pub async fn ensure_system(tx: &mut Tx<'_>, tenant: TenantId, new: &AssistantContent) -> Result<()> {
    let id = AssistantId::of_graph(&new.graph_id);
    if create(tx, tenant, id, new).await?.is_some() {
        return Ok(());
    }
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE assistant SET name = $3, description = $4
         WHERE tenant_id = $1 AND id = $2 AND version = 1 AND updated_at = created_at AND metadata = $5
           AND (name <> $3 OR description IS DISTINCT FROM $4)",
    )
    .bind(tenant)
    .bind(id)
    .bind(&new.name)
    .bind(&new.description)
    .bind(&new.metadata)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if changed > 0 {
        on!(tx, |conn| sqlx::query(
            "UPDATE assistant_version SET name = $3, description = $4
             WHERE tenant_id = $1 AND assistant_id = $2 AND version = 1",
        )
        .bind(tenant)
        .bind(id)
        .bind(&new.name)
        .bind(&new.description)
        .execute(conn)
        .await
        .map(drop))?;
    }
    Ok(())
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: AssistantId) -> Result<Assistant> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(assistant),
        " FROM assistant WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// The existing ones of these assistants, in any order.
pub async fn get_each(tx: &mut Tx<'_>, tenant: TenantId, ids: &[AssistantId]) -> Result<Vec<Assistant>> {
    let mut query = Query::new(
        tx,
        concat!("SELECT ", columns!(assistant), " FROM assistant WHERE tenant_id = "),
    );
    query
        .bind(Arg::Uuid(tenant.0))
        .push(" AND id")
        .among(ids.iter().map(|id| id.0));
    query.fetch_all(tx).await
}

/// One assistant, locked until the transaction ends.
async fn lock(tx: &mut Tx<'_>, tenant: TenantId, id: AssistantId) -> Result<Assistant> {
    // SQLite has one writer, so no other caller can change it.
    let text = sql!(tx,
        sqlite: concat!("SELECT ", columns!(assistant), " FROM assistant WHERE tenant_id = $1 AND id = $2"),
        postgres: concat!("SELECT ", columns!(assistant), " FROM assistant WHERE tenant_id = $1 AND id = $2 FOR UPDATE"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?)
}

/// A part of those that match.
pub async fn search(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    which: &Filter,
    order: Order,
    ascending: bool,
    limit: i64,
    offset: i64,
) -> Result<Vec<Assistant>> {
    let mut query = Query::new(
        tx,
        concat!("SELECT ", columns!(assistant), " FROM assistant WHERE tenant_id = "),
    );
    query.bind(Arg::Uuid(tenant.0));
    narrow(&mut query, which)?;
    query.push(" ORDER BY ").push(order.text(ascending));
    query.page(limit, offset);
    query.fetch_all(tx).await
}

pub async fn count(tx: &mut Tx<'_>, tenant: TenantId, which: &Filter) -> Result<i64> {
    let mut query = Query::new(tx, "SELECT count(*) FROM assistant WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    narrow(&mut query, which)?;
    query.count(tx).await
}

fn narrow(query: &mut Query, which: &Filter) -> Result<()> {
    if let Some(graph) = &which.graph_id {
        query.push(" AND graph_id = ").bind(Arg::Text(graph.clone()));
    }
    if !which.graphs.is_empty() {
        let graphs = which.graphs.iter().cloned().map(Arg::Text);
        query.push(" AND ").any_of("graph_id", graphs);
    }
    if let Some(name) = &which.name {
        query.push(" AND lower(name) LIKE lower(");
        query.bind(Arg::Text(like(name))).push(") ESCAPE '\\'");
    }
    if !which.metadata.is_empty() {
        query
            .push(" AND ")
            .matches("metadata", "metadata", &Value::Object(which.metadata.clone()))?;
    }
    Ok(())
}

/// The pattern that finds `part` anywhere.
fn like(part: &str) -> String {
    let mut pattern = String::from("%");
    for letter in part.chars() {
        if matches!(letter, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('%');
    pattern
}

/// Changes an assistant: `change` is given the current content and returns the next version's.
pub async fn update(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: AssistantId,
    change: impl FnOnce(&Assistant) -> Result<AssistantContent>,
) -> Result<Assistant> {
    let current = lock(tx, tenant, id).await?;
    let next = change(&current)?;
    let now = tx.now();
    // Numbers are never used again: the pointer may be at an older version.
    let assistant: Assistant = on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE assistant SET graph_id = $3, name = $4, description = $5, config = $6, context = $7, metadata = $8,
                updated_at = $9,
                version = (SELECT max(v.version) + 1 FROM assistant_version v
                           WHERE v.tenant_id = $1 AND v.assistant_id = $2)
         WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!(assistant)
    ),)
    .bind(tenant)
    .bind(id)
    .bind(&next.graph_id)
    .bind(&next.name)
    .bind(&next.description)
    .bind(&next.config)
    .bind(&next.context)
    .bind(&next.metadata)
    .bind(now)
    .fetch_one(conn)
    .await)?;
    keep_version(tx, &assistant).await?;
    Ok(assistant)
}

async fn keep_version(tx: &mut Tx<'_>, assistant: &Assistant) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "INSERT INTO assistant_version (tenant_id, assistant_id, version, graph_id, name, description, config, context,
                                        metadata, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(assistant.tenant_id)
    .bind(assistant.id)
    .bind(assistant.version)
    .bind(&assistant.graph_id)
    .bind(&assistant.name)
    .bind(&assistant.description)
    .bind(&assistant.config)
    .bind(&assistant.context)
    .bind(&assistant.metadata)
    .bind(assistant.updated_at)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Versions of an assistant, newest first, each as the assistant was then.
pub async fn versions(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: AssistantId,
    metadata: &Map<String, Value>,
    limit: i64,
    offset: i64,
) -> Result<Vec<Assistant>> {
    let mut query = Query::new(
        tx,
        concat!(
            "SELECT ",
            columns!(assistant),
            " FROM (
             SELECT assistant_id AS id, tenant_id, graph_id, name, description, config, context, metadata, version,
                    created_at, created_at AS updated_at
             FROM assistant_version) v WHERE tenant_id = "
        ),
    );
    query.bind(Arg::Uuid(tenant.0));
    query.push(" AND id = ").bind(Arg::Uuid(id.0));
    if !metadata.is_empty() {
        query
            .push(" AND ")
            .contains("metadata", "metadata", &Value::Object(metadata.clone()))?;
    }
    query.push(" ORDER BY version DESC").page(limit, offset);
    query.fetch_all(tx).await
}

/// Makes a version the current one. Later versions stay.
///
/// # Errors
/// [`Error::NotFound`] if there is no such assistant or version.
pub async fn set_latest(tx: &mut Tx<'_>, tenant: TenantId, id: AssistantId, version: i64) -> Result<Assistant> {
    lock(tx, tenant, id).await?;
    let now = tx.now();
    let moved = on!(tx, |conn| {
        sqlx::query(
        "UPDATE assistant SET version = v.version, graph_id = v.graph_id, name = v.name, description = v.description,
                config = v.config, context = v.context, metadata = v.metadata, updated_at = $4
         FROM assistant_version v
         WHERE assistant.tenant_id = $1 AND assistant.id = $2
           AND v.tenant_id = $1 AND v.assistant_id = $2 AND v.version = $3",
    )
    .bind(tenant)
    .bind(id)
    .bind(version)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
    })?;
    if moved == 0 {
        return Err(Error::NotFound);
    }
    // SQLite cannot return the whole row of an UPDATE that reads another table.
    get(tx, tenant, id).await
}

/// Removes an assistant with its versions and crons.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: AssistantId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM assistant WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 0 { Err(Error::NotFound) } else { Ok(()) }
}
