//! The reading connection.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamId, StreamRangeReply, StreamReadReply};
use redis::{RedisResult, Value};

use super::{BLOCK, Shared, within_deadline};
use crate::Signal;
use crate::wakes::WakeKind;

/// Entries per stream and read; the rest follows at once.
const ENTRIES: usize = 512;
/// Before the first entry of a stream.
const BEGINNING: &str = "0-0";

/// Reads hints of other processes and passes them to the listener registry.
pub struct Reader<'s> {
    shared: &'s Shared,
    connection: MultiplexedConnection,
    cancel_key: String,
    cancel_position: String,
    /// The pools that are read, sorted like the registry.
    pools: BTreeMap<Arc<str>, Position>,
}

/// Position in a pool's stream. An id, never `$`, which would skip entries between two reads.
struct Position {
    key: String,
    last: String,
}

impl<'s> Reader<'s> {
    /// Takes the position at the end of every stream. The check that follows covers earlier entries.
    pub async fn start(shared: &'s Shared, connection: MultiplexedConnection) -> RedisResult<Self> {
        let mut reader = Self {
            shared,
            connection,
            cancel_key: shared.cancel_key(),
            cancel_position: BEGINNING.to_owned(),
            pools: BTreeMap::new(),
        };
        reader.cancel_position = reader.end(&reader.cancel_key.clone()).await?;
        reader.follow().await?;
        Ok(reader)
    }

    /// Reads until an error.
    pub async fn run(&mut self) -> RedisResult<Infallible> {
        loop {
            for pool in self.follow().await? {
                // Covers entries between the registration of its listener and its position.
                self.shared.listeners.wake(&pool, WakeKind::Database);
            }
            let reply = self.read().await?;
            self.deliver(reply);
        }
    }

    /// Follows the pools with listeners. Returns the new ones.
    async fn follow(&mut self) -> RedisResult<Vec<Arc<str>>> {
        let listened = self.shared.listeners.pools();
        if listened.iter().eq(self.pools.keys()) {
            return Ok(Vec::new());
        }
        self.pools.retain(|pool, _| listened.binary_search(pool).is_ok());
        let mut new = listened;
        new.retain(|pool| !self.pools.contains_key(pool));
        for pool in &new {
            let key = self.shared.wake_key(pool);
            let last = self.end(&key).await?;
            self.pools.insert(pool.clone(), Position { key, last });
        }
        Ok(new)
    }

    async fn end(&mut self, key: &str) -> RedisResult<String> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(key).arg("+").arg("-").arg("COUNT").arg(1);
        let reply: StreamRangeReply = within_deadline(command.query_async(&mut self.connection)).await?;
        Ok(reply
            .ids
            .into_iter()
            .next()
            .map_or_else(|| BEGINNING.to_owned(), |entry| entry.id))
    }

    async fn read(&mut self) -> RedisResult<StreamReadReply> {
        let mut command = redis::cmd("XREAD");
        command
            .arg("COUNT")
            .arg(ENTRIES)
            .arg("BLOCK")
            .arg(BLOCK.as_millis() as u64)
            .arg("STREAMS");
        command.arg(&self.cancel_key);
        for position in self.pools.values() {
            command.arg(&position.key);
        }
        command.arg(&self.cancel_position);
        for position in self.pools.values() {
            command.arg(&position.last);
        }
        // Nil if nothing arrived within the block time.
        let reply: Option<StreamReadReply> = within_deadline(command.query_async(&mut self.connection)).await?;
        Ok(reply.unwrap_or_default())
    }

    fn deliver(&mut self, reply: StreamReadReply) {
        let mut streams: HashMap<String, Vec<StreamId>> =
            reply.keys.into_iter().map(|stream| (stream.key, stream.ids)).collect();
        for entry in streams.remove(&self.cancel_key).unwrap_or_default() {
            self.deliver_signals(&entry);
            self.cancel_position = entry.id;
        }
        for (pool, position) in &mut self.pools {
            let entries = streams.remove(&position.key).unwrap_or_default();
            // Listeners of this process got its own wakes directly.
            let others = entries.iter().filter(|entry| !self.shared.is_own_entry(entry));
            if let Some(kind) = others.map(kind_of).max() {
                self.shared.listeners.wake(pool, kind);
            }
            if let Some(entry) = entries.into_iter().next_back() {
                position.last = entry.id;
            }
        }
    }

    fn deliver_signals(&self, entry: &StreamId) {
        if self.shared.is_own_entry(entry) {
            return;
        }
        let Some(jobs) = text(entry, "jobs") else { return };
        for job in jobs.split(',') {
            // `*`, or a format of a newer version.
            let signal = job.parse().map_or(Signal::Lagged, Signal::Job);
            self.shared.listeners.send_signal(signal);
        }
    }
}

impl Shared {
    fn is_own_entry(&self, entry: &StreamId) -> bool {
        text(entry, "by").is_some_and(|by| by == self.origin)
    }
}

/// Processes of an earlier version send no ids.
fn kind_of(entry: &StreamId) -> WakeKind {
    match text(entry, "ids") {
        Some(_) => WakeKind::Queued,
        None => WakeKind::Database,
    }
}

fn text<'e>(entry: &'e StreamId, field: &str) -> Option<&'e str> {
    match entry.map.get(field)? {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
