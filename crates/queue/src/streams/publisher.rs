//! The sending connection.

use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisResult};
use towpath_domain::JobId;

use super::outbox::Batch;
use super::{BLOCK, KEPT, Shared, within_deadline};
use crate::metric;

/// Between two exchanges. The first wake of a quiet time goes out at once; a stream of them becomes one per pool and
/// pause, because every entry is read by every process.
const PAUSE: Duration = Duration::from_millis(1);
/// Jobs named in one entry.
const JOBS_PER_ENTRY: usize = 256;

/// Sends what waits in the outbox.
pub struct Publisher<'s> {
    shared: &'s Shared,
    connection: MultiplexedConnection,
}

impl<'s> Publisher<'s> {
    /// Tries the connection with a real write, so that a replica, a full server or a missing permission shows before
    /// hints depend on it.
    pub async fn start(shared: &'s Shared, connection: MultiplexedConnection) -> RedisResult<Self> {
        let mut publisher = Self { shared, connection };
        publisher
            .send(&Batch {
                nudge: true,
                ..Batch::default()
            })
            .await?;
        Ok(publisher)
    }

    /// Sends for ever.
    pub async fn run(&mut self) -> RedisResult<Infallible> {
        loop {
            match tokio::time::timeout(BLOCK, self.shared.outbox.take()).await {
                Ok(batch) => {
                    self.send(&batch).await?;
                    self.shared.outbox.confirm();
                    metrics::counter!(metric::SENT, "via" => "redis").increment(batch.wakes.len() as u64);
                    tokio::time::sleep(PAUSE).await;
                }
                // A half-open connection shows only when it is used.
                Err(_) => within_deadline(redis::cmd("PING").exec_async(&mut self.connection)).await?,
            }
        }
    }

    async fn send(&mut self, batch: &Batch) -> RedisResult<()> {
        let mut pipeline = redis::pipe();
        // In the order in which a reader hands over what it finds in one read.
        let cancel = self.shared.cancel_key();
        for jobs in batch.cancels.chunks(JOBS_PER_ENTRY) {
            self.entry(&mut pipeline, &cancel, Some(&joined(jobs)));
        }
        if batch.look {
            self.entry(&mut pipeline, &cancel, Some("*"));
        }
        for (thread, frame) in &batch.events {
            let channel = self.shared.thread_key(*thread);
            let text = format!("{} {frame}", self.shared.origin);
            pipeline.cmd("PUBLISH").arg(channel).arg(text).ignore();
        }
        for pool in &batch.wakes {
            self.entry(&mut pipeline, &self.shared.wake_key(pool), None);
        }
        if batch.nudge {
            self.entry(&mut pipeline, &cancel, None);
        }
        within_deadline(pipeline.exec_async(&mut self.connection)).await
    }

    fn entry(&self, pipeline: &mut Pipeline, key: &str, jobs: Option<&str>) {
        let entry = pipeline.cmd("XADD").arg(key).arg("MAXLEN").arg("~").arg(KEPT).arg("*");
        entry.arg("by").arg(&self.shared.origin);
        if let Some(jobs) = jobs {
            entry.arg("jobs").arg(jobs);
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
