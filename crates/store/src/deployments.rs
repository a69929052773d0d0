//! Deployments and their states. Revisions are in [`crate::revisions`].

pub mod overview;

use towpath_domain::deployment::{DeploymentStatus, DeploymentType, Source, SourceConfig, repo_key};
use towpath_domain::{DeploymentId, OrganizationId, ProjectId, RevisionId, TenantId, Timestamp};
use uuid::Uuid;

use crate::query::{Arg, Query};
use crate::{Conn, Error, Result, Tx};

/// Held while a caller checks whether another workspace has deployments, until its own is recorded.
const FIRST_WORKSPACE: i64 = 0x746f_7770_6174_6801;

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Deployment {
    pub id: DeploymentId,
    pub tenant_id: TenantId,
    /// Unique in the workspace.
    pub name: String,
    pub source: Source,
    /// JSON; read it with [`Deployment::config`].
    pub source_config: String,
    pub status: DeploymentStatus,
    /// The newest revision.
    pub latest_revision_id: Option<RevisionId>,
    /// The revision that has the traffic.
    pub active_revision_id: Option<RevisionId>,
    /// Its tracing project.
    pub project_id: ProjectId,
    /// Whether the tracing project goes with it.
    pub delete_tracing_project: bool,
    pub image_version: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Deployment {
    pub fn config(&self) -> Result<SourceConfig> {
        serde_json::from_str(&self.source_config).map_err(|_| Error::corrupt("deployment", "source_config", self.id))
    }
}

const COLUMNS: &str = "id, tenant_id, name, source, source_config, status, latest_revision_id, active_revision_id,
    project_id, delete_tracing_project, image_version, created_at, updated_at";

/// The fields of a new deployment.
#[derive(Clone, Debug)]
pub struct NewDeployment<'a> {
    pub id: DeploymentId,
    pub name: &'a str,
    pub source: Source,
    pub config: &'a SourceConfig,
    /// Its tracing project.
    pub project: ProjectId,
}

/// Records a deployment as `AWAITING_DATABASE`, without a revision.
///
/// # Errors
/// [`Error::Conflict`] naming `deployment.name` if the name is taken in the workspace.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: &NewDeployment<'_>) -> Result<()> {
    let now = tx.now();
    let config = encode_config(new.id, new.config)?;
    on!(tx, |conn| sqlx::query(
        "INSERT INTO deployment (id, tenant_id, name, source, source_config, deployment_type, status, project_id,
                                 repo_key, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, 'AWAITING_DATABASE', $7, $8, $9, $9)"
    )
    .bind(new.id)
    .bind(tenant)
    .bind(new.name)
    .bind(new.source)
    .bind(config)
    .bind(new.config.deployment_type)
    .bind(new.project)
    .bind(new.config.repo_url.as_deref().and_then(repo_key))
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

fn encode_config(id: DeploymentId, config: &SourceConfig) -> Result<String> {
    serde_json::to_string(config).map_err(|_| Error::corrupt("deployment", "source_config", id))
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: DeploymentId) -> Result<Deployment> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, tenant_id, name, source, source_config, status, latest_revision_id, active_revision_id, project_id,
                delete_tracing_project, image_version, created_at, updated_at
         FROM deployment WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// Locks a deployment until the transaction ends, against changes and new revisions.
pub async fn lock(tx: &mut Tx<'_>, tenant: TenantId, id: DeploymentId) -> Result<Deployment> {
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: "SELECT id, tenant_id, name, source, source_config, status, latest_revision_id, active_revision_id,
                        project_id, delete_tracing_project, image_version, created_at, updated_at
                 FROM deployment WHERE tenant_id = $1 AND id = $2",
        postgres: "SELECT id, tenant_id, name, source, source_config, status, latest_revision_id, active_revision_id,
                          project_id, delete_tracing_project, image_version, created_at, updated_at
                   FROM deployment WHERE tenant_id = $1 AND id = $2 FOR UPDATE");
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?)
}

/// Which deployments are asked for.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of exactly this name.
    pub name: Option<String>,
    /// With this in the name, in any case.
    pub name_contains: Option<String>,
    pub status: Option<DeploymentStatus>,
    pub deployment_type: Option<DeploymentType>,
    pub image_version: Option<String>,
    pub ids: Option<Vec<DeploymentId>>,
}

