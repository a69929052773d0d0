//! An in-memory host, for tests and for trying a graph without a server.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    Chunk, HistoryQuery, Host, HostError, ItemCall, Put, PutWrites, Save, SavedCheckpoint, SavedTypedCheckpoint,
    Shared, TypedBlob, TypedPut, TypedValue, TypedWrite, TypedWrites, Write, add_writes,
};

/// One thread's checkpoints, events and items in memory.
#[derive(Debug, Default)]
pub struct MemoryHost {
    inner: Mutex<MemoryState>,
    token: CancellationToken,
}

#[derive(Debug, Default)]
struct MemoryState {
    /// By namespace and checkpoint id.
    checkpoints: BTreeMap<(String, String), StoredCheckpoint>,
    /// Values that checkpoints do not repeat, by namespace, channel and version.
    values: BTreeMap<(String, String, String), Option<Shared>>,
    /// By namespace, checkpoint id and task: path, then index to channel and value.
    writes: BTreeMap<(String, String, String), StoredWrites>,
    chunks: Vec<Chunk>,
    items: BTreeMap<(Vec<String>, String), Value>,
    /// By namespace and checkpoint id.
    typed: BTreeMap<(String, String), TypedPut>,
    /// By namespace, channel and version.
    typed_values: BTreeMap<(String, String, String), TypedValue>,
    /// By namespace and checkpoint id.
    typed_writes: BTreeMap<(String, String), Vec<TypedWrite>>,
    saved: Vec<Save>,
    saves_left: Option<usize>,
}

type StoredWrites = (String, BTreeMap<i32, (String, Shared)>);

#[derive(Debug, Clone)]
struct StoredCheckpoint {
    checkpoint: crate::Checkpoint,
    metadata: Map<String, Value>,
    parent: Option<String>,
}

impl MemoryHost {
    /// An empty thread.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The chunks since the last call.
    #[must_use]
    pub fn take_chunks(&self) -> Vec<Chunk> {
        std::mem::take(&mut self.inner.lock().chunks)
    }

    /// What was saved since the last call, in order.
    #[must_use]
    pub fn take_saves(&self) -> Vec<Save> {
        std::mem::take(&mut self.inner.lock().saved)
    }

    /// Fails like a lost host after `count` more saves, until it is called again: simulates a crash after exactly that
    /// many acknowledged saves.
    pub fn crash_after(&self, count: Option<usize>) {
        self.inner.lock().saves_left = count;
    }

    /// Stops the run.
    pub fn cancel(&self) {
        self.token.cancel();
    }
}

