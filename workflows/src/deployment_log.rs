//! Lines of builds and agent servers on their way into the database.
//!
//! Lines come from programs at any speed, and share the database with everything else. So a deployment may write a
//! bounded number of lines and of bytes a second, they are committed together, twice a second or when somebody waits for
//! them, and the newest of each revision are kept. What is dropped is counted, and a line says so. They are no part of what a
//! job answers for, so they are written past its fence: a line of a job that lost its place is still true.

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

use self::rate::Rate;
pub use self::rate::Rates;

/// Lines that wait at most.
const WAITING: usize = 4096;
/// Lines of one transaction at most.
const BATCH: usize = 400;
/// Between two commits that nobody waits for.
const COMMIT_EVERY: Duration = Duration::from_millis(500);
/// What was dropped is told so often, also when no other line comes.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// A database that is away is tried again after this long, twice as long each time, until the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Lines of each kind that a revision keeps, and their bytes: fewer of long ones are.
const KEPT: i64 = 50_000;
const KEPT_BYTES: i64 = 32 << 20;
/// Older ones are removed after so many new ones, twice as many at once at most.
const TRIM_EVERY: i64 = 5000;

enum Message {
    Line(NewLine),
    Flush(oneshot::Sender<()>),
}

/// Takes lines of one revision.
pub struct DeploymentLog {
    log: Log,
    to: mpsc::Sender<Message>,
}

/// Whose lines they are.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// Workspace.
    pub tenant: TenantId,
    /// Deployment.
    pub deployment: DeploymentId,
    /// Revision.
    pub revision: RevisionId,
    /// Of its build, or of its agent server and how that is started.
    pub kind: LogKind,
}

impl DeploymentLog {
    /// Opens a log, whose lines count with those of the deployment's other logs of that kind. `secrets` are masked.
    #[must_use]
    pub fn open(store: &Store, rates: &Rates, owner: Owner, secrets: Vec<Secret>) -> Self {
        let (to, from) = mpsc::channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let rate = rates.of(owner.deployment, owner.kind);
        let writer = Writer {
            store: store.clone(),
            owner,
            dropped: Arc::clone(&dropped),
            rate: Arc::clone(&rate),
            next: Instant::now(),
            // A log that is opened again and again is trimmed too.
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

    /// Where lines go in.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Waits until what was said so far is in the database, or cannot be written.
    pub async fn flush(&self) {
        let (tell, told) = oneshot::channel();
        if self.to.send(Message::Flush(tell)).await.is_ok() {
            let _ = told.await;
        }
    }
}

/// Takes what comes until `next`, or until somebody waits for it. False when nothing more can come.
async fn gather(from: &mut mpsc::Receiver<Message>, messages: &mut Vec<Message>, next: Instant) -> bool {
    let first = tokio::select! {
        first = from.recv_many(messages, BATCH) => first,
        () = sleep(TELL_EVERY) => return true,
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
    owner: Owner,
    dropped: Arc<AtomicU64>,
    rate: Arc<Rate>,
    /// When the next commit may be that nobody waits for.
    next: Instant,
    /// Lines since older ones were removed.
    untrimmed: i64,
    /// Lines of this log, and their bytes.
    written: (i64, i64),
}

impl Writer {
    /// Writes until nobody can send any more.
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
        // The database may have been away for the last ones.
        self.put(Vec::new(), &from).await;
        let untold = self.dropped.swap(0, Ordering::Relaxed);
        if untold > 0 {
            tracing::warn!(
                deployment.id = %self.owner.deployment,
                lines = untold,
                "lines of a deployment were dropped, because the database was away"
            );
            self.rate.leave(untold);
        }
    }

    /// Writes lines, and how many were dropped. Tries again while the database is away and there is room for more.
    async fn put(&mut self, mut lines: Vec<NewLine>, from: &mpsc::Receiver<Message>) {
        let count = lines.len() as u64;
        let lost = self.dropped.swap(0, Ordering::Relaxed) + self.rate.left();
        if lost > 0 {
            lines.push(NewLine {
                at: self.store.clock().now(),
                level: Level::Warning,
                message: format!("{lost} lines came faster than they could be written, and were dropped"),
            });
        }
        if lines.is_empty() {
            return;
        }
        let Owner {
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
            if error.is_transient() && pause <= LONGEST_PAUSE && from.len() < WAITING {
                sleep(pause).await;
                pause *= 2;
                continue;
            }
            if error.is_transient() {
                self.dropped.fetch_add(lost + count, Ordering::Relaxed);
            }
            // Otherwise the deployment is gone, and nobody reads its lines.
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
        let Owner {
            tenant, revision, kind, ..
        } = self.owner;
        // Twice what comes meanwhile, so that what an earlier life left goes too.
        let limit = 2 * TRIM_EVERY;
        let keep = kept(self.written);
        let trimmed = self
            .store
            .write(async |tx| revision_logs::trim(tx, tenant, revision, kind, keep, limit).await)
            .await;
        if trimmed.is_ok() {
            self.untrimmed = 0;
        }
    }
}

/// Lines that are kept of a log in which so many had so many bytes.
fn kept((lines, bytes): (i64, i64)) -> i64 {
    // A few lines say nothing about those of an earlier life.
    if lines < 1000 {
        return KEPT;
    }
    let most = KEPT_BYTES.saturating_mul(lines.max(1)) / bytes.max(1);
    most.clamp(1, KEPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_of_long_lines_are_kept() {
        assert_eq!(kept((0, 0)), KEPT);
        assert_eq!(kept((2, 4150)), KEPT);
        assert_eq!(kept((1000, 80_000)), KEPT);
        assert_eq!(kept((1000, 4_096_000)), 8192);
    }
}
