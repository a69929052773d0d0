//! Which checkpoints are read of a thread, and whether they are whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use towpath_domain::ThreadId;
use towpath_runtime::HistoryQuery;
use towpath_store::checkpoints::{self as tables, Place};
use towpath_store::{self as store, Tx};

use super::saver::corrupt;

/// Times that reading begins anew because a checkpoint was deleted between two statements.
pub(super) const READS: usize = 5;
/// Checkpoints of a part of a list, at most.
const PART: i64 = 200;

/// Channel and version.
pub(super) type Key = (String, String);

/// The parts of a stored checkpoint that say which blobs belong to it.
#[derive(Deserialize)]
pub(super) struct Head {
    #[serde(default)]
    channel_versions: BTreeMap<String, Value>,
    #[serde(default)]
    channel_values: BTreeMap<String, IgnoredAny>,
    /// Channels that have a value, which stands apart. Older checkpoints do not say.
    #[serde(default)]
    channels_apart: Vec<String>,
}

impl Head {
    pub(super) fn read(checkpoint: &str, thread: ThreadId) -> store::Result<Self> {
        serde_json::from_str(checkpoint).map_err(|_| corrupt(thread))
    }

    /// Channels and versions whose values stand apart, where the channel has a value.
    pub(super) fn wanted(&self) -> impl Iterator<Item = Key> {
        let apart = |(channel, _): &(&String, &Value)| !self.channel_values.contains_key(*channel);
        self.channel_versions
            .iter()
            .filter(apart)
            .map(|(channel, version)| (channel.clone(), text(version)))
    }

    /// Those of them that are known to have a value.
    pub(super) fn apart(&self) -> Vec<Key> {
        let version = |channel: &String| Some((channel.clone(), text(self.channel_versions.get(channel)?)));
        self.channels_apart.iter().filter_map(version).collect()
    }
}

/// Versions of old checkpoints are numbers.
fn text(version: &Value) -> String {
    version.as_str().map_or_else(|| version.to_string(), str::to_owned)
}

/// Refuses a checkpoint that has a value which is `missing`. Stale where the checkpoint itself is gone by now: its values are
/// read after it.
pub(super) async fn check_whole(
    tx: &mut Tx<'_>,
    place: Place<'_>,
    row: &tables::Checkpoint,
    missing: Option<Key>,
) -> store::Result<()> {
    let Some((channel, version)) = missing else {
        return Ok(());
    };
    if tables::get(tx, place, &row.checkpoint_id).await?.is_none() {
        return Err(store::Error::Stale);
    }
    Err(lost(place, &channel, &version))
}

/// A value that is not there.
pub(super) fn lost(place: Place<'_>, channel: &str, version: &str) -> store::Error {
    let Place { thread, ns } = place;
    store::Error::corrupt(
        "checkpoint_blobs",
        "blob",
        format!("{thread} {ns:?} {channel:?} {version}"),
    )
}

/// Which checkpoints of a namespace are read.
#[derive(Clone, Copy)]
pub(super) enum Sought<'q> {
    /// The latest.
    Latest,
    /// The one of this id.
    Named(&'q str),
    /// These, newest first.
    Listed(&'q HistoryQuery),
}

impl Sought<'_> {
    /// Their rows; of a list as many as fit into a part of it.
    pub(super) async fn rows(
        self,
        tx: &mut Tx<'_>,
        place: Place<'_>,
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

/// How much of a list is read at once, be it asked for in pages.
pub(super) struct Part {
    bytes: u64,
    /// The last list ended before its limit.
    cut: AtomicBool,
    /// What was taken by the lists that ended at a checkpoint. One that begins behind it has the rest.
    taken: Mutex<BTreeMap<String, Taken>>,
}

/// What a list took.
#[derive(Clone, Copy, Default)]
struct Taken {
    rows: i64,
    bytes: u64,
}

impl Part {
    pub(super) const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            cut: AtomicBool::new(false),
            taken: Mutex::new(BTreeMap::new()),
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<String, Taken>> {
        // Whole entries come, so there is nothing half done behind a panic.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn list(
        &self,
        tx: &mut Tx<'_>,
        place: Place<'_>,
        query: &HistoryQuery,
        limit: i64,
    ) -> store::Result<Vec<tables::Checkpoint>> {
        let before = query.before.as_deref();
        let known = before.and_then(|before| self.taken().get(before).copied());
        let mut taken = known.unwrap_or_default();
        let most = limit.min(PART - taken.rows);
        let filter = Value::Object(query.filter.clone());
        let mut rows = tables::list(tx, place, before, Some(&filter), most).await?;
        let full = most < limit && i64::try_from(rows.len()).is_ok_and(|found| found == most);
        let fit = self.fitting(tx, place, &rows, &mut taken).await?;
        self.cut.store(full || fit < rows.len(), Ordering::Relaxed);
        rows.truncate(fit);
        if let Some(last) = rows.last() {
            self.taken().insert(last.checkpoint_id.clone(), taken);
        }
        Ok(rows)
    }

    /// How many of these rows fit with what belongs to them and what was taken before, one at least in all. A value counts
    /// for each checkpoint that has it.
    async fn fitting(
        &self,
        tx: &mut Tx<'_>,
        place: Place<'_>,
        rows: &[tables::Checkpoint],
        taken: &mut Taken,
    ) -> store::Result<usize> {
        let mut wanted: Vec<Vec<Key>> = Vec::with_capacity(rows.len());
        for row in rows {
            wanted.push(Head::read(&row.checkpoint, place.thread)?.wanted().collect());
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
