//! Destinations of bulk exports.

use towpath_domain::export::{Credentials, DestinationConfig, DestinationKind};
use towpath_domain::{DestinationId, TenantId, Timestamp};

use crate::sealing::{OpenError, SealContext, Sealer};
use crate::{Error, Result, Tx};

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Destination {
    pub id: DestinationId,
    pub tenant_id: TenantId,
    pub destination_type: DestinationKind,
    pub display_name: String,
    /// JSON; read it with [`Destination::config`].
    pub config: String,
    /// Sealed; open them with [`Destination::credentials`].
    pub credentials: Option<Vec<u8>>,
    /// JSON array: which credentials are set.
    pub credentials_keys: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Destination {
    pub fn config(&self) -> Result<DestinationConfig> {
        serde_json::from_str(&self.config).map_err(|_| Error::corrupt("destination", "config", self.id))
    }

    /// The names of the credentials that are set.
    pub fn credentials_keys(&self) -> Result<Vec<String>> {
        serde_json::from_str(&self.credentials_keys)
            .map_err(|_| Error::corrupt("destination", "credentials_keys", self.id))
    }

    /// The credentials, opened; `None` where those of the environment are to be used.
    pub fn credentials(&self, sealer: &Sealer) -> Result<Option<Credentials>, OpenError> {
        let Some(sealed) = &self.credentials else {
            return Ok(None);
        };
        let text = sealer.open(seal_context(self.tenant_id, self.id), sealed)?;
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|_| OpenError::Malformed)
    }
}

/// Seals credentials for the row of `id`.
#[must_use]
#[expect(clippy::missing_panics_doc, reason = "the expectation cannot fail")]
pub fn seal(sealer: &Sealer, tenant: TenantId, id: DestinationId, credentials: &Credentials) -> Vec<u8> {
    let text = zeroize::Zeroizing::new(serde_json::to_vec(credentials).expect("three texts are JSON"));
    sealer.seal(seal_context(tenant, id), &text)
}

fn seal_context(tenant: TenantId, id: DestinationId) -> SealContext<'static> {
    SealContext {
        tenant,
        table: "destination",
        column: "credentials",
        row: id.0,
    }
}

/// The fields of a new destination.
#[derive(Clone, Debug)]
pub struct NewDestination<'a> {
    /// Id; the credentials are sealed for it.
    pub id: DestinationId,
    pub kind: DestinationKind,
    pub display_name: &'a str,
    pub config: &'a DestinationConfig,
    /// Sealed credentials and the names of what is in them.
    pub credentials: Option<(Vec<u8>, Vec<&'static str>)>,
}

/// Records a destination.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: NewDestination<'_>) -> Result<Destination> {
    let now = tx.now();
    let config = serde_json::to_string(new.config).map_err(|_| Error::corrupt("destination", "config", new.id))?;
    let (credentials, keys) = new.credentials.unzip();
    let keys = serde_json::to_string(&keys.unwrap_or_default())
        .map_err(|_| Error::corrupt("destination", "credentials_keys", new.id))?;
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO destination (id, tenant_id, destination_type, display_name, config, credentials,
                                  credentials_keys, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8) RETURNING ",
        columns!(destination)
    ))
    .bind(new.id)
    .bind(tenant)
    .bind(new.kind)
    .bind(new.display_name)
    .bind(config)
    .bind(credentials)
    .bind(keys)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: DestinationId) -> Result<Destination> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(destination),
        " FROM destination WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// Destinations, newest first.
pub async fn list(tx: &mut Tx<'_>, tenant: TenantId, limit: i64, offset: i64) -> Result<Vec<Destination>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(destination),
        " FROM destination WHERE tenant_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2 + 0 OFFSET $3"
    ))
    .bind(tenant)
    .bind(limit)
    .bind(offset)
    .fetch_all(conn)
    .await)?)
}

/// Gives a destination another name or other credentials; `None` leaves what is there.
pub async fn update(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: DestinationId,
    display_name: Option<&str>,
    credentials: Option<(Vec<u8>, Vec<&'static str>)>,
) -> Result<Destination> {
    let now = tx.now();
    let (sealed, keys) = credentials.unzip();
    let keys = keys
        .map(|keys| serde_json::to_string(&keys))
        .transpose()
        .map_err(|_| Error::corrupt("destination", "credentials_keys", id))?;
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE destination SET display_name = COALESCE($3, display_name), credentials = COALESCE($4, credentials),
                                credentials_keys = COALESCE($5, credentials_keys), updated_at = $6
         WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!(destination)
    ))
    .bind(tenant)
    .bind(id)
    .bind(display_name)
    .bind(sealed)
    .bind(keys)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Prevents a destination from being deleted until the transaction ends.
pub async fn hold(tx: &mut Tx<'_>, tenant: TenantId, id: DestinationId) -> Result<()> {
    let text = sql!(tx,
        // SQLite has one writer.
        sqlite: "SELECT id FROM destination WHERE tenant_id = $1 AND id = $2",
        postgres: "SELECT id FROM destination WHERE tenant_id = $1 AND id = $2 FOR SHARE");
    let _: DestinationId = on!(tx, |conn| sqlx::query_scalar(text)
        .bind(tenant)
        .bind(id)
        .fetch_one(conn)
        .await)?;
    Ok(())
}

/// Removes a destination with its credentials. Exports to it keep its id.
pub async fn remove(tx: &mut Tx<'_>, tenant: TenantId, id: DestinationId) -> Result<()> {
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM destination WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 1 { Ok(()) } else { Err(Error::NotFound) }
}

/// A destination in the view of operators.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Overview {
    pub id: DestinationId,
    pub tenant_id: TenantId,
    pub destination_type: DestinationKind,
    pub display_name: String,
    pub created_at: Timestamp,
    /// Exports to it that are not over.
    pub exports: i64,
    /// Schedules of exports to it.
    pub schedules: i64,
}

/// Destinations of all workspaces older than `before` (ids are ordered by time), newest first.
pub async fn overview(tx: &mut Tx<'_>, before: Option<DestinationId>, limit: i64) -> Result<Vec<Overview>> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT d.id, d.tenant_id, d.destination_type, d.display_name, d.created_at,
                (SELECT count(*) FROM export e WHERE e.destination_id = d.id AND e.finished_at IS NULL) AS exports,
                (SELECT count(*) FROM scheduled_export s
                 WHERE s.tenant_id = d.tenant_id AND s.destination_id = d.id AND s.status = 'RUNNING') AS schedules
         FROM destination d WHERE $1 IS NULL OR d.id < $1 ORDER BY d.id DESC LIMIT $2 + 0"
    )
    .bind(before)
    .bind(limit)
    .fetch_all(conn)
    .await)?)
}

/// The owner of a destination.
pub async fn owner(tx: &mut Tx<'_>, id: DestinationId) -> Result<Option<TenantId>> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT tenant_id FROM destination WHERE id = $1"
    )
    .bind(id)
    .fetch_optional(conn)
    .await)?)
}
