//! Retries by an operator.

use towpath_domain::job::JobState;
use towpath_domain::{JobId, Rejection};
use towpath_store::jobs::{self, Job};
use towpath_store::{self as store, Tx, attempts};

use crate::lane::Lane;
use crate::locked_jobs::LockedJobs;
use crate::workflow::{EndHandlers, RetryDecision};

/// Retries a failed job, or one that is backing off. It continues after its finished steps and its checkpoint, with all
/// its retries, without a deadline, at the end of its lane. It takes locks, so call it before the transaction's
/// business writes. Returns the new state.
///
/// [`store::Error::NotFound`], or a conflict with the reason: the kind does not allow it, the job is part of another
/// job, or it has not ended or has succeeded.
pub async fn retry(tx: &mut Tx<'_>, id: JobId) -> store::Result<JobState> {
    let job = jobs::get(tx, id).await?.ok_or(store::Error::NotFound)?;
    let (lane, refused) = match check_retry(tx, &job) {
        Ok(lane) => (lane, None),
        Err(why) => (None, Some(why)),
    };
    let lanes: Vec<Lane> = lane.into_iter().collect();
    if job.state.is_final() {
        // No other transaction can wait for a row that it does not see yet, so this may precede the lanes.
        jobs::restore(tx, id).await?;
    }
    let mut taken = LockedJobs::lock(tx, id, &lanes, false).await?;
    // It may have moved to the history while this waited for its lane. Once restored, it cannot move again before the
    // end of this transaction.
    if taken.is_none() && jobs::restore(tx, id).await? {
        taken = LockedJobs::lock(tx, id, &lanes, false).await?;
    }
    let mut hold = taken.ok_or(store::Error::NotFound)?;
    let row = hold.job(id).clone();
    if !row.state.is_final() {
        if !backs_off(tx, &row).await? {
            return Err(conflict(format!("the job has not ended: it is {}", row.state.as_str())));
        }
        jobs::make_due(tx, id).await?;
        hold.enter(tx, id).await?;
        return Ok(hold.job(id).state);
    }
    if row.state == JobState::Succeeded {
        return Err(conflict("the job succeeded; there is nothing to retry".to_owned()));
    }
    if let Some(why) = refused {
        return Err(conflict(why));
    }
    if let Some(parent) = row.parent_id {
        return Err(conflict(format!(
            "the job was part of job {parent}, which has continued without it"
        )));
    }
    // Counted again: the number that an earlier version wrote at the end of the job may be too high.
    if jobs::count_children(tx, id).await? > 0 {
        return Err(conflict(
            "jobs that it started are still ending; retry in a moment".to_owned(),
        ));
    }
    if row.lane.is_some() && row.lane.as_deref() != lanes.first().map(Lane::key) {
        return Err(store::Error::corrupt("job", "lane", id));
    }
    jobs::revive(tx, id).await?;
    hold.reset_for_retry(id);
    let ends = tx
        .attached::<EndHandlers>()
        .ok_or_else(|| store::Error::corrupt("job", "kind", id))?;
    ends.revive(tx, &row).await?;
    hold.enter(tx, id).await?;
    Ok(hold.job(id).state)
}

/// Whether this process knows the end handlers of this kind, which cancelling requires.
#[must_use]
pub fn is_known_kind(tx: &Tx<'_>, kind: &str) -> bool {
    tx.attached::<EndHandlers>().is_some_and(|ends| ends.knows(kind))
}

/// Whether a known kind of job uses this pool.
#[must_use]
pub fn has_pool(tx: &Tx<'_>, pool: &str) -> bool {
    tx.attached::<EndHandlers>().is_some_and(|ends| ends.has_pool(pool))
}

/// Whether the job is scheduled because its last attempt failed, rather than because it snoozed.
pub(crate) async fn backs_off(tx: &mut Tx<'_>, job: &Job) -> store::Result<bool> {
    if job.state != JobState::Scheduled || job.failures == 0 {
        return Ok(false);
    }
    Ok(attempts::list(tx, job.id)
        .await?
        .last()
        .is_some_and(|last| last.fence == job.fence && matches!(last.outcome.as_str(), "failed" | "timed_out")))
}

/// The lane of the retried job, or why it may not be retried.
fn check_retry(tx: &Tx<'_>, job: &Job) -> Result<Option<Lane>, String> {
    let ends = tx.attached::<EndHandlers>().filter(|ends| ends.knows(&job.kind));
    let Some(ends) = ends else {
        return Err(format!("this server does not know jobs of the kind {}", job.kind));
    };
    match ends.retry_decision(job) {
        Ok(RetryDecision::Allowed(lane)) => Ok(lane),
        Ok(RetryDecision::Refused(why)) => Err(why.to_owned()),
        Err(_) => Err("the job's input cannot be read".to_owned()),
    }
}

fn conflict(text: String) -> store::Error {
    Rejection::conflict("", text).into()
}
