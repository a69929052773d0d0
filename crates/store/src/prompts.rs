//! Prompts. Commits, tags and likes are in separate modules.

pub mod commits;
pub mod likes;
pub mod tags;

use serde_json::Value;
use towpath_domain::{PromptId, Rejection, TenantId, Timestamp, prompt};

use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Prompts of one workspace.
const MAX_PROMPTS: i64 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Prompt {
    pub id: PromptId,
    pub tenant_id: TenantId,
    /// Unique in the workspace.
    pub name: String,
    pub description: Option<String>,
    pub readme: Option<String>,
    /// A JSON list of texts.
    labels: String,
    pub is_archived: bool,
    /// The number of its newest commit; 0 before the first.
    last_seq: i64,
    pub last_commit_hash: Option<String>,
    pub commit_count: i64,
    pub like_count: i64,
    pub created_at: Timestamp,
    /// When it or one of its commits changed last.
    pub updated_at: Timestamp,
}

impl Prompt {
    pub fn labels(&self) -> Result<Vec<String>> {
        serde_json::from_str(&self.labels).map_err(|_| Error::corrupt("prompt", "labels", self.id))
    }
}

/// The fields of a new or changed prompt; a change keeps fields that are `None`.
#[derive(Clone, Debug, Default)]
pub struct PromptFields {
    pub description: Option<String>,
    pub readme: Option<String>,
    pub labels: Option<Vec<String>>,
    pub is_archived: Option<bool>,
}

impl PromptFields {
    fn check(&self) -> Result<(), Rejection> {
        if let Some(text) = &self.description {
            prompt::check_text("description", text, prompt::MAX_DESCRIPTION_LENGTH)?;
        }
        if let Some(text) = &self.readme {
            prompt::check_text("readme", text, prompt::MAX_README_LENGTH)?;
        }
        self.labels.as_deref().map_or(Ok(()), prompt::check_labels)
    }

    fn labels_json(&self) -> Option<String> {
        self.labels.clone().map(|labels| Value::from(labels).to_string())
    }
}

/// Creates a prompt without commits.
///
/// # Errors
/// [`Error::Rejected`] for a bad field or too many prompts, [`Error::Conflict`] naming `prompt.repo_handle` if the name
/// is taken.
pub async fn create(tx: &mut Tx<'_>, tenant: TenantId, name: &str, new: &PromptFields) -> Result<Prompt> {
    prompt::check_name(name)?;
    new.check()?;
    let count: i64 = on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM prompt WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?;
    if count >= MAX_PROMPTS {
        let text = format!("the workspace already has the maximum of {MAX_PROMPTS} prompts; delete some first");
        return Err(Rejection::rule("", text).into());
    }
    let now = tx.now();
    let made: Option<Prompt> = on!(tx, |conn| sqlx::query_as(concat!(
        "INSERT INTO prompt (id, tenant_id, name, description, readme, labels, is_archived, last_seq, last_commit_hash,
                             commit_count, like_count, stored_bytes, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, 0, NULL, 0, 0, 0, $8, $8) ON CONFLICT DO NOTHING RETURNING ",
        columns!(prompt)
    ))
    .bind(PromptId::new())
    .bind(tenant)
    .bind(name)
    .bind(&new.description)
    .bind(&new.readme)
    .bind(new.labels_json().unwrap_or_else(|| "[]".to_owned()))
    .bind(new.is_archived.unwrap_or_default())
    .bind(now)
    .fetch_optional(conn)
    .await)?;
    made.ok_or_else(|| Error::Conflict {
        column: "prompt.repo_handle".to_owned(),
    })
}

pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Prompt> {
    // PostgreSQL rejects NUL in a parameter; no name contains it.
    if prompt::check_name(name).is_err() {
        return Err(Error::NotFound);
    }
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(prompt),
        " FROM prompt WHERE tenant_id = $1 AND name = $2"
    ))
    .bind(tenant)
    .bind(name)
    .fetch_one(conn)
    .await)?)
}

