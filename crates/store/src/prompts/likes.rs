//! Likes of prompts. A key likes a prompt at most once.

use std::collections::HashSet;

use towpath_domain::{KeyId, PromptId, Rejection, TenantId};

use super::lock;
use crate::query::{Arg, Query};
use crate::{Result, Tx};

/// Keys that like one prompt.
const MAX_LIKES: i64 = 10_000;

/// Records that the holder of a key likes a prompt, or no longer does. Returns the number of likes.
///
/// # Errors
/// [`Error::NotFound`](crate::Error::NotFound), [`Error::Rejected`](crate::Error::Rejected) for too many likes.
pub async fn set(tx: &mut Tx<'_>, tenant: TenantId, name: &str, key: KeyId, likes: bool) -> Result<i64> {
    let prompt = lock(tx, tenant, name).await?;
    if likes && prompt.like_count >= MAX_LIKES {
        let text = format!("the prompt already has the maximum of {MAX_LIKES} likes");
        return Err(Rejection::rule("like", text).into());
    }
    let text = if likes {
        "INSERT INTO prompt_like (tenant_id, prompt_id, key_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
    } else {
        "DELETE FROM prompt_like WHERE tenant_id = $1 AND prompt_id = $2 AND key_id = $3"
    };
    let changed = on!(tx, |conn| sqlx::query(text)
        .bind(tenant)
        .bind(prompt.id)
        .bind(key)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    let count = match (changed, likes) {
        (0, _) => return Ok(prompt.like_count),
        (_, true) => prompt.like_count + 1,
        (_, false) => prompt.like_count - 1,
    };
    on!(tx, |conn| sqlx::query(
        "UPDATE prompt SET like_count = $3 WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(prompt.id)
    .bind(count)
    .execute(conn)
    .await
    .map(drop))?;
    Ok(count)
}

/// Which of these prompts the holder of a key likes.
pub async fn of_key(tx: &mut Tx<'_>, tenant: TenantId, key: KeyId, prompts: &[PromptId]) -> Result<HashSet<PromptId>> {
    let mut query = Query::new(tx, "SELECT prompt_id FROM prompt_like WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    query.push(" AND key_id = ").bind(Arg::Uuid(key.0));
    query.push(" AND prompt_id").among(prompts.iter().map(|id| id.0));
    let found: Vec<(PromptId,)> = query.fetch_all(tx).await?;
    Ok(found.into_iter().map(|(id,)| id).collect())
}
