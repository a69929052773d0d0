//! One day partition of an export: streams pinned segments into Parquet files, each exactly once.
//!
//! ```text
//! write a file's rows; nothing is visible yet
//!   checkpoint: pending_upload = its name, rows and last row
//! make it visible
//!   checkpoint: cursor behind it, the file on record, nothing pending
//! ```
//! A process that dies between the two checkpoints leaves a file that may or may not be visible. The next attempt
//! creates it again up to the recorded row: same rows, same bytes, same name. If the result differs, because feedback
//! was added or deleted meanwhile, the file is abandoned, and the next one gets a name that no other attempt uses. So a
//! recorded file always matches its record, whatever a replaced attempt still writes.

mod cursor;
mod feedback;
mod file;
pub(crate) mod leftover;
mod part_end;
mod row_filter;

use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use towpath_domain::export::{Compression, ExportStatus, RUN_LIMIT, RUN_RETRIES, RUN_RETRY_DELAY};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_domain::{ExportId, ExportRunId, TenantId, failpoint};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome, RetryDecision, Workflow};
use towpath_outbound::{Destination, OpenUpload};
use towpath_store::exports::files::{self, ExportFile};
use towpath_store::exports::runs::{self, ExportRun};
use towpath_store::exports::{self, Export};
use towpath_store::{self as store, Tx, segments};
use towpath_traces::flush::part_ref;
use towpath_traces::hive;
use towpath_traces::parquet_file::{FileOptions, FileWritten, RowSource, SealedFile};
use towpath_traces::prices::PriceTable;
use towpath_traces::row::Key;
use towpath_traces::row_source::{Enrichment, RowFilter};
use towpath_traces::scan::{PartRef, Request, Scan};
use towpath_traces::schema::Selection;

use crate::Services;
use crate::clean_export::{self, CleanExport};
use crate::metric;
use crate::services::require_disk_space;
use cursor::{Cursor, PendingUpload};
use file::FileResult;
pub(crate) use file::{compression, failed};

#[derive(Debug, Serialize, Deserialize)]
pub struct ExportPart {
    pub tenant: TenantId,
    pub export: ExportId,
    pub run: ExportRunId,
}

/// Data that is the same in all attempts, read again by each.
struct Plan {
    export: Export,
    run: ExportRun,
    selection: Selection,
    options: FileOptions,
    folder: Path,
    parts: Vec<PartRef>,
    prices: Arc<PriceTable>,
    /// The filter, if not all trace runs are exported.
    filter: Option<Arc<dyn RowFilter>>,
}

impl Workflow for ExportPart {
    const KIND: &'static str = "export_part";
    const POOL: &'static str = "export_parts";
    const RETRY: RetryPolicy = RetryPolicy::fixed(RUN_RETRIES, RUN_RETRY_DELAY);
    const ATTEMPT_LIMIT: Option<Duration> = Some(RUN_LIMIT);
    type World = Services;

    fn retry_policy(world: &Services) -> RetryPolicy {
        RetryPolicy::fixed(RUN_RETRIES, world.exports.run_retry)
    }

    async fn run(&self, ctx: &mut Ctx, world: &Services) -> Outcome {
        let &Self { tenant, export, run } = self;
        let failures = i64::from(ctx.failures());
        if !ctx
            .commit(async |tx| runs::running(tx, tenant, run, failures).await)
            .await?
        {
            // The export has ended, and this job is about to be cancelled.
            return Err(Failure::Cancelled);
        }
        let mut plan = self.read_plan(world).await?;
        let has_rows = !plan.parts.is_empty();
        if has_rows {
            let destination = world.destination(tenant, plan.export.destination_id).await?;
            if destination.is_folder() {
                require_disk_space(&world.disks.exports)?;
            }
            plan.options.part_bytes = plan.options.part_bytes.min(destination.part_bytes());
            self.give_up_earlier_uploads(ctx, world, &destination).await?;
            let own = format!("{}/{run}-", plan.run.prefix);
            if ctx.fence() > 1 {
                // An earlier attempt may have begun an upload without recording it.
                destination.abort_stray_uploads(&own).await;
            }
            let beside = feedback::of(&world.store, tenant, &plan.selection).await?;
            let place = world.cpu_pool.memory_permit(&ctx.cancelled()).await?;
            self.write_files(ctx, world, &plan, &destination, beside.as_ref())
                .await?;
            drop(place);
            if destination.has_begun_uploads() {
                // An upload may have been begun twice because the first response was lost.
                destination.abort_stray_uploads(&own).await;
            }
        }
        let late = has_rows && ctx.fence() > 1;
        ctx.settle(async |tx| {
            runs::finish(tx, tenant, run, ExportStatus::Completed, None).await?;
            segments::unpin(tx, run.0).await?;
            if late {
                // A replaced attempt may still be running.
                clean_export::start_late(tx, CleanExport::run(tenant, export, run)).await?;
            }
            Ok(())
        })
        .await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> store::Result<()> {
        Self::end_all(tx, std::slice::from_ref(input), &ended).await
    }

    /// All runs of an export end together with it.
    async fn end_all(tx: &mut Tx<'_>, inputs: &[Self], ended: &EndReason) -> store::Result<()> {
        part_end::end_all(tx, inputs, ended).await
    }

    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Refused("the export of this run has ended; create a new export of the same range")
    }

