//! Folds open units of the write-ahead log into segments.
//!
//! Workspaces are divided into shards. The lane of a shard has one place, so its folds never overlap, while shards are
//! folded beside each other. Each round takes open units of the shard, folds them on the heavy runtime, and makes the
//! result true in one fenced transaction.
//!
//! Registering a unit waits for no fold. Whoever does looks, in the same transaction, whether a fold of the shard is still
//! to begin, and records one if not. A fold that is claimed at that moment may not see the unit yet; so it looks again
//! in the transaction in which it ends, and [`ensure_left`] finds what was missed all the same.

mod apart;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{JobId, Shard, TenantId};
use towpath_durable::{Again, Ctx, Failure, Lane, Outcome, Start, Verdict, Workflow};
use towpath_store::units::{Bounds, Unit};
use towpath_store::{self as store, Dialect, Store, Tx, jobs, segments, units};
use towpath_traces::wal::OnRegistered;

use crate::World;
use apart::Apart;

/// How long the first unit waits for company, where the operator says nothing else.
pub const DELAY: Duration = Duration::from_secs(2);
/// How often [`ensure_left`] is worth calling.
pub const LOOK: Duration = Duration::from_secs(2);
/// A unit that has waited for less than this is left to those who registered it.
const LEFT: Duration = Duration::from_secs(5);
/// A fold is never due at once: entering its lane waits for the one at work there.
const SOON: Duration = Duration::from_millis(1);
/// Rounds of one job. Further units are for the next one, so that an export's barrier gets its turn between two.
const ROUNDS: usize = 16;
/// Earlier builds had one lane for all folds.
const LANE: &str = "fold";
/// Between two looks of a fold of an earlier build that an export waits for.
const HANDED_OVER: Duration = Duration::from_secs(1);

/// Folds what is open.
#[derive(Debug, Serialize, Deserialize)]
pub struct FoldUnits {
    /// What units and segments in work are marked with. Not the job's own id: `end` is not told that.
    pub mark: JobId,
    /// Whose units it folds. Jobs of earlier builds have none: they leave the work to folds of the shards.
    #[serde(default)]
    pub shard: Option<Shard>,
    /// Goes on until this much is folded, if it takes longer than the usual rounds.
    pub barrier: Option<Barrier>,
}

/// What an export waits for: all that its workspace has sent before.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Barrier {
    /// Workspace of the export.
    pub tenant: TenantId,
    /// The last unit it waits for.
    pub last_seq: i64,
}

/// The lane of the folds of a shard.
#[must_use]
pub fn lane(shard: Shard) -> Lane {
    Lane::new(lane_key(shard), 1)
}

fn lane_key(shard: Shard) -> String {
    format!("{LANE}:{}", shard.number())
}

/// Records a fold of each of these shards that is due after `delay`, unless one waits already. Waits for no fold.
///
/// # Errors
/// Those of the database.
pub async fn ensure(tx: &mut Tx<'_>, shards: &[Shard], delay: Duration) -> store::Result<()> {
    let lanes: Vec<String> = shards.iter().copied().map(lane_key).collect();
    let there = jobs::in_lanes(tx, &lanes).await?;
    for (&shard, key) in shards.iter().zip(&lanes) {
        if there.iter().any(|lane| lane.queued && &lane.lane == key) {
            continue;
        }
        let fold = FoldUnits {
            mark: JobId::new(),
            shard: Some(shard),
            barrier: None,
        };
        let how = Start::new(TenantId::nil()).lane(lane(shard)).after(delay.max(SOON));
        towpath_durable::start(tx, &fold, how).await?;
    }
    Ok(())
}

/// [`ensure`], as the write-ahead log wants it.
#[must_use]
pub fn on_registered(delay: Duration) -> OnRegistered {
    Arc::new(move |tx, shards| Box::pin(ensure(tx, shards, delay)))
}

/// Records a fold of each shard with units that wait for much longer than `delay` and have no fold: whoever registered
/// them relied on one that ended without them, because it was cancelled or failed, or because it began too early to see
/// them. Answers how many. To be called again and again.
///
/// # Errors
/// Those of the database.
pub async fn ensure_left(store: &Store, delay: Duration) -> store::Result<usize> {
    if store.dialect() == Dialect::Postgres {
        store.write(async |tx| units::split(tx).await).await?;
    }
    let before = store.clock().now().minus((delay * 2).max(LEFT));
    let left = store.read(async |tx| {
        let open = units::shards_open_since(tx, before).await?;
        if open.is_empty() {
            return Ok(open);
        }
        let lanes: Vec<String> = open.iter().copied().map(lane_key).collect();
        let there = jobs::in_lanes(tx, &lanes).await?;
        let folded = |shard: &Shard| {
            let key = lane_key(*shard);
            there.iter().any(|lane| lane.open && lane.lane == key)
        };
        Ok(open.into_iter().filter(|shard| !folded(shard)).collect())
    });
    let left = left.await?;
    if !left.is_empty() {
        tracing::info!(
            shards = left.len(),
            "accepted trace data had no fold to wait for; recorded one"
        );
        store.write(async |tx| ensure(tx, &left, SOON).await).await?;
    }
    Ok(left.len())
}

