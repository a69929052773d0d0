//! Tidies up behind an export that did not end well: uploads in parts nobody will finish, a manifest that must not
//! be. Finished files stay.

use std::time::Duration;

use object_store::ObjectStoreExt;
use serde::{Deserialize, Serialize};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{ExportId, ExportRunId, TenantId};
use towpath_durable::{Again, Ctx, Failure, Outcome, Start, Verdict, Workflow};
use towpath_outbound::{Begun, Destination, classify};
use towpath_store::exports::{self, Export, files, runs};
use towpath_store::{self as store, Tx, destinations};

use crate::World;
use crate::world::prefix;

/// Tidies up behind an export, or one of its runs.
#[derive(Debug, Serialize, Deserialize)]
pub struct CleanExport {
    /// Its workspace.
    pub tenant: TenantId,
    /// The export.
    pub export: ExportId,
    /// The run whose uploads are to be given up; without one it is the export's manifest that goes.
    pub run: Option<ExportRunId>,
}

impl CleanExport {
    /// Gives up the uploads of a run.
    #[must_use]
    pub const fn uploads(tenant: TenantId, export: ExportId, run: ExportRunId) -> Self {
        Self {
            tenant,
            export,
            run: Some(run),
        }
    }

    /// Removes the manifest.
    #[must_use]
    pub const fn manifest(tenant: TenantId, export: ExportId) -> Self {
        Self {
            tenant,
            export,
            run: None,
        }
    }
}

/// Records a clean-up.
///
/// # Errors
/// Those of the database.
pub async fn start(tx: &mut Tx<'_>, clean: &CleanExport) -> store::Result<()> {
    towpath_durable::start(tx, clean, Start::new(clean.tenant))
        .await
        .map(drop)
}

impl Workflow for CleanExport {
    const KIND: &'static str = "clean_export";
    const POOL: &'static str = "exports";
    const RETRY: RetryPolicy = RetryPolicy::doubling(8, Duration::from_secs(5), Duration::from_secs(600));
    type World = World;

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, export, run } = self;
        let export = world
            .store
            .read(async |tx| exports::get(tx, tenant, export).await)
            .await
            .retry()?;
        let destination = match world.destination(tenant, export.destination_id).await {
            // Where nobody can go any more nothing can be tidied up.
            Err(Failure::Fatal(why)) => {
                tracing::info!(export.id = %export.id, error = %why, "the destination is gone; nothing is tidied up");
                return ctx.done();
            }
            destination => destination?,
        };
        match run {
            Some(run) => {
                give_up_uploads(ctx, world, &destination, run).await?;
                let row = world.store.read(async |tx| runs::get(tx, tenant, export.id, run).await);
                let prefix = row.await.retry()?.prefix;
                destination.give_up_strays(&format!("{prefix}/{run}-")).await;
            }
            None => remove_manifest(world, &destination, &export).await?,
        }
        ctx.done()
    }

    /// What is left costs space and nothing else.
    async fn end(_: &mut Tx<'_>, _: &Self, _: Ended) -> store::Result<()> {
        Ok(())
    }

    /// The export is over for good, so what is to be tidied up stays the same.
    fn again(&self) -> Again {
        Again::Allowed(None)
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
    let row = world
        .store
        .read(async |tx| destinations::get(tx, export.tenant_id, export.destination_id).await)
        .await;
    let path = prefix(&row.retry()?.config().fatal()?).fatal()?.manifest(export.id);
    match destination.objects().delete(&path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => {
            let failure = classify(&error, path.as_ref());
            if failure.is_transient() {
                Err(Failure::retry(failure.to_string()))
            } else {
                Err(Failure::fatal(failure.to_string()))
            }
        }
    }
}
