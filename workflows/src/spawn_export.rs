//! Starts the export of one interval of a scheduled export, and records the next spawn in the same transaction. So
//! every interval is exported once, even if workers fail; missed intervals are all exported, one after another.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::export::{ExportSpec, ExportStatus, Limits, SPAWN_DELAY};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{ExportId, ScheduleId, TenantId, Timestamp, failpoint};
use towpath_durable::{Ctx, IntoFailure, Outcome, Settlement, Workflow};
use towpath_store::exports::scheduled::{self, NewScheduled};
use towpath_store::{self as store, Tx, schedules};

use crate::Services;
use crate::{job_chain, run_export};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpawnExport {
    pub tenant: TenantId,
    pub export: ExportId,
    pub schedule: ScheduleId,
}

/// Records a scheduled export and its first spawn.
pub async fn create(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    content: &ExportSpec,
    start_time: Timestamp,
    hours: u32,
) -> store::Result<ExportId> {
    run_export::check(tx, tenant, content).await?;
    let spawn = SpawnExport {
        tenant,
        export: ExportId::new(),
        schedule: ScheduleId::new(),
    };
    let at = start_time.plus(interval_length(hours)).plus(SPAWN_DELAY);
    job_chain::begin(tx, spawn.schedule, tenant, &spawn, at).await?;
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

/// Cancels a scheduled export; exports that it spawned continue. `why` is shown unless a client requested it. False if
/// there is no such schedule. A cancelled one stays as it is.
pub async fn cancel(tx: &mut Tx<'_>, tenant: TenantId, id: ExportId, why: Option<&str>) -> store::Result<bool> {
    let Some(row) = scheduled::find(tx, tenant, id).await? else {
        return Ok(false);
    };
    if row.status == ExportStatus::Running {
        // Jobs are locked before business rows. A spawn in between has recorded another job of the chain, which does
        // nothing when it is due.
        let chain = schedules::get(tx, row.schedule_id).await?;
        if let Some(job) = chain.and_then(|chain| chain.spawn_job) {
            towpath_durable::cancel(tx, job).await?;
        }
        schedules::end(tx, row.schedule_id).await?;
        scheduled::cancel(tx, tenant, id, why).await?;
    }
    Ok(true)
}

const fn interval_length(hours: u32) -> Duration {
    Duration::from_secs(hours as u64 * 3600)
}

/// The interval whose spawn is due at `at`.
fn interval(at: Timestamp, hours: u32) -> Range<Timestamp> {
    let end = at.minus(SPAWN_DELAY);
    end.minus(interval_length(hours))..end
}

impl Workflow for SpawnExport {
    const KIND: &'static str = "spawn_export";
    const POOL: &'static str = "exports";
    const RETRY: RetryPolicy = RetryPolicy::doubling(20, Duration::from_secs(1), Duration::from_secs(60));
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
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
            // Another job handles this interval.
            return ctx.complete();
        };
        let Some(row) = row.filter(|row| row.status == ExportStatus::Running) else {
            return ctx.settle(async |tx| schedules::end(tx, schedule).await).await;
        };
        let hours = u32::try_from(row.interval_hours).fatal()?;
        let content = row.content().fatal()?;
        let range = interval(chain.next_at, hours);
        // The workspace's lane is locked before this job, as everywhere. Destination and project are not checked: the
        // export fails and names the missing one.
        let limits: Limits = world.exports;
        failpoint::hit("spawn.before_record");
        let lane = [run_export::lane(tenant, &limits)];
        let spawned = ctx.settle_as(Settlement::starting_in(&lane), async |tx| {
            let spawned = run_export::record(tx, tenant, &limits, &content, range, Some(export)).await?;
            failpoint::hit("spawn.half_recorded");
            let next = chain.next_at.plus(interval_length(hours));
            job_chain::advance(tx, &chain, self, next).await?;
            tracing::info!(export.id = %spawned.id, export.source = %export, "spawned the export of an interval");
            Ok(())
        });
        let spawned = spawned.await?;
        failpoint::hit("spawn.recorded");
        Ok(spawned)
    }

    /// The scheduler finds a chain without a job and continues it.
    async fn end(_: &mut Tx<'_>, _: &Self, _: EndReason) -> store::Result<()> {
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
