//! Entries to index files.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeBinaryArray, Int64Array, RecordBatch};
use arrow::buffer::Buffer;
use towpath_domain::{RunIndexId, TenantId, TraceRunId};

use super::{Entry, GROUP_ENTRIES, ID_BYTES, NewIndexFile, SCHEMA, path, properties};
use crate::columnar::Result;
use crate::encoder::Encoder;
use crate::flush::FlushError;
use crate::metric;
use crate::objects::Objects;
use crate::upload::Upload;

/// Entries turned into columns at once.
const BATCH_ENTRIES: usize = 64 << 10;

/// Writes an index file. One unfinished row group is in memory. Nothing is visible if it is dropped.
pub struct Writer {
    id: RunIndexId,
    encoder: Encoder,
    upload: Upload,
    entries: u64,
    ids: Option<(TraceRunId, TraceRunId)>,
}

impl Writer {
    /// Begins a file of at most about `entries`, which decides the size of its filters.
    pub fn new(objects: &Objects, tenant: TenantId, id: RunIndexId, entries: u64) -> Result<Self> {
        Ok(Self {
            id,
            encoder: Encoder::new(SCHEMA.clone(), properties(entries))?,
            upload: Upload::new(objects.store().clone(), path(tenant, id)),
            entries: 0,
            ids: None,
        })
    }

    /// Adds entries. They must continue the order of ids, each id once.
    pub async fn write(&mut self, entries: &[Entry]) -> Result<()> {
        let mut rest = entries;
        while !rest.is_empty() {
            let room = (GROUP_ENTRIES - self.encoder.open_rows()).min(BATCH_ENTRIES);
            let (batch, later) = rest.split_at(room.min(rest.len()));
            rest = later;
            self.note(batch);
            self.encoder.write(&columns(batch)?)?;
            if self.encoder.open_rows() >= GROUP_ENTRIES {
                self.encoder.flush(&mut self.upload).await?;
            }
            // Encoding does not yield; this lets a cancelled caller stop.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Finishes the file and makes it visible. It must have entries.
    pub async fn finish<E>(mut self, objects: &Objects) -> Result<NewIndexFile, FlushError<E>> {
        self.encoder.finish(&mut self.upload).await?;
        let path = self.upload.path().clone();
        let bytes = self.upload.complete().await?;
        objects.sync(&path).await?;
        metrics::counter!(metric::INDEX_FILES).increment(1);
        metrics::counter!(metric::INDEX_ENTRIES).increment(self.entries);
        let (first_run, last_run) = self.ids.unwrap_or((TraceRunId::nil(), TraceRunId::nil()));
        Ok(NewIndexFile {
            id: self.id,
            path,
            entries: self.entries,
            bytes,
            first_run,
            last_run,
        })
    }

    fn note(&mut self, batch: &[Entry]) {
        debug_assert!(batch.is_sorted_by(|one, next| one.id < next.id), "entries out of order");
        let (Some(first), Some(last)) = (batch.first(), batch.last()) else {
            return;
        };
        debug_assert!(
            self.ids.is_none_or(|(_, known)| known < first.id),
            "entries out of order"
        );
        self.ids = Some((self.ids.map_or(first.id, |(known, _)| known), last.id));
        self.entries += batch.len() as u64;
    }
}

fn columns(entries: &[Entry]) -> Result<RecordBatch> {
    let fixed = |bytes: Vec<u8>| FixedSizeBinaryArray::try_new(ID_BYTES, Buffer::from(bytes), None);
    let mut ids = Vec::with_capacity(entries.len() * 16);
    let mut projects = Vec::with_capacity(entries.len() * 16);
    for entry in entries {
        ids.extend_from_slice(entry.id.0.as_bytes());
        projects.extend_from_slice(entry.location.project.0.as_bytes());
    }
    let times = entries.iter().map(|entry| entry.location.sort_time.micros());
    let columns: Vec<ArrayRef> = vec![
        Arc::new(fixed(ids)?),
        Arc::new(Int64Array::from_iter_values(times)),
        Arc::new(fixed(projects)?),
    ];
    Ok(RecordBatch::try_new(SCHEMA.clone(), columns)?)
}
