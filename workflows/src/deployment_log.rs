//! Lines of builds and agent servers on their way into the database.
//!
//! Lines come from programs at any speed, and share the database with everything else. So a revision may write a
//! bounded number of lines a second, they are committed at most twice a second, and the newest of each revision are
//! kept. What is dropped is counted, and a line says so. They are no part of what a job answers for, so they are
//! written past its fence: a line of a job that lost its place is still true.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use towpath_compute::{Line, Log};
use towpath_domain::deployment::{Level, LogKind};
use towpath_domain::{DeploymentId, RevisionId, Secret, TenantId};
use towpath_store::Store;
use towpath_store::revision_logs::{self, NewLine};

/// Lines that wait at most.
const WAITING: usize = 4096;
/// Lines of one transaction at most.
const BATCH: usize = 400;
/// Lines a second that are taken for long, and at once.
const LINES_PER_SECOND: f64 = 200.0;
const BURST: f64 = 4000.0;
/// Errors are taken when other lines are not any more, up to this number at once.
const RESERVE: f64 = 200.0;
/// Between two commits.
const COMMIT_EVERY: Duration = Duration::from_millis(500);
/// What was dropped is told so often, also when no other line comes.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// A database that is away is tried again after this long, twice as long each time, until the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Lines of each kind that a revision keeps.
const KEPT: i64 = 50_000;
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

#[derive(Clone, Copy)]
struct Owner {
    tenant: TenantId,
    deployment: DeploymentId,
    revision: RevisionId,
    kind: LogKind,
}

impl DeploymentLog {
    /// Lines of a build. `secrets` are masked.
    #[must_use]
    pub fn build(
        store: &Store,
        tenant: TenantId,
        deployment: DeploymentId,
        revision: RevisionId,
        secrets: Vec<Secret>,
    ) -> Self {
        let owner = Owner {
            tenant,
            deployment,
            revision,
            kind: LogKind::Build,
        };
        Self::new(store, owner, secrets)
    }

    /// Lines of an agent server, and of how it is started. `secrets` are masked.
    #[must_use]
    pub fn deploy(
        store: &Store,
        tenant: TenantId,
        deployment: DeploymentId,
        revision: RevisionId,
        secrets: Vec<Secret>,
    ) -> Self {
        let owner = Owner {
            tenant,
            deployment,
            revision,
            kind: LogKind::Deploy,
        };
        Self::new(store, owner, secrets)
    }

    fn new(store: &Store, owner: Owner, secrets: Vec<Secret>) -> Self {
        let (to, from) = mpsc::channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        tokio::spawn(write(store.clone(), owner, from, Arc::clone(&dropped)));
        let (clock, lines) = (store.clock().clone(), to.clone());
        let bucket = Mutex::new(Bucket::full());
        let log = Log::new(secrets, move |Line { level, message }| {
            let line = NewLine {
                at: clock.now(),
                level,
                message,
            };
            let taken = bucket.lock().unwrap_or_else(PoisonError::into_inner).take(level);
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

/// How many lines may come.
struct Bucket {
    lines: f64,
    at: Instant,
}

impl Bucket {
    fn full() -> Self {
        Self {
            lines: BURST,
            at: Instant::now(),
        }
    }

    /// Whether one more line may.
    fn take(&mut self, level: Level) -> bool {
        let now = Instant::now();
        let new = now.duration_since(self.at).as_secs_f64() * LINES_PER_SECOND;
        self.lines = (self.lines + new).min(BURST);
        self.at = now;
        let least = if level == Level::Error { -RESERVE } else { 0.0 };
        let may = self.lines - 1.0 >= least;
        if may {
            self.lines -= 1.0;
        }
        may
    }
}

/// Writes until nobody can send any more.
async fn write(store: Store, owner: Owner, mut from: mpsc::Receiver<Message>, dropped: Arc<AtomicU64>) {
    let mut writer = Writer {
        store,
        owner,
        dropped,
        next: Instant::now(),
        // A log that is opened again and again is trimmed too.
        untrimmed: TRIM_EVERY,
    };
    let mut messages = Vec::with_capacity(BATCH);
    let mut is_open = true;
    while is_open {
        is_open = gather(&mut from, &mut messages, writer.next).await;
        let mut lines = Vec::with_capacity(messages.len());
        let mut waiting = Vec::new();
        for message in messages.drain(..) {
            match message {
                Message::Line(line) => lines.push(line),
                Message::Flush(tell) => waiting.push(tell),
            }
        }
        writer.put(lines, &from).await;
        for tell in waiting {
            let _ = tell.send(());
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
    /// When the next commit may be.
    next: Instant,
    /// Lines since older ones were removed.
    untrimmed: i64,
}

impl Writer {
    /// Writes lines, and how many were dropped. Tries again while the database is away and there is room for more.
    async fn put(&mut self, mut lines: Vec<NewLine>, from: &mpsc::Receiver<Message>) {
        let count = lines.len() as u64;
        let lost = self.dropped.swap(0, Ordering::Relaxed);
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
                self.untrimmed += i64::try_from(lines.len()).unwrap_or(i64::MAX);
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
        let trimmed = self
            .store
            .write(async |tx| revision_logs::trim(tx, tenant, revision, kind, KEPT, limit).await)
            .await;
        if trimmed.is_ok() {
            self.untrimmed = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_prints_is_slowed_down_and_its_errors_are_heard() {
        let mut bucket = Bucket::full();
        let taken = (0..100_000).filter(|_| bucket.take(Level::Info)).count();
        assert_eq!(taken, 4000);
        assert!(bucket.take(Level::Error), "errors have a reserve");
        tokio::time::advance(Duration::from_secs(10)).await;
        let taken = (0..100_000).filter(|_| bucket.take(Level::Info)).count();
        assert!((1990..=2000).contains(&taken), "{taken}");
        let errors = (0..100_000).filter(|_| bucket.take(Level::Error)).count();
        assert_eq!(errors, 200);
    }
}
