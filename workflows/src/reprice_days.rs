//! Computes the costs of a workspace's trace runs again after a change of its prices.
//!
//! Each job takes some segments with costs of earlier prices, waits until the days in them are
//! [compacted](crate::compact_day), and records the next job of the chain, until no such segment is left. A segment says
//! by which version of the prices it was written, so nothing else has to be remembered: a job that was killed finds the
//! rest. A flush that read the prices before a change may publish after it; the sweep calls [`ensure_outdated`] for
//! that.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::TenantId;
use towpath_domain::job::{EndReason, JobState, RetryPolicy};
use towpath_durable::{Ctx, Failure, IntoFailure, Lane, Outcome, RetryDecision, Start, Workflow};
use towpath_store::{self as store, Tx, jobs, lanes, model_prices};

use crate::Services;
use crate::compact_day::CompactDay;

/// Segments of one job of the chain,
const SEGMENTS: i64 = 64;
/// and their days.
const DAYS: i64 = 64;
/// The next job is not due at once: entering its lane would wait for this one.
const NEXT: Duration = Duration::from_millis(1);
/// Workspaces that one sweep starts.
const WORKSPACES: i64 = 100;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RepriceDays {
    pub tenant: TenantId,
}

#[must_use]
pub fn lane(tenant: TenantId) -> Lane {
    Lane::new(format!("reprice:{tenant}"), 1)
}

/// Records the job of a workspace, unless one is waiting. Call it before the transaction's business writes: it locks the
/// lane.
pub async fn ensure(tx: &mut Tx<'_>, tenant: TenantId) -> store::Result<()> {
    let lane = lane(tenant);
    lanes::lock(tx, lane.key(), 1).await?;
    if jobs::lane_has_queued(tx, lane.key()).await? {
        return Ok(());
    }
    let how = Start::new(tenant).lane(lane);
    towpath_durable::start(tx, &RepriceDays { tenant }, how).await.map(drop)
}

/// Records the jobs of workspaces with costs of earlier prices and without a job.
pub(crate) async fn ensure_outdated(ctx: &mut Ctx, world: &Services) -> Result<(), Failure> {
    let found = world.store.read(async |tx| {
        let tenants = model_prices::outdated_workspaces(tx, TenantId::nil(), WORKSPACES).await?;
        if tenants.is_empty() {
            return Ok(tenants);
        }
        let keys: Vec<String> = tenants.iter().map(|tenant| lane(*tenant).key().to_owned()).collect();
        let there = jobs::in_lanes(tx, &keys).await?;
        let is_open = |tenant: &TenantId| {
            let own = lane(*tenant);
            there.iter().any(|lane| lane.open && lane.lane == own.key())
        };
        Ok(tenants.into_iter().filter(|tenant| !is_open(tenant)).collect())
    });
    for tenant in found.await.retry()? {
        let lane = lane(tenant);
        ctx.commit_in(std::slice::from_ref(&lane), async |tx| ensure(tx, tenant).await)
            .await?;
    }
    Ok(())
}

impl Workflow for RepriceDays {
    const KIND: &'static str = "reprice_days";
    const POOL: &'static str = "sweeps";
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(1), Duration::from_secs(60));
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let tenant = self.tenant;
        let children = ctx.children().await?;
        let ended_badly = children
            .iter()
            .find(|child| child.state.is_final() && child.state != JobState::Succeeded);
        if let Some(child) = ended_badly {
            let error = child.error.as_deref().unwrap_or(child.state.as_str());
            return Err(Failure::fatal(format!(
                "the costs of a day cannot be computed again: {error}"
            )));
        }
        if children.iter().any(|child| !child.state.is_final()) {
            return ctx.wait(&[], async |_| Ok(())).await;
        }
        if !children.is_empty() {
            let lane = lane(tenant);
            return ctx
                .settle(async |tx| {
                    if jobs::lane_has_queued(tx, lane.key()).await? {
                        return Ok(());
                    }
                    let how = Start::new(tenant).lane(lane.clone()).after(NEXT);
                    towpath_durable::start(tx, &Self { tenant }, how).await.map(drop)
                })
                .await;
        }
        let days = world.store.read(async |tx| {
            let version = model_prices::version(tx, tenant).await?;
            model_prices::outdated_days(tx, tenant, version, SEGMENTS, DAYS).await
        });
        let days = days.await.retry()?;
        if days.is_empty() {
            return ctx.settle(async |_| Ok(())).await;
        }
        let days: Vec<CompactDay> = days
            .into_iter()
            .map(|outdated| CompactDay::repricing(tenant, outdated.project_id, outdated.day))
            .collect();
        let lanes: Vec<Lane> = days.iter().map(CompactDay::lane).collect();
        let days: Vec<(CompactDay, Lane)> = days.into_iter().zip(lanes.iter().cloned()).collect();
        let job = ctx.job();
        ctx.wait(&lanes, async |tx| {
            let how = Start::new(tenant).child_of(job);
            towpath_durable::start_all(tx, &days, how).await.map(drop)
        })
        .await
    }

    /// The sweep does not try the same prices again.
    async fn end(tx: &mut Tx<'_>, input: &Self, _: EndReason) -> store::Result<()> {
        let version = model_prices::version(tx, input.tenant).await?;
        model_prices::repricing_failed(tx, input.tenant, version).await
    }

    /// It processes the data that exists when it runs.
    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Allowed(Some(lane(self.tenant)))
    }
}
