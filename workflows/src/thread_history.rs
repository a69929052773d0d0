//! The history of a thread outside of its runs: copying it, and pruning it to the latest state.

use towpath_domain::{TenantId, ThreadId};
use towpath_store::threads::{self, Thread};
use towpath_store::{self as store, Tx, checkpoints, lanes, runs};

use crate::run_agent::job::lane;

/// Copies a thread with its state and its history, without its runs. It takes locks, so call it before the
/// transaction's other writes.
pub async fn copy(tx: &mut Tx<'_>, tenant: TenantId, from: ThreadId, to: ThreadId) -> store::Result<Thread> {
    lock_thread(tx, tenant, from).await?;
    threads::copy(tx, tenant, from, to).await
}

/// Prunes a thread to its latest state, unless it has an open run. It takes locks, so call it before the transaction's
/// other writes.
pub async fn keep_latest(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> store::Result<()> {
    lock_thread(tx, tenant, id).await?;
    // The run may start from an older checkpoint.
    if runs::any_open(tx, tenant, id).await? {
        return Ok(());
    }
    checkpoints::keep_latest(tx, id).await.map(drop)
}

/// Locks a thread with its lane: no run of it is recorded, writes or ends, and no sweep prunes it.
async fn lock_thread(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> store::Result<()> {
    // Avoids creating a lane for a missing thread.
    threads::get(tx, tenant, id).await?;
    lanes::lock(tx, lane(id).key(), 1).await?;
    threads::lock(tx, tenant, id).await.map(drop)
}
