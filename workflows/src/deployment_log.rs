//! Lines of builds and agent servers on their way into the database.
//!
//! Lines come from programs at any speed; they are written in batches while more come, and dropped, with a line that
//! says so, where the database cannot keep up. They are no part of what a job answers for, so they are written past
//! its fence: a line of a job that lost its place is still true.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};
use towpath_compute::{Line, Log};
use towpath_domain::deployment::{Level, LogKind};
use towpath_domain::{DeploymentId, RevisionId, Secret, TenantId};
use towpath_store::Store;
use towpath_store::revision_logs::{self, NewLine};

/// Lines that wait at most.
const WAITING: usize = 4096;
/// Lines of one transaction at most.
const BATCH: usize = 200;

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
    /// Lines of a build.
    #[must_use]
    pub fn build(store: &Store, tenant: TenantId, deployment: DeploymentId, revision: RevisionId) -> Self {
        let owner = Owner {
            tenant,
            deployment,
            revision,
            kind: LogKind::Build,
        };
        Self::new(store, owner, Vec::new())
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
        let log = Log::new(secrets, move |Line { level, message }| {
            let line = NewLine {
                at: clock.now(),
                level,
                message,
            };
            if lines.try_send(Message::Line(line)).is_err() {
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

/// Writes until nobody can send any more.
async fn write(store: Store, owner: Owner, mut from: mpsc::Receiver<Message>, dropped: Arc<AtomicU64>) {
    let mut messages = Vec::with_capacity(BATCH);
    while from.recv_many(&mut messages, BATCH).await > 0 {
        let mut lines = Vec::with_capacity(messages.len());
        let mut waiting = Vec::new();
        for message in messages.drain(..) {
            match message {
                Message::Line(line) => lines.push(line),
                Message::Flush(tell) => waiting.push(tell),
            }
        }
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            lines.push(NewLine {
                at: store.clock().now(),
                level: Level::Warning,
                message: format!("{lost} lines came faster than they could be written, and were dropped"),
            });
        }
        if !lines.is_empty() {
            let Owner {
                tenant,
                deployment,
                revision,
                kind,
            } = owner;
            let written = store
                .write(async |tx| revision_logs::append(tx, tenant, deployment, Some(revision), kind, &lines).await)
                .await;
            if let Err(error) = written {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    deployment.id = %deployment,
                    "lines of a deployment were not written"
                );
            }
        }
        for tell in waiting {
            let _ = tell.send(());
        }
    }
}
