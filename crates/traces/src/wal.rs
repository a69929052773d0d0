//! The write-ahead log of ingest: what was acknowledged is on disk and registered in SQL.
//!
//! Many requests share one unit, one sync and one transaction. Locally there is no timer: a flush starts when the
//! one before has ended and takes whatever waits, so one caller alone waits for one flush and a thousand callers
//! wait for two. An object store is slower and costs money per object, so there a flush waits a moment for company
//! and several are under way at once.
//!
//! ```text
//! append ──► queue (bounded) ──► unit object, synced ──► one transaction: projects, wal_unit, fold job ──► answer
//! ```
//!
//! A unit whose transaction did not commit is as if it never was; its object is swept later.

mod backlog;
mod queue;
pub mod sweep;
pub mod unit;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use object_store::path::Path;
use tokio::task::JoinHandle;
use towpath_domain::trace::ProjectRef;
use towpath_domain::{ProjectId, TenantId, UnitId, failpoint};
use towpath_store::{Store, Tx, projects, units};

use crate::accept::Accepted;
use crate::metric;
use crate::objects::{Objects, ObjectsError};
use backlog::Backlog;
use queue::{Bounds, Entry, Queue};
pub use unit::{Damage, Frame, FrameHead};

/// Runs in the transaction that registers a unit: makes sure that somebody is going to fold it.
pub type OnRegistered =
    Arc<dyn for<'a, 'c> Fn(&'a mut Tx<'c>) -> BoxFuture<'a, towpath_store::Result<()>> + Send + Sync>;

/// Items of one unit are numbered below this, see [`seq`].
pub const MAX_ITEMS: u32 = 1 << 20;

/// The place of the `index`-th item of a unit in the order of acceptance over all units.
#[must_use]
pub const fn seq(unit: i64, index: u32) -> i64 {
    (unit << 20) | (index as i64)
}

/// How the log behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of bodies that may wait; more is refused.
    pub queue_bytes: usize,
    /// About how many bytes of accepted bodies may wait to be folded; where more is offered, it comes in at the pace of
    /// folding.
    pub backlog_bytes: u64,
    /// About how many bytes of bodies go into one unit. A larger body gets a unit of its own.
    pub unit_bytes: usize,
    /// How long a flush waits for company.
    pub linger: Duration,
    /// Flushes under way at once.
    pub flushes: usize,
    /// How long one flush may take before its callers are told to try again.
    pub patience: Duration,
}

impl Options {
    /// What suits the store.
    #[must_use]
    pub fn for_store(objects: &Objects) -> Self {
        let local = objects.is_local();
        Self {
            queue_bytes: 64 * 1024 * 1024,
            backlog_bytes: 1 << 30,
            unit_bytes: 8 * 1024 * 1024,
            linger: if local {
                Duration::ZERO
            } else {
                Duration::from_millis(50)
            },
            flushes: if local { 1 } else { 4 },
            // The official clients give up on an answer after ten seconds.
            patience: Duration::from_secs(8),
        }
    }
}

/// Why a request was not acknowledged. It may all the same have been written if the answer of the database was lost;
/// sending it again is harmless.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// More comes in than can be written.
    #[error("too much trace data is waiting to be written")]
    Overloaded {
        /// When there will probably be room.
        retry_after: Duration,
    },
    /// Disk or bucket is full. Trying again helps only after somebody made room.
    #[error("no space left for trace data")]
    Full,
    /// The disk, the object store or the database did not do their part; trying again may help.
    #[error("trace data could not be written")]
    Unavailable(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The process is shutting down.
    #[error("the server is shutting down")]
    Closed,
}

/// The log. Clones share it; when the last one is gone it stops taking requests and writes what waits.
#[derive(Clone)]
pub struct Wal(Arc<Gate>);

struct Gate {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    watch: JoinHandle<()>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.queue.close();
        self.watch.abort();
    }
}

struct Shared {
    store: Store,
    objects: Objects,
    options: Options,
    on_registered: OnRegistered,
    queue: Queue,
    backlog: Arc<Backlog>,
}

impl Wal {
    /// Starts the log on the current runtime.
    #[must_use]
    pub fn new(store: Store, objects: Objects, options: Options, on_registered: OnRegistered) -> Self {
        let queue = Queue::new(Bounds {
            bytes: options.queue_bytes,
            unit_bytes: options.unit_bytes,
            flushes: options.flushes,
            wait: options.patience / 2,
        });
        let backlog = Arc::new(Backlog::new(options.backlog_bytes));
        let watch = {
            let (backlog, store) = (Arc::clone(&backlog), store.clone());
            tokio::spawn(async move { backlog.watch(&store).await })
        };
        let shared = Arc::new(Shared {
            store,
            objects,
            options,
            on_registered,
            queue,
            backlog,
        });
        let tasks = (0..options.flushes.max(1))
            .map(|_| tokio::spawn(flusher(shared.clone())))
            .collect();
        Self(Arc::new(Gate {
            shared,
            tasks: Mutex::new(tasks),
            watch,
        }))
    }

    /// Whether a body of about so many bytes may come in, seen from what waits to be folded. Asked before anything of it
    /// is read.
    ///
    /// # Errors
    /// When there will probably be room.
    pub fn admit(&self, bytes: u64) -> Result<(), Duration> {
        self.0.shared.backlog.admit(bytes, Instant::now())
    }

