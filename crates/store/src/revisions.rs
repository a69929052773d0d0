//! Revisions of deployments. Every change of status is a compare-and-set along the transitions of the domain.

use towpath_domain::deployment::{EnvSecret, RevisionConfig, RevisionStatus, Source, SourceConfig};
use towpath_domain::{DeploymentId, JobId, RevisionId, TenantId, Timestamp};

use crate::query::{Arg, Query};
use crate::sealing::{OpenError, SealContext, Sealer};
use crate::{Error, Result, Tx};

/// Longest reason that is kept, in characters.
const LONGEST_ERROR: usize = 16_000;

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Revision {
    pub id: RevisionId,
    pub tenant_id: TenantId,
    pub deployment_id: DeploymentId,
    /// Its number; the first is 1.
    pub seq: i64,
    pub source: Source,
    pub status: RevisionStatus,
    /// JSON; read it with [`Revision::config`].
    pub config: String,
    /// JSON; read it with [`Revision::source_config`].
    pub source_config: String,
    /// Sealed; open them with [`Revision::secrets`].
    pub secrets: Option<Vec<u8>>,
    /// JSON array: which secrets are set.
    pub secret_names: String,
    /// The revision whose artifact it deploys again.
    pub redeploy_of: Option<RevisionId>,
    /// The job that performs it; absent if there was nothing to do.
    pub job_id: Option<JobId>,
    /// Why it failed.
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
}

impl Revision {
    pub fn config(&self) -> Result<RevisionConfig> {
        serde_json::from_str(&self.config).map_err(|_| Error::corrupt("revision", "config", self.id))
    }

    /// The deployment's configuration as it was when the revision was made.
    pub fn source_config(&self) -> Result<SourceConfig> {
        serde_json::from_str(&self.source_config).map_err(|_| Error::corrupt("revision", "source_config", self.id))
    }

    /// The names of its secrets, in their order.
    pub fn secret_names(&self) -> Result<Vec<String>> {
        serde_json::from_str(&self.secret_names).map_err(|_| Error::corrupt("revision", "secret_names", self.id))
    }

    /// Its secrets, opened.
    pub fn secrets(&self, sealer: &Sealer) -> Result<Vec<EnvSecret>, OpenError> {
        let Some(sealed) = &self.secrets else {
            return Ok(Vec::new());
        };
        let text = sealer.open(seal_context(self.tenant_id, self.id), sealed)?;
        serde_json::from_slice(&text).map_err(|_| OpenError::Malformed)
    }
}

/// Seals secrets for the row of `id`; `None` if there are none.
#[must_use]
#[expect(clippy::missing_panics_doc, reason = "the expectation cannot fail")]
pub fn seal(sealer: &Sealer, tenant: TenantId, id: RevisionId, secrets: &[EnvSecret]) -> Option<Vec<u8>> {
    if secrets.is_empty() {
        return None;
    }
    let text = zeroize::Zeroizing::new(serde_json::to_vec(secrets).expect("pairs of texts are JSON"));
    Some(sealer.seal(seal_context(tenant, id), &text))
}

fn seal_context(tenant: TenantId, id: RevisionId) -> SealContext<'static> {
    SealContext {
        tenant,
        table: "revision",
        column: "secrets",
        row: id.0,
    }
}

/// The fields of a new revision.
#[derive(Clone, Debug)]
pub struct NewRevision<'a> {
    /// Id; the secrets are sealed for it.
    pub id: RevisionId,
    pub deployment: DeploymentId,
    pub source: Source,
    /// Where it is: `CREATING`, `QUEUED` or `SKIPPED`.
    pub status: RevisionStatus,
    pub config: &'a RevisionConfig,
    /// The deployment's configuration.
    pub source_config: &'a SourceConfig,
    /// Sealed secrets.
    pub secrets: Option<Vec<u8>>,
    pub secret_names: Vec<&'a str>,
    /// The revision whose artifact it deploys again.
    pub redeploy_of: Option<RevisionId>,
    /// The job that performs it.
    pub job: Option<JobId>,
}

/// Records a revision under the next number. The caller holds the deployment.
pub async fn insert(tx: &mut Tx<'_>, tenant: TenantId, new: NewRevision<'_>) -> Result<Revision> {
    let now = tx.now();
    let config = serde_json::to_string(new.config).map_err(|_| Error::corrupt("revision", "config", new.id))?;
    let source_config =
        serde_json::to_string(new.source_config).map_err(|_| Error::corrupt("revision", "source_config", new.id))?;
    let names =
        serde_json::to_string(&new.secret_names).map_err(|_| Error::corrupt("revision", "secret_names", new.id))?;
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO revision (id, tenant_id, deployment_id, seq, source, status, config, source_config, secrets,
                               secret_names, redeploy_of, job_id, created_at, updated_at, finished_at)
         VALUES ($1, $2, $3, (SELECT COALESCE(max(seq), 0) + 1 FROM revision WHERE deployment_id = $3), $4, $5, $6, $7,
                 $8, $9, $10, $11, $12, $12, $13)
         RETURNING ",
        columns!(revision)
    ))
    .bind(new.id)
    .bind(tenant)
    .bind(new.deployment)
    .bind(new.source)
    .bind(new.status)
    .bind(config)
    .bind(source_config)
    .bind(new.secrets)
    .bind(names)
    .bind(new.redeploy_of)
    .bind(new.job)
    .bind(now)
    .bind(new.status.is_final().then_some(now))
    .fetch_one(conn)
    .await)?)
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: RevisionId) -> Result<Revision> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(revision),
        " FROM revision WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// One revision of a deployment.
