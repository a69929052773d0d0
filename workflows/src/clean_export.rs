//! Cleans up after an ended export or one of its runs: unfinished multipart uploads, files without a record, a manifest
//! that must not exist. Finished files stay.
//!
//! A writer may not know that the export has ended: a worker that was suspended past its lease continues, and a sent
//! request may arrive late. Each writer checks the export again after its write and reverts it if necessary; a writer
//! that dies in between leaves that to a later pass:
//!
//! ```text
//! export ended ─► first pass ─► late pass, when every lease of that time has ended ─► (manifest) last pass, when no request
//!                                                                              signed by then is accepted any more
//! ```

use std::time::Duration;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::export::ExportStatus;
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{ExportId, ExportRunId, TenantId, Timestamp};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome, RetryDecision, Start, Workflow};
use towpath_outbound::{Destination, OpenUpload};
use towpath_store::exports::{self, Export, files, runs};
use towpath_store::{self as store, Tx, destinations, jobs};

use crate::Services;
use crate::export_part::leftover;
use crate::services::prefix;

/// Margin after the end of a lease for clock differences and slow responses.
const SLACK: Duration = Duration::from_secs(60);
/// Delay of the late pass for the default lease. With a longer lease the pass postpones itself.
const LATE_PASS_DELAY: Duration = Duration::from_secs(75);
/// S3 refuses requests that were signed more than fifteen minutes before.
const LAST_PASS_DELAY: Duration = Duration::from_secs(20 * 60);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CleanExport {
    pub tenant: TenantId,
    pub export: ExportId,
    /// The run to clean up; `None` for the manifest of the export.
    pub run: Option<ExportRunId>,
    /// Number of the pass.
    #[serde(default)]
    pub look: CleanupPass,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CleanupPass {
    /// At once.
    #[default]
    First,
    /// When the former job holders have lost their leases.
    Late,
    /// When requests that were signed at the end are no longer accepted.
    Last,
}

impl CleanExport {
    #[must_use]
    pub const fn run(tenant: TenantId, export: ExportId, run: ExportRunId) -> Self {
        Self {
            tenant,
            export,
            run: Some(run),
            look: CleanupPass::First,
        }
    }

    /// Removes the manifest.
    #[must_use]
    pub const fn manifest(tenant: TenantId, export: ExportId) -> Self {
        Self {
            tenant,
            export,
            run: None,
            look: CleanupPass::First,
        }
    }
}

/// Records the cleanup of exports or runs that have just ended.
pub async fn start_all(tx: &mut Tx<'_>, tenant: TenantId, clean: &[CleanExport]) -> store::Result<()> {
    let Some(first) = clean.first() else { return Ok(()) };
    record(tx, tenant, clean, CleanupPass::First).await?;
    record(tx, tenant, clean, CleanupPass::Late).await?;
    if first.run.is_none() {
        record(tx, tenant, clean, CleanupPass::Last).await?;
    }
    Ok(())
}

/// Records only the late pass, after success, in case a replaced writer is still running.
pub async fn start_late(tx: &mut Tx<'_>, clean: CleanExport) -> store::Result<()> {
    record(tx, clean.tenant, &[clean], CleanupPass::Late).await
}

async fn record(tx: &mut Tx<'_>, tenant: TenantId, clean: &[CleanExport], look: CleanupPass) -> store::Result<()> {
    let how = Start::new(tenant);
    let how = match look {
        CleanupPass::First => how,
        CleanupPass::Late => how.after(LATE_PASS_DELAY),
        CleanupPass::Last => how.after(LAST_PASS_DELAY),
    };
    let clean: Vec<_> = clean.iter().map(|clean| CleanExport { look, ..*clean }).collect();
    towpath_durable::start_all_apart(tx, &clean, how).await.map(drop)
}

impl Workflow for CleanExport {
    const KIND: &'static str = "clean_export";
    const POOL: &'static str = "exports";
    const RETRY: RetryPolicy = RetryPolicy::doubling(8, Duration::from_secs(5), Duration::from_secs(600));
    type World = Services;

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self {
            tenant, export, run, ..
        } = self;
        let read = world.store.read(async |tx| {
            let row = match run {
                Some(run) => Some(runs::get(tx, tenant, export, run).await?),
                None => None,
            };
            Ok((exports::get(tx, tenant, export).await?, row))
        });
        let (export, row) = read.await.retry()?;
        let over = row.as_ref().map_or(export.finished_at, |row| row.finished_at);
        self.postpone(world, ctx.lease(), over).await?;
        let destination = match world.destination(tenant, export.destination_id).await {
            // Without access to the destination there is nothing to clean up.
            Err(Failure::Fatal(why)) => {
                tracing::info!(export.id = %export.id, error = %why, "the destination no longer exists; cleanup is \
                                                                      skipped");
                return ctx.complete();
            }
            destination => destination?,
        };
        match row {
            Some(row) => {
                give_up_uploads(ctx, world, &destination, row.id).await?;
                destination
                    .abort_stray_uploads(&format!("{}/{}-", row.prefix, row.id))
                    .await;
                self.remove_left_over(world, &destination, row.id).await?;
            }
            None => remove_manifest(world, &destination, &export).await?,
        }
        ctx.complete()
    }

    /// Leftovers only cost space; a manifest is checked again.
    async fn end(_: &mut Tx<'_>, _: &Self, _: EndReason) -> store::Result<()> {
        Ok(())
    }

    /// The export has ended, so a repetition has the same task.
    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Allowed(None)
    }
}

