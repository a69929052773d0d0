//! Ending runs whose job is over without them: their threads would be busy for ever.

use std::time::Duration;

use towpath_domain::TenantId;
use towpath_domain::agent::Kwargs;
use towpath_domain::job::{Ended, JobState};
use towpath_durable::{Ctx, Failure, Verdict, Workflow};
use towpath_store::runs::{self, Open};
use towpath_store::{self as store, Tx, jobs};

use super::BATCH;
use crate::agent::AgentWorld;
use crate::run_agent::{RunAgent, lane};

/// Ends the runs of a workspace that nothing else will end.
pub(super) async fn end_orphans(ctx: &mut Ctx, world: &AgentWorld, tenant: TenantId) -> Result<u64, Failure> {
    let found = world
        .store
        .read(async |tx| runs::orphaned(tx, tenant, BATCH).await)
        .await
        .retry()?;
    let mut ended = 0;
    for run in found {
        let lanes = [lane(run.thread_id)];
        ended += u64::from(
            ctx.commit_in(&lanes, async |tx| {
                end_orphan(tx, tenant, run, world.settings.events_kept).await
            })
            .await?,
        );
    }
    Ok(ended)
}

/// Looks again under the lock of the thread's lane, under which runs begin and end.
async fn end_orphan(tx: &mut Tx<'_>, tenant: TenantId, found: Open, events_kept: Duration) -> store::Result<bool> {
    let run = match runs::get(tx, tenant, found.id).await {
        Err(store::Error::NotFound) => return Ok(false),
        run => run?,
    };
    let state = jobs::get(tx, found.job_id).await?.map(|job| job.state);
    if run.status.is_final() || state.is_some_and(|state| !state.is_final()) {
        return Ok(false);
    }
    tracing::warn!(run.id = %found.id, job.id = %found.job_id, ?state, "a run outlived its job, and is ended");
    let ended = match state {
        Some(JobState::Cancelled) => Ended::Cancelled,
        Some(JobState::TimedOut) => Ended::TimedOut,
        _ => Ended::Failed("its job was over before it".to_owned()),
    };
    let kwargs: Kwargs = serde_json::from_str(&run.kwargs).unwrap_or_default();
    let job = RunAgent {
        tenant,
        run: found.id,
        thread: found.thread_id,
        temporary: kwargs.temporary,
        events_kept_s: events_kept.as_secs(),
    };
    RunAgent::end(tx, &job, ended).await?;
    Ok(true)
}
