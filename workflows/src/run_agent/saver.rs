//! Checkpoints of one thread, read from the database and from the queue of pending writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value};
use towpath_domain::{RunId, ThreadId};
use towpath_runtime::{Checkpoint, HistoryQuery, HostError, Put, Save, SavedCheckpoint, Shared, Write};

use super::checkpoint_query::{CheckpointQuery, Head, Part, READS, check_whole};
use super::typed;
use towpath_store::checkpoints::{self as tables, Batch, Blob, ThreadNamespace};
use towpath_store::{self as store, Store, Tx};

/// The encoding of values of graphs that are declared as data. Serializers of graph libraries read it.
const JSON: &str = "json";
const EMPTY: &str = "empty";

pub struct Saver {
    pub(super) store: Store,
    pub(super) thread: ThreadId,
    /// Whether the database has nothing of this thread, and nobody else writes it.
    fresh: bool,
    /// Pending writes, oldest first.
    queue: Mutex<Vec<Arc<Save>>>,
    /// Size limits for reading a list.
    part: Option<Part>,
}

impl Saver {
    /// `fresh` means that the thread has no checkpoints yet, which saves reads.
    #[must_use]
    pub fn new(store: Store, thread: ThreadId, fresh: bool) -> Self {
        Self {
            store,
            thread,
            fresh,
            queue: Mutex::default(),
            part: None,
        }
    }

    /// Limits the size of lists, to at least one checkpoint; a list that begins where another one ended gets the rest
    /// of its limit. [`Saver::is_truncated`] reports whether the last one was cut.
    #[must_use]
    pub fn with_part_bytes(mut self, bytes: u64) -> Self {
        self.part = Some(Part::new(bytes));
        self
    }

    /// Whether there may be more after the last list.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.part.as_ref().is_some_and(Part::is_truncated)
    }

    #[must_use]
    pub const fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Queues data to be written later; readers see it at once.
    pub fn queue(&self, batch: Vec<Save>) {
        self.queue.lock().extend(batch.into_iter().map(Arc::new));
    }

    /// The queued data. It stays until [`Saver::confirm_written`] is called.
    #[must_use]
    pub fn queued(&self) -> Vec<Arc<Save>> {
        self.queue.lock().clone()
    }

    /// Removes the first `count` entries, which are in the database.
    pub fn confirm_written(&self, count: usize) {
        self.queue.lock().drain(..count);
    }

    /// See [`towpath_runtime::Host::load`].
    pub async fn load(&self, ns: &str, id: Option<&str>) -> Result<Option<SavedCheckpoint>, HostError> {
        let waiting = self.queued();
        let newest = waiting
            .iter()
            .filter_map(|save| match &**save {
                Save::Checkpoint(put) if put.ns == ns => Some(put),
                _ => None,
            })
            .filter(|put| id.is_none_or(|id| put.checkpoint.id == id))
            .max_by(|a, b| a.checkpoint.id.cmp(&b.checkpoint.id));
        if let Some(put) = newest {
            let mut saved = of_put(put);
            if !self.fresh {
                // Writes may have been stored before their checkpoint.
                let kept = self.read_writes(ns, &saved.checkpoint.id).await?;
                add(&mut saved.writes, kept);
            }
            add(&mut saved.writes, writes_on(&waiting, ns, &saved.checkpoint.id));
            return Ok(Some(saved));
        }
        if self.fresh {
            return Ok(None);
        }
        let mut saved = self
            .read(ns, id.map_or(CheckpointQuery::Latest, CheckpointQuery::Named))
            .await?;
        for one in &mut saved {
            add(&mut one.writes, writes_on(&waiting, ns, &one.checkpoint.id));
        }
        Ok(saved.pop())
    }

    /// See [`towpath_runtime::Host::list`].
    pub async fn list(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<SavedCheckpoint>, HostError> {
        let limit = query.limit.unwrap_or(usize::MAX);
        let waiting = self.queued();
        let mut saved = Vec::new();
        if !self.fresh {
            saved = self.read(ns, CheckpointQuery::Listed(query)).await?;
        }
        for save in &waiting {
            if let Save::Checkpoint(put) = &**save
                && put.ns == ns
                && query.before.as_ref().is_none_or(|before| put.checkpoint.id < *before)
                && query
                    .filter
                    .iter()
                    .all(|(key, value)| put.metadata.get(key) == Some(value))
            {
                saved.retain(|other| other.checkpoint.id != put.checkpoint.id);
                saved.push(of_put(put));
            }
        }
        for one in &mut saved {
            add(&mut one.writes, writes_on(&waiting, ns, &one.checkpoint.id));
        }
        saved.sort_by(|a, b| b.checkpoint.id.cmp(&a.checkpoint.id));
        saved.truncate(limit);
        Ok(saved)
    }

    /// Reads from the tables.
    async fn read(&self, ns: &str, sought: CheckpointQuery<'_>) -> Result<Vec<SavedCheckpoint>, HostError> {
        let place = self.place(ns);
        for _ in 0..READS {
            let read = self.store.read(async |tx| {
                let found = sought.rows(tx, place, self.part.as_ref()).await?;
                load_related(tx, place, found).await
            });
            match read.await {
                Err(store::Error::Stale) => {}
                read => return rows(ns, read.map_err(store_error)?),
            }
        }
        Err(store_error(store::Error::Stale))
    }

    pub(super) const fn part(&self) -> Option<&Part> {
        self.part.as_ref()
    }

    pub(super) const fn place<'n>(&self, ns: &'n str) -> ThreadNamespace<'n> {
        ThreadNamespace {
            thread: self.thread,
            ns,
        }
    }

    async fn read_writes(&self, ns: &str, id: &str) -> Result<Vec<Write>, HostError> {
        let place = self.place(ns);
        let found = self
            .store
            .read(async |tx| tables::writes(tx, place, &[id]).await)
            .await
            .map_err(store_error)?;
        found.into_iter().map(write).collect()
    }
}

