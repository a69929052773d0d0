//! The end of an export that went well.

use std::collections::BTreeMap;

use object_store::path::Path;
use towpath_domain::export::{ExportStatus, Field};
use towpath_domain::failpoint;
use towpath_durable::{Ctx, Failure, Outcome, Verdict};
use towpath_store::destinations;
use towpath_store::exports::files::{self, ExportFile};
use towpath_store::exports::runs::{self, ExportRun};
use towpath_store::exports::{self, Export};
use towpath_traces::manifest::{File, Manifest, Partition, VERSION};

use super::RunExport;
use crate::World;
use crate::export_part::{compression, failed};
use crate::world::prefix;

impl RunExport {
    /// Writes the manifest, then settles. The manifest may be written twice: it says the same both times.
    pub(super) async fn complete(&self, ctx: &mut Ctx, world: &World, export: &Export) -> Outcome {
        let &Self { tenant, export: id } = self;
        ctx.step("write manifest", async || self.write_manifest(world, export).await)
            .await?;
        failpoint::hit("export.manifest_written");
        ctx.settle(async |tx| {
            exports::finish(tx, tenant, id, ExportStatus::Completed, None)
                .await
                .map(drop)
        })
        .await
    }

    async fn write_manifest(&self, world: &World, export: &Export) -> Result<(), Failure> {
        let &Self { tenant, export: id } = self;
        // First: a destination that was deleted stays so.
        let destination = world.destination(tenant, export.destination_id).await?;
        let (rows, written, config) = world
            .store
            .read(async |tx| {
                let rows = runs::list(tx, tenant, id).await?;
                let written = files::list(tx, tenant, id).await?;
                let config = destinations::get(tx, tenant, export.destination_id).await?.config()?;
                Ok((rows, written, config))
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
            filter: None,
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
        failpoint::hit("export.before_manifest");
        manifest
            .write(destination.objects(), &path)
            .await
            .map_err(|error| failed(&error))
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
        // Stored keys are parsed, not encoded once more.
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
