//! The end of a successful export.

use std::collections::BTreeMap;

use object_store::path::Path;
use tokio::runtime::Handle;
use towpath_domain::export::{ExportStatus, Field};
use towpath_domain::{ExportId, TenantId, failpoint};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome};
use towpath_outbound::Destination;
use towpath_store::exports::files::{self, ExportFile};
use towpath_store::exports::runs::{self, ExportRun};
use towpath_store::exports::{self, Export};
use towpath_store::{Store, destinations};
use towpath_traces::manifest::{File, Manifest, Partition, VERSION};

use super::RunExport;
use crate::Services;
use crate::export_part::{compression, failed};
use crate::services::prefix;

impl RunExport {
    /// Writes the manifest, then settles. The manifest may be written twice with the same content.
    ///
    /// A worker may be replaced at any of these points without knowing it. An export that ended in another way must not
    /// have a manifest, however late it is written:
    ///
    /// ```text
    /// check the fence ─► write ─► record, settle: refused unless the fence holds ─► ended otherwise? remove the manifest
    /// ```
    /// A worker that dies after its write leaves the manifest to the cleanup of the export.
    pub(super) async fn complete(&self, ctx: &mut Ctx, world: &Services, export: &Export) -> Outcome {
        // First, so that a deleted destination is not written to.
        let destination = world.destination(self.tenant, export.destination_id).await?;
        let (manifest, path) = self.manifest(world, export).await?;
        failpoint::hit("export.before_manifest");
        ctx.commit(async |_| Ok(())).await?;
        let mut unsettled = UnsettledManifest(Some(ManifestCheck {
            tenant: self.tenant,
            export: self.export,
            store: world.store.clone(),
            destination: destination.clone(),
            path: path.clone(),
        }));
        let written = self.write_manifest(ctx, &destination, &manifest, &path).await;
        let look = unsettled.0.take();
        if let (Err(_), Some(look)) = (&written, look) {
            look.remove_if_over().await;
        }
        written
    }

    async fn write_manifest(
        &self,
        ctx: &mut Ctx,
        destination: &Destination,
        manifest: &Manifest,
        path: &Path,
    ) -> Outcome {
        let &Self { tenant, export: id } = self;
        ctx.step("write manifest", async || {
            let written = manifest.write(destination.objects(), path).await;
            written.map_err(|error| failed(&error))
        })
        .await?;
        failpoint::hit("export.manifest_written");
        ctx.settle(async |tx| {
            exports::finish(tx, tenant, id, ExportStatus::Completed, None)
                .await
                .map(drop)
        })
        .await
    }

    async fn manifest(&self, world: &Services, export: &Export) -> Result<(Manifest, Path), Failure> {
        let &Self { tenant, export: id } = self;
        let (rows, written, filter, config) = world
            .store
            .read(async |tx| {
                let rows = runs::list(tx, tenant, id).await?;
                let written = files::list(tx, tenant, id).await?;
                let filter = exports::filter(tx, tenant, id).await?;
                let config = destinations::get(tx, tenant, export.destination_id).await?.config()?;
                Ok((rows, written, filter, config))
            })
            .await
            .retry()?;
        if let Some(open) = rows.iter().find(|run| run.status != ExportStatus::Completed) {
            return Err(Failure::fatal(format!(
                "export run {} is {}",
                open.id,
                open.status.as_str()
            )));
        }
        let path = prefix(&config).fatal()?.manifest(id);
        let fields = export.fields().fatal()?.unwrap_or_else(|| Field::ALL.to_vec());
        let manifest = Manifest {
            version: VERSION,
            export_id: id,
            tenant_id: tenant,
            session_id: export.project_id,
            start_time: export.start_time,
            end_time: export.end_time,
            fields: fields.iter().map(|field| field.name().to_owned()).collect(),
            format: "Parquet".to_owned(),
            format_version: export.format_version,
            compression: compression(export.compression),
            filter,
            missing_operations: export.missing_operations.unsigned_abs(),
            rows: 0,
            bytes: 0,
            partitions: Vec::new(),
            finished_at: rows
                .iter()
                .filter_map(|run| run.finished_at)
                .max()
                .unwrap_or(export.created_at),
        }
        .with_partitions(partitions(&rows, written));
        Ok((manifest, path))
    }
}

/// A manifest whose export is not settled yet. If it is dropped because the worker was told to stop, the check still
/// runs: after the deletion of the destination, no other process can do it.
struct UnsettledManifest(Option<ManifestCheck>);

struct ManifestCheck {
    tenant: TenantId,
    export: ExportId,
    store: Store,
    destination: Destination,
    path: Path,
}

impl ManifestCheck {
    async fn remove_if_over(self) {
        let Self { tenant, export: id, .. } = self;
        let export = self.store.read(async |tx| exports::get(tx, tenant, id).await).await;
        // If the export continues, another worker writes the manifest; if it completed, the manifest is valid.
        if !export.is_ok_and(|export| export.status.is_final() && export.status != ExportStatus::Completed) {
            return;
        }
        match self.destination.remove(&self.path).await {
            Ok(()) => tracing::info!(export.id = %id, "removed the manifest of an export that did not complete"),
            Err(failure) => {
                tracing::warn!(export.id = %id, %failure, "the manifest of an ended export cannot be removed now; the \
                                                           cleanup of the export removes it");
            }
        }
    }
}

impl Drop for UnsettledManifest {
    fn drop(&mut self) {
        if let (Some(look), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(look.remove_if_over());
        }
    }
}

fn partitions(rows: &[ExportRun], written: Vec<ExportFile>) -> Vec<Partition> {
    let mut of_run: BTreeMap<_, Vec<File>> = BTreeMap::new();
    for file in written {
        of_run.entry(file.export_run_id).or_default().push(File {
            path: file.path,
            rows: file.rows.unsigned_abs(),
            bytes: file.bytes.unsigned_abs(),
        });
    }
    let partition = |run: &ExportRun| {
        // Stored keys are parsed, not encoded again.
        let folder = Path::parse(&run.prefix).unwrap_or_default();
        Partition::of(
            run.id,
            run.start_time.day(),
            &folder,
            of_run.remove(&run.id).unwrap_or_default(),
        )
    };
    rows.iter().map(partition).collect()
}
