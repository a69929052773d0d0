//! One day partition of an export: streams pinned segments into Parquet files, each exactly once.
//!
//! ```text
//! write a file's rows; nothing is visible yet
//!   checkpoint: pending_upload = its name, rows and last row
//! make it visible
//!   checkpoint: cursor behind it, the file on record, nothing pending
//! ```
//! A process that dies between the two checkpoints leaves a file of which nobody knows whether it is visible. The next
//! attempt makes it again up to the recorded row: same rows, same bytes, same name.

mod feedback;
mod file;
mod sieve;

use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::export::{Compression, ExportStatus, RUN_LIMIT, RUN_RETRIES, RUN_RETRY_DELAY};
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_domain::{ExportId, ExportRunId, TenantId, failpoint};
use towpath_durable::{Again, Ctx, Failure, Outcome, Verdict, Workflow};
use towpath_outbound::{Begun, Destination};
use towpath_store::exports::files::{self, ExportFile};
use towpath_store::exports::runs::{self, ExportRun};
use towpath_store::exports::{self, Export};
use towpath_store::{self as store, Tx, segments};
use towpath_traces::feed::Sieve;
use towpath_traces::fold::part_ref;
use towpath_traces::hive;
use towpath_traces::parquet_file::{End, Feed, FileOptions, FileWritten, file_name};
use towpath_traces::row::Key;
use towpath_traces::scan::{Request, Scan};
use towpath_traces::schema::Selection;

use crate::World;
use crate::clean_export::{self, CleanExport};
use crate::metric;
pub(crate) use file::{compression, failed};

/// Exports one day.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExportPart {
    /// Its workspace.
    pub tenant: TenantId,
    /// The export.
    pub export: ExportId,
    /// The export run.
    pub run: ExportRunId,
}

/// How far an export run is. Kept as the job's checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Cursor {
    /// Finished files.
    files: u32,
    /// Rows in them.
    rows: u64,
    /// Bytes of them.
    bytes: u64,
    /// The last row in them.
    after: Option<Key>,
    /// The file that may be visible or not.
    pending: Option<PendingUpload>,
}

/// A file that is about to be visible.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PendingUpload {
    /// Its last row.
    target_cursor: Key,
    /// Its key.
    file_path: String,
    /// Its rows.
    rows_count: u64,
}

/// What does not change from one attempt to the next, read anew by each.
struct Plan {
    export: Export,
    run: ExportRun,
    selection: Selection,
    options: FileOptions,
    folder: Path,
    /// Where not all trace runs are wanted.
    filter: Option<String>,
    sieve: Option<Arc<dyn Sieve>>,
}

impl Workflow for ExportPart {
    const KIND: &'static str = "export_part";
    const POOL: &'static str = "export_parts";
    const RETRY: RetryPolicy = RetryPolicy::fixed(RUN_RETRIES, RUN_RETRY_DELAY);
    const ATTEMPT_LIMIT: Option<Duration> = Some(RUN_LIMIT);
    type World = World;

    fn retry_policy(world: &World) -> RetryPolicy {
        RetryPolicy::fixed(RUN_RETRIES, world.exports.run_retry)
    }

