//! Tidies up behind an export that is over, or behind one of its runs: uploads in parts that nobody will finish, files that
//! nobody will record, a manifest that must not be. Finished files stay.
//!
//! A writer may not know that it is over. A worker that was stopped past its lease goes on where it was, and a request that
//! was sent may arrive late. Each writer looks at the export once more behind its write and takes back what must not be;
//! one that dies in between leaves that to a later look:
//!
//! ```text
//! export over ─► look at once ─► look when every lease of that time is over ─► (manifest) look when no request that was
//!                                                                              signed by then is accepted any more
//! ```

use std::time::Duration;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::export::ExportStatus;
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{ExportId, ExportRunId, TenantId, Timestamp};
use towpath_durable::{Again, Ctx, Failure, Outcome, Start, Verdict, Workflow};
use towpath_outbound::{Begun, Destination};
use towpath_store::exports::{self, Export, files, runs};
use towpath_store::{self as store, Tx, destinations, jobs};

use crate::World;
use crate::export_part::leftover;
use crate::world::prefix;

/// Beyond the end of a lease: for clocks that differ and for answers that are slow.
const SLACK: Duration = Duration::from_secs(60);
/// The late look, with a lease as it usually is. With a longer one the look puts itself off.
const LATE: Duration = Duration::from_secs(75);
/// S3 refuses requests that were signed more than fifteen minutes before.
const LAST: Duration = Duration::from_secs(20 * 60);

/// Tidies up behind an export, or one of its runs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CleanExport {
    /// Its workspace.
    pub tenant: TenantId,
    /// The export.
    pub export: ExportId,
    /// The run whose uploads and files are looked at; without one it is the export's manifest.
    pub run: Option<ExportRunId>,
    /// Which look it is.
    #[serde(default)]
    pub look: Look,
}

/// When it is looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Look {
    /// At once.
    #[default]
    First,
    /// When whoever held a job then holds it no more.
    Late,
    /// When no request that was signed then is accepted any more.
    Last,
}

impl CleanExport {
    /// Behind a run.
    #[must_use]
    pub const fn run(tenant: TenantId, export: ExportId, run: ExportRunId) -> Self {
        Self {
            tenant,
            export,
            run: Some(run),
            look: Look::First,
        }
    }

    /// Removes the manifest.
    #[must_use]
    pub const fn manifest(tenant: TenantId, export: ExportId) -> Self {
        Self {
            tenant,
            export,
            run: None,
            look: Look::First,
        }
    }
}

/// Records the clean-up behind what has just ended: either exports or runs.
///
/// # Errors
/// Those of the database.
pub async fn start_all(tx: &mut Tx<'_>, tenant: TenantId, clean: &[CleanExport]) -> store::Result<()> {
    let Some(first) = clean.first() else { return Ok(()) };
    record(tx, tenant, clean, Look::First).await?;
    record(tx, tenant, clean, Look::Late).await?;
    if first.run.is_none() {
        record(tx, tenant, clean, Look::Last).await?;
    }
    Ok(())
}

/// Records the late look alone: for what ended well, while a writer that was replaced may not know it.
///
/// # Errors
/// Those of the database.
pub async fn start_late(tx: &mut Tx<'_>, clean: CleanExport) -> store::Result<()> {
    record(tx, clean.tenant, &[clean], Look::Late).await
}

async fn record(tx: &mut Tx<'_>, tenant: TenantId, clean: &[CleanExport], look: Look) -> store::Result<()> {
    let how = Start::new(tenant);
    let how = match look {
        Look::First => how,
        Look::Late => how.after(LATE),
        Look::Last => how.after(LAST),
    };
    let clean: Vec<_> = clean.iter().map(|clean| CleanExport { look, ..*clean }).collect();
    towpath_durable::start_all_apart(tx, &clean, how).await.map(drop)
}

impl Workflow for CleanExport {
    const KIND: &'static str = "clean_export";
    const POOL: &'static str = "exports";
    const RETRY: RetryPolicy = RetryPolicy::doubling(8, Duration::from_secs(5), Duration::from_secs(600));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
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
        self.put_off(world, ctx.lease(), over).await?;
        let destination = match world.destination(tenant, export.destination_id).await {
            // Where nobody can go any more nothing can be tidied up.
            Err(Failure::Fatal(why)) => {
                tracing::info!(export.id = %export.id, error = %why, "the destination is gone; nothing is tidied up");
                return ctx.done();
            }
            destination => destination?,
        };
        match row {
            Some(row) => {
                give_up_uploads(ctx, world, &destination, row.id).await?;
                destination.give_up_strays(&format!("{}/{}-", row.prefix, row.id)).await;
                self.remove_left_over(world, &destination, row.id).await?;
            }
            None => remove_manifest(world, &destination, &export).await?,
        }
        ctx.done()
    }

    /// What is left costs space and nothing else; a manifest is looked for again.
    async fn end(_: &mut Tx<'_>, _: &Self, _: Ended) -> store::Result<()> {
        Ok(())
    }

    /// The export is over for good, so what is to be tidied up stays the same.
    fn again(&self) -> Again {
        Again::Allowed(None)
    }
}

impl CleanExport {
    /// The lease is a setting, and who records the late look does not know it. By the clock that leases go by: this host's may be
    /// ahead.
    async fn put_off(&self, world: &World, lease: Duration, over: Option<Timestamp>) -> Result<(), Failure> {
        let (Look::Late, Some(over)) = (self.look, over) else {
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
        world: &World,
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
                // The right to delete is optional.
                Err(failure) => tracing::info!(%failure, "a file that no record lists cannot be removed"),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

async fn give_up_uploads(
    ctx: &mut Ctx,
    world: &World,
    destination: &Destination,
    run: ExportRunId,
) -> Result<(), Failure> {
    for upload in world
        .store
        .read(async |tx| files::uploads(tx, run).await)
        .await
        .retry()?
    {
        let begun = Begun {
            path: upload.path.clone(),
            id: upload.upload_id.clone(),
        };
        match destination.abort(&begun).await {
            Err(failure) if failure.is_transient() => return Err(Failure::retry(failure.to_string())),
            // The right to abort is optional.
            Err(failure) => tracing::info!(%failure, "an upload in parts cannot be given up"),
            Ok(()) => {}
        }
        ctx.commit(async |tx| files::upload_gone(tx, run, &upload).await)
            .await?;
    }
    Ok(())
}

async fn remove_manifest(world: &World, destination: &Destination, export: &Export) -> Result<(), Failure> {
    // Of one that completed it is all that says so.
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
