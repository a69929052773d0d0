//! Chains of jobs: each job records the next one, and a schedule names the one whose turn it is.

use std::time::Duration;

use towpath_domain::{ScheduleId, TenantId, Timestamp};
use towpath_durable::{Start, Workflow};
use towpath_store::schedules::{self, Schedule};
use towpath_store::{self as store, Store, Tx, jobs};

/// Records a chain and its first job, which is due at `at`.
pub(crate) async fn begin<W: Workflow>(
    tx: &mut Tx<'_>,
    id: ScheduleId,
    tenant: TenantId,
    first: &W,
    at: Timestamp,
) -> store::Result<()> {
    let job = towpath_durable::start(tx, first, Start::new(tenant).at(at)).await?;
    let schedule = Schedule {
        id,
        tenant_id: tenant,
        kind: W::KIND.to_owned(),
        pool: W::POOL.to_owned(),
        input: serde_json::to_string(first).map_err(|_| store::Error::corrupt("schedule", "input", id))?,
        next_at: at,
        paused: false,
        spawn_job: Some(job),
        created_at: tx.now(),
        ended_at: None,
    };
    schedules::insert(tx, &schedule).await
}

/// Begins a chain with a known id, unless it exists. Every process may call it at its start.
pub(crate) async fn ensure<W: Workflow>(
    store: &Store,
    id: ScheduleId,
    tenant: TenantId,
    first: &W,
    delay: Duration,
) -> store::Result<()> {
    let begun = store
        .write(async |tx| {
            if schedules::get(tx, id).await?.is_some() {
                return Ok(());
            }
            let at = jobs::db_now(tx).await?.plus(delay);
            begin(tx, id, tenant, first, at).await
        })
        .await;
    match begun {
        // Another process was faster.
        Err(store::Error::Conflict { .. }) => Ok(()),
        begun => begun,
    }
}

/// Records the next job of a chain, as the current one saw it.
///
/// [`store::Error::Stale`] if another job advanced it, or it was ended: nothing of this transaction may be committed.
pub(crate) async fn advance<W: Workflow>(
    tx: &mut Tx<'_>,
    chain: &Schedule,
    next: &W,
    at: Timestamp,
) -> store::Result<()> {
    let job = towpath_durable::start(tx, next, Start::new(chain.tenant_id).at(at)).await?;
    if schedules::advance(tx, chain.id, chain.next_at, at, Some(job)).await? {
        Ok(())
    } else {
        Err(store::Error::Stale)
    }
}
