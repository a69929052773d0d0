//! Checkpoints whose values the graph encodes itself: they are read from the tables and the queue without decoding.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use towpath_runtime::{
    HistoryQuery, HostError, Save, SavedTypedCheckpoint, TypedBlob, TypedPut, TypedValue, TypedWrite, TypedWrites,
    add_writes,
};
use towpath_store::checkpoints::{self as tables, Batch, ThreadNamespace};
use towpath_store::{self as store, Tx};

use super::checkpoint_query::{CheckpointQuery, Head, Key, READS, check_whole, missing_value};
use super::saver::{Saver, store_error, without_nul};

impl Saver {
    /// See [`towpath_runtime::Host::load_typed`].
    pub async fn load_typed(&self, ns: &str, id: Option<&str>) -> Result<Option<SavedTypedCheckpoint>, HostError> {
        let waiting = self.queued();
        let newest = puts(&waiting, ns)
            .filter(|put| id.is_none_or(|id| put.id == id))
            .max_by(|a, b| a.id.cmp(&b.id));
        if let Some(put) = newest {
            let mut saved = self.complete(put, &waiting).await?;
            add_writes(&mut saved.writes, waiting_writes(&waiting, ns, &saved.id));
            return Ok(Some(saved));
        }
        if self.is_fresh() {
            return Ok(None);
        }
        let found = self
            .read_typed(ns, id.map_or(CheckpointQuery::Latest, CheckpointQuery::Named))
            .await?
            .pop();
        Ok(found.map(|mut saved| {
            add_writes(&mut saved.writes, waiting_writes(&waiting, ns, &saved.id));
            saved
        }))
    }

