//! Stopping runs, and deleting them and their threads.

use serde_json::json;
use towpath_domain::agent::CancelAction;
use towpath_domain::{AssistantId, Rejection, RunId, TenantId, ThreadId};
use towpath_store::jobs::Job;
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

/// What became of a run that was to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// It is gone with the checkpoints it made.
    Done,
    /// It was at work and is told to stop. It goes, with what it did, when its worker has stopped; until then its thread is
    /// busy.
    Stopping,
}

/// Deletes a run with the checkpoints it made. One that is not over is stopped. Takes locks, so call it before the
/// transaction's other writes.
///
/// # Errors
/// [`store::Error::NotFound`]; a conflict while another run of the thread is at work, which may hold what this one made; those
/// of the database.
pub async fn delete_run(tx: &mut Tx<'_>, tenant: TenantId, thread: ThreadId, id: RunId) -> store::Result<Deletion> {
    let run = runs::get(tx, tenant, id).await?;
    if run.thread_id != thread {
        return Err(store::Error::NotFound);
    }
    // No run of the thread is recorded, writes or ends while this is locked, and none is claimed while its job is.
    lanes::lock(tx, lane(thread).key(), 1).await?;
    let open = runs::open(tx, tenant, Some(thread), None).await?;
    let jobs = lock(tx, &open).await?;
    if let Some(own) = open.iter().find(|run| run.id == id) {
        cancel(tx, tenant, &[*own], CancelAction::Rollback).await?;
        return match runs::get(tx, tenant, id).await {
            Ok(_) => Ok(Deletion::Stopping),
            // It waited, and was rolled back at once.
            Err(store::Error::NotFound) => Ok(Deletion::Done),
            Err(error) => Err(error),
        };
    }
    let at_work = |run: &&Open| jobs.iter().any(|job| job.id == run.job_id && job.started_at.is_some());
    if let Some(other) = open.iter().find(at_work) {
        let text = format!(
            "Run {id} cannot be deleted while run {} of its thread is at work, which may hold its checkpoints. Delete it \
             when that one is over, or cancel that one.",
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
        Err(store::Error::NotFound) => Ok(()),
        deleted => deleted,
    }
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

/// Locks lanes, then jobs, in the order everybody takes them; answers the jobs.
async fn lock(tx: &mut Tx<'_>, open: &[Open]) -> store::Result<Vec<Job>> {
    let mut keys: Vec<String> = open.iter().map(|run| lane(run.thread_id).key().to_owned()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        lanes::lock_existing(tx, &key).await?;
    }
    let ids: Vec<_> = open.iter().map(|run| run.job_id).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    jobs::lock(tx, &ids).await
}