/// Deployments, newest first.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    filter: &Filter,
    limit: i64,
    offset: i64,
) -> Result<Vec<Deployment>> {
    let texts = [&filter.name, &filter.name_contains, &filter.image_version];
    if texts.into_iter().flatten().any(|text| text.contains('\0')) {
        return Ok(Vec::new()); // PostgreSQL refuses the parameter itself.
    }
    let mut query = Query::new(tx, "SELECT ");
    query.push(COLUMNS).push(" FROM deployment WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    if let Some(name) = &filter.name {
        query.push(" AND name = ").bind(Arg::Text(name.clone()));
    }
    if let Some(part) = &filter.name_contains {
        let pattern: String = part
            .to_lowercase()
            .chars()
            .flat_map(|letter| {
                ['\\']
                    .into_iter()
                    .filter(move |_| "%_\\".contains(letter))
                    .chain([letter])
            })
            .collect();
        query.push(" AND lower(name) LIKE ");
        query.bind(Arg::Text(format!("%{pattern}%"))).push(" ESCAPE '\\'");
    }
    if let Some(status) = filter.status {
        query.push(" AND status = ").bind(Arg::Text(status.as_str().to_owned()));
    }
    if let Some(kind) = filter.deployment_type {
        query
            .push(" AND deployment_type = ")
            .bind(Arg::Text(kind.as_str().to_owned()));
    }
    if let Some(version) = &filter.image_version {
        query.push(" AND image_version = ").bind(Arg::Text(version.clone()));
    }
    if let Some(ids) = &filter.ids {
        query.push(" AND ");
        query.any_of("id", ids.iter().map(|id| Arg::Uuid(id.0)));
    }
    query.push(" ORDER BY created_at DESC, id DESC").page(limit, offset);
    query.fetch_all(tx).await
}

/// Deployments of a repository that want a revision for a push to `branch`.
pub async fn of_repo(tx: &mut Tx<'_>, tenant: TenantId, keys: &[String]) -> Result<Vec<Deployment>> {
    let mut query = Query::new(tx, "SELECT ");
    query.push(COLUMNS).push(" FROM deployment WHERE tenant_id = ");
    query
        .bind(Arg::Uuid(tenant.0))
        .push(" AND status <> 'AWAITING_DELETE' AND ");
    query.any_of(
        "repo_key",
        keys.iter()
            .filter(|key| !key.contains('\0'))
            .map(|key| Arg::Text(key.clone())),
    );
    query.push(" ORDER BY created_at, id");
    query.fetch_all(tx).await
}

/// A deployment as the gateway meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct GatewayDeployment {
    pub id: DeploymentId,
    pub tenant_id: TenantId,
    /// The organisation that owns the workspace.
    pub organization_id: OrganizationId,
}

/// The deployment of that id, or of that name if it is unique: first in the caller's workspaces, then in all,
/// optionally within one organisation.
pub async fn find(
    tx: &mut Tx<'_>,
    id_or_name: &str,
    organization: Option<OrganizationId>,
    workspaces: &[TenantId],
) -> Result<GatewayDeployment> {
    if id_or_name.contains('\0') {
        return Err(Error::NotFound); // PostgreSQL refuses the parameter itself.
    }
    let mut query = Query::new(
        tx,
        "SELECT deployment.id, deployment.tenant_id, workspace.organization_id
         FROM deployment JOIN workspace ON workspace.id = deployment.tenant_id WHERE ",
    );
    match id_or_name.parse::<Uuid>() {
        Ok(id) => query.push("deployment.id = ").bind(Arg::Uuid(id)),
        Err(_) => query.push("deployment.name = ").bind(Arg::Text(id_or_name.to_owned())),
    };
    if let Some(organization) = organization {
        query
            .push(" AND workspace.organization_id = ")
            .bind(Arg::Uuid(organization.0));
    }
    let found: Vec<GatewayDeployment> = query.fetch_all(tx).await?;
    let mut own = found.iter().filter(|found| workspaces.contains(&found.tenant_id));
    if let (Some(one), None) = (own.next(), own.next()) {
        return Ok(*one);
    }
    match found[..] {
        [one] => Ok(one),
        // Of two with one name no one knows which is meant; their ids say it.
        _ => Err(Error::NotFound),
    }
}

