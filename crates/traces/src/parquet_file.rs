//! Exported Parquet files.
//!
//! A file is a function of its rows and the options: the same rows give the same bytes, however the scan cut them
//! into batches. So a file that was interrupted can be made again under its name, up to the key at which it ended,
//! and put over a half-finished one. To that end rows are cut again into chunks whose ends depend on the rows alone;
//! whether a row group or the file ends is asked only after a chunk.
//!
//! The walk of one file, with what a caller that wants every row exactly once notes down in between:
//!
//! ```text
//! write_file(.., End::Roll)      rows go out as parts, nothing is visible yet
//!   note: pending file, its name, rows and last key
//! SealedFile::complete()         the file is there
//!   note: the last key as cursor, the file as finished; nothing pending
//! ```
//!
//! With a pending file noted down, a new attempt calls `write_file(.., End::At(last key))` and completes that if it is
//! the same file: its rows, bytes and checksum tell. What goes into rows may have changed in between (feedback, which
//! is in no segment), and so may what is copied; then the file is given up and another one is made in its place.
//! Row groups that the feed offers whole are copied from their segments; they are fixed when segments are pinned, so
//! the bytes stay the same. Memory: one chunk, one row group and two parts of the upload, beside what the scan holds.

mod chunk;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use object_store::ObjectStore;
use object_store::path::Path;
use parquet::basic::GzipLevel;
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};
use towpath_domain::ExportRunId;
use towpath_domain::export::FormatVersion;

use self::chunk::Chunk;
pub(crate) use self::chunk::{bytes, weights};
use crate::columnar::{Error, Result};
use crate::encoder::Encoder;
use crate::row::Key;
pub use crate::row_source::RowSource;
use crate::row_source::RowSourceItem;
use crate::schema::{Selection, convert};
use crate::segment::{ZSTD, common_properties};
use crate::upload::{PART_BYTES, Upload};

/// Most rows of a row group.
const GROUP_ROWS: usize = 20_480;
/// Approximate encoded size at which a row group ends.
const GROUP_BYTES: usize = 16 << 20;
/// A file ends when it has about this many bytes.
pub const FILE_BYTES: u64 = 256 << 20;

/// How the pages of a file are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// Gzip, level 6.
    Gzip,
    Snappy,
    /// Zstandard, level 3.
    #[default]
    Zstandard,
}

/// Options that decide about the bytes of a file besides its rows. Keep them constant across the attempts of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Columns.
    pub selection: Selection,
    pub compression: Compression,
    /// Column types.
    pub version: FormatVersion,
    /// Size in bytes at which a file ends and the next begins.
    pub file_bytes: u64,
    /// Rows after which a file ends, whatever its size.
    pub file_rows: u64,
    /// Size of the parts of a multipart upload in bytes. Does not affect the file.
    pub part_bytes: usize,
}

impl FileOptions {
    /// The usual sizes.
    #[must_use]
    pub const fn new(selection: Selection, compression: Compression) -> Self {
        Self {
            selection,
            compression,
            version: FormatVersion::V1,
            file_bytes: FILE_BYTES,
            file_rows: u64::MAX,
            part_bytes: PART_BYTES,
        }
    }

    fn properties(&self) -> WriterProperties {
        use parquet::basic::Compression as Codec;
        let codec = match self.compression {
            Compression::None => Codec::UNCOMPRESSED,
            Compression::Gzip => Codec::GZIP(GzipLevel::default()),
            Compression::Snappy => Codec::SNAPPY,
            Compression::Zstandard => *ZSTD,
        };
        common_properties()
            .set_compression(codec)
            .set_max_row_group_row_count(None)
            .build()
    }
}

/// Name of file number `seq` (from 0) of an export run. Independent of the attempt.
#[must_use]
pub fn file_name(export_run: ExportRunId, seq: u32) -> String {
    format!("{export_run}-{seq:05}.parquet")
}

/// Name of a file that replaces one that could not be reproduced. The earlier file may still become visible under its
/// own name, so this name contains the fence of the attempt that abandoned it.
#[must_use]
pub fn replacement_name(export_run: ExportRunId, seq: u32, fence: i64) -> String {
    format!("{export_run}-{seq:05}-{fence}.parquet")
}

/// Where a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the size of the options, or with the last row.
    Roll,
    /// With exactly this row: a file is made again.
    At(Key),
}

/// How far a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows in the file.
    pub rows: u64,
    /// Its encoded size, with an estimate for the current row group.
    pub bytes: u64,
}

/// A file whose bytes are all uploaded, or in the one buffer that will be PUT, but which is not visible yet.
#[derive(Debug)]
pub struct SealedFile {
    upload: Upload,
    rows: u64,
    last: Key,
}

/// A finished file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileWritten {
    pub path: Path,
    pub rows: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// CRC-32 of its bytes.
    pub checksum: u32,
    /// Its last row: the cursor from which the next file continues.
    pub last: Key,
}

impl SealedFile {
    /// What the file is going to be.
    #[must_use]
    pub fn written(&self) -> FileWritten {
        FileWritten {
            path: self.upload.path().clone(),
            rows: self.rows,
            bytes: self.upload.bytes(),
            checksum: self.upload.checksum(),
            last: self.last,
        }
    }

