//! Tracing projects. Official clients call them sessions.

use serde_json::value::RawValue;
use towpath_domain::trace::check_project_name;
use towpath_domain::{ProjectId, TenantId, Timestamp};
use uuid::Uuid;

use crate::{Error, Result, Tx};

/// A tracing project.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Project {
    /// The project.
    pub id: ProjectId,
    /// Its workspace.
    pub tenant_id: TenantId,
    /// Unique in the workspace.
    pub name: String,
    /// What people say it is for.
    pub description: Option<String>,
    /// A JSON object of the client's.
    pub extra: Option<String>,
    /// The data set an experiment ran on.
    pub reference_dataset_id: Option<Uuid>,
    /// When it was made, unless its maker said otherwise.
    pub start_time: Timestamp,
}

/// What a client says about a project it makes.
#[derive(Clone, Debug, Default)]
pub struct NewProject {
    /// The client's own id, or ours.
    pub id: Option<ProjectId>,
    /// Name.
    pub name: String,
    /// Description.
    pub description: Option<String>,
    /// A JSON object.
    pub extra: Option<Box<RawValue>>,
    /// The data set an experiment runs on.
    pub reference_dataset_id: Option<Uuid>,
    /// Now, if not said.
    pub start_time: Option<Timestamp>,
}

/// Makes a project.
///
/// # Errors
/// [`Error::Rejected`] for a bad name, [`Error::Conflict`] naming `project.name` or `project.id` where that is taken.
pub async fn create(tx: &mut Tx<'_>, tenant: TenantId, new: &NewProject) -> Result<Project> {
    check_project_name(&new.name)?;
    let made = insert(tx, tenant, new).await?;
    match made {
        Some(project) => Ok(project),
        None => {
            let taken = if by_name(tx, tenant, &new.name).await?.is_some() {
                "project.name"
            } else {
                "project.id"
            };
            Err(Error::Conflict {
                column: taken.to_owned(),
            })
        }
    }
}

/// Makes a project, or changes the description and extra of the one that has its name.
///
/// # Errors
/// As [`create`], but a taken name is no conflict.
pub async fn upsert(tx: &mut Tx<'_>, tenant: TenantId, new: &NewProject) -> Result<Project> {
    check_project_name(&new.name)?;
    if let Some(project) = insert(tx, tenant, new).await? {
        return Ok(project);
    }
    let project = on!(tx, |conn| sqlx::query_as(
        "UPDATE project SET description = COALESCE($3, description), extra = COALESCE($4, extra),
                reference_dataset_id = COALESCE($5, reference_dataset_id)
         WHERE tenant_id = $1 AND name = $2 RETURNING *",
    )
    .bind(tenant)
    .bind(&new.name)
    .bind(&new.description)
    .bind(new.extra.as_ref().map(|extra| extra.get()))
    .bind(new.reference_dataset_id)
    .fetch_optional(conn)
    .await)?;
    // Not its name, so its id was in the way.
    project.ok_or_else(|| Error::Conflict {
        column: "project.id".to_owned(),
    })
}

/// The project of that name, made if there is none: how ingest finds where trace runs go.
///
/// # Errors
/// [`Error::Rejected`] for a bad name.
pub async fn ensure(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<ProjectId> {
    if let Some(project) = by_name(tx, tenant, name).await? {
        return Ok(project.id);
    }
    check_project_name(name)?;
    if let Some(project) = insert(
        tx,
        tenant,
        &NewProject {
            name: name.to_owned(),
            ..NewProject::default()
        },
    )
    .await?
    {
        return Ok(project.id);
    }
    // On PostgreSQL somebody else made it between the two statements, and has committed by now.
    by_name(tx, tenant, name)
        .await?
        .map(|project| project.id)
        .ok_or(Error::NotFound)
}

/// `None` when its name or id is taken.
async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: &NewProject) -> Result<Option<Project>> {
    let start = new.start_time.unwrap_or_else(|| tx.now());
    Ok(on!(tx, |conn| sqlx::query_as(
        "INSERT INTO project (id, tenant_id, name, description, extra, reference_dataset_id, start_time)
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING *",
    )
    .bind(new.id.unwrap_or_else(ProjectId::new))
    .bind(tenant)
    .bind(&new.name)
    .bind(&new.description)
    .bind(new.extra.as_ref().map(|extra| extra.get()))
    .bind(new.reference_dataset_id)
    .bind(start)
    .fetch_optional(conn)
    .await)?)
}

/// One project.
///
/// # Errors
/// [`Error::NotFound`], also for a project of another workspace.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: ProjectId) -> Result<Project> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT * FROM project WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// The project of that name.
///
/// # Errors
/// Only what the database says.
pub async fn by_name(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Option<Project>> {
    if name.contains('\0') {
        return Ok(None); // PostgreSQL refuses the parameter itself.
    }
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT * FROM project WHERE tenant_id = $1 AND name = $2"
    )
    .bind(tenant)
    .bind(name)
    .fetch_optional(conn)
    .await)?)
}

/// Projects, newest first; with `name`, the one of exactly that name.
///
/// # Errors
/// Only what the database says.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    name: Option<&str>,
    limit: i64,
    offset: i64,
) -> Result<Vec<Project>> {
    if let Some(name) = name {
        let found = by_name(tx, tenant, name).await?;
        return Ok(if offset > 0 || limit < 1 {
            Vec::new()
        } else {
            found.into_iter().collect()
        });
    }
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT * FROM project WHERE tenant_id = $1 ORDER BY start_time DESC, id LIMIT $2 OFFSET $3",
    )
    .bind(tenant)
    .bind(limit)
    .bind(offset)
    .fetch_all(conn)
    .await)?)
}

/// Forgets a project: nothing finds its trace runs any more. False when it is gone already.
///
/// # Errors
/// Only what the database says.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: ProjectId) -> Result<bool> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM project WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(gone == 1)
}
