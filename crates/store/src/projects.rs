//! Tracing projects. Official clients call them sessions.

pub mod overview;

use serde_json::value::RawValue;
use towpath_domain::trace::{LONGEST_PROJECT_NAME, check_project_name};
use towpath_domain::{ProjectId, TenantId, Timestamp};
use uuid::Uuid;

use crate::query::{Arg, Query};
use crate::segments::id_list;
use crate::{Error, Result, Tx};

/// A tracing project.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Project {
    /// Unique in the workspace only: clients choose ids and must not learn which are taken elsewhere.
    pub id: ProjectId,
    pub tenant_id: TenantId,
    /// Unique in the workspace.
    pub name: String,
    /// What people say it is for.
    pub description: Option<String>,
    /// A JSON object of the client's.
    pub extra: Option<String>,
    /// The data set an experiment ran on.
    pub reference_dataset_id: Option<Uuid>,
    /// When it was made, unless set by its creator.
    pub start_time: Timestamp,
    /// When it was over, where a caller said so.
    pub end_time: Option<Timestamp>,
}

/// What a client says about a project it makes.
#[derive(Clone, Debug, Default)]
pub struct NewProject {
    /// Chosen by the client or generated.
    pub id: Option<ProjectId>,
    pub name: String,
    pub description: Option<String>,
    /// A JSON object.
    pub extra: Option<Box<RawValue>>,
    /// The data set an experiment runs on.
    pub reference_dataset_id: Option<Uuid>,
    /// Defaults to now.
    pub start_time: Option<Timestamp>,
}

/// # Errors
/// [`Error::Rejected`] for a bad name, [`Error::Conflict`] naming `project.name` or `project.id` if that is taken.
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

/// Creates a project, or changes the description and extra of the one that has its name.
pub async fn upsert(tx: &mut Tx<'_>, tenant: TenantId, new: &NewProject) -> Result<Project> {
    check_project_name(&new.name)?;
    if let Some(project) = insert(tx, tenant, new).await? {
        return Ok(project);
    }
    let project = on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE project SET description = COALESCE($3, description), extra = COALESCE($4, extra),
                reference_dataset_id = COALESCE($5, reference_dataset_id)
         WHERE tenant_id = $1 AND name = $2 RETURNING ",
        columns!(project)
    ),)
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

/// The project of that name, made if there is none.
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
    // On PostgreSQL another process made it between the two statements, and has committed by now.
    by_name(tx, tenant, name)
        .await?
        .map(|project| project.id)
        .ok_or(Error::NotFound)
}

/// The projects of these names, in their order; missing ones are created. For ingest. `named` is sorted and without
/// duplicates, so that concurrent callers do not deadlock.
///
/// # Errors
/// [`Error::Rejected`] for a bad name.
pub async fn ensure_all(tx: &mut Tx<'_>, named: &[(TenantId, &str)]) -> Result<Vec<ProjectId>> {
    let mut found = by_names(tx, named).await?;
    let missing: Vec<usize> = (0..named.len()).filter(|&at| found[at].is_none()).collect();
    if missing.is_empty() {
        return found.into_iter().map(|id| id.ok_or(Error::NotFound)).collect();
    }
    let mut new = Vec::with_capacity(missing.len());
    for &at in &missing {
        let (tenant, name) = named[at];
        check_project_name(name)?;
        new.push((tenant, name, ProjectId::new()));
    }
    let made = insert_all(tx, &new).await?;
    if made == new.len() {
        for (&at, (.., id)) in missing.iter().zip(&new) {
            found[at] = Some(*id);
        }
    } else {
        // On PostgreSQL another process made some between the two statements, and has committed by now.
        let named: Vec<_> = missing.iter().map(|&at| named[at]).collect();
        for (&at, id) in missing.iter().zip(by_names(tx, &named).await?) {
            found[at] = id;
        }
    }
    found.into_iter().map(|id| id.ok_or(Error::NotFound)).collect()
}

async fn by_names(tx: &mut Tx<'_>, named: &[(TenantId, &str)]) -> Result<Vec<Option<ProjectId>>> {
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let text = sql!(tx,
        // Lists travel as JSON text in both; only the way back to values differs.
        sqlite: "SELECT (SELECT p.id FROM project p
                         WHERE p.tenant_id = unhex(replace(given.value ->> 0, '-', '')) AND p.name = given.value ->> 1)
                 FROM json_each($1) AS given ORDER BY given.key",
        // Looked up one by one, because plans for joins read the table.
        postgres: "SELECT (SELECT p.id FROM project p
                           WHERE p.tenant_id = (given.value ->> 0)::uuid AND p.name = given.value ->> 1)
                   FROM json_array_elements($1::json) WITH ORDINALITY AS given(value, nth) ORDER BY given.nth");
    let list = serde_json::to_string(named).expect("ids and texts are always JSON");
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(list)
        .fetch_all(conn)
        .await)?)
}