    async fn attempt_failed(tx: &mut Tx<'_>, input: &Self, n: u32, error: &str) -> store::Result<()> {
        runs::attempt_failed(tx, input.tenant, input.run, n, error).await
    }
}

impl ExportPart {
    async fn read_plan(&self, world: &Services) -> Result<Plan, Failure> {
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
            .map(|filter| row_filter::of(&world.store, tenant, filter))
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
        let parts = world.store.read(async |tx| {
            let day = run.start_time.day();
            segments::pinned(tx, tenant, export.project_id, day, day, run.id.0).await
        });
        let mut parts: Vec<_> = parts.await.retry()?.iter().map(part_ref).collect();
        if let Some(filter) = &filter {
            parts = row_filter::matching_row_groups(world.objects.blocking_store(), export.project_id, parts, filter)
                .await?;
        }
        let prices = world.objects.prices().table(&world.store, tenant).await.retry()?;
        Ok(Plan {
            export,
            run,
            prices,
            selection,
            options,
            folder,
            parts,
            filter: sieve,
        })
    }

    /// The rows after `after`.
    fn row_source(
        world: &Services,
        plan: &Plan,
        beside: Option<&Arc<dyn Enrichment>>,
        after: Option<Key>,
    ) -> Result<RowSource, Failure> {
        let request = Request {
            tenant: plan.export.tenant_id,
            project: plan.export.project_id,
            parts: plan.parts.clone(),
            range: plan.run.start_time..plan.run.end_time,
            after,
            selection: plan.selection.clone(),
            prices: Arc::clone(&plan.prices),
        };
        let objects = world.objects.blocking_store();
        // Row groups are only copied if all rows are wanted and the compression matches.
        let feed = match (&plan.filter, plan.export.compression) {
            (Some(sieve), _) => RowSource::filtered(objects, request, Arc::clone(sieve)).fatal()?,
            (None, Compression::Zstandard) => RowSource::splicing(objects, request, world.sizes.splice_rows),
            (None, _) => RowSource::new(Scan::new(objects, request)),
        };
        Ok(match beside {
            Some(beside) => feed.with_enrichment(Arc::clone(beside)),
            None => feed,
        })
    }

    /// Writes files until no rows are left.
    async fn write_files(
        &self,
        ctx: &mut Ctx,
        world: &Services,
        plan: &Plan,
        destination: &Destination,
        beside: Option<&Arc<dyn Enrichment>>,
    ) -> Result<(), Failure> {
        let mut cursor: Cursor = ctx.cursor()?.unwrap_or_default();
        let mut feed = Self::row_source(world, plan, beside, cursor.after)?;
        loop {
            let path = hive::file(&plan.folder, &cursor.file_name(self.run));
            let (fed, made) = self
                .write_file(ctx, world, plan, destination, feed, path.clone(), &cursor)
                .await?;
            let sealed = match (made, &cursor.pending) {
                (FileResult::Empty, _) => return Ok(()),
                (FileResult::Sealed(sealed), Some(pending)) if !pending.is(&sealed.written()) => {
                    sealed.abort().await;
                    None
                }
                (FileResult::Sealed(sealed), _) => Some(sealed),
                (FileResult::Diverged, _) => None,
            };
            let Some(sealed) = sealed else {
                self.give_up_pending(ctx, destination, &mut cursor).await?;
                feed = Self::row_source(world, plan, beside, cursor.after)?;
                continue;
            };
            feed = fed;
            if let Err(failure) = self.finish_file(ctx, destination, &mut cursor, sealed).await {
                self.remove_if_left_over(world, destination, &path).await;
                return Err(failure);
            }
        }
    }

