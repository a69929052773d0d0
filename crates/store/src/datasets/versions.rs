//! Versions of a dataset: one for each change of its examples, named by its time.

use std::collections::{BTreeSet, HashMap};

use towpath_domain::dataset::{MAX_TIME, MIN_TIME, check_label};
use towpath_domain::{DatasetId, ExampleId, Rejection, TenantId, Timestamp};

use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Rows of examples that a dataset may have, those of earlier versions too.
const MAX_ROWS: i64 = 1_000_000;
/// Tags of one dataset.
const MAX_TAGS: i64 = 10_000;
/// The tag that always names the newest version.
const LATEST_TAG: &str = "latest";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AsOf {
    /// The newest one at that time.
    Time(Timestamp),
    Tag(String),
}

impl AsOf {
    /// A time where the text is one, else a tag.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        // PostgreSQL keeps no time that is further away.
        let near = |time: Timestamp| Self::Time(time.clamp(MIN_TIME, MAX_TIME));
        Timestamp::parse(text).map_or_else(|_| Self::Tag(text.to_owned()), near)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// When the dataset became so.
    pub as_of: Timestamp,
    /// Its tags; the newest one has `latest`.
    pub tags: Vec<String>,
}

/// A dataset whose examples are being changed: the next version, and what the dataset has then.
pub(super) struct VersionDraft {
    tenant: TenantId,
    dataset: DatasetId,
    /// The version that is made.
    pub(super) at: Timestamp,
    /// The newest version so far.
    last: Timestamp,
    examples: i64,
    rows: i64,
    bytes: i64,
}

