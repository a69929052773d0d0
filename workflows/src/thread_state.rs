//! The state of a thread outside of its runs: reading it through its graph, and updating it.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use towpath_domain::agent::frame::Frame;
use towpath_domain::agent::{EventId, ThreadStatus};
use towpath_domain::{Rejection, TenantId, ThreadId, Timestamp};
use towpath_runtime::{
    CheckpointRef, Chunk, Graph, GraphError, HistoryQuery, Host, HostError, ItemCall, Put, PutWrites, Save,
    SavedCheckpoint, SavedTypedCheckpoint, StateRef, StateSnapshot, Update,
};
use towpath_store::checkpoints::{self, ThreadNamespace};
use towpath_store::threads::{self, Thread};
use towpath_store::{self as store, Store, Tx, lanes, run_events, runs};

use crate::run_agent::job::lane;
use crate::run_agent::saver::{Saver, without_nul, write_all};

/// The host of a graph outside of a run: it reads checkpoints, and its saves are queued.
pub struct StateHost(Saver);

impl StateHost {
    #[must_use]
    pub fn new(store: &Store, thread: ThreadId) -> Self {
        Self(Saver::new(store.clone(), thread, false))
    }

    /// Limits the size of lists, for a history that is read in parts.
    #[must_use]
    pub fn with_part_bytes(self, bytes: u64) -> Self {
        Self(self.0.with_part_bytes(bytes))
    }

    /// Whether there may be more after the last list.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.0.is_truncated()
    }
}

#[async_trait]
impl Host for StateHost {
    async fn load(&self, ns: &str, id: Option<&str>) -> Result<Option<SavedCheckpoint>, HostError> {
        self.0.load(ns, id).await
    }

