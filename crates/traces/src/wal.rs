//! The write-ahead log of ingest: what was acknowledged is on disk and registered in SQL.
//!
//! Many requests share one write. Locally there is no timer: a write starts when the
//! one before has ended and takes whatever waits, so one caller alone waits for one write and a thousand callers
//! wait for two. An object store is slower and costs money per object, so there a write waits a moment for company
//! and several are under way at once.
//!
//! ```text
//! append ──► queue (bounded) ──► object, synced ──► one transaction: projects, units, fold jobs ──► answer
//! ```
//!
//! Requests of several workspaces share one object, one sync and one transaction. What each workspace sent is together
//! in the object and is a WAL segment of its own, so that the caller that reads or flushes one workspace meets no
//! other. The transaction also writes down which project each name means: a project that is renamed before the flush
//! keeps its trace runs.
//!
//! An object whose transaction did not commit is as if it never was; it is swept later.

mod backlog;
pub mod frame;
mod queue;
pub mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use towpath_domain::trace::ProjectRef;
use towpath_domain::{ProjectId, Shard, TenantId, WalSegmentId, failpoint};
use towpath_store::wal_segments::{NewWalSegment, WalSegmentName};
use towpath_store::{Store, Tx, projects, wal_segments};

use crate::accept::{AcceptedRequest, MAX_PROJECTS};
use crate::metric;
use crate::objects::{Objects, ObjectsError};
use backlog::Backlog;
pub use frame::{DamagedFrame, Frame, FrameHead};
use queue::{Bounds, Queue, QueuedRequest};
pub use towpath_store::wal_segments::{MAX_ITEMS, item_seq as seq};

/// Runs in the transaction that registers WAL segments of these shards, each named once and in order: ensures that a
/// flush is scheduled.
pub type OnRegistered =
    Arc<dyn for<'a, 'c> Fn(&'a mut Tx<'c>, &'a [Shard]) -> BoxFuture<'a, towpath_store::Result<()>> + Send + Sync>;

/// Limit of the decoded bodies of one write, except for a single larger one: readers keep a whole WAL segment in
/// memory, or wait for its flush.
const MAX_DECODED: u64 = 256 << 20;
/// Limit of the projects named in one write: all are found or created in the transaction that registers the WAL
/// segments.
const MAX_NAMED: usize = 8 * MAX_PROJECTS;

/// How the log behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of bodies that may wait; more is refused.
    pub queue_bytes: usize,
    /// Approximate limit of accepted bytes that wait for a flush; beyond it, data are accepted at the rate of flushing.
    pub backlog_bytes: u64,
    /// Approximate size of an object. A larger body gets its own object.
    pub segment_bytes: usize,
    /// How long a write waits for company.
    pub linger: Duration,
    /// Flushes under way at once.
    pub concurrent_writes: usize,
    /// Time limit of a write, after which its callers must retry.
    pub write_timeout: Duration,
}

impl Options {
    /// What suits the store.
    #[must_use]
    pub fn for_store(objects: &Objects) -> Self {
        let local = objects.is_local();
        Self {
            queue_bytes: 64 * 1024 * 1024,
            backlog_bytes: 1 << 30,
            segment_bytes: 8 * 1024 * 1024,
            linger: if local {
                Duration::ZERO
            } else {
                Duration::from_millis(50)
            },
            concurrent_writes: if local { 1 } else { 4 },
            // The official clients give up on an answer after ten seconds.
            write_timeout: Duration::from_secs(8),
        }
    }
}

/// Why a request was not acknowledged. It may still have been written if the answer of the database was lost; sending
/// it again is harmless.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// More comes in than can be written.
    #[error("too much trace data is waiting to be written")]
    Overloaded {
        /// When there will probably be room.
        retry_after: Duration,
    },
    /// The disk or bucket is full. Retrying only helps after space was freed.
    #[error("no space left for trace data")]
    Full,
    /// The disk, the object store or the database failed; retrying may help.
    #[error("trace data could not be written")]
    Unavailable(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The workspace has no project with the requested id.
    #[error("project {0} is not in this workspace")]
    NoProject(ProjectId),
    /// The process is shutting down.
    #[error("the server is shutting down")]
    Closed,
}

