//! Stops runs, and deletes them and their threads.

use std::collections::BTreeSet;

use serde_json::json;
use towpath_domain::agent::{CancelAction, EventId, frame};
use towpath_domain::{AssistantId, JobId, Rejection, RunId, TenantId, ThreadId};
use towpath_store::jobs::Job;
use towpath_store::runs::{self, OpenRun};
use towpath_store::{self as store, Tx, checkpoints, jobs, lanes, threads};

use super::job::lane;

/// Cancels open runs. Waiting ones end at once, running ones when their workers acknowledge it. The number of
/// statements is constant. It takes locks, so call it before the transaction's other writes.
pub async fn cancel(tx: &mut Tx<'_>, tenant: TenantId, open: &[OpenRun], action: CancelAction) -> store::Result<()> {
    if open.is_empty() {
        return Ok(());
    }
    let jobs: Vec<JobId> = open.iter().map(|run| run.job_id).collect();
    let ids: Vec<RunId> = open.iter().map(|run| run.id).collect();
    // Written before the jobs are cancelled, because the end of a run reads it.
    towpath_durable::cancel_all(tx, &jobs, async |tx| {
        runs::set_cancel_all(tx, tenant, &ids, action).await
    })
    .await
}

/// Result of deleting a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Deleted with its checkpoints.
    Done,
    /// The run was running and is being stopped. It is deleted, with its changes, when its worker has stopped; its
    /// thread is busy until then.
    Stopping,
}

/// Deletes a run with its checkpoints; an open one is stopped. It takes locks, so call it before the transaction's
/// other writes.
///
/// [`store::Error::NotFound`]; a conflict while another run of the thread is running, which may depend on its
/// checkpoints.
pub async fn delete_run(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, id: RunId) -> store::Result<Deletion> {
    let run = runs::get(tx, tenant, id).await?;
    if run.thread_id != thread {
        return Err(store::Error::NotFound);
    }
    // While this is locked, no run of the thread is recorded, writes or ends; and none is claimed while its job is
    // locked.
    lanes::lock(tx, lane(thread).key(), 1).await?;
    let open = runs::open(tx, tenant, Some(thread), None).await?;
    let ids: Vec<JobId> = open.iter().map(|run| run.job_id).collect();
    let jobs: Vec<Job> = if ids.is_empty() {
        Vec::new()
    } else {
        jobs::lock(tx, &ids).await?
    };
    if let Some(own) = open.iter().find(|run| run.id == id) {
        cancel(tx, tenant, &[*own], CancelAction::Rollback).await?;
        return match runs::get(tx, tenant, id).await {
            Ok(_) => Ok(Deletion::Stopping),
            // It was waiting, and was rolled back at once.
            Err(store::Error::NotFound) => Ok(Deletion::Done),
            Err(error) => Err(error),
        };
    }
    let at_work = |run: &&OpenRun| jobs.iter().any(|job| job.id == run.job_id && job.started_at.is_some());
    if let Some(other) = open.iter().find(at_work) {
        let text = format!(
            "Run {id} cannot be deleted while run {} of its thread is running, which may depend on its checkpoints. \
             Delete it when that run has ended, or cancel that run.",
            other.id
        );
        return Err(Rejection::conflict("", text).into());
    }
    checkpoints::delete_run(tx, thread, id).await?;
    if runs::delete(tx, tenant, id).await? {
        Ok(Deletion::Done)
    } else {
        Err(store::Error::NotFound)
    }
}

/// Deletes a thread with everything on it. Open runs are stopped.
pub async fn delete_thread(tx: &mut Tx<'_>, tenant: TenantId, id: ThreadId) -> store::Result<()> {
    threads::get(tx, tenant, id).await?;
    // Locked first, so that no run is recorded between the read and the deletion.
    lanes::lock(tx, lane(id).key(), 1).await?;
    let open = runs::open(tx, tenant, Some(id), None).await?;
    cancel(tx, tenant, &open, CancelAction::Rollback).await?;
    match threads::delete(tx, tenant, id).await {
        // It was temporary, and was just deleted with its run.
        Err(store::Error::NotFound) => {}
        deleted => deleted?,
    }
    notify_deleted(tx, id);
    Ok(())
}

/// Tells readers of a thread's stream, after the commit, that the thread is deleted.
pub(crate) fn notify_deleted(tx: &mut Tx<'_>, thread: ThreadId) {
    let id = EventId::default().next(tx.now().micros() / 1000);
    tx.publish(thread, frame::thread_deleted(id));
}

/// Threads that were last used with an assistant.
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

/// Maximum number of rounds in which [`lock_threads`] checks for concurrently started runs.
const MAX_LOCK_ROUNDS: usize = 5;

/// Locks the lanes of threads, and of those with open runs of an assistant, then the jobs of all open runs on them. Use
/// it to stop runs of several threads or to delete several threads: locked one after another, the lane of the second
/// thread would come after the jobs of the first. Returns the runs of the assistant.
pub async fn lock_threads(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    assistant: AssistantId,
    threads: &[ThreadId],
) -> store::Result<Vec<OpenRun>> {
    jobs::savepoint(tx).await?;
    let mut open = runs::open(tx, tenant, None, Some(assistant)).await?;
    let mut looks = 0;
    loop {
        let touched: BTreeSet<ThreadId> = open
            .iter()
            .map(|run| run.thread_id)
            .chain(threads.iter().copied())
            .collect();
        lock_lanes(tx, tenant, &touched).await?;
        let mut found = runs::open(tx, tenant, None, Some(assistant)).await?;
        let is_locked = |run: &OpenRun| touched.contains(&run.thread_id);
        looks += 1;
        if looks == MAX_LOCK_ROUNDS || found.iter().all(is_locked) {
            jobs::release_savepoint(tx).await?;
            // If runs start all the time, the last ones count as started after this.
            found.retain(is_locked);
            return Ok(found);
        }
        // Runs started on more threads meanwhile. Locking their lanes now would come after jobs, so everything is
        // repeated.
        jobs::rollback_to_savepoint(tx).await?;
        open = found;
    }
}

/// Locks the lanes of threads, then the jobs of their open runs.
async fn lock_lanes(tx: &mut Tx<'_>, tenant: TenantId, threads: &BTreeSet<ThreadId>) -> store::Result<()> {
    if threads.is_empty() {
        return Ok(());
    }
    let mut lanes: Vec<(String, i64)> = threads
        .iter()
        .map(|thread| (lane(*thread).key().to_owned(), 1))
        .collect();
    lanes.sort_unstable();
    lanes::lock_all(tx, &lanes).await?;
    let threads: Vec<ThreadId> = threads.iter().copied().collect();
    let open = runs::open_on(tx, tenant, &threads).await?;
    let ids: Vec<JobId> = open.into_iter().map(|run| run.job_id).collect();
    if !ids.is_empty() {
        jobs::lock(tx, &ids).await?;
    }
    Ok(())
}
