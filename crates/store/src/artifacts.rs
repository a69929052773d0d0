//! Artifacts of revisions.

use std::collections::HashSet;

use towpath_domain::deployment::RevisionConfig;
use towpath_domain::{DeploymentId, RevisionId, TenantId};

use crate::{Result, Tx};

/// Those that serve, and of every deployment the `$1` that a revision used last.
macro_rules! kept {
    () => {
        "SELECT artifact FROM deployment_placement
         UNION
         SELECT artifact FROM (
             SELECT artifact, row_number() OVER (PARTITION BY deployment_id ORDER BY created_at DESC, revision_id DESC) AS n
             FROM (
                 SELECT artifact, deployment_id, created_at, revision_id, row_number() OVER (
                     PARTITION BY deployment_id, artifact ORDER BY created_at DESC, revision_id DESC) AS nth
                 FROM revision_artifact
             ) AS uses WHERE nth = 1
         ) AS newest WHERE n <= $1"
    };
}

/// Records what a revision was built into. Repeating it changes nothing.
pub async fn record(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    deployment: DeploymentId,
    revision: RevisionId,
    artifact: &str,
) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO revision_artifact (revision_id, tenant_id, deployment_id, artifact, created_at)
         VALUES ($1, $2, $3, $4, $5) ON CONFLICT (revision_id) DO UPDATE SET artifact = $4"
    )
    .bind(revision)
    .bind(tenant)
    .bind(deployment)
    .bind(artifact)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// The artifact of a revision, if it was built.
pub async fn for_revision(tx: &mut Tx<'_>, tenant: TenantId, revision: RevisionId) -> Result<Option<String>> {
    let found: Option<(String,)> = on!(tx, |conn| sqlx::query_as(
        "SELECT artifact FROM revision_artifact WHERE tenant_id = $1 AND revision_id = $2"
    )
    .bind(tenant)
    .bind(revision)
    .fetch_optional(conn)
    .await)?;
    Ok(found.map(|(artifact,)| artifact))
}

/// Says what pulls the image again that a revision was recorded with.
pub async fn pin_image(tx: &mut Tx<'_>, tenant: TenantId, revision: RevisionId, image: &str) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE revision_artifact SET image = $3 WHERE tenant_id = $1 AND revision_id = $2"
    )
    .bind(tenant)
    .bind(revision)
    .bind(image)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// The reference that pulls the image of a revision again, if known.
pub async fn image_of(tx: &mut Tx<'_>, tenant: TenantId, revision: RevisionId) -> Result<Option<String>> {
    let found: Option<(Option<String>,)> = on!(tx, |conn| sqlx::query_as(
        "SELECT image FROM revision_artifact WHERE tenant_id = $1 AND revision_id = $2"
    )
    .bind(tenant)
    .bind(revision)
    .fetch_optional(conn)
    .await)?;
    Ok(found.and_then(|(image,)| image))
}

/// The artifacts to keep: those in use, and per deployment the `each` that revisions used last. Revisions that share an
/// artifact count once.
pub async fn retained(tx: &mut Tx<'_>, each: i64) -> Result<Vec<String>> {
    let rows: Vec<(String,)> = on!(tx, |conn| sqlx::query_as(kept!()).bind(each).fetch_all(conn).await)?;
    Ok(rows.into_iter().map(|(artifact,)| artifact).collect())
}

/// Paths of the source archives that are still needed: by unfinished revisions, and by those whose artifact is kept.
pub async fn archives(tx: &mut Tx<'_>, each: i64) -> Result<HashSet<String>> {
    let rows: Vec<(RevisionId, String)> = on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT r.id, r.config FROM revision r LEFT JOIN revision_artifact a ON a.revision_id = r.id
         WHERE r.source = 'internal_source' AND (r.finished_at IS NULL OR a.artifact IN (",
        kept!(),
        "))"
    ))
    .bind(each)
    .fetch_all(conn)
    .await)?;
    let mut paths = HashSet::new();
    for (id, config) in rows {
        let config: RevisionConfig =
            serde_json::from_str(&config).map_err(|_| crate::Error::corrupt("revision", "config", id))?;
        paths.extend(config.source_tarball_path);
    }
    Ok(paths)
}

/// The artifacts that only this deployment's revisions were built into.
pub async fn exclusive_to(tx: &mut Tx<'_>, tenant: TenantId, deployment: DeploymentId) -> Result<Vec<String>> {
    let rows: Vec<(String,)> = on!(tx, |conn| sqlx::query_as(
        "SELECT DISTINCT artifact FROM revision_artifact AS own WHERE tenant_id = $1 AND deployment_id = $2
         AND NOT EXISTS (SELECT 1 FROM revision_artifact AS other
                         WHERE other.artifact = own.artifact AND other.deployment_id <> $2)"
    )
    .bind(tenant)
    .bind(deployment)
    .fetch_all(conn)
    .await)?;
    Ok(rows.into_iter().map(|(artifact,)| artifact).collect())
}