/// Returns how many were made: not those whose name is taken.
async fn insert_all(tx: &mut Tx<'_>, new: &[(TenantId, &str, ProjectId)]) -> Result<usize> {
    let now = tx.now();
    let text = sql!(tx,
        // Without its WHERE the SELECT would swallow the ON.
        sqlite: "INSERT INTO project (id, tenant_id, name, start_time)
                 SELECT unhex(replace(value ->> 2, '-', '')), unhex(replace(value ->> 0, '-', '')), value ->> 1, $2
                 FROM json_each($1) WHERE true ORDER BY key ON CONFLICT DO NOTHING",
        postgres: "INSERT INTO project (id, tenant_id, name, start_time)
                   SELECT (value ->> 2)::uuid, (value ->> 0)::uuid, value ->> 1, $2::timestamptz
                   FROM json_array_elements($1::json) WITH ORDINALITY AS given(value, nth) ORDER BY nth
                   ON CONFLICT DO NOTHING");
    let list = serde_json::to_string(new).expect("ids and texts are always JSON");
    let made = on!(tx, |conn| sqlx::query(text)
        .bind(list)
        .bind(now)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(usize::try_from(made).unwrap_or(usize::MAX))
}

/// Which of these are not there, or not in the workspace beside them.
pub async fn missing(tx: &mut Tx<'_>, ids: &[(TenantId, ProjectId)]) -> Result<Vec<(TenantId, ProjectId)>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let text = sql!(tx,
        sqlite: "SELECT EXISTS (SELECT 1 FROM project p WHERE p.id = unhex(replace(given.value ->> 1, '-', ''))
                                   AND p.tenant_id = unhex(replace(given.value ->> 0, '-', '')))
                 FROM json_each($1) AS given ORDER BY given.key",
        // Looked up one by one, because plans for joins read the table.
        postgres: "SELECT EXISTS (SELECT 1 FROM project p WHERE p.id = (given.value ->> 1)::uuid
                                     AND p.tenant_id = (given.value ->> 0)::uuid)
                   FROM json_array_elements($1::json) WITH ORDINALITY AS given(value, nth) ORDER BY given.nth");
    let list = serde_json::to_string(ids).expect("ids are always JSON");
    let there: Vec<bool> = on!(tx, |conn| sqlx::query_scalar(text).bind(list).fetch_all(conn).await)?;
    let missing = ids.iter().zip(there).filter(|(_, there)| !there);
    Ok(missing.map(|(id, _)| *id).collect())
}

/// `None` when its name or id is taken.
async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: &NewProject) -> Result<Option<Project>> {
    if let Some(id) = new.id {
        // What comes in for a deleted project is not shown, so its id cannot be used again.
        let gone: Option<ProjectId> = on!(tx, |conn| sqlx::query_scalar(
            "SELECT project_id FROM project_tombstone WHERE tenant_id = $1 AND project_id = $2"
        )
        .bind(tenant)
        .bind(id)
        .fetch_optional(conn)
        .await)?;
        if gone.is_some() {
            return Ok(None);
        }
    }
    let start = new.start_time.unwrap_or_else(|| tx.now());
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO project (id, tenant_id, name, description, extra, reference_dataset_id, start_time)
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING ",
        columns!(project)
    ),)
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

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: ProjectId) -> Result<Project> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(project),
        " FROM project WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// The project of that name.
pub async fn by_name(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Option<Project>> {
    if name.contains('\0') {
        return Ok(None); // PostgreSQL refuses the parameter itself.
    }
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(project),
        " FROM project WHERE tenant_id = $1 AND name = $2"
    ))
    .bind(tenant)
    .bind(name)
    .fetch_optional(conn)
    .await)?)
}

/// Deletes a project and remembers that it existed, so that late data for it stay hidden. The caller retires its row
/// groups.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: ProjectId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM project WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 0 {
        return Err(Error::NotFound);
    }
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO project_tombstone (tenant_id, project_id, deleted_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
    )
    .bind(tenant)
    .bind(id)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Those of `ids` that were deleted.
pub async fn deleted(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ProjectId]) -> Result<Vec<ProjectId>> {
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing ids.
        sqlite: "SELECT project_id FROM project_tombstone WHERE tenant_id = $1
                   AND project_id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2))",
        postgres: "SELECT project_id FROM project_tombstone WHERE tenant_id = $1
                   AND project_id = ANY (ARRAY (SELECT value::uuid FROM json_array_elements_text($2::json)))");
    let ids = id_list(ids.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(tenant)
        .bind(ids)
        .fetch_all(conn)
        .await)?)
}

/// Which projects are listed.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub ids: Vec<ProjectId>,
    /// Of exactly this name.
    pub name: Option<String>,
    /// With this in its name, case-insensitive.
    pub name_contains: Option<String>,
    /// Of this data set.
    pub reference_dataset: Option<Uuid>,
    /// Whether of any data set, or of none.
    pub without_reference: Option<bool>,
    /// With this in `extra.metadata`.
    pub metadata: Option<serde_json::Value>,
}

