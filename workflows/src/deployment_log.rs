//! Writes log lines of builds and agent servers to the database.
//!
//! Programs write lines at any speed, and the database is shared. So a deployment may write a limited number of lines
//! and bytes per second, lines are committed together twice a second or on a flush, and the newest of each revision are
//! kept. Dropped lines are counted, and a line reports them. Lines are written without the fence of the job: they are
//! valid even if the job has lost its lease.

mod rate;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use towpath_compute::{Line, Log};
use towpath_domain::deployment::{Level, LogKind};
use towpath_domain::{DeploymentId, RevisionId, Secret, TenantId};
use towpath_store::Store;
use towpath_store::revision_logs::{self, NewLine};

use self::rate::LogRateLimit;
pub use self::rate::LogRateLimits;

const QUEUE_CAPACITY: usize = 4096;
const BATCH: usize = 400;
/// Interval of commits without a flush.
const COMMIT_EVERY: Duration = Duration::from_millis(500);
/// Interval at which dropped lines are reported, also when no other line arrives.
const DROP_REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// First pause while the database is unavailable; it doubles up to the maximum.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Limits of lines and bytes of each kind that a revision keeps.
const MAX_LINES: i64 = 50_000;
const MAX_BYTES: i64 = 32 << 20;
/// Old lines are removed after this many new ones, at most twice as many at once.
const TRIM_EVERY: i64 = 5000;

enum Message {
    Line(NewLine),
    Flush(oneshot::Sender<()>),
}

/// Accepts lines of one revision.
pub struct DeploymentLog {
    log: Log,
    to: mpsc::Sender<Message>,
}

/// The source of lines.
#[derive(Clone, Copy, Debug)]
pub struct LogOwner {
    pub tenant: TenantId,
    pub deployment: DeploymentId,
    pub revision: RevisionId,
    /// The build, or the rollout and the agent server.
    pub kind: LogKind,
}

