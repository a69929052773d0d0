//! Progress of an export run.

use serde::{Deserialize, Serialize};
use towpath_domain::ExportRunId;
use towpath_traces::parquet_file::{End, FileWritten, file_name, replacement_name};
use towpath_traces::row::Key;

/// Progress of an export run, stored as the job's checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Cursor {
    pub(super) files: u32,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// The last row in finished files.
    pub(super) after: Option<Key>,
    /// The file that may or may not be visible.
    pub(super) pending: Option<PendingUpload>,
    /// Keys of abandoned files, which no record lists. They may be visible, or a replaced attempt may make them so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) given_up: Vec<String>,
    /// The fence of the attempt that abandoned a file with the number of the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) replaced_at: Option<i64>,
}

/// A file that is about to become visible.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PendingUpload {
    pub(super) target_cursor: Key,
    pub(super) file_path: String,
    pub(super) rows_count: u64,
    /// Its size. Cursors of the first release have neither this nor the checksum.
    #[serde(default)]
    pub(super) bytes: Option<u64>,
    #[serde(default)]
    pub(super) checksum: Option<u32>,
}

impl Cursor {
    pub(super) fn file_name(&self, run: ExportRunId) -> String {
        match self.replaced_at {
            None => file_name(run, self.files),
            Some(fence) => replacement_name(run, self.files, fence),
        }
    }

    /// Where the next file ends.
    pub(super) fn end(&self) -> End {
        self.pending
            .as_ref()
            .map_or(End::Roll, |pending| End::At(pending.target_cursor))
    }

    /// The cursor after a finished file.
    pub(super) fn behind(&self, written: &FileWritten) -> Self {
        Self {
            files: self.files + 1,
            rows: self.rows + written.rows,
            bytes: self.bytes + written.bytes,
            after: Some(written.last),
            pending: None,
            given_up: self.given_up.clone(),
            replaced_at: None,
        }
    }
}

impl PendingUpload {
    pub(super) fn of(file: &FileWritten) -> Self {
        Self {
            target_cursor: file.last,
            file_path: file.path.to_string(),
            rows_count: file.rows,
            bytes: Some(file.bytes),
            checksum: Some(file.checksum),
        }
    }

    /// Whether a recreated file equals this one, byte for byte.
    pub(super) fn is(&self, file: &FileWritten) -> bool {
        self.rows_count == file.rows
            && self.bytes.is_none_or(|bytes| bytes == file.bytes)
            && self.checksum.is_none_or(|checksum| checksum == file.checksum)
    }
}