/// Writes queued data in the caller's transaction.
pub async fn write_all(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    run: Option<RunId>,
    saves: &[Arc<Save>],
) -> store::Result<()> {
    if saves.is_empty() {
        return Ok(());
    }
    let mut batch = Batch {
        run,
        ..Batch::default()
    };
    for save in saves {
        match &**save {
            Save::Checkpoint(put) => encode(put, &mut batch).map_err(|_| corrupt(thread))?,
            Save::Writes(put) => {
                for (idx, channel, value) in &put.writes {
                    let row = tables::Write {
                        checkpoint_id: put.checkpoint_id.clone(),
                        task_id: put.task.clone(),
                        task_path: put.path.clone(),
                        idx: *idx,
                        channel: channel.clone(),
                        r#type: Some(JSON.to_owned()),
                        blob: value.json().as_bytes().to_vec(),
                    };
                    batch.writes.push((put.ns.clone(), row));
                }
            }
            Save::TypedCheckpoint(put) => typed::checkpoint(put, &mut batch),
            Save::TypedWrites(put) => typed::writes(put, &mut batch),
        }
    }
    tables::save(tx, thread, &batch).await
}

pub(super) fn corrupt(thread: ThreadId) -> store::Error {
    store::Error::corrupt("checkpoints", "checkpoint", thread)
}

/// A stored checkpoint. In addition to the fields of stock savers it lists the channels with separately stored values,
/// to distinguish a missing value from a channel without one.
#[derive(Serialize)]
struct StoredCheckpoint<'a> {
    #[serde(flatten)]
    checkpoint: &'a Checkpoint,
    channels_apart: Vec<&'a str>,
}