    /// Makes it visible.
    pub async fn complete(self) -> Result<FileWritten> {
        let written = self.written();
        self.upload.complete().await?;
        Ok(written)
    }

    /// Gives up; nothing becomes visible.
    pub async fn abort(self) {
        self.upload.abort().await;
    }
}

/// Writes the next rows of `feed` as one file at `path`. `None` if no rows are left; then no file is written.
///
/// `progress` is called about once per thousand rows. Encoding runs in this call between awaits: call it where it may
/// occupy a core. Nothing is visible if it is dropped.
pub async fn write_file(
    feed: &mut RowSource,
    store: Arc<dyn ObjectStore>,
    path: Path,
    options: &FileOptions,
    end: End,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Option<SealedFile>> {
    let upload = Upload::new(store, path).with_part_bytes(options.part_bytes);
    let mut file = File::new(upload, options)?;
    let ended = file.fill(feed, end, progress).await;
    let last = match (ended, file.last, end) {
        (Err(error), _, _) => {
            file.upload.abort().await;
            return Err(error);
        }
        (Ok(()), last, End::At(target)) if last != Some(target) => {
            file.upload.abort().await;
            return Err(Error::Diverged(format!(
                "the file should end with {target:?}, but the rows end with {last:?}"
            )));
        }
        (Ok(()), None, _) => return Ok(None),
        (Ok(()), Some(last), _) => last,
    };
    file.finish(last).await.map(Some)
}

struct File<'a> {
    options: &'a FileOptions,
    schema: SchemaRef,
    encoder: Encoder,
    upload: Upload,
    chunk: Chunk,
    rows: u64,
    last: Option<Key>,
}

impl<'a> File<'a> {
    fn new(upload: Upload, options: &'a FileOptions) -> Result<Self> {
        let schema = options.selection.schema_of(options.version);
        Ok(Self {
            options,
            encoder: Encoder::new(schema.clone(), options.properties())?,
            schema,
            upload,
            chunk: Chunk::new(options.selection.schema()),
            rows: 0,
            last: None,
        })
    }

    /// Takes rows until the file ends; what is not taken goes back.
    async fn fill(
        &mut self,
        feed: &mut RowSource,
        end: End,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<()> {
        while let Some(piece) = feed.next().await? {
            let batch = match piece {
                RowSourceItem::Rows(batch) => batch,
                RowSourceItem::Group(group) => {
                    if matches!(end, End::At(target) if group.last > target) {
                        // The row group was not copied the first time, or the file would not end inside it.
                        feed.read_by_row(*group);
                        continue;
                    }
                    self.encode_chunk().await?;
                    let (selection, version) = (&self.options.selection, self.options.version);
                    self.encoder
                        .splice(&group, selection, version, &mut self.upload)
                        .await?;
                    self.rows += group.rows;
                    self.last = Some(group.last);
                    if self.pause(end, progress) {
                        return Ok(());
                    }
                    continue;
                }
            };
            let wanted = match end {
                End::Roll => batch.keys.len(),
                End::At(target) => batch.keys.partition_point(|key| *key <= target),
            };
            let weights = weights(&batch.rows);
            let mut used = 0;
            while used < wanted {
                let rows = self.chunk.take(&weights[used..wanted]);
                self.chunk.push(batch.rows.slice(used, rows));
                used += rows;
                self.rows += rows as u64;
                self.last = Some(batch.keys[used - 1]);
                if self.chunk.is_full() {
                    self.encode_chunk().await?;
                    if self.pause(end, progress) {
                        feed.push_back(RowSourceItem::Rows(batch.after(used)));
                        return Ok(());
                    }
                }
            }
            if wanted < batch.keys.len() {
                feed.push_back(RowSourceItem::Rows(batch.after(wanted)));
                return Ok(());
            }
            if matches!(end, End::At(target) if self.last == Some(target)) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Tells how far the file is, and whether it ends here.
    fn pause(&self, end: End, progress: &mut (dyn FnMut(Progress) + Send)) -> bool {
        let bytes = self.encoder.bytes();
        progress(Progress { rows: self.rows, bytes });
        match end {
            End::Roll => bytes >= self.options.file_bytes || self.rows >= self.options.file_rows,
            End::At(target) => self.last == Some(target),
        }
    }

    async fn finish(mut self, last: Key) -> Result<SealedFile> {
        self.encode_chunk().await?;
        self.encoder.finish(&mut self.upload).await?;
        self.upload.seal().await?;
        Ok(SealedFile {
            upload: self.upload,
            rows: self.rows,
            last,
        })
    }

    async fn encode_chunk(&mut self) -> Result<()> {
        let Some(rows) = self.chunk.finish()? else {
            return Ok(());
        };
        self.encoder
            .write(&convert(rows, &self.schema, self.options.version)?)?;
        if self.encoder.open_rows() >= GROUP_ROWS || self.encoder.open_bytes() >= GROUP_BYTES {
            self.encoder.flush(&mut self.upload).await?;
        }
        // Encoding does not yield; this lets a cancelled caller stop.
        tokio::task::yield_now().await;
        Ok(())
    }
}
