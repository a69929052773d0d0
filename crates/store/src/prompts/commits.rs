//! Versions of a prompt: each commit has a manifest, the commit before it, and a hash of both.

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use towpath_domain::{PromptCommitId, PromptId, Rejection, TenantId, Timestamp, prompt};

use super::{Prompt, lock};
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Commits of one prompt.
const MAX_COMMITS: i64 = 10_000;
/// Rows of one statement that removes commits.
const MAX_BATCH_ROWS: i64 = 500;
/// Bytes of one statement that removes commits: PostgreSQL gives up on one that takes long.
const MAX_BATCH_BYTES: i64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct PromptCommit {
    pub id: PromptCommitId,
    pub tenant_id: TenantId,
    pub prompt_id: PromptId,
    /// Its position among the commits of the prompt, starting at 1.
    pub seq: i64,
    /// 64 hexadecimal digits, unique in the prompt.
    pub hash: String,
    /// The hash of the commit before it.
    pub parent_hash: Option<String>,
    /// SHA-256 of the manifest, the same for equal JSON.
    pub manifest_hash: String,
    pub description: Option<String>,
    pub created_at: Timestamp,
}

/// A commit to be created.
#[derive(Clone, Debug)]
pub struct NewCommit {
    /// A JSON object, as sent.
    pub manifest: String,
    /// Defaults to the newest commit.
    pub parent: Option<String>,
    pub description: Option<String>,
}

/// Equal JSON has one hash, whatever its spaces and the order of its keys.
fn manifest_hash(manifest: &str) -> String {
    let canonical = serde_json::from_str::<Value>(manifest).map(|mut manifest| {
        manifest.sort_all_objects();
        manifest.to_string()
    });
    // A number may be too large for this reader.
    let canonical = canonical.unwrap_or_else(|_| manifest.to_owned());
    hex::encode(Sha256::digest(canonical))
}

fn commit_hash(prompt: PromptId, parent: Option<&str>, manifest_hash: &str) -> String {
    let named = format!("{prompt}\n{}\n{manifest_hash}", parent.unwrap_or_default());
    hex::encode(Sha256::digest(named))
}

/// Adds the newest commit.
///
/// # Errors
/// [`Error::NotFound`] if there is no such prompt; [`Error::Rejected`] for a manifest that is too large or that the
/// newest commit has, for an unknown parent, and for too many commits.
pub async fn create(tx: &mut Tx<'_>, tenant: TenantId, name: &str, new: &NewCommit) -> Result<PromptCommit> {
    if new.manifest.len() > prompt::MAX_MANIFEST_BYTES {
        let text = format!("expected at most {} bytes", prompt::MAX_MANIFEST_BYTES);
        return Err(Rejection::invalid("manifest", text).into());
    }
    if let Some(text) = &new.description {
        prompt::check_text("description", text, prompt::MAX_COMMIT_DESCRIPTION_LENGTH)?;
    }
    let prompt = lock(tx, tenant, name).await?;
    if prompt.commit_count >= MAX_COMMITS {
        let text = format!("the prompt already has the maximum of {MAX_COMMITS} commits; use another prompt");
        return Err(Rejection::rule("", text).into());
    }
    let newest = newest(tx, &prompt).await?;
    let parent = match new.parent.as_deref() {
        None | Some("") => newest.clone(),
        Some(parent) => Some(find_parent(tx, &prompt, parent).await?),
    };
    let manifest_hash = manifest_hash(&new.manifest);
    if newest.is_some_and(|newest| newest.manifest_hash == manifest_hash) {
        let text = "Nothing to commit: prompt has not changed since latest commit";
        return Err(Rejection::conflict("", text).into());
    }
    let parent_hash = parent.map(|parent| parent.hash);
    let hash = commit_hash(prompt.id, parent_hash.as_deref(), &manifest_hash);
    let now = tx.now();
    let made: Option<PromptCommit> = on!(tx, |conn| {
        sqlx::query_as(concat!(
        "INSERT INTO prompt_commit (id, tenant_id, prompt_id, seq, hash, parent_hash, manifest, manifest_hash, description,
                                    created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING RETURNING ",
        columns!(prompt_commit)
    ))
    .bind(PromptCommitId::new())
    .bind(tenant)
    .bind(prompt.id)
    .bind(prompt.last_seq + 1)
    .bind(&hash)
    .bind(&parent_hash)
    .bind(&new.manifest)
    .bind(&manifest_hash)
    .bind(&new.description)
    .bind(now)
    .fetch_optional(conn)
    .await
    })?;
    let Some(made) = made else {
        let text = format!("the commit {hash} already has this parent and this manifest");
        return Err(Rejection::conflict("", text).into());
    };
    on!(tx, |conn| sqlx::query(
        "UPDATE prompt SET last_seq = $3, last_commit_hash = $4, commit_count = commit_count + 1,
                stored_bytes = stored_bytes + $5, updated_at = $6
         WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(prompt.id)
    .bind(made.seq)
    .bind(&made.hash)
    .bind(new.manifest.len() as i64)
    .bind(now)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(made)
}

async fn find_parent(tx: &mut Tx<'_>, prompt: &Prompt, parent: &str) -> Result<PromptCommit> {
    resolve(tx, prompt, parent).await.map_err(|error| match error {
        Error::NotFound => {
            let text = "no such commit of the prompt; send the hash of an existing one, or leave it out";
            Rejection::rule("parent_commit", text).into()
        }
        error => error,
    })
}

async fn newest(tx: &mut Tx<'_>, prompt: &Prompt) -> Result<Option<PromptCommit>> {
    at(tx, prompt, prompt.last_seq).await
}

/// The commit at a position.
async fn at(tx: &mut Tx<'_>, prompt: &Prompt, seq: i64) -> Result<Option<PromptCommit>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(prompt_commit),
        " FROM prompt_commit WHERE tenant_id = $1 AND prompt_id = $2 AND seq = $3"
    ))
    .bind(prompt.tenant_id)
    .bind(prompt.id)
    .bind(seq)
    .fetch_optional(conn)
    .await)?)
}

