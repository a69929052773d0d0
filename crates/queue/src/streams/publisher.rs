//! The sending connection.

use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisResult};
use towpath_domain::JobId;

use super::send_queue::Batch;
use super::{BLOCK, KEPT, Shared, within_deadline};
use crate::metric;
use crate::wakes::WakeKind;

/// Pause between two exchanges. A single wake goes out at once; many wakes are merged into one per pool and pause,
/// because every process reads every entry.
const PAUSE: Duration = Duration::from_millis(1);
const JOBS_PER_ENTRY: usize = 256;

/// Sends the contents of the send queue.
pub struct Publisher<'s> {
    shared: &'s Shared,
    connection: MultiplexedConnection,
}

impl<'s> Publisher<'s> {
    /// Tests the connection with a real write, so that a replica, a full server or a missing permission is detected
    /// before hints depend on it.
    pub async fn start(shared: &'s Shared, connection: MultiplexedConnection) -> RedisResult<Self> {
        let mut publisher = Self { shared, connection };
        publisher
            .send(&Batch {
                unblock_reader: true,
                ..Batch::default()
            })
            .await?;
        Ok(publisher)
    }

    /// Sends until an error.
    pub async fn run(&mut self) -> RedisResult<Infallible> {
        loop {
            match tokio::time::timeout(BLOCK, self.shared.send_queue.take()).await {
                Ok(batch) => {
                    self.send(&batch).await?;
                    self.shared.send_queue.confirm();
                    for (pool, queued) in &batch.ready {
                        metrics::counter!(metric::PUSHED, "pool" => pool.clone()).increment(queued.jobs.len() as u64);
                        // The ids are there now. Listeners of other processes read the entry.
                        if !queued.jobs.is_empty() {
                            self.shared.listeners.wake(pool, WakeKind::Queued);
                        }
                    }
                    metrics::counter!(metric::SENT, "via" => "redis").increment(batch.wakes.len() as u64);
                    tokio::time::sleep(PAUSE).await;
                }
                // A half-open connection is only detected by using it.
                Err(_) => within_deadline(redis::cmd("PING").exec_async(&mut self.connection)).await?,
            }
        }
    }

    async fn send(&mut self, batch: &Batch) -> RedisResult<()> {
        let mut pipeline = redis::pipe();
        // In the order in which a reader processes the entries of one read.
        let cancel = self.shared.cancel_key();
        for jobs in batch.cancels.chunks(JOBS_PER_ENTRY) {
            self.entry(&mut pipeline, &cancel, Some(("jobs", joined(jobs).as_str())));
        }
        if batch.rescan {
            self.entry(&mut pipeline, &cancel, Some(("jobs", "*")));
        }
        for (thread, frame) in &batch.events {
            let channel = self.shared.thread_key(*thread);
            let text = format!("{} {frame}", self.shared.origin);
            pipeline.cmd("PUBLISH").arg(channel).arg(text).ignore();
        }
        for (pool, queued) in &batch.ready {
            queued.push(&mut pipeline, &self.shared.prefix, pool);
            if !queued.jobs.is_empty() {
                self.entry(&mut pipeline, &self.shared.wake_key(pool), Some(("ids", "1")));
            }
        }
        for pool in &batch.wakes {
            self.entry(&mut pipeline, &self.shared.wake_key(pool), None);
        }
        if batch.unblock_reader {
            self.entry(&mut pipeline, &cancel, None);
        }
        within_deadline(pipeline.exec_async(&mut self.connection)).await
    }

    fn entry(&self, pipeline: &mut Pipeline, key: &str, field: Option<(&str, &str)>) {
        let entry = pipeline.cmd("XADD").arg(key).arg("MAXLEN").arg("~").arg(KEPT).arg("*");
        entry.arg("by").arg(&self.shared.origin);
        if let Some((name, value)) = field {
            entry.arg(name).arg(value);
        }
        entry.ignore();
    }
}

fn joined(jobs: &[JobId]) -> String {
    let mut text = String::with_capacity(jobs.len() * 37);
    for (index, job) in jobs.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(text, "{comma}{job}").expect("writing to a String does not fail");
    }
    text
}