/// Projects, newest first.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId, wanted: &Filter, limit: i64, offset: i64) -> Result<Vec<Project>> {
    // PostgreSQL refuses the parameter itself, and no name has one.
    let nul = |text: &Option<String>| text.as_deref().is_some_and(|text| text.contains('\0'));
    if nul(&wanted.name) || nul(&wanted.name_contains) {
        return Ok(Vec::new());
    }
    // Longer than any name. SQLite refuses patterns that are very long.
    if wanted.name_contains.as_deref().is_some_and(longer_than_a_name) {
        return Ok(Vec::new());
    }
    let mut query = Query::new(
        tx,
        concat!("SELECT ", columns!(project), " FROM project WHERE tenant_id = "),
    );
    query.bind(Arg::Uuid(tenant.0));
    if !wanted.ids.is_empty() {
        query
            .push(" AND ")
            .any_of("id", wanted.ids.iter().map(|id| Arg::Uuid(id.0)));
    }
    if let Some(name) = &wanted.name {
        query.push(" AND name = ").bind(Arg::Text(name.clone()));
    }
    if let Some(part) = &wanted.name_contains {
        query.push(" AND ").has_part("name", part);
    }
    if let Some(dataset) = wanted.reference_dataset {
        query.push(" AND reference_dataset_id = ").bind(Arg::Uuid(dataset));
    }
    match wanted.without_reference {
        Some(true) => query.push(" AND reference_dataset_id IS NULL"),
        Some(false) => query.push(" AND reference_dataset_id IS NOT NULL"),
        None => &mut query,
    };
    if let Some(metadata) = &wanted.metadata {
        query.push(" AND extra IS NOT NULL AND ").contains(
            "extra",
            "metadata",
            &serde_json::json!({ "metadata": metadata }),
        )?;
    }
    query.push(" ORDER BY start_time DESC, id").page(limit, offset);
    query.fetch_all(tx).await
}

/// A project, and where it is among those of its workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct ProjectSummary {
    /// When it was made, unless set by its creator.
    pub start_time: Timestamp,
    pub id: ProjectId,
}

/// The next projects of a workspace behind `after`, newest first.
pub async fn next(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    after: Option<ProjectSummary>,
    limit: i64,
) -> Result<Vec<ProjectSummary>> {
    let mut query = Query::new(tx, "SELECT start_time, id FROM project WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    if let Some(after) = after {
        query.push(" AND start_time <= ").bind(Arg::Time(after.start_time));
        query.push(" AND (start_time < ").bind(Arg::Time(after.start_time));
        query.push(" OR id > ").bind(Arg::Uuid(after.id.0)).push(")");
    }
    query.push(" ORDER BY start_time DESC, id").limit(limit);
    query.fetch_all(tx).await
}

fn longer_than_a_name(part: &str) -> bool {
    part.chars().count() > LONGEST_PROJECT_NAME
}

/// Those of `ids` that are there.
pub async fn existing(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ProjectId]) -> Result<Vec<ProjectId>> {
    let text = sql!(tx,
        // Both pass lists as JSON text and differ only in parsing ids.
        sqlite: "SELECT id FROM project WHERE tenant_id = $1
                   AND id IN (SELECT unhex(replace(value, '-', '')) FROM json_each($2))",
        postgres: "SELECT id FROM project WHERE tenant_id = $1
                   AND id IN (SELECT value::uuid FROM json_array_elements_text($2::json))");
    let ids = id_list(ids.iter().map(|id| id.0));
    Ok(on!(tx, |conn| sqlx::query_scalar(text)
        .bind(tenant)
        .bind(ids)
        .fetch_all(conn)
        .await)?)
}

/// What changes of a project; `None` leaves it.
#[derive(Clone, Debug, Default)]
pub struct ProjectChange {
    pub name: Option<String>,
    pub description: Option<String>,
    /// A JSON object.
    pub extra: Option<Box<RawValue>>,
    pub end_time: Option<Timestamp>,
}

/// # Errors
/// [`Error::NotFound`], [`Error::Rejected`] for a bad name, [`Error::Conflict`] for a taken one.
pub async fn update(tx: &mut Tx<'_>, tenant: TenantId, id: ProjectId, change: &ProjectChange) -> Result<Project> {
    if let Some(name) = &change.name {
        check_project_name(name)?;
        if by_name(tx, tenant, name).await?.is_some_and(|other| other.id != id) {
            return Err(Error::Conflict {
                column: "project.name".to_owned(),
            });
        }
    }
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE project SET name = COALESCE($3, name), description = COALESCE($4, description),
                extra = COALESCE($5, extra), end_time = COALESCE($6, end_time)
         WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!(project)
    ),)
    .bind(tenant)
    .bind(id)
    .bind(&change.name)
    .bind(&change.description)
    .bind(change.extra.as_ref().map(|extra| extra.get()))
    .bind(change.end_time)
    .fetch_one(conn)
    .await)?)
}
