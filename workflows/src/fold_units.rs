//! Folds open units of the write-ahead log into segments.
//!
//! Lane `fold` has one place, so folds never overlap. Each round takes the oldest open units, folds them on the heavy
//! runtime, and makes the result true in one fenced transaction. Whoever registers a unit makes sure, in the same
//! transaction and under the lane's lock, that a fold is recorded that has not begun; a fold looks once more under
//! the same lock before it ends. So no unit is left behind, and hundreds of units share one fold.

use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{JobId, ProjectId, TenantId, failpoint};
use towpath_durable::{Again, Ctx, Failure, Lane, Outcome, Start, Verdict, Workflow};
use towpath_store::units::Unit;
use towpath_store::{self as store, Tx, jobs, lanes, segments, units};
use towpath_traces::fold::{self, Folded, Options};
use towpath_traces::wal::OnRegistered;

use crate::World;
use crate::{index_runs, intents};

/// How long the first unit waits for company, where the operator says nothing else.
pub const DELAY: Duration = Duration::from_secs(2);
/// Rounds of one job. Further units are for the next one, so that an export's barrier gets its turn between two.
const ROUNDS: usize = 16;
const LANE: &str = "fold";

/// Folds what is open.
#[derive(Debug, Serialize, Deserialize)]
pub struct FoldUnits {
    /// What units and segments in work are marked with. Not the job's own id: `end` is not told that.
    pub mark: JobId,
    /// Goes on until this much is folded, if it takes longer than the usual rounds.
    pub barrier: Option<Barrier>,
}

/// What an export waits for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Barrier {
    /// Workspace of the export.
    pub tenant: TenantId,
    /// Its project.
    pub project: ProjectId,
    /// The last unit it waits for.
    pub last_seq: i64,
}

/// The lane of all folds.
#[must_use]
pub fn lane() -> Lane {
    Lane::new(LANE, 1)
}

/// Records a fold that is due after `delay`, unless one waits already.
///
/// # Errors
/// Those of the database.
pub async fn ensure(tx: &mut Tx<'_>, delay: Duration) -> store::Result<()> {
    // Locked before looking: a fold that is just ending, or beginning, has either seen the caller's unit or not
    // looked yet.
    lanes::lock(tx, LANE, 1).await?;
    if jobs::lane_has_queued(tx, LANE).await? {
        return Ok(());
    }
    let fold = FoldUnits {
        mark: JobId::new(),
        barrier: None,
    };
    towpath_durable::start(tx, &fold, Start::new(TenantId::nil()).lane(lane()).after(delay))
        .await
        .map(drop)
}

/// [`ensure`], as the write-ahead log wants it.
#[must_use]
pub fn on_registered(delay: Duration) -> OnRegistered {
    Arc::new(move |tx| Box::pin(ensure(tx, delay)))
}

/// Records a fold at once as a child of `parent`, which waits until `barrier` is folded.
///
/// # Errors
/// Those of the database.
pub async fn start_for(tx: &mut Tx<'_>, parent: JobId, barrier: Barrier) -> store::Result<()> {
    let fold = FoldUnits {
        mark: JobId::new(),
        barrier: Some(barrier),
    };
    let how = Start::new(barrier.tenant).lane(lane()).child_of(parent);
    towpath_durable::start(tx, &fold, how).await.map(drop)
}

impl Workflow for FoldUnits {
    const KIND: &'static str = "fold_units";
    const POOL: &'static str = "folds";
    const RETRY: RetryPolicy = RetryPolicy::doubling(30, Duration::from_secs(1), Duration::from_secs(60));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let mark = self.mark;
        let mut operations: u64 = ctx.cursor()?.unwrap_or_default();
        for round in 0.. {
            let waited_for = self.waited_for(world).await?;
            if waited_for == Some(0) || (waited_for.is_none() && round >= ROUNDS) {
                break;
            }
            let bytes = world.sizes.fold_bytes;
            let units = ctx.commit(async |tx| take(tx, mark, bytes).await).await?;
            if units.is_empty() {
                break;
            }
            let folded = self.fold(ctx, world, units).await?;
            operations += folded.operations;
            failpoint::hit("fold.before_record");
            ctx.checkpoint(&operations, async |tx| fold::record(tx, mark, &folded).await)
                .await?;
            failpoint::hit("fold.after_record");
            let tenants = folded.segments.iter().map(|segment| segment.tenant).collect();
            index_runs::ensure_due(ctx, world, tenants).await?;
            if !folded.missing.is_empty() {
                // They stay open: a folder that is mounted wrongly loses nothing, but somebody has to look.
                let missing = folded.missing.len();
                return Err(Failure::retry(format!(
                    "{missing} accepted units are not in the object store"
                )));
            }
        }
        let delay = world.sizes.fold_delay;
        ctx.settle(async |tx| {
            // An attempt that was killed may have begun to write what another fold has brought in since.
            segments::abandon_of(tx, mark).await?;
            // The lane is locked here, as it is in `ensure`.
            if units::open(tx, 0).await?.is_empty() {
                Ok(())
            } else {
                ensure(tx, delay).await
            }
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
        Again::Allowed(Some(lane()))
    }
}

async fn take(tx: &mut Tx<'_>, mark: JobId, bytes: i64) -> store::Result<Vec<Unit>> {
    // What an earlier attempt of this job began to write and did not record, nobody will.
    segments::abandon_of(tx, mark).await?;
    let open = units::open(tx, bytes).await?;
    let ids: Vec<_> = open.iter().map(|unit| unit.id).collect();
    if !ids.is_empty() {
        units::assign(tx, mark, &ids).await?;
    }
    Ok(open)
}

impl FoldUnits {
    /// How many units of the barrier are still open; `None` without a barrier.
    async fn waited_for(&self, world: &World) -> Result<Option<usize>, Failure> {
        let Some(Barrier {
            tenant,
            project,
            last_seq,
        }) = self.barrier
        else {
            return Ok(None);
        };
        let open = world
            .store
            .read(async |tx| units::open_touching(tx, tenant, project).await)
            .await
            .retry()?;
        Ok(Some(open.iter().filter(|unit| unit.seq <= last_seq).count()))
    }

    /// Folds on the heavy runtime. Intents come back here to be written down: only the job's holder writes.
    async fn fold(&self, ctx: &mut Ctx, world: &World, units: Vec<Unit>) -> Result<Folded, Failure> {
        let (store, objects) = (world.store.clone(), world.objects.clone());
        let folded = intents::with(ctx, &world.heavy, self.mark, move |intend| async move {
            let intend = async |tenant, id, path: &Path| intend.ask(tenant, id, path).await;
            fold::fold(&store, &objects, &units, &Options::default(), intend).await
        });
        folded.await?.retry()
    }
}