    async fn run(&self, ctx: &mut Ctx, world: &World) -> Outcome {
        let &Self { tenant, run, .. } = self;
        let failures = i64::from(ctx.failures());
        if !ctx
            .commit(async |tx| runs::running(tx, tenant, run, failures).await)
            .await?
        {
            // Its export is over, and this job is about to be cancelled.
            return Err(Failure::Cancelled);
        }
        let mut plan = self.read_plan(world).await?;
        let parts = world.store.read(async |tx| {
            let day = plan.run.start_time.day();
            segments::pinned(tx, tenant, plan.export.project_id, day, day, run.0).await
        });
        let mut parts: Vec<_> = parts.await.retry()?.iter().map(part_ref).collect();
        if !parts.is_empty() {
            let destination = world.destination(tenant, plan.export.destination_id).await?;
            plan.options.part_bytes = plan.options.part_bytes.min(destination.part_bytes());
            self.give_up_earlier_uploads(ctx, world, &destination).await?;
            let own = format!("{}/{run}-", plan.run.prefix);
            if ctx.fence() > 1 {
                // Somebody was here before and may have begun one that was never written down.
                destination.give_up_strays(&own).await;
            }
            let cursor: Cursor = ctx.cursor()?.unwrap_or_default();
            let objects = world.objects.near_store();
            if let Some(filter) = &plan.filter {
                parts = sieve::narrowed(Arc::clone(&objects), plan.export.project_id, parts, filter).await?;
            }
            let request = Request {
                tenant,
                project: plan.export.project_id,
                parts,
                range: plan.run.start_time..plan.run.end_time,
                after: cursor.after,
                selection: plan.selection.clone(),
            };
            // Only what is wanted whole and compressed as asked can be copied.
            let feed = match (&plan.sieve, plan.export.compression) {
                (Some(sieve), _) => Feed::sifted(objects, request, Arc::clone(sieve)).fatal()?,
                (None, Compression::Zstandard) => Feed::splicing(objects, request, world.sizes.splice_rows),
                (None, _) => Feed::new(Scan::new(objects, request)),
            };
            let feed = match feedback::of(&world.store, tenant, &plan.selection).await? {
                Some(beside) => feed.with(beside),
                None => feed,
            };
            let place = world.heavy.place(&ctx.cancelled()).await?;
            self.write_files(ctx, world, &plan, &destination, feed, cursor).await?;
            drop(place);
            if destination.began_any() {
                // One that was begun twice, because the first answer was lost.
                destination.give_up_strays(&own).await;
            }
        }
        ctx.settle(async |tx| {
            runs::finish(tx, tenant, run, ExportStatus::Completed, None).await?;
            segments::unpin(tx, run.0).await.map(drop)
        })
        .await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: Ended) -> store::Result<()> {
        let &Self { tenant, export, run } = input;
        let (status, error) = match ended {
            Ended::Failed(error) => (ExportStatus::Failed, Some(error)),
            Ended::Cancelled => (ExportStatus::Cancelled, None),
            Ended::TimedOut => (
                ExportStatus::TimedOut,
                Some("the export run ran out of time".to_owned()),
            ),
        };
        runs::finish(tx, tenant, run, status, error.as_deref()).await?;
        let had_rows = segments::unpin(tx, run.0).await? > 0;
        // Also where none is on record: one that was just begun may not have been written down.
        if !files::uploads(tx, run).await?.is_empty() || (had_rows && runs::was_begun(tx, tenant, run).await?) {
            clean_export::start(tx, &CleanExport::uploads(tenant, export, run)).await?;
        }
        Ok(())
    }

    fn again(&self) -> Again {
        Again::Refused("the export of this run is over, and has told so; create a new export of the same range")
    }

    async fn failed(tx: &mut Tx<'_>, input: &Self, n: u32, error: &str) -> store::Result<()> {
        runs::attempt_failed(tx, input.tenant, input.run, n, error).await
    }
}

impl ExportPart {
    async fn read_plan(&self, world: &World) -> Result<Plan, Failure> {
        let &Self { tenant, export, run } = self;
        let rows = world.store.read(async |tx| {
            Ok((
                exports::get(tx, tenant, export).await?,
                runs::get(tx, tenant, export, run).await?,
                exports::filter(tx, tenant, export).await?,
            ))
        });
        let (export, run, filter) = rows.await.retry()?;
        let sieve = filter
            .as_deref()
            .map(|filter| sieve::of(&world.store, tenant, filter))
            .transpose()?;
        let selection = match export.fields().fatal()? {
            Some(fields) => Selection::of(&fields.iter().map(|field| field.name()).collect::<Vec<_>>()).fatal()?,
            None => Selection::all(),
        };
        let options = FileOptions {
            file_bytes: world.sizes.file_bytes,
            file_rows: world.sizes.file_rows,
            part_bytes: world.sizes.part_bytes,
            version: export.format_version,
            ..FileOptions::new(selection.clone(), compression(export.compression))
        };
        let folder = Path::parse(&run.prefix).fatal()?;
        Ok(Plan {
            export,
            run,
            selection,
            options,
            folder,
            filter,
            sieve,
        })
    }