/// The commit of an id.
pub(super) async fn of_id(tx: &mut Tx<'_>, prompt: &Prompt, id: PromptCommitId) -> Result<Option<PromptCommit>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(prompt_commit),
        " FROM prompt_commit WHERE tenant_id = $1 AND prompt_id = $2 AND id = $3"
    ))
    .bind(prompt.tenant_id)
    .bind(prompt.id)
    .bind(id)
    .fetch_optional(conn)
    .await)?)
}

/// The commit that a text names: `latest`, a hash or at least eight digits of its beginning, or a tag. A hash comes
/// before a tag.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Rejected`] if several hashes begin so.
pub async fn resolve(tx: &mut Tx<'_>, prompt: &Prompt, text: &str) -> Result<PromptCommit> {
    if text.is_empty() || text == prompt::LATEST {
        return newest(tx, prompt).await?.ok_or(Error::NotFound);
    }
    if prompt::is_hash_prefix(text) {
        // `g` comes after every hexadecimal digit.
        let mut found: Vec<PromptCommit> = on!(tx, |conn| sqlx::query_as(concat!(
            "SELECT ",
            columns!(prompt_commit),
            " FROM prompt_commit WHERE tenant_id = $1 AND prompt_id = $2 AND hash >= $3 AND hash < $4 LIMIT 2"
        ))
        .bind(prompt.tenant_id)
        .bind(prompt.id)
        .bind(text)
        .bind(format!("{text}g"))
        .fetch_all(conn)
        .await)?;
        if found.len() > 1 {
            let text = "several commits have a hash that begins so; send more of it";
            return Err(Rejection::rule("commit", text).into());
        }
        if let Some(found) = found.pop() {
            return Ok(found);
        }
    }
    if prompt::check_tag(text).is_err() {
        return Err(Error::NotFound);
    }
    let seq = super::tags::commit_seq(tx, prompt, text).await?;
    at(tx, prompt, seq).await?.ok_or(Error::NotFound)
}

/// The manifest of a commit: a JSON object, as sent.
pub async fn manifest(tx: &mut Tx<'_>, commit: &PromptCommit) -> Result<String> {
    Ok(on!(tx, |conn| sqlx::query_scalar(
        "SELECT manifest FROM prompt_commit WHERE tenant_id = $1 AND prompt_id = $2 AND seq = $3"
    )
    .bind(commit.tenant_id)
    .bind(commit.prompt_id)
    .bind(commit.seq)
    .fetch_one(conn)
    .await)?)
}