/// Scalars stay in the checkpoint, as in stock savers; other new values become blobs.
fn encode(put: &Put, batch: &mut Batch) -> Result<(), serde_json::Error> {
    let scalar = |value: &Shared| !value.is_array() && !value.is_object();
    let mut inline = put.checkpoint.clone();
    inline.channel_values.retain(|_, value| scalar(value));
    let values = put.checkpoint.channel_values.iter();
    let apart = values.filter(|(channel, value)| !scalar(value) && inline.channel_versions.contains_key(*channel));
    let stored = StoredCheckpoint {
        checkpoint: &inline,
        channels_apart: apart.map(|(channel, _)| channel.as_str()).collect(),
    };
    for channel in &put.changed {
        let value = put.checkpoint.channel_values.get(channel);
        let (Some(value), Some(version)) = (value, put.checkpoint.channel_versions.get(channel)) else {
            continue;
        };
        if scalar(value) {
            continue;
        }
        let blob = Blob {
            channel: channel.clone(),
            version: version.clone(),
            r#type: JSON.to_owned(),
            blob: Some(value.json().as_bytes().to_vec()),
        };
        batch.blobs.push((put.ns.clone(), blob));
    }
    batch.checkpoints.push(tables::Checkpoint {
        checkpoint_ns: put.ns.clone(),
        checkpoint_id: put.checkpoint.id.clone(),
        parent_checkpoint_id: put.parent.clone(),
        checkpoint: without_nul(serde_json::to_string(&stored)?),
        metadata: without_nul(serde_json::to_string(&put.metadata)?),
    });
    Ok(())
}

/// `jsonb` does not accept U+0000.
pub(crate) fn without_nul(json: String) -> String {
    const ESCAPED: &str = "\\u0000";
    if !json.contains(ESCAPED) {
        return json;
    }
    let mut clean = String::with_capacity(json.len());
    let mut rest = json.as_str();
    while let Some(at) = rest.find('\\') {
        clean.push_str(&rest[..at]);
        rest = &rest[at..];
        // Escapes are read completely, so that a backslash before one is not taken for its beginning.
        let (written, length) = if rest.starts_with(ESCAPED) {
            ("\u{FFFD}", ESCAPED.len())
        } else {
            let length = rest.char_indices().nth(2).map_or(rest.len(), |(at, _)| at);
            (&rest[..length], length)
        };
        clean.push_str(written);
        rest = &rest[length..];
    }
    clean.push_str(rest);
    clean
}

/// Checkpoint rows with their values and writes.
struct CheckpointRows {
    rows: Vec<tables::Checkpoint>,
    heads: Vec<Checkpoint>,
    blobs: tables::Blobs,
    writes: Vec<tables::Write>,
}

async fn load_related(
    tx: &mut Tx<'_>,
    place: ThreadNamespace<'_>,
    rows: Vec<tables::Checkpoint>,
) -> store::Result<CheckpointRows> {
    let mut heads = Vec::with_capacity(rows.len());
    let mut wanted = BTreeSet::new();
    for row in &rows {
        let head: Checkpoint = serde_json::from_str(&row.checkpoint).map_err(|_| corrupt(place.thread))?;
        for (channel, version) in &head.channel_versions {
            if !head.channel_values.contains_key(channel) {
                wanted.insert((channel.clone(), version.clone()));
            }
        }
        heads.push(head);
    }
    let blobs = tables::blobs(tx, place, &wanted).await?;
    for row in &rows {
        let apart = Head::read(&row.checkpoint, place.thread)?.known_stored_values();
        let missing = apart.into_iter().find(|key| !blobs.contains_key(key));
        check_whole(tx, place, row, missing).await?;
    }
    let ids: Vec<&str> = rows.iter().map(|row| row.checkpoint_id.as_str()).collect();
    let writes = tables::writes(tx, place, &ids).await?;
    Ok(CheckpointRows {
        rows,
        heads,
        blobs,
        writes,
    })
}

fn rows(ns: &str, full: CheckpointRows) -> Result<Vec<SavedCheckpoint>, HostError> {
    let mut writes: BTreeMap<String, Vec<Write>> = BTreeMap::new();
    for row in full.writes {
        let id = row.checkpoint_id.clone();
        writes.entry(id).or_default().push(write(row)?);
    }
    // A value shared by several checkpoints is read once.
    let mut values: BTreeMap<(String, String), Shared> = BTreeMap::new();
    for (key, blob) in full.blobs {
        if blob.r#type != EMPTY {
            let value = value(&key.0, &blob.r#type, blob.blob.as_deref().unwrap_or_default())?;
            values.insert(key, value);
        }
    }
    let mut saved = Vec::with_capacity(full.rows.len());
    for (row, mut head) in full.rows.into_iter().zip(full.heads) {
        for (channel, version) in &head.channel_versions {
            if let Some(value) = values.get(&(channel.clone(), version.clone())) {
                head.channel_values.insert(channel.clone(), value.clone());
            }
        }
        let metadata: Map<String, Value> = serde_json::from_str(&row.metadata).map_err(|_| unreadable("metadata"))?;
        saved.push(SavedCheckpoint {
            ns: ns.to_owned(),
            writes: writes.remove(&row.checkpoint_id).unwrap_or_default(),
            checkpoint: head,
            metadata,
            parent: row.parent_checkpoint_id,
        });
    }
    Ok(saved)
}