/// Whether a deployment's code judges its callers; not if there is no such deployment.
pub async fn has_own_auth(tx: &mut Tx<'_>, id: DeploymentId) -> Result<bool> {
    let text: Option<String> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT source_config FROM deployment WHERE id = $1"
    )
    .bind(id)
    .fetch_optional(conn)
    .await)?;
    let Some(text) = text else { return Ok(false) };
    let config: SourceConfig =
        serde_json::from_str(&text).map_err(|_| Error::corrupt("deployment", "source_config", id))?;
    Ok(config.own_auth == Some(true))
}

/// Writes the configuration again.
pub async fn configure(tx: &mut Tx<'_>, tenant: TenantId, id: DeploymentId, config: &SourceConfig) -> Result<()> {
    let now = tx.now();
    let text = encode_config(id, config)?;
    changed(on!(tx, |conn| sqlx::query(
        "UPDATE deployment SET source_config = $3, updated_at = $4 WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .bind(text)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// Keeps what the client says it has packed.
pub async fn track(tx: &mut Tx<'_>, tenant: TenantId, id: DeploymentId, packages: &[String]) -> Result<()> {
    let text = serde_json::to_string(packages).map_err(|_| Error::corrupt("deployment", "tracked_packages", id))?;
    changed(on!(tx, |conn| sqlx::query(
        "UPDATE deployment SET tracked_packages = $3 WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .bind(text)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// Says which revision is the newest.
pub async fn latest(tx: &mut Tx<'_>, tenant: TenantId, id: DeploymentId, revision: RevisionId) -> Result<()> {
    let now = tx.now();
    changed(on!(tx, |conn| sqlx::query(
        "UPDATE deployment SET latest_revision_id = $3, updated_at = $4 WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .bind(revision)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// `AWAITING_DATABASE` → `READY`. True if this call made the change.
pub async fn ready(tx: &mut Tx<'_>, tenant: TenantId, id: DeploymentId) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE deployment SET status = 'READY', updated_at = $3
         WHERE tenant_id = $1 AND id = $2 AND status = 'AWAITING_DATABASE'"
    )
    .bind(tenant)
    .bind(id)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Gives the traffic to a revision. False when the deployment is being deleted.
pub async fn activate(tx: &mut Tx<'_>, tenant: TenantId, id: DeploymentId, revision: RevisionId) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE deployment SET active_revision_id = $3, updated_at = $4
         WHERE tenant_id = $1 AND id = $2 AND status <> 'AWAITING_DELETE'"
    )
    .bind(tenant)
    .bind(id)
    .bind(revision)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// → `AWAITING_DELETE`. False when it is there already.
pub async fn deleting(tx: &mut Tx<'_>, tenant: TenantId, id: DeploymentId, delete_project: bool) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE deployment SET status = 'AWAITING_DELETE', delete_tracing_project = $3, updated_at = $4
         WHERE tenant_id = $1 AND id = $2 AND status <> 'AWAITING_DELETE'"
    )
    .bind(tenant)
    .bind(id)
    .bind(delete_project)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// Deletes a deployment that is torn down, with its revisions, logs and uploads. False if it is gone already.
pub async fn forget(tx: &mut Tx<'_>, tenant: TenantId, id: DeploymentId) -> Result<bool> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM deployment WHERE tenant_id = $1 AND id = $2 AND status = 'AWAITING_DELETE'"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(gone == 1)
}

/// Whether another workspace has a deployment. Transactions that ask are serialized, so each sees what the previous one
/// recorded.
pub async fn others_have(tx: &mut Tx<'_>, tenant: TenantId) -> Result<bool> {
    // SQLite has one writer.
    if let Conn::Postgres(conn) = tx.conn() {
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(FIRST_WORKSPACE)
            .execute(conn)
            .await
            .map(drop)?;
    }
    let found: Option<DeploymentId> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT id FROM deployment WHERE tenant_id <> $1 LIMIT 1"
    )
    .bind(tenant)
    .fetch_optional(conn)
    .await)?;
    Ok(found.is_some())
}

/// Names of deployments with their ids, of every workspace but the one that had the first.
pub async fn of_later_workspaces(tx: &mut Tx<'_>, most: i64) -> Result<Vec<(DeploymentId, String)>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, name FROM deployment
         WHERE tenant_id <> (SELECT tenant_id FROM deployment ORDER BY created_at, id LIMIT 1)
         ORDER BY created_at, id LIMIT $1"
    )
    .bind(most)
    .fetch_all(conn)
    .await)?)
}

fn changed(rows: u64) -> Result<()> {
    if rows == 1 { Ok(()) } else { Err(Error::NotFound) }
}