/// Commits of a prompt, newest first.
pub async fn list(tx: &mut Tx<'_>, prompt: &Prompt, limit: i64, offset: i64) -> Result<Vec<PromptCommit>> {
    Ok(on!(tx, |conn| sqlx::query_as(concat!(
        "SELECT ",
        columns!(prompt_commit),
        " FROM prompt_commit WHERE tenant_id = $1 AND prompt_id = $2 ORDER BY seq DESC LIMIT $3 + 0 OFFSET $4"
    ))
    .bind(prompt.tenant_id)
    .bind(prompt.id)
    .bind(limit)
    .bind(offset)
    .fetch_all(conn)
    .await)?)
}

/// Which of these hashes are commits, with their ids.
pub async fn ids(tx: &mut Tx<'_>, prompt: &Prompt, hashes: Vec<String>) -> Result<Vec<(String, PromptCommitId)>> {
    let mut query = Query::new(tx, "SELECT hash, id FROM prompt_commit WHERE tenant_id = ");
    query.bind(Arg::Uuid(prompt.tenant_id.0));
    query.push(" AND prompt_id = ").bind(Arg::Uuid(prompt.id.0));
    query.push(" AND ").any_of("hash", hashes.into_iter().map(Arg::Text));
    query.fetch_all(tx).await
}

/// Deletes all tags and the oldest commits of a prompt. Returns whether there was a commit to delete.
///
/// A prompt is emptied with this before it is deleted: deleting the rows of a large one in a single statement would
/// exceed PostgreSQL's statement timeout and block all writers on SQLite. A caller that stops in between starts again.
pub async fn delete_batch(tx: &mut Tx<'_>, tenant: TenantId, name: &str) -> Result<bool> {
    let prompt = lock(tx, tenant, name).await?;
    on!(tx, |conn| sqlx::query(
        "DELETE FROM prompt_tag WHERE tenant_id = $1 AND prompt_id = $2"
    )
    .bind(tenant)
    .bind(prompt.id)
    .execute(conn)
    .await
    .map(drop))?;
    let oldest: Vec<(i64, i64)> = on!(tx, |conn| sqlx::query_as(
        "SELECT seq, CAST(octet_length(manifest) AS bigint) FROM prompt_commit
         WHERE tenant_id = $1 AND prompt_id = $2 ORDER BY seq LIMIT $3 + 0"
    )
    .bind(tenant)
    .bind(prompt.id)
    .bind(MAX_BATCH_ROWS)
    .fetch_all(conn)
    .await)?;
    let (mut rows, mut bytes, mut last) = (0_i64, 0, 0);
    for (seq, size) in oldest {
        if rows > 0 && bytes + size > MAX_BATCH_BYTES {
            break;
        }
        (rows, bytes, last) = (rows + 1, bytes + size, seq);
    }
    if rows == 0 {
        return Ok(false);
    }
    on!(tx, |conn| sqlx::query(
        "DELETE FROM prompt_commit WHERE tenant_id = $1 AND prompt_id = $2 AND seq <= $3"
    )
    .bind(tenant)
    .bind(prompt.id)
    .bind(last)
    .execute(conn)
    .await
    .map(drop))?;
    on!(tx, |conn| sqlx::query(
        "UPDATE prompt SET commit_count = commit_count - $3, stored_bytes = stored_bytes - $4,
                last_commit_hash = CASE WHEN commit_count = $3 THEN NULL ELSE last_commit_hash END
         WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(prompt.id)
    .bind(rows)
    .bind(bytes)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_manifests_have_one_hash() {
        let hash = manifest_hash(r#"{"a": 1, "b": {"d": [1, 2], "c": null}}"#);
        assert_eq!(hash.len(), 64);
        assert_eq!(manifest_hash(r#"{"b":{"c":null,"d":[1,2]},"a":1}"#), hash);
        for other in [r#"{"a": 1, "b": {"d": [2, 1], "c": null}}"#, r#"{"a": 1e400}"#, "{}"] {
            assert_ne!(manifest_hash(other), hash, "{other}");
        }
    }

    #[test]
    fn a_commit_is_named_by_its_prompt_its_parent_and_its_manifest() {
        let prompt = PromptId::new();
        let hash = commit_hash(prompt, None, "a");
        assert_eq!(commit_hash(prompt, None, "a"), hash);
        for other in [
            commit_hash(prompt, Some("b"), "a"),
            commit_hash(prompt, None, "b"),
            commit_hash(PromptId::nil(), None, "a"),
        ] {
            assert_ne!(other, hash);
        }
    }
}