fn write(row: tables::Write) -> Result<Write, HostError> {
    let value = value(&row.channel, row.r#type.as_deref().unwrap_or(JSON), &row.blob)?;
    Ok(Write {
        task: row.task_id,
        path: row.task_path,
        idx: row.idx,
        channel: row.channel,
        value,
    })
}

fn value(channel: &str, encoding: &str, bytes: &[u8]) -> Result<Shared, HostError> {
    if encoding == "null" || encoding == EMPTY {
        return Ok(Value::Null.into());
    }
    if encoding != JSON {
        return Err(HostError::Invalid {
            class: "ValueError".to_owned(),
            message: format!("the channel {channel:?} was saved as {encoding}, which this graph cannot read"),
        });
    }
    let text = str::from_utf8(bytes).map_err(|_| unreadable(channel))?;
    Shared::parse(text).map_err(|_| unreadable(channel))
}

fn unreadable(what: &str) -> HostError {
    HostError::Invalid {
        class: "ValueError".to_owned(),
        message: format!("the saved {what} cannot be read"),
    }
}

fn of_put(put: &Put) -> SavedCheckpoint {
    SavedCheckpoint {
        ns: put.ns.clone(),
        checkpoint: put.checkpoint.clone(),
        metadata: put.metadata.clone(),
        parent: put.parent.clone(),
        writes: Vec::new(),
    }
}

fn writes_on(waiting: &[Arc<Save>], ns: &str, id: &str) -> Vec<Write> {
    let mut writes = Vec::new();
    for save in waiting {
        if let Save::Writes(put) = &**save
            && put.ns == ns
            && put.checkpoint_id == id
        {
            let new = put.writes.iter().map(|(idx, channel, value)| Write {
                task: put.task.clone(),
                path: put.path.clone(),
                idx: *idx,
                channel: channel.clone(),
                value: value.clone(),
            });
            add(&mut writes, new.collect());
        }
    }
    writes
}

/// Adds writes like the tables do: those of special channels replace existing ones, others keep the first one. Keeps
/// the order of path, task and index.
fn add(writes: &mut Vec<Write>, new: Vec<Write>) {
    for write in new {
        let same = |other: &Write| other.task == write.task && other.idx == write.idx;
        match writes.iter().position(same) {
            Some(place) if write.idx < 0 => writes[place] = write,
            Some(_) => {}
            None => writes.push(write),
        }
    }
    writes.sort_by(|a, b| (&a.path, &a.task, a.idx).cmp(&(&b.path, &b.task, b.idx)));
}

pub(crate) fn store_error(error: store::Error) -> HostError {
    match error {
        error if error.is_transient() => HostError::Lost(error.to_string()),
        // The request was invalid.
        store::Error::Rejected(rejection) => HostError::Invalid {
            class: "ValueError".to_owned(),
            message: match rejection.field.as_str() {
                "" => rejection.message,
                field => format!("{field}: {}", rejection.message),
            },
        },
        error => HostError::Invalid {
            class: "RuntimeError".to_owned(),
            message: error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nul_goes_and_its_look_alike_stays() {
        assert_eq!(without_nul(r#"{"a":"x\u0000y"}"#.to_owned()), "{\"a\":\"x\u{FFFD}y\"}");
        assert_eq!(without_nul(r#"["\\u0000"]"#.to_owned()), r#"["\\u0000"]"#);
        assert_eq!(without_nul("[\"\\\\\\u0000ü\"]".to_owned()), "[\"\\\\\u{FFFD}ü\"]");
    }
}
