//! The history of a thread outside of its runs: copied to another thread, and cut to the latest state.

use towpath_domain::{TenantId, ThreadId};
use towpath_store::threads::{self, Thread};
use towpath_store::{self as store, Tx, checkpoints, lanes, runs};

use crate::run_agent::lane;

/// Copies a thread with its state and its history, without its runs. Takes locks, so call it before the transaction's other
/// writes.
///
/// # Errors
/// [`store::Error::NotFound`], and those of the database.
pub async fn copy(tx: &mut Tx<'_>, tenant: TenantId, from: ThreadId, to: ThreadId) -> store::Result<Thread> {
    hold(tx, tenant, from).await?;
    threads::copy(tx, tenant, from, to).await
}

/// Cuts a thread down to its latest state, unless a run of it is open. Takes locks, so call it before the transaction's other
/// writes.
///
/// # Errors
/// [`store::Error::NotFound`], and those of the database.
pub async fn keep_latest(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> store::Result<()> {
    hold(tx, tenant, id).await?;
    // It may begin at an older checkpoint.
    if runs::any_open(tx, tenant, id).await? {
        return Ok(());
    }
    checkpoints::keep_latest(tx, id).await.map(drop)
}

/// Locks a thread with its lane: meanwhile no run of it is recorded, writes or ends, and no sweep cuts it.
async fn hold(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> store::Result<()> {
    // No lane is made for a thread that is not there.
    threads::get(tx, tenant, id).await?;
    lanes::lock(tx, lane(id).key(), 1).await?;
    threads::lock(tx, tenant, id).await.map(drop)
}
