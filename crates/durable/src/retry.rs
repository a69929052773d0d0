//! Having a job performed again by hand.

use towpath_domain::job::JobState;
use towpath_domain::{JobId, Rejection};
use towpath_store::jobs::{self, Job};
use towpath_store::{self as store, Tx, attempts};

use crate::hold::Hold;
use crate::lane::Lane;
use crate::workflow::{Again, Ends};

/// Has a job performed again that ended badly, or one that backs off at once. It goes on behind the steps and the
/// checkpoint it has, with all its retries before it, without a deadline, at the end of its lane. Takes locks, so call
/// it before the transaction's business writes. Answers where it stands now.
///
/// # Errors
/// [`store::Error::NotFound`]; a rejection as a conflict, which says why performing it again would be wrong: its kind
/// does not allow it, it is part of another job, it is not over or ended well. As every statement.
pub async fn retry(tx: &mut Tx<'_>, id: JobId) -> store::Result<JobState> {
    let job = jobs::get(tx, id).await?.ok_or(store::Error::NotFound)?;
    let (lane, refused) = match again(tx, &job) {
        Ok(lane) => (lane, None),
        Err(why) => (None, Some(why)),
    };
    let lanes: Vec<Lane> = lane.into_iter().collect();
    if job.state.is_final() {
        // Nobody waits for a row that nobody else sees yet, so it may come before the lanes.
        jobs::recall(tx, id).await?;
    }
    let mut taken = Hold::take(tx, id, &lanes, false).await?;
    // It may have left for the history while we waited for its lane. Once it is back it cannot leave again before we are done.
    if taken.is_none() && jobs::recall(tx, id).await? {
        taken = Hold::take(tx, id, &lanes, false).await?;
    }
    let mut hold = taken.ok_or(store::Error::NotFound)?;
    let row = hold.job(id).clone();
    if !row.state.is_final() {
        if !backs_off(tx, &row).await? {
            return Err(conflict(format!("the job is not over: it is {}", row.state.as_str())));
        }
        jobs::hurry(tx, id).await?;
        hold.enter(tx, id).await?;
        return Ok(hold.job(id).state);
    }
    if row.state == JobState::Succeeded {
        return Err(conflict("the job succeeded; there is nothing to try again".to_owned()));
    }
    if let Some(why) = refused {
        return Err(conflict(why));
    }
    if let Some(parent) = row.parent_id {
        return Err(conflict(format!(
            "the job was a part of job {parent}, which has gone on without it"
        )));
    }
    // Counted anew: what an earlier version wrote there when the job ended may be too much, and stays so.
    if jobs::count_children(tx, id).await? > 0 {
        return Err(conflict(
            "jobs that it recorded are still ending; try again in a moment".to_owned(),
        ));
    }
    if row.lane.is_some() && row.lane.as_deref() != lanes.first().map(Lane::key) {
        return Err(store::Error::corrupt("job", "lane", id));
    }
    jobs::revive(tx, id).await?;
    hold.revived(id);
    let ends = tx
        .attached::<Ends>()
        .ok_or_else(|| store::Error::corrupt("job", "kind", id))?;
    ends.revive(tx, &row).await?;
    hold.enter(tx, id).await?;
    Ok(hold.job(id).state)
}

/// Whether this process knows how jobs of this kind end: without that nobody can cancel one.
#[must_use]
pub fn knows(tx: &Tx<'_>, kind: &str) -> bool {
    tx.attached::<Ends>().is_some_and(|ends| ends.knows(kind))
}

/// Whether any kind of job that this process knows is performed in this pool.
#[must_use]
pub fn has_pool(tx: &Tx<'_>, pool: &str) -> bool {
    tx.attached::<Ends>().is_some_and(|ends| ends.has_pool(pool))
}

/// Whether the job is scheduled because its last attempt failed, and not because it asked for a later turn.
pub(crate) async fn backs_off(tx: &mut Tx<'_>, job: &Job) -> store::Result<bool> {
    if job.state != JobState::Scheduled || job.failures == 0 {
        return Ok(false);
    }
    Ok(attempts::list(tx, job.id)
        .await?
        .last()
        .is_some_and(|last| last.fence == job.fence && matches!(last.outcome.as_str(), "failed" | "timed_out")))
}

/// The lane the job goes to, or why it may not be performed again.
fn again(tx: &Tx<'_>, job: &Job) -> Result<Option<Lane>, String> {
    let ends = tx.attached::<Ends>().filter(|ends| ends.knows(&job.kind));
    let Some(ends) = ends else {
        return Err(format!("this server does not know jobs of the kind {}", job.kind));
    };
    match ends.again(job) {
        Ok(Again::Allowed(lane)) => Ok(lane),
        Ok(Again::Refused(why)) => Err(why.to_owned()),
        Err(_) => Err("the job's input cannot be read".to_owned()),
    }
}

fn conflict(text: String) -> store::Error {
    Rejection::conflict("", text).into()
}
