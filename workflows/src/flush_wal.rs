//! Flushes open WAL segments into trace segments.
//!
//! Workspaces are divided into shards. The lane of a shard has one slot, so its flushes never overlap, while different
//! shards flush concurrently. Each round takes open WAL segments of the shard, flushes them in the CPU pool, and
//! publishes the result in one fenced transaction.
//!
//! Registering a WAL segment does not wait for a flush. It checks, in the same transaction, whether a flush of the
//! shard is waiting, and records one if not. A flush that is being claimed may not see the segment yet; so it checks
//! again in its last transaction, and [`ensure_orphans`] finds the rest.

mod bisect;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{JobId, Shard, TenantId};
use towpath_durable::{Ctx, Failure, IntoFailure, Lane, Outcome, RetryDecision, Start, Workflow};
use towpath_store::wal_segments::{Bounds, WalSegment};
use towpath_store::{self as store, Dialect, Store, Tx, jobs, segments, wal_segments};
use towpath_traces::wal::OnRegistered;

use crate::Services;
use bisect::FlushAttempt;

pub use crate::services::DEFAULT_FLUSH_DELAY as DEFAULT_DELAY;

/// Interval for calling [`ensure_orphans`].
pub const ORPHAN_SCAN_INTERVAL: Duration = Duration::from_secs(2);
/// Younger WAL segments are left to the writers that registered them.
const MIN_ORPHAN_AGE: Duration = Duration::from_secs(5);
/// A flush is never due at once: entering its lane would wait for the running one.
const MIN_DELAY: Duration = Duration::from_millis(1);
/// Rounds per job. Further WAL segments are left to the next one, so that an export's barrier can run in between.
const ROUNDS: usize = 16;
/// The single lane of earlier builds.
const LANE: &str = "fold";
/// Poll interval for a flush of an earlier build that an export waits for.
const LEGACY_POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
pub struct FlushWal {
    /// Marks its WAL segments and trace segments in progress. Not the job's id, which `end` does not get.
    pub mark: JobId,
    /// The shard. Jobs of earlier builds have none: they leave the work to flushes of the shards.
    #[serde(default)]
    pub shard: Option<Shard>,
    /// Continues until this much is flushed, beyond the usual rounds if necessary.
    pub barrier: Option<Barrier>,
}

/// Everything that the workspace of an export has sent before.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Barrier {
    /// Workspace of the export.
    pub tenant: TenantId,
    /// The last WAL segment to wait for.
    pub last_seq: i64,
}

#[must_use]
pub fn lane(shard: Shard) -> Lane {
    Lane::new(lane_key(shard), 1)
}

fn lane_key(shard: Shard) -> String {
    format!("{LANE}:{}", shard.number())
}

/// Records a flush of each of these shards that is due after `delay`, unless one is waiting. Waits for no flush.
pub async fn ensure(tx: &mut Tx<'_>, shards: &[Shard], delay: Duration) -> store::Result<()> {
    let lanes: Vec<String> = shards.iter().copied().map(lane_key).collect();
    let there = jobs::in_lanes(tx, &lanes).await?;
    for (&shard, key) in shards.iter().zip(&lanes) {
        if there.iter().any(|lane| lane.queued && &lane.lane == key) {
            continue;
        }
        let fold = FlushWal {
            mark: JobId::new(),
            shard: Some(shard),
            barrier: None,
        };
        let how = Start::new(TenantId::nil())
            .lane(lane(shard))
            .after(delay.max(MIN_DELAY));
        towpath_durable::start(tx, &fold, how).await?;
    }
    Ok(())
}

/// [`ensure`] as a callback for the write-ahead log.
#[must_use]
pub fn on_registered(delay: Duration) -> OnRegistered {
    Arc::new(move |tx, shards| Box::pin(ensure(tx, shards, delay)))
}

