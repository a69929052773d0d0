//! Stopping runs, and deleting them and their threads.

use serde_json::json;
use towpath_domain::agent::{CancelAction, EventId, frame};
use towpath_domain::{AssistantId, RunId, TenantId, ThreadId};
use towpath_store::runs::{self, Open};
use towpath_store::{self as store, Tx, checkpoints, jobs, lanes, threads};

use super::lane;

/// Cancels runs that are not over. Those that wait end at once; those at work end when their workers acknowledge it.
/// Takes locks, so call it before the transaction's other writes.
///
/// # Errors
/// As every statement.
pub async fn cancel(tx: &mut Tx<'_>, tenant: TenantId, open: &[Open], action: CancelAction) -> store::Result<()> {
    lock(tx, open).await?;
    for run in open {
        // Before its job is cancelled: how it ends is read then.
        runs::set_cancel(tx, tenant, run.id, action).await?;
    }
    // Those that wait first, or each place given up would be taken by one that is about to end too.
    for run in open.iter().rev() {
        towpath_durable::cancel(tx, run.job_id).await?;
    }
    Ok(())
}

/// Deletes a run with the checkpoints it made. One that is not over is stopped.
///
/// # Errors
/// [`store::Error::NotFound`], and those of the database.
pub async fn delete_run(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, id: RunId) -> store::Result<()> {
    let run = runs::get(tx, tenant, id).await?;
    if run.thread_id != thread {
        return Err(store::Error::NotFound);
    }
    if !run.status.is_final() {
        let open = Open {
            id,
            thread_id: thread,
            job_id: run.job_id,
        };
        cancel(tx, tenant, &[open], CancelAction::Rollback).await?;
    }
    checkpoints::delete_run(tx, thread, id).await?;
    if runs::delete(tx, tenant, id).await? && !run.status.is_final() {
        threads::settle_untouched(tx, tenant, thread).await?;
    }
    Ok(())
}

/// Deletes a thread with everything on it. Runs that are not over are stopped.
///
/// # Errors
/// [`store::Error::NotFound`], and those of the database.
pub async fn delete_thread(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> store::Result<()> {
    threads::get(tx, tenant, id).await?;
    // Locked first, so that no run is recorded between the look and the deletion.
    lanes::lock(tx, lane(id).key(), 1).await?;
    let open = runs::open(tx, tenant, Some(id), None).await?;
    cancel(tx, tenant, &open, CancelAction::Rollback).await?;
    match threads::delete(tx, tenant, id).await {
        // It was temporary, and went with its run just now.
        Err(store::Error::NotFound) => {}
        deleted => deleted?,
    }
    tell_gone(tx, id);
    Ok(())
}

/// Tells readers of a thread's stream, after the commit, that the thread is gone.
pub(crate) fn tell_gone(tx: &mut Tx<'_>, thread: ThreadId) {
    let id = EventId::default().next(tx.now().micros() / 1000);
    tx.publish(thread, frame::thread_gone(id));
}

/// The threads that were last used with an assistant.
///
/// # Errors
/// As every statement.
pub async fn threads_of(tx: &mut Tx<'_>, tenant: TenantId, id: AssistantId) -> store::Result<Vec<ThreadId>> {
    let mut page = threads::Search {
        filter: threads::Filter {
            metadata: Some(json!({ "assistant_id": id })),
            ..threads::Filter::default()
        },
        sort_by: threads::SortBy::ThreadId,
        ascending: true,
        limit: 1000,
        offset: 0,
        with_values: false,
    };
    let mut all = Vec::new();
    loop {
        let found = threads::search(tx, tenant, &page).await?;
        if found.is_empty() {
            return Ok(all);
        }
        page.offset += page.limit;
        all.extend(found.into_iter().map(|thread| thread.id));
    }
}

/// Locks the lanes of threads, then the jobs of their runs that are not over: for whoever stops runs of several, or deletes
/// several. Locked one after another, the lane of the second would come behind the jobs of the first.
///
/// # Errors
/// As every statement.
pub async fn lock_threads(tx: &mut Tx<'_>, tenant: TenantId, threads: &[ThreadId]) -> store::Result<()> {
    let mut lanes: Vec<(String, i64)> = threads
        .iter()
        .map(|thread| (lane(*thread).key().to_owned(), 1))
        .collect();
    lanes.sort_unstable();
    lanes.dedup();
    if lanes.is_empty() {
        return Ok(());
    }
    lanes::lock_all(tx, &lanes).await?;
    let mut ids = Vec::new();
    for thread in threads {
        let open = runs::open(tx, tenant, Some(*thread), None).await?;
        ids.extend(open.into_iter().map(|run| run.job_id));
    }
    if !ids.is_empty() {
        jobs::lock(tx, &ids).await?;
    }
    Ok(())
}

/// Locks lanes, then jobs, in the order everybody takes them.
async fn lock(tx: &mut Tx<'_>, open: &[Open]) -> store::Result<()> {
    let mut keys: Vec<String> = open.iter().map(|run| lane(run.thread_id).key().to_owned()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        lanes::lock_existing(tx, &key).await?;
    }
    let ids: Vec<_> = open.iter().map(|run| run.job_id).collect();
    if !ids.is_empty() {
        jobs::lock(tx, &ids).await?;
    }
    Ok(())
}
