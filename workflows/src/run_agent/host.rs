//! Services for a running graph, on top of its job.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use towpath_domain::agent::{EventId, Kwargs};
use towpath_domain::{RunId, TenantId, ThreadId, Timestamp, failpoint};
use towpath_durable::{Ctx, Failure, IntoFailure};
use towpath_runtime::{
    Chunk, Execution, Graph, GraphError, HistoryQuery, Host, HostError, ItemCall, Put, PutWrites, Save,
    SavedCheckpoint, SavedTypedCheckpoint, StateRef, StreamMode,
};
use towpath_store::{Store, checkpoints, run_events};

use super::graph_end::{Ending, FinalState};
use super::host_error::{for_operator, host_error, public_error};
use super::items::{self, ItemServices};
use super::job::RunAgent;
use super::saver::{Saver, write_all};
use super::stream::Stream;
use super::trace::{self, Trace};
use crate::agent_services::AgentServices;
use crate::item_index::ItemIndex;
use crate::tracer::Tracer;

/// How long checkpoints that need not be durable at once are batched. A short run has ended by then, even if many share
/// a process, and writes them with its end; a stateless one never writes them.
const CHECKPOINT_BATCH_DELAY: Duration = Duration::from_millis(100);
/// How long events are batched for the log.
const LOG_BATCH_DELAY: Duration = Duration::from_millis(40);
/// Delay before a run is retried whose process ended together with other runs.
const CRASH_RETRY_DELAY: Duration = Duration::from_millis(500);
/// A graph with this much unlogged data waits for the log.
const MAX_UNLOGGED_BYTES: usize = 4 << 20;

/// The host of one attempt at a run.
pub struct RunHost<'a> {
    ctx: Mutex<&'a mut Ctx>,
    store: Store,
    tenant: TenantId,
    thread: ThreadId,
    run: RunId,
    attempt: u32,
    failures: u32,
    opened: Timestamp,
    fence: i64,
    saver: Saver,
    stream: Stream,
    index: ItemIndex,
    /// Whether reading an item restarts its time to live, unless the graph specifies it.
    refresh: bool,
    /// Whether each save is durable before the graph continues.
    sync: bool,
    /// Whether checkpoints are only written at the end.
    exit: bool,
    token: CancellationToken,
    /// Whether checkpoints were written.
    wrote: AtomicBool,
    /// Notifies that data is waiting to be written.
    work: Notify,
    /// The trace, if the run is traced.
    trace: OnceLock<Trace>,
    progress: Progress,
}

/// State that a run's job keeps between attempts, besides the checkpoints.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// How often its process ended while other runs were in it.
    #[serde(default)]
    shared_crashes: u32,
}

impl<'a> RunHost<'a> {
    /// Prepares an attempt.
    pub async fn open(
        ctx: &'a mut Ctx,
        world: &AgentServices,
        job: &RunAgent,
        kwargs: &Kwargs,
        logged: bool,
    ) -> Result<Self, Failure> {
        use towpath_domain::agent::Durability;
        let &RunAgent {
            tenant, thread, run, ..
        } = job;
        // Ids continue after the end of the log, even if the clock of another machine was ahead.
        let after = if logged {
            let last = world
                .store
                .read(async |tx| run_events::last_id(tx, tenant, thread).await);
            last.await.retry()?.unwrap_or_default()
        } else {
            EventId::default()
        };
        let fence = ctx.fence();
        let progress = ctx.cursor::<Progress>()?.unwrap_or_default();
        let stream = Stream::new(
            world.queue.clone(),
            world.store.clock().clone(),
            (thread, run),
            fence,
            logged,
            after,
        );
        // Only this run writes to a temporary thread.
        let fresh = job.temporary && fence == 1;
        Ok(Self {
            store: world.store.clone(),
            tenant,
            thread,
            run,
            attempt: ctx.attempt(),
            failures: ctx.failures(),
            opened: ctx.now(),
            fence,
            saver: Saver::new(world.store.clone(), thread, fresh),
            stream,
            index: world.items.clone(),
            refresh: world.settings.author_settings.current().refresh_on_read,
            sync: kwargs.durability == Durability::Sync,
            exit: kwargs.durability == Durability::Exit,
            token: ctx.cancelled(),
            ctx: Mutex::new(ctx),
            wrote: AtomicBool::new(false),
            work: Notify::new(),
            trace: OnceLock::new(),
            progress,
        })
    }

    pub const fn fresh(&self) -> bool {
        self.saver.is_fresh()
    }

    /// Number of this attempt, from 1.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the run started before. A returned attempt is not counted, but has started.
    pub const fn is_repeated(&self) -> bool {
        self.fence > 1
    }

    /// How often the process of the run ended while other runs were in it.
    pub const fn shared_crashes(&self) -> u32 {
        self.progress.shared_crashes
    }

    /// Failed attempts. An attempt with a lost worker does not count.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Start of the attempt, by the clock of the run's start time.
    pub const fn opened(&self) -> Timestamp {
        self.opened
    }