pub async fn of(tx: &mut Tx<'_>, tenant: TenantId, deployment: DeploymentId, id: RevisionId) -> Result<Revision> {
    let revision = get(tx, tenant, id).await?;
    if revision.deployment_id == deployment {
        Ok(revision)
    } else {
        Err(Error::NotFound)
    }
}

/// Revisions of a deployment, newest first; with `statuses`, those that stand there.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    deployment: DeploymentId,
    statuses: Option<&[RevisionStatus]>,
    limit: i64,
    offset: i64,
) -> Result<Vec<Revision>> {
    let mut query = Query::new(
        tx,
        concat!("SELECT ", columns!(revision), " FROM revision WHERE tenant_id = "),
    );
    query.bind(Arg::Uuid(tenant.0)).push(" AND deployment_id = ");
    query.bind(Arg::Uuid(deployment.0));
    if let Some(statuses) = statuses {
        query.push(" AND ");
        query.any_of(
            "status",
            statuses.iter().map(|status| Arg::Text(status.as_str().to_owned())),
        );
    }
    query.push(" ORDER BY seq DESC").page(limit, offset);
    query.fetch_all(tx).await
}

/// The newest revisions of several deployments: what lists show beside them.
pub async fn many(tx: &mut Tx<'_>, tenant: TenantId, ids: &[RevisionId]) -> Result<Vec<Revision>> {
    let mut query = Query::new(
        tx,
        concat!("SELECT ", columns!(revision), " FROM revision WHERE tenant_id = "),
    );
    query.bind(Arg::Uuid(tenant.0)).push(" AND ");
    query.any_of("id", ids.iter().map(|id| Arg::Uuid(id.0)));
    query.fetch_all(tx).await
}

/// Revisions of a deployment that are not over, oldest first.
pub async fn open(tx: &mut Tx<'_>, tenant: TenantId, deployment: DeploymentId) -> Result<Vec<Revision>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(revision),
        " FROM revision WHERE tenant_id = $1 AND deployment_id = $2 AND finished_at IS NULL ORDER BY seq"
    ))
    .bind(tenant)
    .bind(deployment)
    .fetch_all(conn)
    .await)?)
}

/// Whether the deployment has a revision made after this one.
pub async fn newer_exists(tx: &mut Tx<'_>, tenant: TenantId, id: RevisionId) -> Result<bool> {
    let revision = get(tx, tenant, id).await?;
    let (newer,): (i64,) = on!(tx, |conn| sqlx::query_as(
        "SELECT count(*) FROM revision WHERE tenant_id = $1 AND deployment_id = $2 AND seq > $3"
    )
    .bind(tenant)
    .bind(revision.deployment_id)
    .bind(revision.seq)
    .fetch_one(conn)
    .await)?;
    Ok(newer > 0)
}

/// Moves a revision to another status. False if its current status does not allow it: it was interrupted, or it is
/// over.
pub async fn advance(tx: &mut Tx<'_>, tenant: TenantId, id: RevisionId, to: RevisionStatus) -> Result<bool> {
    finish(tx, tenant, id, to, None).await
}

/// Ends a revision as failed, with the status that fits. The reason is shown to the user; of a long one, the end is
/// kept. False if it is already over.
pub async fn fail(tx: &mut Tx<'_>, tenant: TenantId, id: RevisionId, reason: &str) -> Result<bool> {
    let to = get(tx, tenant, id).await?.status.failed();
    finish(tx, tenant, id, to, Some(reason)).await
}

/// Moves a revision on, with a reason.
pub async fn finish(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: RevisionId,
    to: RevisionStatus,
    reason: Option<&str>,
) -> Result<bool> {
    let from = get(tx, tenant, id).await?.status;
    if !from.may_become(to) {
        return Ok(false);
    }
    let now = tx.now();
    let changed = on!(tx, |conn| sqlx::query(
        "UPDATE revision SET status = $4, error = COALESCE($5, error), finished_at = $6, updated_at = $7
         WHERE tenant_id = $1 AND id = $2 AND status = $3"
    )
    .bind(tenant)
    .bind(id)
    .bind(from)
    .bind(to)
    .bind(reason.map(end_of))
    .bind(to.is_final().then_some(now))
    .bind(now)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// The end of a long text: the last lines of a log say most.
fn end_of(text: &str) -> String {
    let clean = text.replace('\0', "");
    let surplus = clean.chars().count().saturating_sub(LONGEST_ERROR);
    clean.chars().skip(surplus).collect()
}

/// Says which commit the revision's ref was found to be.
pub async fn resolved(tx: &mut Tx<'_>, tenant: TenantId, id: RevisionId, commit: &str) -> Result<()> {
    let config = RevisionConfig {
        repo_commit_sha: Some(commit.to_owned()),
        ..get(tx, tenant, id).await?.config()?
    };
    let text = serde_json::to_string(&config).map_err(|_| Error::corrupt("revision", "config", id))?;
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "UPDATE revision SET config = $3, updated_at = $4 WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .bind(text)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}