/// The log. Clones share it; when the last one is dropped, it stops accepting requests and writes what waits.
#[derive(Clone)]
pub struct Wal(Arc<WalTasks>);

struct WalTasks {
    shared: Arc<WalState>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    watch: JoinHandle<()>,
}

impl Drop for WalTasks {
    fn drop(&mut self) {
        self.shared.queue.close();
        self.watch.abort();
    }
}

struct WalState {
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
            segment_bytes: options.segment_bytes,
            concurrent_writes: options.concurrent_writes,
            wait: options.write_timeout / 2,
        });
        let backlog = Arc::new(Backlog::new(options.backlog_bytes));
        let watch = {
            let (backlog, store) = (Arc::clone(&backlog), store.clone());
            tokio::spawn(async move { backlog.watch(&store).await })
        };
        let shared = Arc::new(WalState {
            store,
            objects,
            options,
            on_registered,
            queue,
            backlog,
        });
        let tasks = (0..options.concurrent_writes.max(1))
            .map(|_| tokio::spawn(writer_loop(shared.clone())))
            .collect();
        Self(Arc::new(WalTasks {
            shared,
            tasks: Mutex::new(tasks),
            watch,
        }))
    }

    /// Whether a body of about this size may be accepted, given the backlog of flushes. Called before the body is read.
    pub fn admit(&self, bytes: u64) -> Result<(), Duration> {
        self.0.shared.backlog.admit(bytes, Instant::now())
    }

    /// Makes a request durable. A caller that disconnects does not stop the write.
    pub async fn append(&self, accepted: AcceptedRequest) -> Result<(), AppendError> {
        if accepted.frame.head.items == 0 {
            return Ok(()); // There is nothing to keep.
        }
        let answer = self.0.shared.queue.push(accepted)?;
        answer.await.unwrap_or(Err(AppendError::Closed))
    }

    /// Accepts no more requests, writes what waits and returns when that is done.
    pub async fn close(&self) {
        self.0.shared.queue.close();
        self.0.watch.abort();
        let tasks = std::mem::take(&mut *self.0.tasks.lock());
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a write of the trace log ended abnormally");
            }
        }
    }

    /// Bytes that wait to be written.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.0.shared.queue.bytes()
    }
}

async fn writer_loop(shared: Arc<WalState>) {
    let Options {
        segment_bytes: unit_bytes,
        linger,
        ..
    } = shared.options;
    while let Some(batch) = shared.queue.take(unit_bytes, linger).await {
        let began = Instant::now();
        let bytes = batch.iter().map(QueuedRequest::bytes).sum::<usize>();
        let answered = shared.write_batch(batch).await;
        shared.queue.record_write_time(bytes, began.elapsed());
        metrics::histogram!(metric::WAL_FLUSH).record(began.elapsed().as_secs_f64());
        metrics::gauge!(metric::WAL_WAITING).set(shared.queue.bytes() as f64);
        for (entry, answer) in answered {
            // No one waits any more where the caller went away.
            let _ = entry.answer.send(answer);
        }
    }
}

/// Why requests that were to share an object were not written.
enum WriteFailure {
    /// These workspaces do not have these projects.
    Missing(BTreeSet<(TenantId, ProjectId)>),
    /// The data of one workspace may be the cause; the others are written without it.
    Individual(AppendError),
    /// No one would fare better alone.
    All(AppendError),
}

impl WriteFailure {
    fn from_store_error(error: towpath_store::Error) -> Self {
        let apart = !error.is_transient();
        let error = if matches!(error, towpath_store::Error::Full) {
            AppendError::Full
        } else {
            AppendError::Unavailable(Arc::new(error))
        };
        if apart {
            Self::Individual(error)
        } else {
            Self::All(error)
        }
    }
}

