//! Templates: what boxes are made with, under a name.

use towpath_domain::sandbox::TemplateResources;
use towpath_domain::{TemplateId, TenantId, Timestamp, VolumeId};
use uuid::Uuid;

use super::{from_json, to_json};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Template {
    pub id: TemplateId,
    pub tenant_id: TenantId,
    pub name: String,
    pub image: String,
    /// JSON; see [`Template::resources`].
    pub resources: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Template {
    /// What its boxes may use.
    pub fn resources(&self) -> Result<TemplateResources> {
        from_json(&self.resources, "sandbox_template", "resources", &self.id)
    }
}

/// Records a template.
///
/// # Errors
/// [`Error::Conflict`] if the name is taken.
pub async fn insert(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    name: &str,
    image: &str,
    resources: &TemplateResources,
) -> Result<Template> {
    let (id, now) = (TemplateId::new(), tx.now());
    let resources = to_json(resources, "sandbox_template", "resources", &id)?;
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO sandbox_template (id, tenant_id, name, image, resources, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $6) RETURNING ",
        columns!(sandbox_template)
    ))
    .bind(id)
    .bind(tenant)
    .bind(name)
    .bind(image)
    .bind(resources)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// The template of this name or id.
pub async fn find(tx: &mut Tx<'_>, tenant: TenantId, reference: &str) -> Result<Template> {
    if reference.contains('\0') {
        return Err(Error::NotFound); // PostgreSQL refuses the parameter itself.
    }
    let id = reference.parse::<Uuid>().ok();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_template),
        " FROM sandbox_template WHERE tenant_id = $1 AND (name = $2 OR id = $3)"
    ))
    .bind(tenant)
    .bind(reference)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: TemplateId) -> Result<Template> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(sandbox_template),
        " FROM sandbox_template WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// Holds a template until the transaction ends: it is not deleted meanwhile. Others may hold it, too.
pub async fn hold(tx: &mut Tx<'_>, tenant: TenantId, id: TemplateId) -> Result<()> {
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: "SELECT id FROM sandbox_template WHERE tenant_id = $1 AND id = $2",
        postgres: "SELECT id FROM sandbox_template WHERE tenant_id = $1 AND id = $2 FOR KEY SHARE");
    let _: TemplateId = on!(tx, |conn| sqlx::query_scalar(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?;
    Ok(())
}

/// How many templates a workspace has.
pub async fn count(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM sandbox_template WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?)
}

/// Templates by name.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    name_contains: Option<&str>,
    limit: i64,
    offset: i64,
) -> Result<Vec<Template>> {
    if name_contains.is_some_and(|part| part.contains('\0')) {
        return Ok(Vec::new()); // PostgreSQL refuses the parameter itself.
    }
    let mut query = Query::new(tx, "SELECT ");
    query
        .push(columns!(sandbox_template))
        .push(" FROM sandbox_template WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    if let Some(part) = name_contains {
        query.push(" AND ").has_part("name", part);
    }
    query.push(" ORDER BY name").page(limit, offset);
    query.fetch_all(tx).await
}

/// Renames a template.
///
/// # Errors
/// [`Error::Conflict`] if the name is taken.
pub async fn rename(tx: &mut Tx<'_>, tenant: TenantId, id: TemplateId, name: &str) -> Result<Template> {
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE sandbox_template SET name = $3, updated_at = $4 WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!(sandbox_template)
    ))
    .bind(tenant)
    .bind(id)
    .bind(name)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Names of what uses a template: pools, then boxes that are not being removed.
async fn users(tx: &mut Tx<'_>, tenant: TenantId, id: TemplateId) -> Result<Vec<(String, String)>> {
    Ok(on!(tx, |conn| {
        sqlx::query_as(
        "SELECT 'pool' AS kind, name FROM sandbox_pool WHERE tenant_id = $1 AND template_id = $2
         UNION ALL SELECT 'box' AS kind, name FROM sandbox_box WHERE tenant_id = $1 AND template_id = $2 AND status <> 'deleting'
         ORDER BY 1 DESC, 2 LIMIT 20"
    )
    .bind(tenant)
    .bind(id)
    .fetch_all(conn)
    .await
    })?)
}

/// Deletes a template, unless something uses it: returns the kinds and names of its users. Boxes that are being removed
/// let go of it.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, id: TemplateId) -> Result<Vec<(String, String)>> {
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: "SELECT id FROM sandbox_template WHERE tenant_id = $1 AND id = $2",
        // Waits for those that hold it, so that the users of a transaction in progress are seen.
        postgres: "SELECT id FROM sandbox_template WHERE tenant_id = $1 AND id = $2 FOR UPDATE");
    let _: TemplateId = on!(tx, |conn| sqlx::query_scalar(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?;
    let users = users(tx, tenant, id).await?;
    if !users.is_empty() {
        return Ok(users);
    }
    on!(tx, |conn| sqlx::query(
        "UPDATE sandbox_box SET template_id = NULL WHERE tenant_id = $1 AND template_id = $2 AND status = 'deleting'"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    on!(tx, |conn| sqlx::query(
        "DELETE FROM sandbox_template WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(users)
}

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct TemplateVolume {
    pub template_id: TemplateId,
    pub volume_id: VolumeId,
    pub volume_name: String,
    /// Where it is in boxes of the template.
    pub mount_path: String,
}

/// Names a volume in a template. The caller has locked the volume.
pub async fn add_volume(tx: &mut Tx<'_>, id: TemplateId, volume: VolumeId, mount_path: &str) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "INSERT INTO sandbox_template_volume (template_id, volume_id, mount_path) VALUES ($1, $2, $3)"
    )
    .bind(id)
    .bind(volume)
    .bind(mount_path)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// The volumes of these templates.
pub async fn volumes_of(tx: &mut Tx<'_>, templates: &[TemplateId]) -> Result<Vec<TemplateVolume>> {
    if templates.is_empty() {
        return Ok(Vec::new());
    }
    let mut query = Query::new(
        tx,
        "SELECT m.template_id, m.volume_id, v.name AS volume_name, m.mount_path
         FROM sandbox_template_volume m JOIN sandbox_volume v ON v.id = m.volume_id WHERE ",
    );
    query.any_of("m.template_id", templates.iter().map(|id| Arg::Uuid(id.0)));
    query.push(" ORDER BY m.template_id, m.mount_path");
    query.fetch_all(tx).await
}