/// Locks a prompt until the transaction ends.
async fn lock(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<Prompt> {
    if prompt::check_name(name).is_err() {
        return Err(Error::NotFound);
    }
    let text = sql!(tx,
        // SQLite has one writer, so no other caller can hold the row.
        sqlite: concat!("SELECT ", columns!(prompt), " FROM prompt WHERE tenant_id = $1 AND name = $2"),
        postgres: concat!("SELECT ", columns!(prompt), " FROM prompt WHERE tenant_id = $1 AND name = $2 FOR UPDATE"));
    Ok(on!(tx, |conn| sqlx::query_as(text)
        .bind(tenant)
        .bind(name)
        .fetch_one(conn)
        .await)?)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    UpdatedAt,
    Likes,
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Text in the name or the description, case-insensitive.
    pub text: Option<String>,
    /// Only those with all of these labels.
    pub labels: Vec<String>,
    pub is_archived: Option<bool>,
    /// Only those with or without commits.
    pub has_commits: Option<bool>,
    pub order: Order,
    pub is_ascending: bool,
}

impl Filter {
    /// Adds the conditions; `false` if nothing can fit.
    fn push(&self, query: &mut Query, tenant: TenantId) -> Result<bool> {
        let is_storable = |text: &String| !text.contains('\0') && text.chars().count() <= prompt::MAX_NAME_LENGTH;
        if !self.text.iter().chain(&self.labels).all(is_storable) {
            return Ok(false);
        }
        query.bind(Arg::Uuid(tenant.0));
        if let Some(text) = &self.text {
            query.push(" AND (").has_part("name", text);
            query.push(" OR ").has_part("description", text).push(")");
        }
        if !self.labels.is_empty() {
            let labels = Value::from(self.labels.clone());
            query.push(" AND ").contains("labels", "tags", &labels)?;
        }
        if let Some(is_archived) = self.is_archived {
            query.push(if is_archived {
                " AND is_archived"
            } else {
                " AND NOT is_archived"
            });
        }
        if let Some(has_commits) = self.has_commits {
            query.push(if has_commits {
                " AND commit_count > 0"
            } else {
                " AND commit_count = 0"
            });
        }
        Ok(true)
    }
}

/// Prompts, and how many there are on all pages.
///
/// # Errors
/// [`Error::Rejected`] for too many labels.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    criteria: &Filter,
    limit: i64,
    offset: i64,
) -> Result<(Vec<Prompt>, i64)> {
    let mut count = Query::new(tx, "SELECT count(*) FROM prompt WHERE tenant_id = ");
    if !criteria.push(&mut count, tenant)? {
        return Ok((Vec::new(), 0));
    }
    let total = count.count(tx).await?;
    let mut query = Query::new(
        tx,
        concat!("SELECT ", columns!(prompt), " FROM prompt WHERE tenant_id = "),
    );
    criteria.push(&mut query, tenant)?;
    query.push(match (criteria.order, criteria.is_ascending) {
        (Order::UpdatedAt, false) => " ORDER BY updated_at DESC, id",
        (Order::UpdatedAt, true) => " ORDER BY updated_at, id",
        (Order::Likes, false) => " ORDER BY like_count DESC, updated_at DESC, id",
        (Order::Likes, true) => " ORDER BY like_count, updated_at, id",
    });
    query.page(limit, offset);
    Ok((query.fetch_all(tx).await?, total))
}

/// # Errors
/// [`Error::NotFound`], [`Error::Rejected`] for a bad field.
pub async fn update(tx: &mut Tx<'_>, tenant: TenantId, name: &str, change: &PromptFields) -> Result<Prompt> {
    change.check()?;
    if prompt::check_name(name).is_err() {
        return Err(Error::NotFound);
    }
    let now = tx.now();
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "UPDATE prompt SET description = COALESCE($3, description), readme = COALESCE($4, readme),
                labels = COALESCE($5, labels), is_archived = COALESCE($6, is_archived), updated_at = $7
         WHERE tenant_id = $1 AND name = $2 RETURNING ",
        columns!(prompt)
    ))
    .bind(tenant)
    .bind(name)
    .bind(&change.description)
    .bind(&change.readme)
    .bind(change.labels_json())
    .bind(change.is_archived)
    .bind(now)
    .fetch_one(conn)
    .await)?)
}

/// Deletes a prompt with its commits, tags and likes. Empty it with [`commits::delete_batch`] first.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<()> {
    let id = lock(tx, tenant, name).await?.id;
    on!(tx, |conn| sqlx::query(
        "DELETE FROM prompt WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(())
}

/// Bytes of the manifests that a workspace has.
pub async fn stored_bytes(tx: &mut Tx<'_>, tenant: TenantId) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT CAST(coalesce(sum(stored_bytes), 0) AS bigint) FROM prompt WHERE tenant_id = $1"
    )
    .bind(tenant)
    .fetch_one(conn)
    .await)?)
}

/// Prompts of all workspaces, those that changed last first: for operators.
pub async fn overview(tx: &mut Tx<'_>, part: &str, limit: i64, offset: i64) -> Result<Vec<Prompt>> {
    if part.contains('\0') || part.chars().count() > prompt::MAX_NAME_LENGTH {
        return Ok(Vec::new());
    }
    let mut query = Query::new(tx, concat!("SELECT ", columns!(prompt), " FROM prompt WHERE "));
    query
        .has_part("name", part)
        .push(" ORDER BY updated_at DESC, id, tenant_id")
        .page(limit, offset);
    query.fetch_all(tx).await
}