impl WalState {
    /// Writes and registers a batch. A refused request, or a workspace whose requests are refused, does not affect the
    /// others.
    async fn write_batch(&self, batch: Vec<QueuedRequest>) -> Vec<(QueuedRequest, Result<(), AppendError>)> {
        let deadline = tokio::time::Instant::now() + self.options.write_timeout;
        let mut answered = Vec::with_capacity(batch.len());
        let mut waiting = vec![batch];
        while let Some(mut group) = waiting.pop() {
            // A stable sort: the requests of a workspace are adjacent, in order of arrival.
            group.sort_by_key(|entry| (Shard::of(entry.tenant()), entry.tenant()));
            let written = tokio::time::timeout_at(deadline, self.write_object(&group)).await;
            match written.unwrap_or_else(|late| Err(WriteFailure::All(AppendError::Unavailable(Arc::new(late))))) {
                Ok(units) => {
                    let bytes = group.iter().map(QueuedRequest::bytes).sum::<usize>() as u64;
                    self.backlog.accepted(bytes);
                    metrics::counter!(metric::WAL_BYTES).increment(bytes);
                    metrics::counter!(metric::WAL_UNITS).increment(units);
                    answered.extend(group.into_iter().map(|entry| (entry, Ok(()))));
                }
                Err(WriteFailure::Missing(missing)) => {
                    let mut rest = Vec::with_capacity(group.len());
                    for entry in group {
                        let gone = entry.named_ids().find(|named| missing.contains(named));
                        match gone {
                            Some((_, project)) => answered.push((entry, Err(AppendError::NoProject(project)))),
                            None => rest.push(entry),
                        }
                    }
                    if !rest.is_empty() {
                        waiting.push(rest);
                    }
                }
                Err(WriteFailure::Individual(error))
                    if group.first().map(QueuedRequest::tenant) != group.last().map(QueuedRequest::tenant) =>
                {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        wal.requests = group.len(),
                        "trace data could not be written as one batch; writing each workspace separately"
                    );
                    let mut own: BTreeMap<TenantId, Vec<QueuedRequest>> = BTreeMap::new();
                    for entry in group {
                        own.entry(entry.tenant()).or_default().push(entry);
                    }
                    waiting.extend(own.into_values());
                }
                Err(WriteFailure::Individual(error) | WriteFailure::All(error)) => {
                    metrics::counter!(metric::WAL_FAILED).increment(1);
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        wal.requests = group.len(),
                        wal.bytes = group.iter().map(QueuedRequest::bytes).sum::<usize>(),
                        "trace data could not be written; its senders must retry"
                    );
                    answered.extend(group.into_iter().map(|entry| (entry, Err(error.clone()))));
                }
            }
        }
        answered
    }

    /// Writes one object and registers its WAL segments; returns how many. `group` is sorted by workspace.
    async fn write_object(&self, group: &[QueuedRequest]) -> Result<u64, WriteFailure> {
        let ids: BTreeSet<_> = group.iter().flat_map(QueuedRequest::named_ids).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        if !ids.is_empty() {
            let missing = self.store.read(async |tx| projects::missing(tx, &ids).await).await;
            check_projects(missing.map_err(WriteFailure::from_store_error)?)?;
        }
        let path = object_path(WalSegmentId::new());
        let pieces = frame::write(group.iter().map(|entry| &entry.accepted.frame));
        let units = wal_segments_of(group, &pieces);
        failpoint::hit("ingest.before_write");
        self.objects.put(&path, pieces).await.map_err(|error| match error {
            ObjectsError::Full => WriteFailure::All(AppendError::Full),
            other => WriteFailure::All(AppendError::Unavailable(Arc::new(other))),
        })?;
        failpoint::hit("ingest.unit_written");
        match self.register(&path, group, &units, &ids).await {
            Ok(missing) if missing.is_empty() => {
                failpoint::hit("ingest.registered");
                Ok(units.len() as u64)
            }
            Ok(missing) => {
                self.remove(&path).await;
                Err(WriteFailure::Missing(missing.into_iter().collect()))
            }
            Err(error) => self.resolve_failure(&path, error).await.map(|()| units.len() as u64),
        }
    }

    /// Returns the projects that no longer exist, if any: then nothing is registered.
    async fn register(
        &self,
        path: &Path,
        group: &[QueuedRequest],
        units: &[NewWalSegment],
        ids: &[(TenantId, ProjectId)],
    ) -> towpath_store::Result<Vec<(TenantId, ProjectId)>> {
        // Sorted, so that processes that create the same projects do so in the same order.
        let named: BTreeSet<(TenantId, &str)> = group.iter().flat_map(QueuedRequest::names).collect();
        let named: Vec<_> = named.into_iter().collect();
        let shards: BTreeSet<Shard> = group.iter().map(|entry| Shard::of(entry.tenant())).collect();
        let shards: Vec<_> = shards.into_iter().collect();
        let mut gone = Vec::new();
        let written = self
            .store
            .write(async |tx| {
                let made = projects::ensure_all(tx, &named).await?;
                gone = projects::missing(tx, ids).await?;
                if !gone.is_empty() {
                    // Rolled back, and told apart from what the database says.
                    return Err(towpath_store::Error::Stale);
                }
                wal_segments::register(tx, path.as_ref(), units, &names_of(units, &named, &made)).await?;
                (self.on_registered)(tx, &shards).await
            })
            .await;
        if gone.is_empty() {
            written?;
        }
        Ok(gone)
    }

    /// The transaction failed, or its answer was lost. If it did commit, the requests are accepted.
    async fn resolve_failure(&self, path: &Path, error: towpath_store::Error) -> Result<(), WriteFailure> {
        if matches!(error, towpath_store::Error::Unavailable(_)) {
            // The database may still commit it, so the object stays; it is swept if no row names it.
            return match self
                .store
                .read(async |tx| wal_segments::is_object_referenced(tx, path.as_ref()).await)
                .await
            {
                Ok(true) => Ok(()),
                _ => Err(WriteFailure::from_store_error(error)),
            };
        }
        self.remove(path).await;
        Err(WriteFailure::from_store_error(error))
    }

    async fn remove(&self, path: &Path) {
        if let Err(left) = self.objects.delete(path).await {
            tracing::warn!(error = &left as &dyn std::error::Error, wal.path = %path, "an unregistered object is left for the sweep");
        }
    }
}

