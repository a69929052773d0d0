//! Source archives uploaded by clients: each upload is used once, under a token that allows nothing else.

use std::time::Duration;

use towpath_domain::{DeploymentId, TenantId, Timestamp, UploadId};

use crate::{Result, Tx};

/// How long a client may take between asking for an address and having sent the archive.
pub const PATIENCE: Duration = Duration::from_secs(60 * 60);

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct SourceUpload {
    pub id: UploadId,
    pub tenant_id: TenantId,
    pub deployment_id: DeploymentId,
    /// SHA-256 of its token.
    pub token: Vec<u8>,
    /// Its key in the platform's object store.
    pub path: String,
    /// Its size, once it is there.
    pub bytes: Option<i64>,
    /// When it was handed out.
    pub created_at: Timestamp,
    /// Until when it may be sent.
    pub expires_at: Timestamp,
    /// When it was there.
    pub uploaded_at: Option<Timestamp>,
    /// Since when no revision needs it.
    pub released_at: Option<Timestamp>,
}

/// Hands out an upload.
pub async fn insert(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: UploadId,
    deployment: DeploymentId,
    token: &[u8; 32],
    path: &str,
) -> Result<()> {
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO source_upload (id, tenant_id, deployment_id, token, path, created_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7)"
    )
    .bind(id)
    .bind(tenant)
    .bind(deployment)
    .bind(&token[..])
    .bind(path)
    .bind(now)
    .bind(now.plus(PATIENCE))
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// An upload that a caller sends: the token, checked next, says that they may.
pub async fn get_by_id(tx: &mut Tx<'_>, id: UploadId) -> Result<SourceUpload> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(source_upload),
        " FROM source_upload WHERE id = $1"
    ))
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// The archive is there. False when it was before.
pub async fn mark_uploaded(tx: &mut Tx<'_>, tenant: TenantId, id: UploadId, bytes: i64) -> Result<bool> {
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE source_upload SET bytes = $3, uploaded_at = $4
         WHERE tenant_id = $1 AND id = $2 AND uploaded_at IS NULL"
    )
    .bind(tenant)
    .bind(id)
    .bind(bytes)
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// The upload at that path, of this deployment.
///
/// # Errors
/// [`crate::Error::NotFound`]: it does not exist, belongs to another deployment, or was released.
pub async fn get_by_path(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    deployment: DeploymentId,
    path: &str,
) -> Result<SourceUpload> {
    if path.contains('\0') {
        return Err(crate::Error::NotFound); // PostgreSQL refuses the parameter itself.
    }
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(source_upload),
        " FROM source_upload WHERE tenant_id = $1 AND deployment_id = $2 AND path = $3 AND released_at IS NULL"
    ))
    .bind(tenant)
    .bind(deployment)
    .bind(path)
    .fetch_one(conn)
    .await)?)
}

/// The archives of a deployment: what is to be deleted with it.
pub async fn paths(tx: &mut Tx<'_>, tenant: TenantId, deployment: DeploymentId) -> Result<Vec<String>> {
    let rows: Vec<(String,)> = on!(tx, |conn| sqlx::query_as(
        "SELECT path FROM source_upload WHERE tenant_id = $1 AND deployment_id = $2 ORDER BY path"
    )
    .bind(tenant)
    .bind(deployment)
    .fetch_all(conn)
    .await)?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Unused uploads that expired before `before`: oldest first, at most `limit`.
pub async fn expired(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<Vec<SourceUpload>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(source_upload),
        " FROM source_upload WHERE uploaded_at IS NULL AND expires_at < $1 ORDER BY expires_at, id LIMIT $2"
    ))
    .bind(before)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Deletes an upload, unless it arrived meanwhile.
pub async fn delete_expired(tx: &mut Tx<'_>, tenant: TenantId, id: UploadId) -> Result<bool> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM source_upload WHERE tenant_id = $1 AND id = $2 AND uploaded_at IS NULL"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(gone == 1)
}

/// An archive that is there.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct UploadedArchive {
    pub id: UploadId,
    pub tenant_id: TenantId,
    /// Its key in the platform's object store.
    pub path: String,
}

/// Archives that arrived before `before` and were not released, after the id `after`, at most `limit`.
pub async fn uploaded_before(
    tx: &mut Tx<'_>,
    before: Timestamp,
    after: UploadId,
    limit: i64,
) -> Result<Vec<UploadedArchive>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, tenant_id, path FROM source_upload
         WHERE uploaded_at < $1 AND released_at IS NULL AND id > $2 ORDER BY id LIMIT $3"
    )
    .bind(before)
    .bind(after)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Archives that were released before `before`, the oldest first, at most `limit`.
pub async fn released_before(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<Vec<UploadedArchive>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT id, tenant_id, path FROM source_upload WHERE released_at < $1 ORDER BY released_at, id LIMIT $2"
    )
    .bind(before)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// Marks an archive as released: it cannot be requested any more.
pub async fn release(tx: &mut Tx<'_>, archive: &UploadedArchive) -> Result<()> {
    let now = tx.now();
    set_released_at(tx, archive, Some(now)).await
}

/// Marks a released archive as needed again.
pub async fn reclaim(tx: &mut Tx<'_>, archive: &UploadedArchive) -> Result<()> {
    set_released_at(tx, archive, None).await
}

async fn set_released_at(tx: &mut Tx<'_>, archive: &UploadedArchive, at: Option<Timestamp>) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "UPDATE source_upload SET released_at = $3 WHERE tenant_id = $1 AND id = $2"
    )
    .bind(archive.tenant_id)
    .bind(archive.id)
    .bind(at)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Deletes an archive that was released and is not there any more.
pub async fn delete_released(tx: &mut Tx<'_>, archive: &UploadedArchive) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "DELETE FROM source_upload WHERE tenant_id = $1 AND id = $2 AND released_at IS NOT NULL"
    )
    .bind(archive.tenant_id)
    .bind(archive.id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}
