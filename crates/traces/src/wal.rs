//! The write-ahead log of ingest: what was acknowledged is on disk and registered in SQL.
//!
//! Many requests share one flush. Locally there is no timer: a flush starts when the
//! one before has ended and takes whatever waits, so one caller alone waits for one flush and a thousand callers
//! wait for two. An object store is slower and costs money per object, so there a flush waits a moment for company
//! and several are under way at once.
//!
//! ```text
//! append ──► queue (bounded) ──► object, synced ──► one transaction: projects, units, fold jobs ──► answer
//! ```
//!
//! Requests of several workspaces share one object, one sync and one transaction. What each workspace sent lies together
//! in the object and is a unit of its own, so that whoever reads or folds one workspace meets no other. The transaction
//! also writes down which project each name means: a project that is renamed before the fold keeps its trace runs.
//!
//! An object whose transaction did not commit is as if it never was; it is swept later.

mod backlog;
mod queue;
pub mod sweep;
pub mod unit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use object_store::path::Path;
use tokio::task::JoinHandle;
use towpath_domain::trace::ProjectRef;
use towpath_domain::{ProjectId, Shard, TenantId, UnitId, failpoint};
use towpath_store::units::{NewUnit, UnitName};
use towpath_store::{Store, Tx, projects, units};

use crate::accept::{Accepted, MAX_PROJECTS};
use crate::metric;
use crate::objects::{Objects, ObjectsError};
use backlog::Backlog;
use queue::{Bounds, Entry, Queue};
pub use towpath_store::units::{MAX_ITEMS, item_seq as seq};
pub use unit::{Damage, Frame, FrameHead};

/// Runs in the transaction that registers units of these shards, each named once and in order: makes sure that somebody
/// is going to fold them.
pub type OnRegistered =
    Arc<dyn for<'a, 'c> Fn(&'a mut Tx<'c>, &'a [Shard]) -> BoxFuture<'a, towpath_store::Result<()>> + Send + Sync>;

/// Bodies of one flush, but for one alone, come to no more than this after decoding: a reader has all of a unit in memory
/// or waits until it is folded.
const MAX_DECODED: u64 = 256 << 20;
/// Nor do they name more projects: all of them are found or made in the transaction that registers the units.
const MAX_NAMED: usize = 8 * MAX_PROJECTS;

/// How the log behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of bodies that may wait; more is refused.
    pub queue_bytes: usize,
    /// About how many bytes of accepted bodies may wait to be folded; where more is offered, it comes in at the pace of
    /// folding.
    pub backlog_bytes: u64,
    /// About how many bytes of bodies go into one object. A larger body gets an object of its own.
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
    /// The request names a project by its id, and its workspace has none of this id.
    #[error("project {0} is not in this workspace")]
    NoProject(ProjectId),
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
    let Options { unit_bytes, linger, .. } = shared.options;
    while let Some(batch) = shared.queue.take(unit_bytes, linger).await {
        let began = Instant::now();
        let bytes = batch.iter().map(Entry::bytes).sum::<usize>();
        let answered = shared.flush(batch).await;
        shared.queue.flushed(bytes, began.elapsed());
        metrics::histogram!(metric::WAL_FLUSH).record(began.elapsed().as_secs_f64());
        metrics::gauge!(metric::WAL_WAITING).set(shared.queue.bytes() as f64);
        for (entry, answer) in answered {
            // Nobody waits any more where the caller went away.
            let _ = entry.answer.send(answer);
        }
    }
}

/// Why requests that were to share an object were not written.
enum Setback {
    /// These workspaces do not have these projects.
    Missing(BTreeSet<(TenantId, ProjectId)>),
    /// What one workspace sent may be the reason; the others are written without it.
    Apart(AppendError),
    /// Nobody would fare better alone.
    All(AppendError),
}

impl Setback {
    fn of(error: towpath_store::Error) -> Self {
        let apart = !error.is_transient();
        let error = if matches!(error, towpath_store::Error::Full) {
            AppendError::Full
        } else {
            AppendError::Unavailable(Arc::new(error))
        };
        if apart { Self::Apart(error) } else { Self::All(error) }
    }
}

