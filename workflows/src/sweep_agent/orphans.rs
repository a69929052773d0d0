//! Ends runs whose job ended without them: their threads would stay busy.

use std::time::Duration;

use towpath_domain::TenantId;
use towpath_domain::agent::Kwargs;
use towpath_domain::job::{EndReason, JobState};
use towpath_durable::{Ctx, Failure, IntoFailure, Workflow};
use towpath_store::runs::{self, OpenRun};
use towpath_store::{self as store, Tx, jobs};

use crate::agent_services::AgentServices;
use crate::run_agent::job::{RunAgent, lane};

/// Rows per statement, or threads per read.
pub(super) const BATCH: i64 = 500;

/// Ends orphaned runs of a workspace.
pub(super) async fn end_orphans(ctx: &mut Ctx, world: &AgentServices, tenant: TenantId) -> Result<u64, Failure> {
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
                end_orphan(tx, tenant, run, world.settings.event_retention).await
            })
            .await?,
        );
    }
    Ok(ended)
}

/// Checks again under the lock of the thread's lane, under which runs begin and end.
async fn end_orphan(tx: &mut Tx<'_>, tenant: TenantId, found: OpenRun, events_kept: Duration) -> store::Result<bool> {
    let run = match runs::get(tx, tenant, found.id).await {
        Err(store::Error::NotFound) => return Ok(false),
        run => run?,
    };
    let state = jobs::get(tx, found.job_id).await?.map(|job| job.state);
    if run.status.is_final() || state.is_some_and(|state| !state.is_final()) {
        return Ok(false);
    }
    tracing::warn!(run.id = %found.id, job.id = %found.job_id, ?state, "ending a run whose job has ended");
    let ended = match state {
        Some(JobState::Cancelled) => EndReason::Cancelled,
        Some(JobState::TimedOut) => EndReason::TimedOut,
        _ => EndReason::Failed("its job ended before the run".to_owned()),
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