impl MemoryState {
    fn allow(&mut self) -> Result<(), HostError> {
        match &mut self.saves_left {
            Some(0) => Err(HostError::Lost("the host is gone".to_owned())),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn put(&mut self, put: Put) -> Result<(), HostError> {
        self.allow()?;
        self.saved.push(Save::Checkpoint(put.clone()));
        let Put {
            ns,
            mut checkpoint,
            metadata,
            parent,
            changed,
        } = put;
        for channel in changed {
            let version = checkpoint.channel_versions.get(&channel).cloned().unwrap_or_default();
            let value = checkpoint.channel_values.get(&channel).cloned();
            self.values.insert((ns.clone(), channel, version), value);
        }
        // Unchanged values must already be stored, so these are not kept.
        checkpoint.channel_values.clear();
        let key = (ns, checkpoint.id.clone());
        self.checkpoints.insert(
            key,
            StoredCheckpoint {
                checkpoint,
                metadata,
                parent,
            },
        );
        Ok(())
    }

    fn put_writes(&mut self, put: PutWrites) -> Result<(), HostError> {
        self.allow()?;
        self.saved.push(Save::Writes(put.clone()));
        let key = (put.ns, put.checkpoint_id, put.task);
        let (_, kept) = self
            .writes
            .entry(key)
            .or_insert_with(|| (put.path.clone(), BTreeMap::new()));
        for (idx, channel, value) in put.writes {
            if idx < 0 {
                kept.insert(idx, (channel, value));
            } else {
                kept.entry(idx).or_insert((channel, value));
            }
        }
        Ok(())
    }

    fn put_typed(&mut self, put: TypedPut) -> Result<(), HostError> {
        self.allow()?;
        self.saved.push(Save::TypedCheckpoint(put.clone()));
        for blob in &put.blobs {
            let key = (put.ns.clone(), blob.channel.clone(), blob.version.clone());
            self.typed_values.insert(key, blob.value.clone());
        }
        self.typed.insert((put.ns.clone(), put.id.clone()), put);
        Ok(())
    }

    fn put_typed_writes(&mut self, put: TypedWrites) -> Result<(), HostError> {
        self.allow()?;
        self.saved.push(Save::TypedWrites(put.clone()));
        let TypedWrites {
            ns,
            checkpoint_id,
            task,
            path,
            writes,
        } = put;
        let new = writes.into_iter().map(|(idx, channel, value)| TypedWrite {
            task: task.clone(),
            path: path.clone(),
            idx,
            channel,
            value,
        });
        add_writes(self.typed_writes.entry((ns, checkpoint_id)).or_default(), new);
        Ok(())
    }

    fn typed_saved(&self, put: &TypedPut) -> SavedTypedCheckpoint {
        let checkpoint: Value = serde_json::from_str(&put.checkpoint).unwrap_or_default();
        let versions = checkpoint["channel_versions"].as_object().cloned().unwrap_or_default();
        let blobs = versions.into_iter().filter_map(|(channel, version)| {
            let version = version.as_str()?.to_owned();
            let key = (put.ns.clone(), channel, version);
            let value = self.typed_values.get(&key)?.clone();
            let (_, channel, version) = key;
            Some(TypedBlob {
                channel,
                version,
                value,
            })
        });
        let key = (put.ns.clone(), put.id.clone());
        SavedTypedCheckpoint {
            ns: put.ns.clone(),
            id: put.id.clone(),
            parent: put.parent.clone(),
            checkpoint: put.checkpoint.clone(),
            metadata: put.metadata.clone(),
            blobs: blobs.collect(),
            writes: self.typed_writes.get(&key).cloned().unwrap_or_default(),
        }
    }

    fn saved(&self, ns: &str, kept: &StoredCheckpoint) -> SavedCheckpoint {
        let mut checkpoint = kept.checkpoint.clone();
        for (channel, version) in &checkpoint.channel_versions {
            let key = (ns.to_owned(), channel.clone(), version.clone());
            if let Some(Some(value)) = self.values.get(&key) {
                checkpoint.channel_values.insert(channel.clone(), value.clone());
            }
        }
        let mut writes: Vec<Write> = self
            .writes
            .iter()
            .filter(|((of, id, _), _)| of == ns && *id == checkpoint.id)
            .flat_map(|((_, _, task), (path, kept))| {
                kept.iter().map(|(idx, (channel, value))| Write {
                    task: task.clone(),
                    path: path.clone(),
                    idx: *idx,
                    channel: channel.clone(),
                    value: value.clone(),
                })
            })
            .collect();
        writes.sort_by(|a, b| (&a.path, &a.task, a.idx).cmp(&(&b.path, &b.task, b.idx)));
        SavedCheckpoint {
            ns: ns.to_owned(),
            checkpoint,
            metadata: kept.metadata.clone(),
            parent: kept.parent.clone(),
            writes,
        }
    }
}

#[async_trait]
impl Host for MemoryHost {
    async fn load(&self, ns: &str, id: Option<&str>) -> Result<Option<SavedCheckpoint>, HostError> {
        let inner = self.inner.lock();
        let found = inner
            .checkpoints
            .iter()
            .rev()
            .find(|((of, this), _)| of == ns && id.is_none_or(|id| id == this));
        Ok(found.map(|(_, kept)| inner.saved(ns, kept)))
    }

    async fn list(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<SavedCheckpoint>, HostError> {
        let inner = self.inner.lock();
        Ok(inner
            .checkpoints
            .iter()
            .rev()
            .filter(|((of, id), _)| of == ns && query.before.as_ref().is_none_or(|before| id < before))
            .filter(|(_, kept)| {
                query
                    .filter
                    .iter()
                    .all(|(key, value)| kept.metadata.get(key) == Some(value))
            })
            .take(query.limit.unwrap_or(usize::MAX))
            .map(|(_, kept)| inner.saved(ns, kept))
            .collect())
    }

    async fn load_typed(&self, ns: &str, id: Option<&str>) -> Result<Option<SavedTypedCheckpoint>, HostError> {
        let inner = self.inner.lock();
        let found = inner
            .typed
            .iter()
            .rev()
            .find(|((of, this), _)| of == ns && id.is_none_or(|id| id == this));
        Ok(found.map(|(_, put)| inner.typed_saved(put)))
    }

    async fn list_typed(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<SavedTypedCheckpoint>, HostError> {
        let inner = self.inner.lock();
        let holds = |put: &TypedPut| {
            let metadata: Value = serde_json::from_str(&put.metadata).unwrap_or_default();
            query.filter.iter().all(|(key, value)| metadata.get(key) == Some(value))
        };
        Ok(inner
            .typed
            .iter()
            .rev()
            .filter(|((of, id), put)| of == ns && query.before.as_ref().is_none_or(|before| id < before) && holds(put))
            .take(query.limit.unwrap_or(usize::MAX))
            .map(|(_, put)| inner.typed_saved(put))
            .collect())
    }

    async fn save_all(&self, batch: Vec<Save>) -> Result<(), HostError> {
        let mut inner = self.inner.lock();
        for save in batch {
            match save {
                Save::Checkpoint(put) => inner.put(put)?,
                Save::Writes(put) => inner.put_writes(put)?,
                Save::TypedCheckpoint(put) => inner.put_typed(put)?,
                Save::TypedWrites(put) => inner.put_typed_writes(put)?,
            }
        }
        Ok(())
    }

    async fn save(&self, put: Put) -> Result<(), HostError> {
        self.inner.lock().put(put)
    }

    async fn save_writes(&self, put: PutWrites) -> Result<(), HostError> {
        self.inner.lock().put_writes(put)
    }

    async fn emit(&self, chunks: Vec<Chunk>) -> Result<(), HostError> {
        self.inner.lock().chunks.extend(chunks);
        Ok(())
    }

    fn cancelled(&self) -> CancellationToken {
        self.token.clone()
    }

    async fn item(&self, call: ItemCall) -> Result<Value, HostError> {
        let mut inner = self.inner.lock();
        Ok(match call {
            ItemCall::Get { namespace, key, .. } => inner
                .items
                .get_key_value(&(namespace, key))
                .map_or(Value::Null, |(at, value)| item(at, value)),
            ItemCall::Put {
                namespace, key, value, ..
            } => {
                inner.items.insert((namespace, key), Value::Object(value));
                Value::Null
            }
            ItemCall::Delete { namespace, key } => {
                inner.items.remove(&(namespace, key));
                Value::Null
            }
            ItemCall::Search {
                prefix,
                filter,
                limit,
                offset,
                ..
            } => inner
                .items
                .iter()
                .filter(|((namespace, _), _)| namespace.starts_with(&prefix))
                .filter(|(_, value)| filter.iter().all(|(key, wanted)| value.get(key) == Some(wanted)))
                .skip(usize::try_from(offset).unwrap_or(usize::MAX))
                .take(usize::try_from(limit).unwrap_or(usize::MAX))
                .map(|(at, value)| item(at, value))
                .collect(),
            ItemCall::Namespaces {
                prefix,
                max_depth,
                limit,
                offset,
                ..
            } => {
                let prefix = prefix.unwrap_or_default();
                let depth = max_depth.map_or(usize::MAX, |depth| depth as usize);
                let found: std::collections::BTreeSet<Vec<String>> = inner
                    .items
                    .keys()
                    .filter(|(namespace, _)| namespace.starts_with(&prefix))
                    .map(|(namespace, _)| namespace.iter().take(depth).cloned().collect())
                    .collect();
                found
                    .into_iter()
                    .skip(offset as usize)
                    .take(limit as usize)
                    .map(|labels| json!(labels))
                    .collect()
            }
        })
    }
}

fn item((namespace, key): &(Vec<String>, String), value: &Value) -> Value {
    json!({"namespace": namespace, "key": key, "value": value})
}