fn check_projects(missing: Vec<(TenantId, ProjectId)>) -> Result<(), WriteFailure> {
    if missing.is_empty() {
        Ok(())
    } else {
        Err(WriteFailure::Missing(missing.into_iter().collect()))
    }
}

/// What each workspace has in an object made of these pieces.
fn wal_segments_of(group: &[QueuedRequest], pieces: &[bytes::Bytes]) -> Vec<NewWalSegment> {
    let mut lengths = frame::frame_lengths(pieces);
    let mut byte_offset = frame::FIRST;
    let mut units = Vec::new();
    for own in group.chunk_by(|one, next| one.tenant() == next.tenant()) {
        let bytes: u64 = lengths.by_ref().take(own.len()).sum();
        let heads = || own.iter().map(|entry| &entry.accepted.frame.head);
        units.push(NewWalSegment {
            id: WalSegmentId::new(),
            tenant: own[0].tenant(),
            byte_offset: int(byte_offset),
            bytes: int(bytes),
            decoded_bytes: int(heads().map(|head| head.decoded_bytes).sum()),
            operations: heads().map(|head| i64::from(head.items)).sum(),
        });
        byte_offset += bytes;
    }
    units
}

/// What the names mean in the WAL segment of their workspace.
fn names_of(units: &[NewWalSegment], named: &[(TenantId, &str)], projects: &[ProjectId]) -> Vec<WalSegmentName> {
    let of: BTreeMap<TenantId, WalSegmentId> = units.iter().map(|unit| (unit.tenant, unit.id)).collect();
    let names = named.iter().zip(projects).filter_map(|((tenant, name), project)| {
        Some(WalSegmentName {
            unit_id: *of.get(tenant)?,
            name: (*name).to_owned(),
            project_id: *project,
        })
    });
    names.collect()
}

impl QueuedRequest {
    /// The projects it names by their ids.
    fn named_ids(&self) -> impl Iterator<Item = (TenantId, ProjectId)> {
        let ids = self.accepted.projects.iter().filter_map(|project| match project {
            ProjectRef::Id(id) => Some(*id),
            ProjectRef::Name(_) => None,
        });
        ids.map(move |id| (self.tenant(), id))
    }

    /// The projects it names by their names.
    fn names(&self) -> impl Iterator<Item = (TenantId, &str)> {
        let names = self.accepted.projects.iter().filter_map(|project| match project {
            ProjectRef::Id(_) => None,
            ProjectRef::Name(name) => Some(name.as_str()),
        });
        names.map(move |name| (self.tenant(), name))
    }
}

fn int(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Where an object of this id is.
#[must_use]
pub fn object_path(id: WalSegmentId) -> Path {
    Path::from(format!("{}/{id}.unit", sweep::FOLDER))
}