    async fn list(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<SavedCheckpoint>, HostError> {
        self.0.list(ns, query).await
    }

    async fn load_typed(&self, ns: &str, id: Option<&str>) -> Result<Option<SavedTypedCheckpoint>, HostError> {
        self.0.load_typed(ns, id).await
    }

    async fn list_typed(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<SavedTypedCheckpoint>, HostError> {
        self.0.list_typed(ns, query).await
    }

    async fn save(&self, put: Put) -> Result<(), HostError> {
        self.0.queue(vec![Save::Checkpoint(put)]);
        Ok(())
    }

    async fn save_writes(&self, put: PutWrites) -> Result<(), HostError> {
        self.0.queue(vec![Save::Writes(put)]);
        Ok(())
    }

    async fn save_all(&self, batch: Vec<Save>) -> Result<(), HostError> {
        self.0.queue(batch);
        Ok(())
    }

    async fn emit(&self, _: Vec<Chunk>) -> Result<(), HostError> {
        Ok(())
    }

    fn cancelled(&self) -> CancellationToken {
        CancellationToken::new()
    }

    async fn item(&self, _: ItemCall) -> Result<Value, HostError> {
        Err(HostError::Invalid {
            class: "RuntimeError".to_owned(),
            message: "items are only available in runs".to_owned(),
        })
    }
}

/// Why a state was not updated.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// The graph refused it.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The thread is busy or missing, or the database is unavailable.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// An update of a thread's state.
#[derive(Clone, Debug)]
pub struct StateUpdate<'a> {
    pub thread: ThreadId,
    /// The checkpoint to update.
    pub at: StateRef,
    /// One checkpoint for each.
    pub supersteps: &'a [Vec<Update>],
    /// Scalars for the metadata of the checkpoints.
    pub metadata: Map<String, Value>,
    /// How long the event about it is kept.
    pub events_kept: Duration,
}

/// Attempts, in case of concurrent changes.
const ROUNDS: usize = 5;

/// Updates the state of a thread without a running run.
///
/// A conflict while the thread is busy; [`store::Error::NotFound`] if there is no such thread; refusals of the graph.
pub async fn update(
    store: &Store,
    tenant: TenantId,
    graph: &Graph,
    update: &StateUpdate<'_>,
) -> Result<CheckpointRef, UpdateError> {
    for _ in 0..ROUNDS {
        let base = store
            .read(async |tx| {
                // The thread first: a run that is recorded after this read changes it.
                let thread = threads::get(tx, tenant, update.thread).await?;
                UpdateBase::of(tx, &thread, &update.at).await
            })
            .await?;
        let host = StateHost::new(store, update.thread);
        let made = graph
            .update_state(&update.at, update.supersteps, &update.metadata, &host)
            .await?;
        let state = graph.state(&StateRef::latest(update.thread.0), &host).await?;
        let written = store
            .write(async |tx| record(tx, tenant, update, &host, &base, state.as_ref()).await)
            .await;
        match written {
            // A concurrent change: repeated on its result.
            Err(store::Error::Stale) => {}
            written => return Ok(written.map(|()| made)?),
        }
    }
    Err(store::Error::Stale.into())
}

/// The inputs of an update. A concurrent change of any of them makes it stale.
#[derive(Debug, PartialEq, Eq)]
struct UpdateBase {
    /// Last change of the thread: a run recorded since may have ended, and rolled back its writes to a checkpoint.
    changed_at: Timestamp,
    /// The latest checkpoint of the graph itself.
    latest: Option<String>,
    /// The checkpoint that is updated.
    updated: Option<String>,
}

impl UpdateBase {
    /// The current values.
    ///
    /// A conflict while a run of the thread is open.
    async fn of(tx: &mut Tx<'_>, thread: &Thread, at: &StateRef) -> store::Result<Self> {
        let open = runs::open(tx, thread.tenant_id, Some(thread.id), None).await?;
        if !open.is_empty() {
            let open: Vec<String> = open.iter().map(|run| run.id.to_string()).collect();
            let text = format!("Thread {} has in-flight runs: {}", thread.id, open.join(", "));
            return Err(Rejection::conflict("", text).into());
        }
        let place = |ns| ThreadNamespace { thread: thread.id, ns };
        let latest = checkpoints::latest(tx, place("")).await?;
        let updated = match &at.id {
            Some(id) => checkpoints::get(tx, place(&at.ns), id).await?,
            None => checkpoints::latest(tx, place(&at.ns)).await?,
        };
        Ok(Self {
            changed_at: thread.updated_at,
            latest: latest.map(|row| row.checkpoint_id),
            updated: updated.map(|row| row.checkpoint_id),
        })
    }
}

async fn record(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    update: &StateUpdate<'_>,
    host: &StateHost,
    base: &UpdateBase,
    state: Option<&StateSnapshot>,
) -> store::Result<()> {
    let thread = update.thread;
    // While the lane is locked, no run begins or ends; while the row is locked, the thread is not deleted or pruned.
    lanes::lock(tx, lane(thread).key(), 1).await?;
    let row = threads::lock(tx, tenant, thread).await?;
    if UpdateBase::of(tx, &row, &update.at).await? != *base {
        return Err(store::Error::Stale);
    }
    write_all(tx, thread, None, &host.0.queued()).await?;
    let Some(state) = state else { return Ok(()) };
    let interrupts: Map<String, Value> = state
        .tasks
        .iter()
        .filter(|task| !task.interrupts.is_empty())
        .map(|task| (task.id.clone(), Value::Array(task.interrupts.clone())))
        .collect();
    let values = without_nul(state.values.to_string());
    let interrupts = without_nul(Value::Object(interrupts).to_string());
    let status = ThreadStatus::after(!state.next.is_empty());
    threads::set_state(tx, tenant, thread, status, &values, &interrupts).await?;
    notify_readers(tx, tenant, update, state).await
}

/// Notifies readers of the thread's stream.
async fn notify_readers(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    update: &StateUpdate<'_>,
    state: &StateSnapshot,
) -> store::Result<()> {
    let thread = update.thread;
    let last = run_events::last_id(tx, tenant, thread).await?.unwrap_or_default();
    let id: EventId = last.next(tx.now().micros() / 1000);
    let data = serde_json::to_string(state).map_err(|_| store::Error::corrupt("thread", "current_values", thread))?;
    let frame = Frame {
        run: None,
        attempt: 0,
        number: 0,
        id,
        event: "state_update",
        data: &data,
    }
    .encode();
    let mut log = String::new();
    towpath_domain::agent::frame::append(&mut log, &frame);
    let batch = run_events::NewBatch {
        run: None,
        attempt: 0,
        first: 0,
        last: 0,
        last_id: id,
        frames: &log,
        expires_at: Some(tx.now().plus(update.events_kept)),
    };
    run_events::append(tx, tenant, thread, &batch).await?;
    tx.publish(thread, frame);
    Ok(())
}

/// The graph a thread was last used with.
#[must_use]
pub fn graph_of(thread: &Thread) -> Option<String> {
    let metadata: Map<String, Value> = serde_json::from_str(&thread.metadata).ok()?;
    metadata.get("graph_id")?.as_str().map(str::to_owned)
}