impl Shared {
    /// Writes and registers what came together. A request that cannot be taken, or a workspace whose requests cannot,
    /// keeps no other out.
    async fn flush(&self, batch: Vec<Entry>) -> Vec<(Entry, Result<(), AppendError>)> {
        let deadline = tokio::time::Instant::now() + self.options.patience;
        let mut answered = Vec::with_capacity(batch.len());
        let mut waiting = vec![batch];
        while let Some(mut group) = waiting.pop() {
            // Stable: what a workspace sent lies together, in the order in which it came.
            group.sort_by_key(|entry| (Shard::of(entry.tenant()), entry.tenant()));
            let written = tokio::time::timeout_at(deadline, self.write(&group)).await;
            match written.unwrap_or_else(|late| Err(Setback::All(AppendError::Unavailable(Arc::new(late))))) {
                Ok(units) => {
                    let bytes = group.iter().map(Entry::bytes).sum::<usize>() as u64;
                    self.backlog.accepted(bytes);
                    metrics::counter!(metric::WAL_BYTES).increment(bytes);
                    metrics::counter!(metric::WAL_UNITS).increment(units);
                    answered.extend(group.into_iter().map(|entry| (entry, Ok(()))));
                }
                Err(Setback::Missing(missing)) => {
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
                Err(Setback::Apart(error)) if group.first().map(Entry::tenant) != group.last().map(Entry::tenant) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        wal.requests = group.len(),
                        "trace data could not be written together; that of each workspace is written by itself"
                    );
                    let mut own: BTreeMap<TenantId, Vec<Entry>> = BTreeMap::new();
                    for entry in group {
                        own.entry(entry.tenant()).or_default().push(entry);
                    }
                    waiting.extend(own.into_values());
                }
                Err(Setback::Apart(error) | Setback::All(error)) => {
                    metrics::counter!(metric::WAL_FAILED).increment(1);
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        wal.requests = group.len(),
                        wal.bytes = group.iter().map(Entry::bytes).sum::<usize>(),
                        "trace data could not be written; its senders were told to try again"
                    );
                    answered.extend(group.into_iter().map(|entry| (entry, Err(error.clone()))));
                }
            }
        }
        answered
    }

    /// Writes one object and registers its units; answers how many. `group` is sorted by workspace.
    async fn write(&self, group: &[Entry]) -> Result<u64, Setback> {
        let ids: BTreeSet<_> = group.iter().flat_map(Entry::named_ids).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        if !ids.is_empty() {
            let missing = self.store.read(async |tx| projects::missing(tx, &ids).await).await;
            refuse(missing.map_err(Setback::of)?)?;
        }
        let path = unit_path(UnitId::new());
        let pieces = unit::write(group.iter().map(|entry| &entry.accepted.frame));
        let units = units_of(group, &pieces);
        failpoint::hit("ingest.before_write");
        self.objects.put(&path, pieces).await.map_err(|error| match error {
            ObjectsError::Full => Setback::All(AppendError::Full),
            other => Setback::All(AppendError::Unavailable(Arc::new(other))),
        })?;
        failpoint::hit("ingest.unit_written");
        match self.register(&path, group, &units, &ids).await {
            Ok(missing) if missing.is_empty() => {
                failpoint::hit("ingest.registered");
                Ok(units.len() as u64)
            }
            Ok(missing) => {
                self.remove(&path).await;
                Err(Setback::Missing(missing.into_iter().collect()))
            }
            Err(error) => self.settle(&path, error).await.map(|()| units.len() as u64),
        }
    }

    /// Answers which projects are gone, if any are: then nothing is registered.
    async fn register(
        &self,
        path: &Path,
        group: &[Entry],
        units: &[NewUnit],
        ids: &[(TenantId, ProjectId)],
    ) -> towpath_store::Result<Vec<(TenantId, ProjectId)>> {
        // Sorted, so that two processes that make the same projects do it in the same order.
        let named: BTreeSet<(TenantId, &str)> = group.iter().flat_map(Entry::names).collect();
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
                units::register(tx, path.as_ref(), units, &names_of(units, &named, &made)).await?;
                (self.on_registered)(tx, &shards).await
            })
            .await;
        if gone.is_empty() {
            written?;
        }
        Ok(gone)
    }

    /// The transaction failed, or its answer was lost. If it did commit, the requests are accepted.
    async fn settle(&self, path: &Path, error: towpath_store::Error) -> Result<(), Setback> {
        if matches!(error, towpath_store::Error::Unavailable(_)) {
            // The database may still be about to commit it, so the object stays; it is swept if it is never named.
            return match self.store.read(async |tx| units::named(tx, path.as_ref()).await).await {
                Ok(true) => Ok(()),
                _ => Err(Setback::of(error)),
            };
        }
        self.remove(path).await;
        Err(Setback::of(error))
    }

    async fn remove(&self, path: &Path) {
        if let Err(left) = self.objects.delete(path).await {
            tracing::warn!(error = &left as &dyn std::error::Error, wal.path = %path, "an unregistered object is left to be swept");
        }
    }
}

fn refuse(missing: Vec<(TenantId, ProjectId)>) -> Result<(), Setback> {
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Setback::Missing(missing.into_iter().collect()))
    }
}

/// What each workspace has in an object made of these pieces.
fn units_of(group: &[Entry], pieces: &[bytes::Bytes]) -> Vec<NewUnit> {
    let mut lengths = unit::frame_lengths(pieces);
    let mut byte_offset = unit::FIRST;
    let mut units = Vec::new();
    for own in group.chunk_by(|one, next| one.tenant() == next.tenant()) {
        let bytes: u64 = lengths.by_ref().take(own.len()).sum();
        let heads = || own.iter().map(|entry| &entry.accepted.frame.head);
        units.push(NewUnit {
            id: UnitId::new(),
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

/// What the names mean in the unit of their workspace.
fn names_of(units: &[NewUnit], named: &[(TenantId, &str)], projects: &[ProjectId]) -> Vec<UnitName> {
    let of: BTreeMap<TenantId, UnitId> = units.iter().map(|unit| (unit.tenant, unit.id)).collect();
    let names = named.iter().zip(projects).filter_map(|((tenant, name), project)| {
        Some(UnitName {
            unit_id: *of.get(tenant)?,
            name: (*name).to_owned(),
            project_id: *project,
        })
    });
    names.collect()
}

impl Entry {
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

/// Where an object of this id lies.
#[must_use]
pub fn unit_path(id: UnitId) -> Path {
    Path::from(format!("{}/{id}.unit", sweep::FOLDER))
}
