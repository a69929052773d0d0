//! Assistants by their names alone: what a list of all of them needs that no page of whole rows can tell.

use sqlx::FromRow;
use towpath_domain::{AssistantId, TenantId, Timestamp};

use super::{Which, narrow};
use crate::query::{Arg, Query};
use crate::{Result, Tx};

/// What an assistant is called.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Named {
    /// Its id.
    pub id: AssistantId,
    /// What people call it.
    pub name: String,
    /// When it was made.
    pub created_at: Timestamp,
}

/// Names of those that match, the oldest first.
///
/// # Errors
/// As every statement.
pub async fn names(tx: &mut Tx<'_>, tenant: TenantId, which: &Which, limit: i64) -> Result<Vec<Named>> {
    let mut query = Query::new(tx, "SELECT id, name, created_at FROM assistant WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    narrow(&mut query, which)?;
    query.push(" ORDER BY created_at, id").page(limit, 0);
    query.fetch_all(tx).await
}