impl VersionDraft {
    /// Locks a dataset until the transaction ends.
    pub(super) async fn lock(tx: &mut Tx<'_>, tenant: TenantId, dataset: DatasetId) -> Result<Self> {
        let text = sql!(tx,
            // SQLite has one writer, so no other caller can hold the row.
            sqlite: "SELECT version_at, example_count, stored_rows, stored_bytes FROM dataset
                     WHERE tenant_id = $1 AND id = $2",
            postgres: "SELECT version_at, example_count, stored_rows, stored_bytes FROM dataset
                       WHERE tenant_id = $1 AND id = $2 FOR UPDATE");
        let (last, examples, rows, bytes): (Timestamp, i64, i64, i64) = on!(tx, |conn| sqlx::query_as(text)
            .bind(tenant)
            .bind(dataset)
            .fetch_one(conn)
            .await)?;
        // Versions of a dataset are told apart by their times, and clocks may stand still or go back.
        let at = tx.now().max(Timestamp::from_micros(last.micros() + 1));
        Ok(Self {
            tenant,
            dataset,
            at,
            last,
            examples,
            rows,
            bytes,
        })
    }

    /// Counts rows that come or go.
    pub(super) const fn add_counts(&mut self, examples: i64, rows: i64, bytes: i64) {
        self.examples += examples;
        self.rows += rows;
        self.bytes += bytes;
    }

    /// Makes the version.
    pub(super) async fn commit(self, tx: &mut Tx<'_>) -> Result<Timestamp> {
        if self.rows > MAX_ROWS {
            let text = format!(
                "the dataset would have more than {MAX_ROWS} rows, counting those of earlier versions: delete examples \
                 with hard_delete, or use another dataset"
            );
            return Err(Rejection::rule("", text).into());
        }
        on!(tx, |conn| {
            sqlx::query(
            "UPDATE dataset SET version_at = $3, modified_at = $3, example_count = $4, stored_rows = $5, stored_bytes = $6
             WHERE tenant_id = $1 AND id = $2"
        )
        .bind(self.tenant)
        .bind(self.dataset)
        .bind(self.at)
        .bind(self.examples)
        .bind(self.rows)
        .bind(self.bytes)
        .execute(conn)
        .await
        .map(drop)
        })?;
        record(tx, self.tenant, self.dataset, self.at).await?;
        // One that was made by deleting examples for good holds no difference, and is not the newest any more.
        prune(tx, self.tenant, self.dataset, self.at, &BTreeSet::from([self.last])).await?;
        Ok(self.at)
    }

    /// Removes those of the versions `times` that hold no difference any more.
    pub(super) async fn prune(&self, tx: &mut Tx<'_>, times: &BTreeSet<Timestamp>) -> Result<()> {
        prune(tx, self.tenant, self.dataset, self.at, times).await
    }

    /// Writes what was counted, without a version: for a dataset on its way out.
    pub(super) async fn save_counts(self, tx: &mut Tx<'_>) -> Result<()> {
        on!(tx, |conn| {
            sqlx::query(
            "UPDATE dataset SET example_count = $3, stored_rows = $4, stored_bytes = $5 WHERE tenant_id = $1 AND id = $2"
        )
        .bind(self.tenant)
        .bind(self.dataset)
        .bind(self.examples)
        .bind(self.rows)
        .bind(self.bytes)
        .execute(conn)
        .await
        .map(drop)
        })?;
        Ok(())
    }
}

pub(super) async fn record(tx: &mut Tx<'_>, tenant: TenantId, dataset: DatasetId, at: Timestamp) -> Result<()> {
    on!(tx, |conn| sqlx::query(
        "INSERT INTO dataset_version (tenant_id, dataset_id, as_of) VALUES ($1, $2, $3)"
    )
    .bind(tenant)
    .bind(dataset)
    .bind(at)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Removes those of the versions `times` that are the same as the ones before them, have no tag, and are neither the
/// first version nor `newest`. So a dataset has at most two versions for each row of its examples, and its tags.
async fn prune(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    newest: Timestamp,
    times: &BTreeSet<Timestamp>,
) -> Result<()> {
    let times: Vec<Timestamp> = times.iter().copied().collect();
    for times in times.chunks(super::MAX_STATEMENT_ROWS) {
        let mut query = Query::new(tx, "DELETE FROM dataset_version WHERE tenant_id = ");
        query.bind(Arg::Uuid(tenant.0));
        query.push(" AND dataset_id = ").bind(Arg::Uuid(dataset.0));
        query
            .push(" AND ")
            .any_of("as_of", times.iter().map(|at| Arg::Time(*at)));
        query.push(" AND as_of < ").bind(Arg::Time(newest));
        query.push(
            " AND as_of > (SELECT d.created_at FROM dataset d
                           WHERE d.tenant_id = dataset_version.tenant_id AND d.id = dataset_version.dataset_id)
              AND as_of NOT IN (SELECT t.as_of FROM dataset_tag t WHERE t.tenant_id = dataset_version.tenant_id
                                AND t.dataset_id = dataset_version.dataset_id)
              AND NOT EXISTS (SELECT 1 FROM example e WHERE e.tenant_id = dataset_version.tenant_id
                              AND e.dataset_id = dataset_version.dataset_id AND e.valid_from = dataset_version.as_of)
              AND NOT EXISTS (SELECT 1 FROM example e WHERE e.tenant_id = dataset_version.tenant_id
                              AND e.dataset_id = dataset_version.dataset_id AND e.valid_until = dataset_version.as_of)",
        );
        query.execute(tx).await?;
    }
    Ok(())
}

/// The time of a version. A time resolves to itself, even between two versions or before the first one.
pub async fn resolve(tx: &mut Tx<'_>, tenant: TenantId, dataset: DatasetId, as_of: &AsOf) -> Result<Timestamp> {
    let tag = match as_of {
        AsOf::Time(time) => return Ok(*time),
        AsOf::Tag(tag) if tag == LATEST_TAG => return Ok(super::get(tx, tenant, dataset).await?.version_at),
        AsOf::Tag(tag) if tag.contains('\0') => return Err(Error::NotFound),
        AsOf::Tag(tag) => tag,
    };
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT as_of FROM dataset_tag WHERE tenant_id = $1 AND dataset_id = $2 AND tag = $3"
    )
    .bind(tenant)
    .bind(dataset)
    .bind(tag)
    .fetch_one(conn)
    .await)?)
}