impl DeploymentLog {
    /// Opens a log, which shares its limits with the deployment's other logs of that kind. `secrets` are masked.
    #[must_use]
    pub fn open(store: &Store, rates: &LogRateLimits, owner: LogOwner, secrets: Vec<Secret>) -> Self {
        let (to, from) = mpsc::channel(QUEUE_CAPACITY);
        let dropped = Arc::new(AtomicU64::new(0));
        let rate = rates.of(owner.deployment, owner.kind);
        let writer = Writer {
            store: store.clone(),
            owner,
            dropped: Arc::clone(&dropped),
            rate: Arc::clone(&rate),
            next: Instant::now(),
            // Repeatedly opened logs are trimmed too.
            untrimmed: TRIM_EVERY,
            written: (0, 0),
        };
        tokio::spawn(writer.run(from));
        let (clock, lines) = (store.clock().clone(), to.clone());
        let log = Log::new(secrets, move |said: Line| {
            let taken = !said.is_output || rate.take(said.level, said.message.len());
            let line = NewLine {
                at: clock.now(),
                level: said.level,
                message: said.message,
            };
            if !taken || lines.try_send(Message::Line(line)).is_err() {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { log, to }
    }

    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Waits until all lines so far are in the database, or cannot be written.
    pub async fn flush(&self) {
        let (tell, told) = oneshot::channel();
        if self.to.send(Message::Flush(tell)).await.is_ok() {
            let _ = told.await;
        }
    }
}

/// Collects lines until `next`, or until a flush. False when no more can arrive.
async fn gather(from: &mut mpsc::Receiver<Message>, messages: &mut Vec<Message>, next: Instant) -> bool {
    let first = tokio::select! {
        first = from.recv_many(messages, BATCH) => first,
        () = sleep(DROP_REPORT_INTERVAL) => return true,
    };
    if first == 0 {
        return false;
    }
    loop {
        if messages.iter().any(|message| matches!(message, Message::Flush(_))) {
            return true;
        }
        let room = BATCH - messages.len();
        if room == 0 {
            sleep_until(next).await;
            return true;
        }
        let more = tokio::select! {
            more = from.recv_many(messages, room) => more,
            () = sleep_until(next) => return true,
        };
        if more == 0 {
            return false;
        }
    }
}

struct Writer {
    store: Store,
    owner: LogOwner,
    dropped: Arc<AtomicU64>,
    rate: Arc<LogRateLimit>,
    /// Time of the next commit without a flush.
    next: Instant,
    /// Lines since the last trim.
    untrimmed: i64,
    /// Number of lines of this log, and their bytes.
    written: (i64, i64),
}

impl Writer {
    /// Writes until all senders are dropped.
    async fn run(mut self, mut from: mpsc::Receiver<Message>) {
        let mut messages = Vec::with_capacity(BATCH);
        let mut is_open = true;
        while is_open {
            is_open = gather(&mut from, &mut messages, self.next).await;
            let mut lines = Vec::with_capacity(messages.len());
            let mut waiting = Vec::new();
            for message in messages.drain(..) {
                match message {
                    Message::Line(line) => lines.push(line),
                    Message::Flush(tell) => waiting.push(tell),
                }
            }
            self.put(lines, &from).await;
            for tell in waiting {
                let _ = tell.send(());
            }
        }
        // The database may have been unavailable for the last ones.
        self.put(Vec::new(), &from).await;
        let untold = self.dropped.swap(0, Ordering::Relaxed);
        if untold > 0 {
            tracing::warn!(
                deployment.id = %self.owner.deployment,
                lines = untold,
                "lines of a deployment were dropped because the database was unavailable"
            );
            self.rate.add_unreported(untold);
        }
    }

    /// Writes lines and the number of dropped ones. Retries while the database is unavailable and the queue has room.
    async fn put(&mut self, mut lines: Vec<NewLine>, from: &mpsc::Receiver<Message>) {
        let count = lines.len() as u64;
        let lost = self.dropped.swap(0, Ordering::Relaxed) + self.rate.take_unreported();
        if lost > 0 {
            lines.push(NewLine {
                at: self.store.clock().now(),
                level: Level::Warning,
                message: format!("{lost} lines were dropped because they arrived faster than they could be written"),
            });
        }
        if lines.is_empty() {
            return;
        }
        let LogOwner {
            tenant,
            deployment,
            revision,
            kind,
        } = self.owner;
        let mut pause = FIRST_PAUSE;
        loop {
            let written = self
                .store
                .write(async |tx| revision_logs::append(tx, tenant, deployment, Some(revision), kind, &lines).await)
                .await;
            let Err(error) = written else {
                let bytes: usize = lines.iter().map(|line| line.message.len()).sum();
                self.untrimmed += lines.len() as i64;
                self.written.0 += lines.len() as i64;
                self.written.1 += bytes as i64;
                break;
            };
            if error.is_transient() && pause <= LONGEST_PAUSE && from.len() < QUEUE_CAPACITY {
                sleep(pause).await;
                pause *= 2;
                continue;
            }
            if error.is_transient() {
                self.dropped.fetch_add(lost + count, Ordering::Relaxed);
            }
            // Otherwise the deployment was deleted, and its lines are not needed.
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                deployment.id = %deployment,
                "lines of a deployment were not written"
            );
            break;
        }
        self.trim().await;
        self.next = Instant::now() + COMMIT_EVERY;
    }

    async fn trim(&mut self) {
        if self.untrimmed < TRIM_EVERY {
            return;
        }
        let LogOwner {
            tenant, revision, kind, ..
        } = self.owner;
        // Twice the new lines, so that leftovers of an earlier process life are removed too.
        let limit = 2 * TRIM_EVERY;
        let keep = max_lines(self.written);
        let trimmed = self
            .store
            .write(async |tx| revision_logs::trim(tx, tenant, revision, kind, keep, limit).await)
            .await;
        if trimmed.is_ok() {
            self.untrimmed = 0;
        }
    }
}

/// Number of lines to keep of a log with this many lines and bytes.
fn max_lines((lines, bytes): (i64, i64)) -> i64 {
    // A few lines are not representative of earlier ones.
    if lines < 1000 {
        return MAX_LINES;
    }
    let most = MAX_BYTES.saturating_mul(lines.max(1)) / bytes.max(1);
    most.clamp(1, MAX_LINES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_of_long_lines_are_kept() {
        assert_eq!(max_lines((0, 0)), MAX_LINES);
        assert_eq!(max_lines((2, 4150)), MAX_LINES);
        assert_eq!(max_lines((1000, 80_000)), MAX_LINES);
        assert_eq!(max_lines((1000, 4_096_000)), 8192);
    }
}
