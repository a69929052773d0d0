//! Starts the export of one interval of a scheduled export, and records the spawn of the next: a chain, each link of
//! which is recorded in the transaction that starts the export of the one before. So every interval is exported once,
//! whatever happens to workers; those that passed while nothing ran are all made up for, one after another.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::export::{Content, ExportStatus, Limits, SPAWN_DELAY};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{ExportId, ScheduleId, TenantId, Timestamp, failpoint};
use towpath_durable::{Ctx, Outcome, Start, Verdict, Workflow};
use towpath_store::exports::scheduled::{self, NewScheduled};
use towpath_store::{self as store, Tx, schedules};

use crate::World;
use crate::run_export;

/// Spawns the export of the interval that the schedule stands at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpawnExport {
    /// Its workspace.
    pub tenant: TenantId,
    /// The scheduled export.
    pub export: ExportId,
    /// The chain.
    pub schedule: ScheduleId,
}

/// Records a scheduled export and its first spawn.
///
/// # Errors
/// No such destination or project; those of the database.
pub async fn create(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    content: &Content,
    start_time: Timestamp,
    hours: u32,
) -> store::Result<ExportId> {
    run_export::check(tx, tenant, content).await?;
    let spawn = SpawnExport {
        tenant,
        export: ExportId::new(),
        schedule: ScheduleId::new(),
    };
    let at = start_time.plus(span(hours)).plus(SPAWN_DELAY);
    let job = towpath_durable::start(tx, &spawn, Start::new(tenant).at(at)).await?;
    let input =
        serde_json::to_string(&spawn).map_err(|_| store::Error::corrupt("scheduled_export", "id", spawn.export))?;
    let chain = schedules::Schedule {
        id: spawn.schedule,
        tenant_id: tenant,
        kind: SpawnExport::KIND.to_owned(),
        pool: SpawnExport::POOL.to_owned(),
        input,
        next_at: at,
        paused: false,
        spawn_job: Some(job),
        created_at: tx.now(),
        ended_at: None,
    };
    schedules::insert(tx, &chain).await?;
    let new = NewScheduled {
        id: spawn.export,
        content,
        start_time,
        hours,
        schedule: spawn.schedule,
    };
    scheduled::insert(tx, tenant, &new).await?;
    run_export::keep_destination(tx, tenant, content).await?;
    Ok(spawn.export)
}

/// Cancels a scheduled export; what it has spawned goes on. `why` is shown, unless somebody asked for it. False when there is
/// no such schedule. One that is cancelled already stays as it is.
///
/// # Errors
/// Those of the database.
pub async fn cancel(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId, why: Option<&str>) -> store::Result<bool> {
    let Some(row) = scheduled::find(tx, tenant, id).await? else {
        return Ok(false);
    };
    if row.status == ExportStatus::Running {
        // Jobs are locked before business rows. A spawn that gets in between has recorded one more job of the chain,
        // which does nothing when it is due.
        let chain = schedules::get(tx, row.schedule_id).await?;
        if let Some(job) = chain.and_then(|chain| chain.spawn_job) {
            towpath_durable::cancel(tx, job).await?;
        }
        schedules::end(tx, row.schedule_id).await?;
        scheduled::cancel(tx, tenant, id, why).await?;
    }
    Ok(true)
}

const fn span(hours: u32) -> Duration {
    Duration::from_secs(hours as u64 * 3600)
}

/// The interval whose spawn is due at `at`.
fn interval(at: Timestamp, hours: u32) -> Range<Timestamp> {
    let end = at.minus(SPAWN_DELAY);
    end.minus(span(hours))..end
}

impl Workflow for SpawnExport {
    const KIND: &'static str = "spawn_export";
    const POOL: &'static str = "exports";
    const RETRY: RetryPolicy = RetryPolicy::doubling(20, Duration::from_secs(1), Duration::from_secs(60));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self {
            tenant,
            export,
            schedule,
        } = self;
        let read = async |tx: &mut Tx<'_>| {
            let chain = schedules::get(tx, schedule).await?;
            Ok((chain, scheduled::find(tx, tenant, export).await?))
        };
        let (chain, row) = world.store.read(read).await.retry()?;
        let Some(chain) = chain.filter(|chain| chain.ended_at.is_none() && chain.spawn_job == Some(ctx.job())) else {
            // Somebody else stands for this interval.
            return ctx.done();
        };
        let Some(row) = row.filter(|row| row.status == ExportStatus::Running) else {
            return ctx.settle(async |tx| schedules::end(tx, schedule).await).await;
        };
        let hours = u32::try_from(row.interval_hours).fatal()?;
        let content = row.content().fatal()?;
        let range = interval(chain.next_at, hours);
        // The workspace's lane is locked before this job, as everywhere. Neither destination nor project is asked for:
        // the export fails and says which is gone.
        let limits: Limits = world.exports;
        failpoint::hit("spawn.before_record");
        let lane = [run_export::lane(tenant, &limits)];
        let spawned = ctx.settle_with(&lane, async |tx| {
            let spawned = run_export::record(tx, tenant, &limits, &content, range, Some(export)).await?;
            failpoint::hit("spawn.half_recorded");
            let next = chain.next_at.plus(span(hours));
            let job = towpath_durable::start(tx, self, Start::new(tenant).at(next)).await?;
            if !schedules::advance(tx, schedule, chain.next_at, next, Some(job)).await? {
                // Somebody else moved it on, or it was cancelled: nothing of this spawn may be kept.
                return Err(store::Error::Stale);
            }
            tracing::info!(export.id = %spawned.id, export.source = %export, "spawned the export of an interval");
            Ok(())
        });
        let spawned = spawned.await?;
        failpoint::hit("spawn.recorded");
        Ok(spawned)
    }

    /// A chain whose spawn ended badly is taken up again by the scheduler, which finds it without a job.
    async fn end(_: &mut Tx<'_>, _: &Self, _: Ended) -> store::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_ended_ten_minutes_before_its_spawn() {
        let at = Timestamp::parse("2026-03-01T06:10:00Z").unwrap();
        let range = interval(at, 6);
        assert_eq!(range.start, Timestamp::parse("2026-03-01T00:00:00Z").unwrap());
        assert_eq!(range.end, Timestamp::parse("2026-03-01T06:00:00Z").unwrap());
    }
}