    /// See [`towpath_runtime::Host::list_typed`].
    pub async fn list_typed(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<SavedTypedCheckpoint>, HostError> {
        let limit = query.limit.unwrap_or(usize::MAX);
        let waiting = self.queued();
        let mut saved = Vec::new();
        if !self.is_fresh() {
            saved = self.read_typed(ns, CheckpointQuery::Listed(query)).await?;
        }
        for put in puts(&waiting, ns) {
            let wanted = query.before.as_ref().is_none_or(|before| put.id < *before) && holds(&put.metadata, query);
            if wanted {
                saved.retain(|other| other.id != put.id);
                saved.push(self.complete(put, &waiting).await?);
            }
        }
        for one in &mut saved {
            add_writes(&mut one.writes, waiting_writes(&waiting, ns, &one.id));
        }
        saved.sort_by(|a, b| b.id.cmp(&a.id));
        saved.truncate(limit);
        Ok(saved)
    }

    /// Reads from the tables.
    async fn read_typed(&self, ns: &str, sought: CheckpointQuery<'_>) -> Result<Vec<SavedTypedCheckpoint>, HostError> {
        let place = self.place(ns);
        for _ in 0..READS {
            let read = self.store.read(async |tx| {
                let found = sought.rows(tx, place, self.part()).await?;
                load_related(tx, place, found).await
            });
            match read.await {
                Err(store::Error::Stale) => {}
                read => return read.map_err(store_error),
            }
        }
        Err(store_error(store::Error::Stale))
    }

    /// A queued checkpoint, with its blobs and the writes that are already in the tables.
    async fn complete(&self, put: &TypedPut, waiting: &[Arc<Save>]) -> Result<SavedTypedCheckpoint, HostError> {
        let head = Head::read(&put.checkpoint, self.thread).map_err(store_error)?;
        let mut missing = BTreeSet::new();
        let mut blobs = Vec::new();
        for (channel, version) in head.stored_values() {
            let here = puts(waiting, &put.ns)
                .flat_map(|put| &put.blobs)
                .find(|blob| blob.channel == channel && blob.version == version);
            match here {
                Some(blob) => blobs.push(blob.clone()),
                None => {
                    missing.insert((channel, version));
                }
            }
        }
        let mut writes = Vec::new();
        if !self.is_fresh() {
            let place = self.place(&put.ns);
            let (found, kept) = self
                .store
                .read(async |tx| {
                    let found = tables::blobs(tx, place, &missing).await?;
                    Ok((found, tables::writes(tx, place, &[&put.id]).await?))
                })
                .await
                .map_err(store_error)?;
            blobs.extend(found.into_values().map(blob));
            writes = kept.into_iter().map(write).collect();
        }
        for (channel, version) in head.known_stored_values() {
            let is_it = |blob: &TypedBlob| blob.channel == channel && blob.version == version;
            if !blobs.iter().any(is_it) {
                return Err(store_error(missing_value(self.place(&put.ns), &channel, &version)));
            }
        }
        Ok(SavedTypedCheckpoint {
            ns: put.ns.clone(),
            id: put.id.clone(),
            parent: put.parent.clone(),
            checkpoint: put.checkpoint.clone(),
            metadata: put.metadata.clone(),
            blobs,
            writes,
        })
    }
}

fn holds(metadata: &str, query: &HistoryQuery) -> bool {
    if query.filter.is_empty() {
        return true;
    }
    let metadata: Value = serde_json::from_str(metadata).unwrap_or_default();
    query.filter.iter().all(|(key, value)| metadata.get(key) == Some(value))
}

fn puts<'s>(waiting: &'s [Arc<Save>], ns: &'s str) -> impl Iterator<Item = &'s TypedPut> {
    waiting.iter().filter_map(move |save| match &**save {
        Save::TypedCheckpoint(put) if put.ns == ns => Some(put),
        _ => None,
    })
}

fn waiting_writes(waiting: &[Arc<Save>], ns: &str, id: &str) -> Vec<TypedWrite> {
    let mut writes = Vec::new();
    for save in waiting {
        if let Save::TypedWrites(put) = &**save
            && put.ns == ns
            && put.checkpoint_id == id
        {
            writes.extend(put.writes.iter().map(|(idx, channel, value)| TypedWrite {
                task: put.task.clone(),
                path: put.path.clone(),
                idx: *idx,
                channel: channel.clone(),
                value: value.clone(),
            }));
        }
    }
    writes
}

/// Loads the values and writes of rows.
async fn load_related(
    tx: &mut Tx<'_>,
    place: ThreadNamespace<'_>,
    rows: Vec<tables::Checkpoint>,
) -> store::Result<Vec<SavedTypedCheckpoint>> {
    let mut heads = Vec::with_capacity(rows.len());
    for row in &rows {
        heads.push(Head::read(&row.checkpoint, place.thread)?);
    }
    let wanted: BTreeSet<Key> = heads.iter().flat_map(Head::stored_values).collect();
    // A value shared by several checkpoints is read once.
    let blobs: BTreeMap<Key, TypedBlob> = tables::blobs(tx, place, &wanted)
        .await?
        .into_iter()
        .map(|(key, row)| (key, blob(row)))
        .collect();
    for (row, head) in rows.iter().zip(&heads) {
        let missing = head
            .known_stored_values()
            .into_iter()
            .find(|key| !blobs.contains_key(key));
        check_whole(tx, place, row, missing).await?;
    }
    let ids: Vec<&str> = rows.iter().map(|row| row.checkpoint_id.as_str()).collect();
    let mut writes: BTreeMap<String, Vec<TypedWrite>> = BTreeMap::new();
    for row in tables::writes(tx, place, &ids).await? {
        let id = row.checkpoint_id.clone();
        writes.entry(id).or_default().push(write(row));
    }
    let saved = rows.into_iter().zip(heads).map(|(row, head)| SavedTypedCheckpoint {
        ns: place.ns.to_owned(),
        blobs: head
            .stored_values()
            .filter_map(|key| blobs.get(&key).cloned())
            .collect(),
        writes: writes.remove(&row.checkpoint_id).unwrap_or_default(),
        id: row.checkpoint_id,
        parent: row.parent_checkpoint_id,
        checkpoint: row.checkpoint,
        metadata: row.metadata,
    });
    Ok(saved.collect())
}

fn blob(row: tables::Blob) -> TypedBlob {
    TypedBlob {
        channel: row.channel,
        version: row.version,
        value: TypedValue {
            encoding: row.r#type,
            bytes: row.blob.map(Bytes::from).unwrap_or_default(),
        },
    }
}

fn write(row: tables::Write) -> TypedWrite {
    TypedWrite {
        task: row.task_id,
        path: row.task_path,
        idx: row.idx,
        channel: row.channel,
        value: TypedValue {
            // Written by graphs declared as data before the column existed.
            encoding: row.r#type.unwrap_or_else(|| "json".to_owned()),
            bytes: row.blob.into(),
        },
    }
}

/// A checkpoint as rows.
pub(super) fn checkpoint(put: &TypedPut, batch: &mut Batch) {
    for blob in &put.blobs {
        let empty = blob.value.encoding == "empty";
        let row = tables::Blob {
            channel: blob.channel.clone(),
            version: blob.version.clone(),
            r#type: blob.value.encoding.clone(),
            blob: (!empty).then(|| blob.value.bytes.to_vec()),
        };
        batch.blobs.push((put.ns.clone(), row));
    }
    batch.checkpoints.push(tables::Checkpoint {
        checkpoint_ns: put.ns.clone(),
        checkpoint_id: put.id.clone(),
        parent_checkpoint_id: put.parent.clone(),
        checkpoint: without_nul(put.checkpoint.clone()),
        metadata: without_nul(put.metadata.clone()),
    });
}

/// Writes of a task as rows.
pub(super) fn writes(put: &TypedWrites, batch: &mut Batch) {
    for (idx, channel, value) in &put.writes {
        let row = tables::Write {
            checkpoint_id: put.checkpoint_id.clone(),
            task_id: put.task.clone(),
            task_path: put.path.clone(),
            idx: *idx,
            channel: channel.clone(),
            r#type: Some(value.encoding.clone()),
            blob: value.bytes.to_vec(),
        };
        batch.writes.push((put.ns.clone(), row));
    }
}
