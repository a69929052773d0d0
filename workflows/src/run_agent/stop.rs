//! Stopping runs, and deleting them and their threads.

use std::collections::BTreeSet;

use serde_json::json;
use towpath_domain::agent::{CancelAction, EventId, frame};
use towpath_domain::{AssistantId, JobId, Rejection, RunId, TenantId, ThreadId};
use towpath_store::jobs::Job;
use towpath_store::runs::{self, Open};
use towpath_store::{self as store, Tx, checkpoints, jobs, lanes, threads};

use super::lane;

/// Cancels runs that are not over. Those that wait end at once; those at work end when their workers acknowledge it. All of them
/// are locked and told in as many statements as one is. Takes locks, so call it before the transaction's other writes.
///
/// # Errors
/// As every statement.
pub async fn cancel(tx: &mut Tx<'_>, tenant: TenantId, open: &[Open], action: CancelAction) -> store::Result<()> {
    if open.is_empty() {
        return Ok(());
    }
    let jobs: Vec<JobId> = open.iter().map(|run| run.job_id).collect();
    let ids: Vec<RunId> = open.iter().map(|run| run.id).collect();
    // Before the jobs are cancelled: how a run ends is read then.
    towpath_durable::cancel_all(tx, &jobs, async |tx| {
        runs::set_cancel_all(tx, tenant, &ids, action).await
    })
    .await
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

/// How often [`lock_threads`] looks again for runs that others began meanwhile.
const LOOKS: usize = 5;

/// Locks the lanes of threads, and of those on which runs of an assistant are not over, then the jobs of all runs on them that are
/// not over: for whoever stops runs of several threads, or deletes several. Locked one after another, the lane of the second would
/// come behind the jobs of the first. Answers the runs of the assistant.
///
/// # Errors
/// As every statement.
pub async fn lock_threads(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    assistant: AssistantId,
    threads: &[ThreadId],
) -> store::Result<Vec<Open>> {
    jobs::mark(tx).await?;
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
        let is_locked = |run: &Open| touched.contains(&run.thread_id);
        looks += 1;
        if looks == LOOKS || found.iter().all(is_locked) {
            jobs::keep(tx).await?;
            // Where runs begin all the time, the last ones are as if they had begun after this.
            found.retain(is_locked);
            return Ok(found);
        }
        // Others began on more threads while we waited. Their lanes now would come behind the jobs, so it is done again.
        jobs::let_go(tx).await?;
        open = found;
    }
}

/// Locks the lanes of threads, then the jobs of their runs that are not over.
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
