//! Seals every stored secret anew under the first encryption key, page by page. When it has ended well, a former key that was
//! given behind the first one is not needed any more.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{JobId, TenantId};
use towpath_durable::{Ctx, Failure, Lane, Outcome, Start, Verdict, Workflow};
use towpath_store::sealed::{self, Position};
use towpath_store::{self as store, Tx};

use crate::World;

/// Records of one page.
const PAGE: i64 = 200;

/// Seals all secrets of all workspaces anew.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ResealSecrets {}

/// How far it has come.
#[derive(Debug, Serialize, Deserialize)]
struct Progress {
    /// Where it goes on; absent at the end.
    position: Option<Position>,
    resealed: u64,
    /// Records that no key opens.
    unopened: u64,
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>) -> store::Result<JobId> {
    let how = Start::new(TenantId::nil()).lane(lane());
    towpath_durable::start(tx, &ResealSecrets::default(), how).await
}

/// One at a time.
fn lane() -> Lane {
    Lane::new("reseal_secrets", 1)
}

impl Workflow for ResealSecrets {
    const KIND: &'static str = "reseal_secrets";
    const POOL: &'static str = "sweeps";
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(1), Duration::from_secs(60));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let begun = ctx.cursor::<Progress>()?;
        let mut progress = begun.unwrap_or(Progress {
            position: Some(Position::default()),
            resealed: 0,
            unopened: 0,
        });
        while let Some(at) = progress.position {
            let records = world.store.read(async |tx| sealed::records(tx, at, PAGE).await);
            let records = records.await.retry()?;
            let page = sealed::reseal(&world.sealer, at, &records);
            progress = Progress {
                position: page.next,
                resealed: progress.resealed + page.changes.len() as u64,
                unopened: progress.unopened + page.unopened,
            };
            ctx.checkpoint(&progress, async |tx| sealed::replace(tx, at, &page.changes).await)
                .await?;
        }
        let Progress { resealed, unopened, .. } = progress;
        if unopened > 0 {
            // Trying again would find the same ones; the former key is still needed for a start.
            return Err(Failure::fatal(format!(
                "{resealed} secrets were sealed anew, and {unopened} are sealed under keys that were not given, see towpath \
                 doctor; give those keys, too, and reseal again"
            )));
        }
        tracing::info!(secrets = resealed, "secrets were sealed anew");
        ctx.settle(async |tx| sealed::renew(tx, &world.sealer).await).await
    }

    /// Nothing waits for it.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: Ended) -> store::Result<()> {
        Ok(())
    }
}