/// Records a flush of each shard with WAL segments that have waited much longer than `delay` and have no flush: their
/// writers relied on one that was cancelled, failed, or started too early to see them. Returns the number. Call it
/// periodically.
pub async fn ensure_orphans(store: &Store, delay: Duration) -> store::Result<usize> {
    if store.dialect() == Dialect::Postgres {
        store.write(async |tx| wal_segments::split(tx).await).await?;
    }
    let before = store.clock().now().minus((delay * 2).max(MIN_ORPHAN_AGE));
    let left = store.read(async |tx| {
        let open = wal_segments::shards_open_since(tx, before).await?;
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
        tracing::info!(shards = left.len(), "accepted trace data had no flush; recorded one");
        store.write(async |tx| ensure(tx, &left, MIN_DELAY).await).await?;
    }
    Ok(left.len())
}

/// Records an immediate flush as a child of `parent`, which waits until `barrier` is flushed.
pub async fn start_for(tx: &mut Tx<'_>, parent: JobId, barrier: Barrier) -> store::Result<()> {
    let shard = Shard::of(barrier.tenant);
    let fold = FlushWal {
        mark: JobId::new(),
        shard: Some(shard),
        barrier: Some(barrier),
    };
    let how = Start::new(barrier.tenant).lane(lane(shard)).child_of(parent);
    towpath_durable::start(tx, &fold, how).await.map(drop)
}

impl Workflow for FlushWal {
    const KIND: &'static str = "flush_wal";
    const POOL: &'static str = "flushes";
    const RETRY: RetryPolicy = RetryPolicy::doubling(30, Duration::from_secs(1), Duration::from_secs(60));
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let Some(shard) = self.shard else {
            return self.hand_over_legacy_lane(ctx, world).await;
        };
        let mark = self.mark;
        // After a lost worker, perhaps out of memory, the next attempt takes less at once.
        let less = 1 << ctx.attempt().saturating_sub(1).min(8);
        let bounds = Bounds {
            bytes: world.sizes.fold_bytes / less,
            decoded_bytes: world.sizes.fold_decoded_bytes / less,
        };
        let mut apart = FlushAttempt::new(mark, ctx.cursor()?.unwrap_or_default(), bounds);
        for round in 0.. {
            let waited_for = match self.barrier {
                Some(barrier) => Some(open_wal_segments_before(world, barrier).await?),
                None => None,
            };
            if waited_for == Some(0) || (waited_for.is_none() && round >= ROUNDS) {
                break;
            }
            let units = ctx
                .commit(async |tx| take_wal_segments(tx, mark, shard, bounds, &apart.left_out).await)
                .await?;
            if units.is_empty() {
                break;
            }
            apart.flush(ctx, world, units).await?;
        }
        if let Some(failure) = apart.failure {
            return Err(failure);
        }
        let delay = world.sizes.fold_delay;
        ctx.settle(async |tx| {
            // A killed attempt may have begun to write data that another flush has published since.
            segments::abandon_of(tx, mark).await?;
            // A WAL segment registered after the last round may depend on this flush.
            if wal_segments::any_open(tx, shard).await? {
                ensure(tx, &[shard], delay).await?;
            }
            Ok(())
        })
        .await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, _: EndReason) -> store::Result<()> {
        wal_segments::release(tx, input.mark).await?;
        segments::abandon_of(tx, input.mark).await?;
        Ok(())
    }

    /// A flush processes everything that is open when it runs; after a failure all of that is still open.
    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Allowed(Some(self.shard.map_or_else(|| Lane::new(LANE, 1), lane)))
    }
}

async fn take_wal_segments(
    tx: &mut Tx<'_>,
    mark: JobId,
    shard: Shard,
    bounds: Bounds,
    left_out: &[TenantId],
) -> store::Result<Vec<WalSegment>> {
    // Segments that an earlier attempt of this job began and did not record.
    segments::abandon_of(tx, mark).await?;
    wal_segments::take(tx, mark, shard, bounds, left_out).await
}

/// Number of open WAL segments of the barrier.
async fn open_wal_segments_before(world: &Services, barrier: Barrier) -> Result<i64, Failure> {
    let Barrier { tenant, last_seq } = barrier;
    world
        .store
        .read(async |tx| wal_segments::open_before(tx, tenant, last_seq).await)
        .await
        .retry()
}

impl FlushWal {
    /// Handles a job of an earlier build: it must not flush, because it holds no slot in the lane of a shard, but
    /// ensures that other jobs do.
    async fn hand_over_legacy_lane(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let Some(Barrier { tenant, .. }) = self.barrier else {
            return ctx
                .settle(async |tx| {
                    let every = tx.now().plus(MIN_ORPHAN_AGE);
                    let open = wal_segments::shards_open_since(tx, every).await?;
                    ensure(tx, &open, MIN_DELAY).await
                })
                .await;
        };
        // The recorded number may be that of a segment that was split since.
        let last: Option<i64> = ctx
            .step("last unit", async || {
                let last = world.store.read(async |tx| wal_segments::last_open(tx, tenant).await);
                last.await.retry()
            })
            .await?;
        let open = match last {
            Some(last_seq) => open_wal_segments_before(world, Barrier { tenant, last_seq }).await?,
            None => 0,
        };
        if open == 0 {
            return ctx.settle(async |_| Ok(())).await;
        }
        ctx.commit(async |tx| ensure(tx, &[Shard::of(tenant)], MIN_DELAY).await)
            .await?;
        Err(Failure::Snooze(LEGACY_POLL_INTERVAL))
    }
}
