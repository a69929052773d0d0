//! The manifest of a finished export.
//!
//! Written last, by one PUT, to `<prefix>/export_id=<id>/_manifest.json`: an export is complete exactly when its
//! manifest exists, and its data are exactly the files it lists. Any other object below the export's folder is left
//! from an unfinished attempt.

use std::sync::Arc;

use chrono::NaiveDate;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use towpath_domain::export::FormatVersion;
use towpath_domain::{ExportId, ExportRunId, ProjectId, TenantId, Timestamp};

use crate::columnar::{Error, Result};
use crate::parquet_file::Compression;

/// Version of the format. Fields may be added without a new version.
pub const VERSION: u32 = 1;

/// What an export consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub version: u32,
    pub export_id: ExportId,
    /// Its workspace.
    pub tenant_id: TenantId,
    /// The project whose trace runs it has.
    pub session_id: ProjectId,
    /// Trace runs that started at this time or later…
    pub start_time: Timestamp,
    /// … and before this one.
    pub end_time: Timestamp,
    /// Columns of every file, in order.
    pub fields: Vec<String>,
    /// File format: `Parquet`.
    pub format: String,
    /// Types and layout.
    pub format_version: FormatVersion,
    /// Compression of every file.
    pub compression: Compression,
    /// Filter text as it was sent, `null` for all trace runs.
    pub filter: Option<String>,
    /// Operations accepted before the export that could not be flushed and may be missing from its rows. Absent in
    /// manifests of earlier builds.
    #[serde(default)]
    pub missing_operations: u64,
    /// Rows of all files.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Its days in order; days without trace runs have no files.
    pub partitions: Vec<Partition>,
    /// When everything was written.
    pub finished_at: Timestamp,
}

/// One UTC day of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// The export run that wrote it.
    pub export_run_id: ExportRunId,
    pub day: NaiveDate,
    /// Folder of its files: a key in the bucket, or a path below the destination's folder.
    pub path: String,
    /// Rows of its files.
    pub rows: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Its files in the order of their rows.
    pub files: Vec<File>,
}

/// One Parquet file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Key in the bucket, or path below the destination's folder.
    pub path: String,
    pub rows: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Partition {
    /// Of files; rows and bytes are added up.
    #[must_use]
    pub fn of(export_run_id: ExportRunId, day: NaiveDate, path: &Path, files: Vec<File>) -> Self {
        let (rows, bytes) = files
            .iter()
            .fold((0, 0), |(rows, bytes), file| (rows + file.rows, bytes + file.bytes));
        Self {
            export_run_id,
            day,
            path: path.to_string(),
            rows,
            bytes,
            files,
        }
    }
}

impl Manifest {
    /// Adds the partitions, in order of their days, with total rows and bytes.
    #[must_use]
    pub fn with_partitions(mut self, mut partitions: Vec<Partition>) -> Self {
        partitions.sort_by_key(|partition| (partition.day, partition.export_run_id));
        self.rows = partitions.iter().map(|partition| partition.rows).sum();
        self.bytes = partitions.iter().map(|partition| partition.bytes).sum();
        self.partitions = partitions;
        self
    }

    /// Writes it to `path`, over an earlier one.
    pub async fn write(&self, store: &Arc<dyn ObjectStore>, path: &Path) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(self).expect("ids, numbers and texts always have a JSON form");
        text.push(b'\n');
        store
            .put(path, PutPayload::from(text))
            .await
            .map(drop)
            .map_err(|source| Error::write(path, source))
    }
}