    /// Whether an earlier attempt saved writes of tasks or of its command.
    pub async fn has_written(&self) -> Result<bool, Failure> {
        let (thread, run) = (self.thread, self.run);
        self.store
            .read(async |tx| checkpoints::has_written(tx, thread, run).await)
            .await
            .retry()
    }

    /// Whether an earlier attempt saved the writes of its command.
    pub async fn has_saved_command(&self) -> Result<bool, Failure> {
        let (thread, run) = (self.thread, self.run);
        self.store
            .read(async |tx| checkpoints::has_saved_command(tx, thread, run).await)
            .await
            .retry()
    }

    /// Attaches a trace, which then records the graph's actions.
    pub fn attach_trace(&self, trace: Trace) -> &Trace {
        self.trace.get_or_init(|| trace)
    }

    /// Tells readers that the attempt began.
    pub fn announce_attempt(&self, run: RunId, attempt: u32) {
        self.send("metadata", &format!(r#"{{"run_id":"{run}","attempt":{attempt}}}"#));
    }

    /// Tells readers that the run failed.
    pub fn announce_failure(&self, class: &str, message: &str) -> Ending {
        let error = public_error(class, message);
        self.send("error", &error.to_string());
        Ending::Failed {
            error,
            operator_error: Some(format!("{class}: {message}")),
            final_state: None,
        }
    }

    /// Sends the readers of a successful run its feedback links for the requested keys.
    pub async fn ask_feedback(&self, asked: Option<(&Tracer, &[String])>, execution: &Execution, ending: &Ending) {
        let (Some((tracer, keys @ [_, ..])), Ending::Done(_)) = (asked, ending) else {
            return;
        };
        let links = tokio::select! {
            biased;
            () = self.token.cancelled() => None,
            links = tracer.feedback_links(trace::root(execution), keys) => links,
        };
        if let Some(links) = links {
            self.send("feedback", &json!(links).to_string());
        }
    }

    /// Runs a graph for at most `limit`.
    pub async fn run(&self, graph: &Graph, execution: &Execution, limit: Duration) -> Result<Ending, Failure> {
        let graph_run = tokio::time::timeout(limit, graph.run(execution, self));
        let ended = tokio::select! {
            biased;
            ended = graph_run => ended,
            failure = self.write_loop() => match failure {
                // The row is marked before the signal arrives.
                Failure::Cancelled => Ok(Err(GraphError::cancelled())),
                failure => return Err(failure),
            },
        };
        match ended {
            Ok(Ok(finish)) => Ok(Ending::Done(FinalState {
                has_next_steps: !finish.next.is_empty(),
                values: finish.values,
                interrupts: Value::Object(finish.interrupts),
            })),
            Ok(Err(error)) if error.is_cancelled() => Ok(Ending::Cancelled {
                final_state: self.final_state(graph).await,
            }),
            Ok(Err(error)) if error.is_shared_crash() => Err(self.crashed_with_others(&error).await?),
            Ok(Err(error)) if error.retry => {
                // The next attempt does not repeat its tasks.
                self.write().await?;
                Err(Failure::retry(error.message))
            }
            Ok(Err(error)) => {
                let traceback = error.traceback.as_deref();
                tracing::info!(run.id = %self.run, error = %error, traceback, "the graph failed");
                let public = public_error(&error.class, &error.message);
                self.send("error", &public.to_string());
                Ok(Ending::Failed {
                    error: public,
                    operator_error: Some(for_operator(&error)),
                    final_state: self.final_state(graph).await,
                })
            }
            Err(_) => {
                let error = public_error("TimeoutError", "The run took longer than a run may");
                self.send("error", &error.to_string());
                Ok(Ending::TimedOut {
                    error,
                    final_state: self.final_state(graph).await,
                })
            }
        }
    }

    /// Handles the end of a process with several runs, one of which caused it. It costs this run no attempt. The next
    /// attempt runs with fewer others, so that the culprit is soon alone.
    async fn crashed_with_others(&self, error: &GraphError) -> Result<Failure, Failure> {
        self.write().await?;
        let progress = Progress {
            shared_crashes: self.progress.shared_crashes.saturating_add(1),
        };
        tracing::warn!(run.id = %self.run, shared_crashes = progress.shared_crashes, error = %error,
                       "the process of a run ended together with other runs; retrying the run");
        let mut ctx = self.ctx.lock().await;
        ctx.checkpoint(&progress, async |_| Ok(())).await?;
        Ok(Failure::Snooze(CRASH_RETRY_DELAY))
    }

    /// The final state of a run that did not return one.
    async fn final_state(&self, graph: &Graph) -> Option<FinalState> {
        match graph.state(&StateRef::latest(self.thread.0), self).await {
            Ok(Some(state)) => {
                let interrupts = state
                    .tasks
                    .into_iter()
                    .filter(|task| !task.interrupts.is_empty())
                    .map(|task| (task.id, Value::Array(task.interrupts)))
                    .collect();
                Some(FinalState {
                    has_next_steps: !state.next.is_empty(),
                    values: state.values.into(),
                    interrupts: Value::Object(interrupts),
                })
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(run.id = %self.run, error = %error, "cannot read the final state of a run");
                None
            }
        }
    }

    /// Returns the data that is written with the end of the run.
    pub fn into_pending(self) -> PendingWrites {
        PendingWrites {
            saves: self.saver.queued(),
            stream: self.stream,
            fence: self.fence,
            wrote: self.wrote.into_inner(),
        }
    }

    fn send(&self, event: &str, data: &str) -> usize {
        let waiting = self.stream.send(event, data);
        if waiting > 0 {
            self.work.notify_one();
        }
        waiting
    }

    /// Writes waiting data repeatedly. Returns only on failure.
    async fn write_loop(&self) -> Failure {
        loop {
            self.work.notified().await;
            self.wait_for_batch().await;
            if let Err(failure) = self.write().await {
                return failure;
            }
        }
    }

    /// Waits for more data for the batch.
    async fn wait_for_batch(&self) {
        let mut until = Instant::now() + CHECKPOINT_BATCH_DELAY;
        loop {
            if self.stream.has_unlogged() {
                until = until.min(Instant::now() + LOG_BATCH_DELAY);
            }
            if timeout_at(until, self.work.notified()).await.is_err() {
                return;
            }
        }
    }

    /// Writes waiting data in one transaction.
    async fn write(&self) -> Result<(), Failure> {
        let mut ctx = self.ctx.lock().await;
        let saves = if self.exit { Vec::new() } else { self.saver.queued() };
        let log = self.stream.unlogged();
        if saves.is_empty() && log.is_empty() {
            return Ok(());
        }
        let &Self {
            tenant,
            thread,
            run,
            fence,
            ..
        } = self;
        // Set before the commit: this future may be dropped during it, and the commit may still succeed.
        self.wrote.fetch_or(!saves.is_empty(), Ordering::Relaxed);
        ctx.commit(async |tx| {
            write_all(tx, thread, Some(run), &saves).await?;
            run_events::append_all(tx, tenant, thread, &log.batches(run, fence)).await
        })
        .await?;
        if !saves.is_empty() {
            failpoint::hit("run.saved");
        }
        self.saver.confirm_written(saves.len());
        self.stream.confirm_logged(&log);
        Ok(())
    }

    async fn queue_saves(&self, batch: Vec<Save>) -> Result<(), HostError> {
        self.saver.queue(batch);
        if self.sync {
            return self.write().await.map_err(host_error);
        }
        if !self.exit {
            self.work.notify_one();
        }
        Ok(())
    }
}

/// Data that remains to be written when the graph has ended.
pub struct PendingWrites {
    /// Checkpoints and writes.
    pub saves: Vec<Arc<Save>>,
    /// Creates the last frame, and has the unlogged frames.
    pub stream: Stream,
    /// Fence of the attempt.
    pub fence: i64,
    /// Whether this attempt has already written checkpoints.
    pub wrote: bool,
}

#[async_trait]
impl Host for RunHost<'_> {
    async fn load(&self, ns: &str, id: Option<&str>) -> Result<Option<SavedCheckpoint>, HostError> {
        self.saver.load(ns, id).await
    }

    async fn list(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<SavedCheckpoint>, HostError> {
        self.saver.list(ns, query).await
    }

    async fn load_typed(&self, ns: &str, id: Option<&str>) -> Result<Option<SavedTypedCheckpoint>, HostError> {
        self.saver.load_typed(ns, id).await
    }

    async fn list_typed(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<SavedTypedCheckpoint>, HostError> {
        self.saver.list_typed(ns, query).await
    }

    async fn save(&self, put: Put) -> Result<(), HostError> {
        self.queue_saves(vec![Save::Checkpoint(put)]).await
    }

    async fn save_writes(&self, put: PutWrites) -> Result<(), HostError> {
        self.queue_saves(vec![Save::Writes(put)]).await
    }

    async fn save_all(&self, batch: Vec<Save>) -> Result<(), HostError> {
        self.queue_saves(batch).await
    }

    async fn emit(&self, chunks: Vec<Chunk>) -> Result<(), HostError> {
        let mut waiting = 0;
        for chunk in chunks {
            if let Some(trace) = self.trace.get().filter(|_| chunk.mode == StreamMode::Tasks.as_str()) {
                trace.task(&chunk);
                if !trace.streamed() {
                    continue;
                }
            }
            waiting = self.send(&chunk.event(), &chunk.data);
        }
        if waiting > MAX_UNLOGGED_BYTES {
            self.write().await.map_err(host_error)?;
        }
        Ok(())
    }

    fn cancelled(&self) -> CancellationToken {
        self.token.clone()
    }

    async fn item(&self, call: ItemCall) -> Result<Value, HostError> {
        let mut answers = self.items(vec![call]).await?;
        Ok(answers.pop().unwrap_or_default())
    }

    async fn items(&self, calls: Vec<ItemCall>) -> Result<Vec<Value>, HostError> {
        let services = ItemServices {
            store: &self.store,
            tenant: self.tenant,
            index: &self.index,
            refresh: self.refresh,
        };
        items::call(&services, &self.ctx, calls).await
    }
}