    /// File after file, until no rows are left.
    async fn write_files(
        &self,
        ctx: &mut Ctx,
        world: &World,
        plan: &Plan,
        destination: &Destination,
        mut feed: Feed,
        mut cursor: Cursor,
    ) -> Result<(), Failure> {
        loop {
            let path = hive::file(&plan.folder, &file_name(self.run, cursor.files));
            let end = cursor
                .pending
                .as_ref()
                .map_or(End::Roll, |pending| End::At(pending.target_cursor));
            let (fed, sealed) = self
                .write_file(ctx, world, plan, destination, feed, path, end, &cursor)
                .await?;
            let Some(sealed) = sealed else { return Ok(()) };
            feed = fed;
            if cursor.pending.is_none() {
                self.save_pending(ctx, destination, &mut cursor, sealed.written())
                    .await?;
            }
            let written = sealed.complete().await.map_err(|error| failed(&error))?;
            failpoint::hit("export.file_visible");
            // Still pending: where it arrived in another size, the next attempt makes it again.
            destination
                .verify(&written.path, written.bytes)
                .await
                .map_err(|failure| Failure::retry(failure.to_string()))?;
            self.save_file(ctx, &mut cursor, &written).await?;
            metrics::counter!(metric::EXPORT_ROWS).increment(written.rows);
            metrics::counter!(metric::EXPORT_BYTES).increment(written.bytes);
            metrics::counter!(metric::EXPORT_FILES).increment(1);
        }
    }

    async fn save_pending(
        &self,
        ctx: &mut Ctx,
        destination: &Destination,
        cursor: &mut Cursor,
        file: FileWritten,
    ) -> Result<(), Failure> {
        let &Self { tenant, run, .. } = self;
        let pending = PendingUpload {
            target_cursor: file.last,
            file_path: file.path.to_string(),
            rows_count: file.rows,
        };
        let text = serde_json::to_string(&pending).fatal()?;
        cursor.pending = Some(pending);
        let begun = destination.begun();
        failpoint::hit("export.before_pending");
        ctx.checkpoint(cursor, async |tx| {
            note_uploads(tx, run, &begun).await?;
            runs::pending(tx, tenant, run, &text).await
        })
        .await?;
        failpoint::hit("export.pending_saved");
        Ok(())
    }

    async fn save_file(&self, ctx: &mut Ctx, cursor: &mut Cursor, written: &FileWritten) -> Result<(), Failure> {
        let tenant = self.tenant;
        let file = ExportFile {
            export_run_id: self.run,
            seq: i64::from(cursor.files),
            path: written.path.to_string(),
            rows: i64::try_from(written.rows).unwrap_or(i64::MAX),
            bytes: i64::try_from(written.bytes).unwrap_or(i64::MAX),
        };
        *cursor = Cursor {
            files: cursor.files + 1,
            rows: cursor.rows + written.rows,
            bytes: cursor.bytes + written.bytes,
            after: Some(written.last),
            pending: None,
        };
        let latest = serde_json::to_string(&written.last).fatal()?;
        ctx.checkpoint(cursor, async |tx| runs::file_done(tx, tenant, &file, &latest).await)
            .await
    }

    /// Uploads in parts that an earlier attempt left: invisible, but they cost space.
    async fn give_up_earlier_uploads(
        &self,
        ctx: &mut Ctx,
        world: &World,
        destination: &Destination,
    ) -> Result<(), Failure> {
        let run = self.run;
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
            // The right to abort is optional.
            if let Err(failure) = destination.abort(&begun).await {
                tracing::info!(%failure, "an earlier upload in parts cannot be given up");
            }
            ctx.commit(async |tx| files::upload_gone(tx, run, &upload).await)
                .await?;
        }
        Ok(())
    }
}

/// Writes down which uploads in parts are open, so that somebody can give them up.
async fn note_uploads(tx: &mut Tx<'_>, run: ExportRunId, begun: &[Begun]) -> store::Result<()> {
    for upload in begun {
        files::upload_begun(tx, run, &upload.path, &upload.id).await?;
    }
    Ok(())
}
