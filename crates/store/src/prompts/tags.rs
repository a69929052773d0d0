//! Tags: names of commits that can be moved.

use towpath_domain::{PromptCommitId, Rejection, TenantId, Timestamp, prompt};
use uuid::Uuid;

use super::{Prompt, commits, lock};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Tags of one prompt.
const MAX_TAGS: i64 = 1_000;

/// A tag with its commit.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct TaggedCommit {
    pub id: Uuid,
    pub name: String,
    pub commit_id: PromptCommitId,
    pub commit_hash: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The number of the commit that a tag names.
pub(super) async fn commit_seq(tx: &mut Tx<'_>, prompt: &Prompt, name: &str) -> Result<i64> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT commit_seq FROM prompt_tag WHERE tenant_id = $1 AND prompt_id = $2 AND name = $3"
    )
    .bind(prompt.tenant_id)
    .bind(prompt.id)
    .bind(name)
    .fetch_one(conn)
    .await)?)
}

/// Tags of a prompt, by name; only the one of this name if there is one.
pub async fn list(tx: &mut Tx<'_>, prompt: &Prompt, name: Option<&str>) -> Result<Vec<TaggedCommit>> {
    // PostgreSQL rejects NUL in a parameter; no tag contains it.
    if name.is_some_and(|name| prompt::check_tag(name).is_err()) {
        return Ok(Vec::new());
    }
    let mut query = Query::new(
        tx,
        "SELECT t.id, t.name, c.id AS commit_id, c.hash AS commit_hash, t.created_at, t.updated_at
         FROM prompt_tag t
         JOIN prompt_commit c ON c.tenant_id = t.tenant_id AND c.prompt_id = t.prompt_id AND c.seq = t.commit_seq
         WHERE t.tenant_id = ",
    );
    query.bind(Arg::Uuid(prompt.tenant_id.0));
    query.push(" AND t.prompt_id = ").bind(Arg::Uuid(prompt.id.0));
    if let Some(name) = name {
        query.push(" AND t.name = ").bind(Arg::Text(name.to_owned()));
    }
    query.push(" ORDER BY t.name").limit(MAX_TAGS);
    query.fetch_all(tx).await
}

/// What becomes of a tag that exists already or not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is made, or moved.
    Any,
    /// It is moved.
    Required,
}

/// Moves a tag to a commit.
///
/// # Errors
/// [`Error::NotFound`] if there is no such prompt, or no such tag if one is required; [`Error::Rejected`] for a bad name,
/// an unknown commit and too many tags.
pub async fn put(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    name: &str,
    tag: &str,
    commit: PromptCommitId,
    existing: Existing,
) -> Result<TaggedCommit> {
    // Serializes tags of a prompt, which are counted.
    let prompt = lock(tx, tenant, name).await?;
    if existing == Existing::Required && list(tx, &prompt, Some(tag)).await?.is_empty() {
        return Err(Error::NotFound);
    }
    prompt::check_tag(tag)?;
    let Some(commit) = commits::of_id(tx, &prompt, commit).await? else {
        let text = "no such commit of the prompt; list its commits to learn their ids";
        return Err(Rejection::rule("commit_id", text).into());
    };
    let others: i64 = on!(tx, |conn| sqlx::query_scalar(
        "SELECT count(*) FROM prompt_tag WHERE tenant_id = $1 AND prompt_id = $2 AND name <> $3"
    )
    .bind(tenant)
    .bind(prompt.id)
    .bind(tag)
    .fetch_one(conn)
    .await)?;
    if others >= MAX_TAGS {
        let text = format!("the prompt already has the maximum of {MAX_TAGS} tags; move or delete an existing one");
        return Err(Rejection::rule("tag_name", text).into());
    }
    let now = tx.now();
    on!(tx, |conn| sqlx::query(
        "INSERT INTO prompt_tag (tenant_id, prompt_id, name, id, commit_seq, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $6)
         ON CONFLICT (tenant_id, prompt_id, name)
         DO UPDATE SET commit_seq = excluded.commit_seq, updated_at = excluded.updated_at"
    )
    .bind(tenant)
    .bind(prompt.id)
    .bind(tag)
    .bind(Uuid::now_v7())
    .bind(commit.seq)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    let found = list(tx, &prompt, Some(tag)).await?;
    found.into_iter().next().ok_or(Error::NotFound)
}

/// Deletes a tag. Its commit stays.
pub async fn delete(tx: &mut Tx<'_>, tenant: TenantId, name: &str, tag: &str) -> Result<()> {
    let prompt = lock(tx, tenant, name).await?;
    if prompt::check_tag(tag).is_err() {
        return Err(Error::NotFound);
    }
    let gone = on!(tx, |conn| sqlx::query(
        "DELETE FROM prompt_tag WHERE tenant_id = $1 AND prompt_id = $2 AND name = $3"
    )
    .bind(tenant)
    .bind(prompt.id)
    .bind(tag)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?;
    if gone == 0 { Err(Error::NotFound) } else { Ok(()) }
}