/// # Errors
/// [`Error::NotFound`] if there is no such dataset or tag, or the dataset did not exist yet.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, dataset: DatasetId, as_of: &AsOf) -> Result<Version> {
    let at = resolve(tx, tenant, dataset, as_of).await?;
    let found: Option<Timestamp> = on!(tx, |conn| sqlx::query_scalar(
        "SELECT max(as_of) FROM dataset_version WHERE tenant_id = $1 AND dataset_id = $2 AND as_of <= $3"
    )
    .bind(tenant)
    .bind(dataset)
    .bind(at)
    .fetch_one(conn)
    .await)?;
    let found = found.ok_or(Error::NotFound)?;
    let tagged = with_tags(tx, tenant, dataset, vec![found]).await?;
    tagged.into_iter().next().ok_or(Error::NotFound)
}

/// Versions of a dataset, newest first; those with `part` in one of their tags, case-insensitive.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    part: Option<&str>,
    limit: i64,
    offset: i64,
) -> Result<Vec<Version>> {
    super::get(tx, tenant, dataset).await?;
    if part.is_some_and(|part| part.contains('\0') || part.chars().count() > towpath_domain::dataset::MAX_LABEL_LENGTH)
    {
        return Ok(Vec::new());
    }
    let mut query = Query::new(tx, "SELECT v.as_of FROM dataset_version v WHERE v.tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    query.push(" AND v.dataset_id = ").bind(Arg::Uuid(dataset.0));
    if let Some(part) = part {
        query
            .push(
                " AND EXISTS (SELECT 1 FROM dataset_tag t WHERE t.tenant_id = v.tenant_id AND t.dataset_id = v.dataset_id
                  AND t.as_of = v.as_of AND ",
            )
            .has_part("t.tag", part)
            .push(")");
    }
    query.push(" ORDER BY v.as_of DESC").page(limit, offset);
    let found: Vec<(Timestamp,)> = query.fetch_all(tx).await?;
    with_tags(tx, tenant, dataset, found.into_iter().map(|(at,)| at).collect()).await
}

/// Versions with their tags.
async fn with_tags(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    versions: Vec<Timestamp>,
) -> Result<Vec<Version>> {
    let latest = super::get(tx, tenant, dataset).await?.version_at;
    let (Some(first), Some(last)) = (versions.iter().min(), versions.iter().max()) else {
        return Ok(Vec::new());
    };
    let found: Vec<(Timestamp, String)> = on!(tx, |conn| {
        sqlx::query_as(
        "SELECT as_of, tag FROM dataset_tag WHERE tenant_id = $1 AND dataset_id = $2 AND as_of >= $3 AND as_of <= $4
         ORDER BY tag"
    )
    .bind(tenant)
    .bind(dataset)
    .bind(*first)
    .bind(*last)
    .fetch_all(conn)
    .await
    })?;
    let mut tags: HashMap<Timestamp, Vec<String>> = HashMap::new();
    if versions.contains(&latest) {
        tags.entry(latest).or_default().push(LATEST_TAG.to_owned());
    }
    for (at, tag) in found {
        tags.entry(at).or_default().push(tag);
    }
    let versions = versions.into_iter().map(|as_of| Version {
        as_of,
        tags: tags.remove(&as_of).unwrap_or_default(),
    });
    Ok(versions.collect())
}

/// Moves a tag to a version.
///
/// # Errors
/// [`Error::NotFound`] if there is no such dataset; [`Error::Rejected`] for a bad tag, or a time that is not a version.
pub async fn tag(tx: &mut Tx<'_>, tenant: TenantId, dataset: DatasetId, as_of: Timestamp, tag: &str) -> Result<()> {
    check_label("tag", tag)?;
    if tag == LATEST_TAG {
        let text = "`latest` is reserved for the newest version; choose another tag";
        return Err(Rejection::invalid("tag", text).into());
    }
    // Serializes tags of a dataset, which are counted.
    VersionDraft::lock(tx, tenant, dataset).await?;
    let (versions, tags): (i64, i64) = on!(tx, |conn| sqlx::query_as(
        "SELECT (SELECT count(*) FROM dataset_version WHERE tenant_id = $1 AND dataset_id = $2 AND as_of = $3),
                (SELECT count(*) FROM dataset_tag WHERE tenant_id = $1 AND dataset_id = $2 AND tag <> $4)"
    )
    .bind(tenant)
    .bind(dataset)
    .bind(as_of)
    .bind(tag)
    .fetch_one(conn)
    .await)?;
    if versions == 0 {
        let text = "expected the exact time of a version; read the version to learn it";
        return Err(Rejection::invalid("as_of", text).into());
    }
    if tags >= MAX_TAGS {
        let text = format!("the dataset already has the maximum of {MAX_TAGS} tags; move an existing one");
        return Err(Rejection::rule("tag", text).into());
    }
    on!(tx, |conn| sqlx::query(
        "INSERT INTO dataset_tag (tenant_id, dataset_id, tag, as_of) VALUES ($1, $2, $3, $4)
         ON CONFLICT (tenant_id, dataset_id, tag) DO UPDATE SET as_of = excluded.as_of"
    )
    .bind(tenant)
    .bind(dataset)
    .bind(tag)
    .bind(as_of)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// What changed between two versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionDiff {
    /// Only in the later one.
    pub added: Vec<ExampleId>,
    /// Only in the earlier one.
    pub removed: Vec<ExampleId>,
    /// In both, and not the same.
    pub modified: Vec<ExampleId>,
}

/// An example that changed, and in which of the two versions it is.
#[derive(sqlx::FromRow)]
struct ChangedExample {
    example_id: ExampleId,
    in_earlier: i64,
    in_later: i64,
}

/// What has to change from `from` to get to `to`, which may be the earlier one.
pub async fn diff(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    from: &AsOf,
    to: &AsOf,
) -> Result<VersionDiff> {
    super::get(tx, tenant, dataset).await?;
    let from = resolve(tx, tenant, dataset, from).await?;
    let to = resolve(tx, tenant, dataset, to).await?;
    let touched: Vec<ChangedExample> = on!(tx, |conn| sqlx::query_as(
        "SELECT example_id,
                CAST(max(CASE WHEN valid_from <= $3 AND (valid_until IS NULL OR valid_until > $3) THEN 1 ELSE 0 END)
                     AS bigint) AS in_earlier,
                CAST(max(CASE WHEN valid_from <= $4 AND (valid_until IS NULL OR valid_until > $4) THEN 1 ELSE 0 END)
                     AS bigint) AS in_later
         FROM example
         WHERE tenant_id = $1 AND dataset_id = $2
           AND ((valid_from > $3 AND valid_from <= $4) OR (valid_until > $3 AND valid_until <= $4))
         GROUP BY example_id ORDER BY example_id"
    )
    .bind(tenant)
    .bind(dataset)
    .bind(from.min(to))
    .bind(from.max(to))
    .fetch_all(conn)
    .await)?;
    let mut diff = VersionDiff::default();
    for ChangedExample {
        example_id,
        in_earlier,
        in_later,
    } in touched
    {
        match (in_earlier > 0, in_later > 0) {
            (true, true) => diff.modified.push(example_id),
            (true, false) => diff.removed.push(example_id),
            (false, true) => diff.added.push(example_id),
            // It came and went in between.
            (false, false) => {}
        }
    }
    if from > to {
        std::mem::swap(&mut diff.added, &mut diff.removed);
    }
    Ok(diff)
}
