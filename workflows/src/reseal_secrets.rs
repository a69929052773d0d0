//! Seals every stored secret again under the first encryption key, page by page. After it has succeeded, former keys
//! are no longer needed.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{JobId, TenantId};
use towpath_durable::{Ctx, Failure, IntoFailure, Lane, Outcome, Start, Workflow};
use towpath_store::sealed::{self, Position};
use towpath_store::{self as store, Tx};

use crate::Services;

const PAGE: i64 = 200;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ResealSecrets {}

/// Progress of the job.
#[derive(Debug, Serialize, Deserialize)]
struct Progress {
    /// Position of the next page; absent at the end.
    position: Option<Position>,
    resealed: u64,
    /// Records that no configured key opens.
    unopened: u64,
}

/// Records the job. Call it before the transaction's business writes: it locks the lane.
pub async fn start(tx: &mut Tx<'_>) -> store::Result<JobId> {
    let how = Start::new(TenantId::nil()).lane(lane());
    towpath_durable::start(tx, &ResealSecrets::default(), how).await
}

/// One job at a time.
fn lane() -> Lane {
    Lane::new("reseal_secrets", 1)
}

impl Workflow for ResealSecrets {
    const KIND: &'static str = "reseal_secrets";
    const POOL: &'static str = "sweeps";
    const RETRY: RetryPolicy = RetryPolicy::doubling(10, Duration::from_secs(1), Duration::from_secs(60));
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
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
            // A retry would find the same ones; starts still need the former key.
            return Err(Failure::fatal(format!(
                "{resealed} secrets were resealed, and {unopened} are sealed under keys that are not configured, see \
                 towpath doctor; add those keys and reseal again"
            )));
        }
        tracing::info!(secrets = resealed, "secrets were resealed");
        ctx.settle(async |tx| sealed::renew(tx, &world.sealer).await).await
    }

    /// No business rows depend on it.
    async fn end(_tx: &mut Tx<'_>, _input: &Self, _ended: EndReason) -> store::Result<()> {
        Ok(())
    }
}