/// Records a fold at once as a child of `parent`, which waits until `barrier` is folded.
///
/// # Errors
/// Those of the database.
pub async fn start_for(tx: &mut Tx<'_>, parent: JobId, barrier: Barrier) -> store::Result<()> {
    let shard = Shard::of(barrier.tenant);
    let fold = FoldUnits {
        mark: JobId::new(),
        shard: Some(shard),
        barrier: Some(barrier),
    };
    let how = Start::new(barrier.tenant).lane(lane(shard)).child_of(parent);
    towpath_durable::start(tx, &fold, how).await.map(drop)
}

impl Workflow for FoldUnits {
    const KIND: &'static str = "fold_units";
    const POOL: &'static str = "folds";
    const RETRY: RetryPolicy = RetryPolicy::doubling(30, Duration::from_secs(1), Duration::from_secs(60));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let Some(shard) = self.shard else {
            return self.hand_over(ctx, world).await;
        };
        let mark = self.mark;
        // A worker that died, perhaps for want of memory, is followed by one that takes less at once.
        let less = 1 << ctx.attempt().saturating_sub(1).min(8);
        let bounds = Bounds {
            bytes: world.sizes.fold_bytes / less,
            decoded_bytes: world.sizes.fold_decoded_bytes / less,
        };
        let mut apart = Apart::new(mark, ctx.cursor()?.unwrap_or_default(), bounds);
        for round in 0.. {
            let waited_for = match self.barrier {
                Some(barrier) => Some(waited_for(world, barrier).await?),
                None => None,
            };
            if waited_for == Some(0) || (waited_for.is_none() && round >= ROUNDS) {
                break;
            }
            let units = ctx
                .commit(async |tx| take(tx, mark, shard, bounds, &apart.left_out).await)
                .await?;
            if units.is_empty() {
                break;
            }
            apart.fold(ctx, world, units).await?;
        }
        if let Some(failure) = apart.failure {
            return Err(failure);
        }
        let delay = world.sizes.fold_delay;
        ctx.settle(async |tx| {
            // An attempt that was killed may have begun to write what another fold has brought in since.
            segments::abandon_of(tx, mark).await?;
            // Whoever registered a unit after the last round may have counted on this fold.
            if units::any_open(tx, shard).await? {
                ensure(tx, &[shard], delay).await?;
            }
            Ok(())
        })
        .await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, _: Ended) -> store::Result<()> {
        units::release(tx, input.mark).await?;
        segments::abandon_of(tx, input.mark).await?;
        Ok(())
    }

    /// A fold takes whatever is open when its turn comes; its end left all of that open.
    fn again(&self) -> Again {
        Again::Allowed(Some(self.shard.map_or_else(|| Lane::new(LANE, 1), lane)))
    }
}

async fn take(
    tx: &mut Tx<'_>,
    mark: JobId,
    shard: Shard,
    bounds: Bounds,
    left_out: &[TenantId],
) -> store::Result<Vec<Unit>> {
    // What an earlier attempt of this job began to write and did not record, nobody will.
    segments::abandon_of(tx, mark).await?;
    units::take(tx, mark, shard, bounds, left_out).await
}

/// How many units of the barrier are still open.
async fn waited_for(world: &World, barrier: Barrier) -> Result<i64, Failure> {
    let Barrier { tenant, last_seq } = barrier;
    world
        .store
        .read(async |tx| units::open_before(tx, tenant, last_seq).await)
        .await
        .retry()
}

impl FoldUnits {
    /// What is left to do for a job of an earlier build: not to fold, since it holds no place in the lane of a shard, but
    /// to see to it that others do.
    async fn hand_over(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let Some(Barrier { tenant, .. }) = self.barrier else {
            return ctx
                .settle(async |tx| {
                    let every = tx.now().plus(LEFT);
                    let open = units::shards_open_since(tx, every).await?;
                    ensure(tx, &open, SOON).await
                })
                .await;
        };
        // The number it was recorded with may be that of a unit that was split since.
        let last: Option<i64> = ctx
            .step("last unit", async || {
                let last = world.store.read(async |tx| units::last_open(tx, tenant).await);
                last.await.retry()
            })
            .await?;
        let open = match last {
            Some(last_seq) => waited_for(world, Barrier { tenant, last_seq }).await?,
            None => 0,
        };
        if open == 0 {
            return ctx.settle(async |_| Ok(())).await;
        }
        ctx.commit(async |tx| ensure(tx, &[Shard::of(tenant)], SOON).await)
            .await?;
        Err(Failure::Snooze(HANDED_OVER))
    }
}