    /// Makes a file visible and records it.
    async fn finish_file(
        &self,
        ctx: &mut Ctx,
        destination: &Destination,
        cursor: &mut Cursor,
        sealed: SealedFile,
    ) -> Result<(), Failure> {
        if cursor.pending.is_none() {
            self.save_pending(ctx, destination, cursor, &sealed.written()).await?;
        }
        let written = sealed.complete().await.map_err(|error| failed(&error))?;
        failpoint::hit("export.file_visible");
        // It stays pending: if its size differs, the next attempt creates it again.
        destination
            .verify(&written.path, written.bytes)
            .await
            .map_err(|failure| Failure::retry(failure.to_string()))?;
        self.save_file(ctx, cursor, &written).await?;
        metrics::counter!(metric::EXPORT_ROWS).increment(written.rows);
        metrics::counter!(metric::EXPORT_BYTES).increment(written.bytes);
        metrics::counter!(metric::EXPORT_FILES).increment(1);
        Ok(())
    }

    async fn save_pending(
        &self,
        ctx: &mut Ctx,
        destination: &Destination,
        cursor: &mut Cursor,
        file: &FileWritten,
    ) -> Result<(), Failure> {
        let &Self { tenant, run, .. } = self;
        let pending = PendingUpload::of(file);
        let text = serde_json::to_string(&pending).fatal()?;
        cursor.pending = Some(pending);
        let begun = destination.open_uploads();
        failpoint::hit("export.before_pending");
        ctx.checkpoint(cursor, async |tx| {
            note_uploads(tx, run, &begun).await?;
            runs::pending(tx, tenant, run, &text).await
        })
        .await?;
        failpoint::hit("export.pending_saved");
        Ok(())
    }

    /// Abandons the pending file, which cannot be created again. The next one gets another name, because a replaced
    /// attempt may still make this one visible.
    async fn give_up_pending(
        &self,
        ctx: &mut Ctx,
        destination: &Destination,
        cursor: &mut Cursor,
    ) -> Result<(), Failure> {
        let &Self { tenant, run, .. } = self;
        let Some(pending) = cursor.pending.take() else {
            return Err(Failure::retry("rows differ although no file was pending"));
        };
        let path = Path::parse(&pending.file_path).fatal()?;
        cursor.given_up.push(pending.file_path);
        cursor.replaced_at = Some(ctx.fence());
        ctx.checkpoint(cursor, async |tx| {
            runs::pending_given_up(tx, tenant, run, path.as_ref()).await
        })
        .await?;
        tracing::info!(object.path = %path, "an interrupted file cannot be recreated; another file replaces it");
        if let Err(failure) = destination.remove(&path).await {
            tracing::info!(%failure, "the interrupted file cannot be removed now; the cleanup of the run removes it");
        }
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
        *cursor = cursor.behind(written);
        let latest = serde_json::to_string(&written.last).fatal()?;
        ctx.checkpoint(cursor, async |tx| runs::file_done(tx, tenant, &file, &latest).await)
            .await
    }

    /// Aborts multipart uploads of earlier attempts, which are invisible but cost space.
    async fn give_up_earlier_uploads(
        &self,
        ctx: &mut Ctx,
        world: &Services,
        destination: &Destination,
    ) -> Result<(), Failure> {
        let run = self.run;
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
            // The permission to abort is optional.
            if let Err(failure) = destination.abort(&begun).await {
                tracing::info!(%failure, "an earlier multipart upload cannot be aborted");
            }
            ctx.commit(async |tx| files::upload_gone(tx, run, &upload).await)
                .await?;
        }
        Ok(())
    }
}

/// Records open multipart uploads, so that they can be aborted later.
async fn note_uploads(tx: &mut Tx<'_>, run: ExportRunId, begun: &[OpenUpload]) -> store::Result<()> {
    for upload in begun {
        files::upload_begun(tx, run, &upload.path, &upload.id).await?;
    }
    Ok(())
}
