//! Names of all assistants, without reading whole rows.

use sqlx::FromRow;
use towpath_domain::{AssistantId, TenantId, Timestamp};

use super::{Filter, narrow};
use crate::query::{Arg, Query};
use crate::{Result, Tx};

/// What an assistant is called.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct AssistantName {
    pub id: AssistantId,
    pub name: String,
    pub created_at: Timestamp,
}

/// Names of those that match, the oldest first.
pub async fn names(tx: &mut Tx<'_>, tenant: TenantId, which: &Filter, limit: i64) -> Result<Vec<AssistantName>> {
    let mut query = Query::new(tx, "SELECT id, name, created_at FROM assistant WHERE tenant_id = ");
    query.bind(Arg::Uuid(tenant.0));
    narrow(&mut query, which)?;
    query.push(" ORDER BY created_at, id").page(limit, 0);
    query.fetch_all(tx).await
}