impl CleanExport {
    /// Postpones the pass until the lease has ended: the recorder of the late pass does not know this setting. Uses the
    /// clock of leases, because this host's may be ahead.
    async fn postpone(&self, world: &Services, lease: Duration, over: Option<Timestamp>) -> Result<(), Failure> {
        let (CleanupPass::Late, Some(over)) = (self.look, over) else {
            return Ok(());
        };
        let due = over.plus(lease).plus(SLACK);
        let now = world.store.read(async |tx| jobs::db_now(tx).await).await.retry()?;
        if now < due {
            return Err(Failure::Snooze(due.since(now)));
        }
        Ok(())
    }

    async fn remove_left_over(
        &self,
        world: &Services,
        destination: &Destination,
        run: ExportRunId,
    ) -> Result<(), Failure> {
        let &Self { tenant, export, .. } = self;
        let keys = world
            .store
            .read(async |tx| leftover::keys(tx, tenant, export, run).await)
            .await
            .retry()?;
        for key in keys {
            match destination.remove(&Path::parse(&key).fatal()?).await {
                Err(failure) if failure.is_transient() => return Err(Failure::retry(failure.to_string())),
                // The permission to delete is optional.
                Err(failure) => tracing::info!(%failure, "a file without a record cannot be removed"),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

async fn give_up_uploads(
    ctx: &mut Ctx,
    world: &Services,
    destination: &Destination,
    run: ExportRunId,
) -> Result<(), Failure> {
    for upload in world
        .store
        .read(async |tx| files::uploads(tx, run).await)
        .await
        .retry()?
    {
        let begun = OpenUpload {
            path: upload.path.clone(),
            id: upload.upload_id.clone(),
        };
        match destination.abort(&begun).await {
            Err(failure) if failure.is_transient() => return Err(Failure::retry(failure.to_string())),
            // The permission to abort is optional.
            Err(failure) => tracing::info!(%failure, "a multipart upload cannot be aborted"),
            Ok(()) => {}
        }
        ctx.commit(async |tx| files::upload_gone(tx, run, &upload).await)
            .await?;
    }
    Ok(())
}

async fn remove_manifest(world: &Services, destination: &Destination, export: &Export) -> Result<(), Failure> {
    // The manifest of a completed export must stay.
    if !export.status.is_final() || export.status == ExportStatus::Completed {
        return Ok(());
    }
    let row = world
        .store
        .read(async |tx| destinations::get(tx, export.tenant_id, export.destination_id).await)
        .await;
    let path = prefix(&row.retry()?.config().fatal()?).fatal()?.manifest(export.id);
    destination.remove(&path).await.map_err(|failure| {
        if failure.is_transient() {
            Failure::retry(failure.to_string())
        } else {
            Failure::fatal(failure.to_string())
        }
    })
}