    /// Makes a request durable. A caller that goes away meanwhile does not stop the writing.
    ///
    /// # Errors
    /// See [`AppendError`]; nothing was promised then.
    pub async fn append(&self, accepted: Accepted) -> Result<(), AppendError> {
        if accepted.frame.head.items == 0 {
            return Ok(()); // There is nothing to keep.
        }
        let answer = self.0.shared.queue.push(accepted)?;
        answer.await.unwrap_or(Err(AppendError::Closed))
    }

    /// Takes no more requests, writes what waits and returns when that is done.
    pub async fn close(&self) {
        self.0.shared.queue.close();
        self.0.watch.abort();
        let tasks = std::mem::take(&mut *self.0.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a flush of the trace log ended abnormally");
            }
        }
    }

    /// Bytes that wait to be written.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.0.shared.queue.bytes()
    }
}

async fn flusher(shared: Arc<Shared>) {
    let Options {
        unit_bytes,
        linger,
        patience,
        ..
    } = shared.options;
    while let Some(batch) = shared.queue.take(unit_bytes, linger).await {
        let began = Instant::now();
        let bytes = batch.iter().map(Entry::bytes).sum::<usize>();
        let result = match tokio::time::timeout(patience, shared.flush(&batch)).await {
            Ok(result) => result,
            Err(late) => Err(AppendError::Unavailable(Arc::new(late))),
        };
        shared.queue.flushed(bytes, began.elapsed());
        metrics::histogram!(metric::WAL_FLUSH).record(began.elapsed().as_secs_f64());
        metrics::gauge!(metric::WAL_WAITING).set(shared.queue.bytes() as f64);
        match &result {
            Ok(()) => {
                shared.backlog.accepted(bytes as u64);
                metrics::counter!(metric::WAL_BYTES).increment(bytes as u64);
                metrics::counter!(metric::WAL_UNITS).increment(1);
            }
            Err(error) => {
                metrics::counter!(metric::WAL_FAILED).increment(1);
                tracing::error!(
                    error = error as &dyn std::error::Error,
                    wal.requests = batch.len(),
                    wal.bytes = bytes,
                    "trace data could not be written; its senders were told to try again"
                );
            }
        }
        for entry in batch {
            // Nobody waits any more where the caller went away.
            let _ = entry.answer.send(result.clone());
        }
    }
}

impl Shared {
    /// Writes and registers one unit.
    async fn flush(&self, batch: &[Entry]) -> Result<(), AppendError> {
        let id = UnitId::new();
        let path = unit_path(id);
        let pieces = unit::write(batch.iter().map(|entry| &entry.accepted.frame));
        let bytes = pieces.iter().map(bytes::Bytes::len).sum::<usize>();
        failpoint::hit("ingest.before_write");
        self.objects.put(&path, pieces).await.map_err(|error| match error {
            ObjectsError::Full => AppendError::Full,
            other => AppendError::Unavailable(Arc::new(other)),
        })?;
        failpoint::hit("ingest.unit_written");
        match self.register(id, &path, bytes, batch).await {
            Ok(()) => {
                failpoint::hit("ingest.registered");
                Ok(())
            }
            Err(error) => self.settle(id, &path, error).await,
        }
    }

    async fn register(&self, id: UnitId, path: &Path, bytes: usize, batch: &[Entry]) -> towpath_store::Result<()> {
        // Sorted, so that two processes that make the same projects do it in the same order.
        let named: BTreeSet<(TenantId, &ProjectRef)> = batch
            .iter()
            .flat_map(|entry| {
                entry
                    .accepted
                    .projects
                    .iter()
                    .map(|project| (entry.accepted.frame.head.tenant, project))
            })
            .collect();
        let any: BTreeSet<TenantId> = batch
            .iter()
            .filter(|entry| entry.accepted.touches_any)
            .map(|entry| entry.accepted.frame.head.tenant)
            .collect();
        let items = batch
            .iter()
            .map(|entry| i64::from(entry.accepted.frame.head.items))
            .sum();
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let (named, any) = (&named, &any);
        self.store
            .write(async |tx| {
                let mut touches: Vec<(TenantId, ProjectId)> =
                    any.iter().map(|tenant| (*tenant, units::ANY_PROJECT)).collect();
                for &(tenant, project) in named {
                    let project = match project {
                        ProjectRef::Id(id) => *id,
                        ProjectRef::Name(name) => projects::ensure(tx, tenant, name).await?,
                    };
                    touches.push((tenant, project));
                }
                units::register(tx, id, path.as_ref(), bytes, items, &touches).await?;
                (self.on_registered)(tx).await
            })
            .await
    }

    /// The transaction failed, or its answer was lost. If it did commit, the requests are accepted.
    async fn settle(&self, id: UnitId, path: &Path, error: towpath_store::Error) -> Result<(), AppendError> {
        use towpath_store::Error;
        match error {
            // The database may still be about to commit it, so the object stays; it is swept if it is never named.
            Error::Unavailable(_) => match self.store.read(async |tx| units::exists(tx, id).await).await {
                Ok(true) => Ok(()),
                _ => Err(AppendError::Unavailable(Arc::new(error))),
            },
            _ => {
                if let Err(left) = self.objects.delete(path).await {
                    tracing::warn!(error = &left as &dyn std::error::Error, wal.path = %path, "an unregistered unit is left to be swept");
                }
                Err(if matches!(error, Error::Full) {
                    AppendError::Full
                } else {
                    AppendError::Unavailable(Arc::new(error))
                })
            }
        }
    }
}

/// Where a unit lies.
#[must_use]
pub fn unit_path(id: UnitId) -> Path {
    Path::from(format!("{}/{id}.unit", sweep::FOLDER))
}
