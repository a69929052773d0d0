//! Selects the checkpoints to read of a thread, and checks that they are complete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use towpath_domain::ThreadId;
use towpath_runtime::HistoryQuery;
use towpath_store::checkpoints::{self as tables, ThreadNamespace};
use towpath_store::{self as store, Tx};

use super::saver::corrupt;

/// Attempts to read, in case a checkpoint is deleted between two statements.
pub(super) const READS: usize = 5;
/// Maximum number of checkpoints per part of a list.
const PART: i64 = 200;

pub(super) type Key = (String, String);

/// The fields of a stored checkpoint that name its blobs.
#[derive(Deserialize)]
pub(super) struct Head {
    #[serde(default)]
    channel_versions: BTreeMap<String, Value>,
    #[serde(default)]
    channel_values: BTreeMap<String, IgnoredAny>,
    /// Channels with a separately stored value. Older checkpoints do not list them.
    #[serde(default)]
    channels_apart: Vec<String>,
}

impl Head {
    pub(super) fn read(checkpoint: &str, thread: ThreadId) -> store::Result<Self> {
        serde_json::from_str(checkpoint).map_err(|_| corrupt(thread))
    }

    /// Channels and versions with separately stored values, if the channel has a value.
    pub(super) fn stored_values(&self) -> impl Iterator<Item = Key> {
        let apart = |(channel, _): &(&String, &Value)| !self.channel_values.contains_key(*channel);
        self.channel_versions
            .iter()
            .filter(apart)
            .map(|(channel, version)| (channel.clone(), text(version)))
    }

    /// Those that are known to have a value.
    pub(super) fn known_stored_values(&self) -> Vec<Key> {
        let version = |channel: &String| Some((channel.clone(), text(self.channel_versions.get(channel)?)));
        self.channels_apart.iter().filter_map(version).collect()
    }
}

/// Versions of old checkpoints are numbers.
fn text(version: &Value) -> String {
    version.as_str().map_or_else(|| version.to_string(), str::to_owned)
}

/// Refuses a checkpoint with a `missing` value. Stale if the checkpoint itself was deleted meanwhile, because its
/// values are read after it.
pub(super) async fn check_whole(
    tx: &mut Tx<'_>,
    place: ThreadNamespace<'_>,
    row: &tables::Checkpoint,
    missing: Option<Key>,
) -> store::Result<()> {
    let Some((channel, version)) = missing else {
        return Ok(());
    };
    if tables::get(tx, place, &row.checkpoint_id).await?.is_none() {
        return Err(store::Error::Stale);
    }
    Err(missing_value(place, &channel, &version))
}

/// The error for a missing value.
pub(super) fn missing_value(place: ThreadNamespace<'_>, channel: &str, version: &str) -> store::Error {
    let ThreadNamespace { thread, ns } = place;
    store::Error::corrupt(
        "checkpoint_blobs",
        "blob",
        format!("{thread} {ns:?} {channel:?} {version}"),
    )
}

/// The checkpoints to read of a namespace.
#[derive(Clone, Copy)]
pub(super) enum CheckpointQuery<'q> {
    Latest,
    /// The one with this id.
    Named(&'q str),
    /// A list, newest first.
    Listed(&'q HistoryQuery),
}

impl CheckpointQuery<'_> {
    /// Reads the rows; of a list, as many as fit into a part.
    pub(super) async fn rows(
        self,
        tx: &mut Tx<'_>,
        place: ThreadNamespace<'_>,
        part: Option<&Part>,
    ) -> store::Result<Vec<tables::Checkpoint>> {
        let query = match self {
            Self::Latest => return Ok(tables::latest(tx, place).await?.into_iter().collect()),
            Self::Named(id) => return Ok(tables::get(tx, place, id).await?.into_iter().collect()),
            Self::Listed(query) => query,
        };
        let limit = query
            .limit
            .map_or(i64::MAX, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
        match part {
            Some(part) => part.list(tx, place, query, limit).await,
            None => {
                let filter = Value::Object(query.filter.clone());
                tables::list(tx, place, query.before.as_deref(), Some(&filter), limit).await
            }
        }
    }
}

/// Size limits for reading a list, also across pages.
pub(super) struct Part {
    bytes: u64,
    /// Whether the last list ended before its limit.
    truncated: AtomicBool,
    /// What the lists used, by the checkpoint at which they ended. A list that begins behind it gets the rest.
    usage: Mutex<BTreeMap<String, PartUsage>>,
}

/// What a list used.
#[derive(Clone, Copy, Default)]
struct PartUsage {
    rows: i64,
    bytes: u64,
}

impl Part {
    pub(super) const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            truncated: AtomicBool::new(false),
            usage: Mutex::new(BTreeMap::new()),
        }
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.truncated.load(Ordering::Relaxed)
    }

    async fn list(
        &self,
        tx: &mut Tx<'_>,
        place: ThreadNamespace<'_>,
        query: &HistoryQuery,
        limit: i64,
    ) -> store::Result<Vec<tables::Checkpoint>> {
        let before = query.before.as_deref();
        let known = before.and_then(|before| self.usage.lock().get(before).copied());
        let mut taken = known.unwrap_or_default();
        let most = limit.min(PART - taken.rows);
        let filter = Value::Object(query.filter.clone());
        let mut rows = tables::list(tx, place, before, Some(&filter), most).await?;
        let full = most < limit && i64::try_from(rows.len()).is_ok_and(|found| found == most);
        let fit = self.count_fitting(tx, place, &rows, &mut taken).await?;
        self.truncated.store(full || fit < rows.len(), Ordering::Relaxed);
        rows.truncate(fit);
        if let Some(last) = rows.last() {
            self.usage.lock().insert(last.checkpoint_id.clone(), taken);
        }
        Ok(rows)
    }

    /// How many of these rows fit, together with their data and earlier use; at least one in all. A value counts for
    /// each checkpoint that has it.
    async fn count_fitting(
        &self,
        tx: &mut Tx<'_>,
        place: ThreadNamespace<'_>,
        rows: &[tables::Checkpoint],
        taken: &mut PartUsage,
    ) -> store::Result<usize> {
        let mut wanted: Vec<Vec<Key>> = Vec::with_capacity(rows.len());
        for row in rows {
            wanted.push(Head::read(&row.checkpoint, place.thread)?.stored_values().collect());
        }
        let all: BTreeSet<Key> = wanted.iter().flatten().cloned().collect();
        let blobs = tables::blob_sizes(tx, place, &all).await?;
        let ids: Vec<&str> = rows.iter().map(|row| row.checkpoint_id.as_str()).collect();
        let writes = tables::write_sizes(tx, place, &ids).await?;
        let mut fit = 0;
        for (row, wanted) in rows.iter().zip(&wanted) {
            let mut bytes = (row.checkpoint.len() + row.metadata.len()) as u64;
            bytes += writes.get(&row.checkpoint_id).copied().unwrap_or_default();
            bytes += wanted.iter().filter_map(|key| blobs.get(key)).sum::<u64>();
            if taken.rows > 0 && taken.bytes + bytes > self.bytes {
                break;
            }
            taken.rows += 1;
            taken.bytes += bytes;
            fit += 1;
        }
        Ok(fit)
    }
}
