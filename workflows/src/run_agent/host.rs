//! What a graph may ask for while it runs, over the job that performs it.

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
use towpath_durable::{Ctx, Failure, Verdict};
use towpath_runtime::{
    At, Chunk, Execution, Graph, GraphError, HistoryQuery, Host, HostError, ItemCall, Put, PutWrites, Save, Saved,
    StreamMode, TypedSaved,
};
use towpath_store::{Store, checkpoints, run_events};

use super::RunAgent;
use super::conclude::{Ending, Left};
use super::items;
use super::saver::{Saver, write_all};
use super::stream::Stream;
use super::trace::{self, Trace};
use crate::agent::AgentWorld;
use crate::tracer::Tracer;

/// How long checkpoints that need not be durable at once wait for company. A short run is over by then, also where many
/// share a process, and they are written with its end: of a stateless one never.
const LINGER: Duration = Duration::from_millis(100);
/// How long events wait for the log.
const LOG_LINGER: Duration = Duration::from_millis(40);
/// Before a run is tried again whose process ended with others in it.
const CRASH_REST: Duration = Duration::from_millis(500);
/// A graph that has this much waiting for the log waits with it.
const LOG_WAITING: usize = 4 << 20;

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
    /// Items that are read begin their time to live anew, where the graph does not say.
    refresh: bool,
    /// Each save is durable before the graph goes on.
    sync: bool,
    /// Checkpoints are written at the end only.
    exit: bool,
    token: CancellationToken,
    /// Checkpoints were written.
    wrote: AtomicBool,
    /// Something waits to be written.
    work: Notify,
    /// What its trace will say, where it is traced.
    trace: OnceLock<Trace>,
    progress: Progress,
}

/// What a run's job remembers from attempt to attempt, beside what the run saves.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// How often its process ended while others were in it.
    #[serde(default)]
    shared_crashes: u32,
}

impl<'a> RunHost<'a> {
    /// Prepares an attempt.
    pub async fn open(
        ctx: &'a mut Ctx,
        world: &AgentWorld,
        job: &RunAgent,
        kwargs: &Kwargs,
        logged: bool,
    ) -> Result<Self, Failure> {
        use towpath_domain::agent::Durability;
        let &RunAgent {
            tenant, thread, run, ..
        } = job;
        // Ids go on where the log ends, also if the clock of another machine was ahead.
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
        // Nobody else ever writes to a temporary thread.
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
            refresh: world.settings.authored.current().refresh_on_read,
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

    /// Whether the thread has no checkpoints yet.
    pub const fn fresh(&self) -> bool {
        self.saver.is_fresh()
    }

    /// Which attempt this is, from 1.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the run was at work before. An attempt that was handed back is not counted, and has begun all the same.
    pub const fn is_repeated(&self) -> bool {
        self.fence > 1
    }

    /// How often the process of the run ended while others were in it.
    pub const fn shared_crashes(&self) -> u32 {
        self.progress.shared_crashes
    }

    /// Attempts that failed. One whose worker was lost did not.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// When the attempt began, by the clock that the start of the run was taken from.
    pub const fn opened(&self) -> Timestamp {
        self.opened
    }

    /// Whether an earlier attempt wrote anything of its tasks, or of its command.
    pub async fn has_written(&self) -> Result<bool, Failure> {
        let (thread, run) = (self.thread, self.run);
        self.store
            .read(async |tx| checkpoints::has_written(tx, thread, run).await)
            .await
            .retry()
    }

    /// Whether an earlier attempt saved what the command writes.
    pub async fn has_saved_command(&self) -> Result<bool, Failure> {
        let (thread, run) = (self.thread, self.run);
        self.store
            .read(async |tx| checkpoints::has_saved_command(tx, thread, run).await)
            .await
            .retry()
    }

    /// Tells a trace what the graph does from now on.
    pub fn follow(&self, trace: Trace) -> &Trace {
        self.trace.get_or_init(|| trace)
    }

    /// Tells readers that the attempt began.
    pub fn began(&self, run: RunId, attempt: u32) {
        self.send("metadata", &format!(r#"{{"run_id":"{run}","attempt":{attempt}}}"#));
    }

    /// Tells readers that the run failed.
    pub fn failed(&self, class: &str, message: &str) -> Ending {
        let error = public_error(class, message);
        self.send("error", &error.to_string());
        Ending::Failed {
            error,
            told: Some(format!("{class}: {message}")),
            left: None,
        }
    }

    /// Tells the readers of a run that did well where it may be judged under the names that it was `asked` for.
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
            failure = self.keep_writing() => match failure {
                // The mark is in the row before its signal is here.
                Failure::Cancelled => Ok(Err(GraphError::cancelled())),
                failure => return Err(failure),
            },
        };
        match ended {
            Ok(Ok(finish)) => Ok(Ending::Done(Left {
                steps_left: !finish.next.is_empty(),
                values: finish.values,
                interrupts: Value::Object(finish.interrupts),
            })),
            Ok(Err(error)) if error.is_cancelled() => Ok(Ending::Cancelled {
                left: self.left(graph).await,
            }),
            Ok(Err(error)) if error.is_shared_crash() => Err(self.crashed_with_others(&error).await?),
            Ok(Err(error)) if error.retry => {
                // What it did is not done again by the next attempt.
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
                    told: Some(for_operator(&error)),
                    left: self.left(graph).await,
                })
            }
            Err(_) => {
                let error = public_error("TimeoutError", "The run took longer than a run may");
                self.send("error", &error.to_string());
                Ok(Ending::TimedOut {
                    error,
                    left: self.left(graph).await,
                })
            }
        }
    }

    /// The process ended with all its runs, of which one was at fault. That costs this run no attempt; the next one is beside
    /// fewer others, so that who is at fault is soon alone.
    async fn crashed_with_others(&self, error: &GraphError) -> Result<Failure, Failure> {
        self.write().await?;
        let progress = Progress {
            shared_crashes: self.progress.shared_crashes.saturating_add(1),
        };
        tracing::warn!(run.id = %self.run, shared_crashes = progress.shared_crashes, error = %error,
                       "the process of a run ended with others in it; the run is tried again");
        let mut ctx = self.ctx.lock().await;
        ctx.checkpoint(&progress, async |_| Ok(())).await?;
        Ok(Failure::Snooze(CRASH_REST))
    }

    /// Where the thread stands after a run that did not say so itself.
    async fn left(&self, graph: &Graph) -> Option<Left> {
        match graph.state(&At::latest(self.thread.0), false, self).await {
            Ok(Some(state)) => {
                let interrupts = state
                    .tasks
                    .into_iter()
                    .filter(|task| !task.interrupts.is_empty())
                    .map(|task| (task.id, Value::Array(task.interrupts)))
                    .collect();
                Some(Left {
                    steps_left: !state.next.is_empty(),
                    values: state.values.into(),
                    interrupts: Value::Object(interrupts),
                })
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(run.id = %self.run, error = %error, "cannot tell where a run left its thread");
                None
            }
        }
    }

    /// Gives back what is still to be written with the end of the run.
    pub fn close(self) -> Rest {
        Rest {
            saves: self.saver.take(),
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

    /// Writes what waits, again and again. Ends only by failing.
    async fn keep_writing(&self) -> Failure {
        loop {
            self.work.notified().await;
            self.linger().await;
            if let Err(failure) = self.write().await {
                return failure;
            }
        }
    }

    /// Lets what came first wait for more.
    async fn linger(&self) {
        let mut until = Instant::now() + LINGER;
        loop {
            if self.stream.is_waiting() {
                until = until.min(Instant::now() + LOG_LINGER);
            }
            if timeout_at(until, self.work.notified()).await.is_err() {
                return;
            }
        }
    }

    /// Writes what waits, in one transaction.
    async fn write(&self) -> Result<(), Failure> {
        let mut ctx = self.ctx.lock().await;
        let saves = if self.exit { Vec::new() } else { self.saver.take() };
        let log = self.stream.log();
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
        // Before it is known: this may be dropped in the middle, and be committed all the same.
        self.wrote.fetch_or(!saves.is_empty(), Ordering::Relaxed);
        ctx.commit(async |tx| {
            write_all(tx, thread, Some(run), &saves).await?;
            run_events::append_all(tx, tenant, thread, &log.batches(run, fence)).await
        })
        .await?;
        if !saves.is_empty() {
            failpoint::hit("run.saved");
        }
        self.saver.written(saves.len());
        self.stream.written(&log);
        Ok(())
    }

    async fn take(&self, batch: Vec<Save>) -> Result<(), HostError> {
        self.saver.put(batch);
        if self.sync {
            return self.write().await.map_err(host_error);
        }
        if !self.exit {
            self.work.notify_one();
        }
        Ok(())
    }
}

/// What is still to be written when the graph is done.
pub struct Rest {
    /// Checkpoints and writes.
    pub saves: Vec<Arc<Save>>,
    /// Makes the last frame, and holds what is not logged.
    pub stream: Stream,
    /// The fence of the attempt.
    pub fence: i64,
    /// Whether this attempt has written checkpoints already.
    pub wrote: bool,
}

pub fn host_error(failure: Failure) -> HostError {
    match failure {
        Failure::Cancelled => HostError::Cancelled,
        Failure::Fatal(cause) => HostError::Invalid {
            class: "RuntimeError".to_owned(),
            message: cause.text().to_owned(),
        },
        failure => HostError::Lost(failure.to_string()),
    }
}

/// Longer tracebacks lose their beginning.
const LONGEST_TRACEBACK: usize = 6 << 10;

/// An error with where it came from.
fn for_operator(error: &GraphError) -> String {
    let mut told = error.to_string().replace('\0', "\u{FFFD}");
    let end = (0..=LONGEST_TRACEBACK.min(told.len()))
        .rev()
        .find(|&at| told.is_char_boundary(at));
    told.truncate(end.unwrap_or(0));
    if let Some(traceback) = &error.traceback {
        let skip = traceback.len().saturating_sub(LONGEST_TRACEBACK);
        let from = (skip..traceback.len()).find(|&at| traceback.is_char_boundary(at));
        told.push('\n');
        told.push_str(&traceback[from.unwrap_or(0)..].replace('\0', "\u{FFFD}"));
    }
    told
}

/// Exceptions whose text is meant for the caller; of others it may say too much.
const TOLD: [&str; 16] = [
    "ValueError",
    "TypeError",
    "KeyError",
    "AttributeError",
    "RuntimeError",
    "RecursionError",
    "GraphRecursionError",
    "TimeoutError",
    "InvalidUpdateError",
    "GraphBubbleUp",
    "GraphInterrupt",
    "EmptyInputError",
    "TaskNotFound",
    "HTTPException",
    "UserInterrupt",
    "UnknownInterruptError",
];

/// An error as callers see it.
pub fn public_error(class: &str, message: &str) -> Value {
    let message = if TOLD.contains(&class) {
        message
    } else {
        "An internal error occurred"
    };
    json!({"error": class, "message": message})
}

#[async_trait]
impl Host for RunHost<'_> {
    async fn load(&self, ns: &str, id: Option<&str>) -> Result<Option<Saved>, HostError> {
        self.saver.load(ns, id).await
    }

    async fn list(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<Saved>, HostError> {
        self.saver.list(ns, query).await
    }

    async fn load_typed(&self, ns: &str, id: Option<&str>) -> Result<Option<TypedSaved>, HostError> {
        self.saver.load_typed(ns, id).await
    }

    async fn list_typed(&self, ns: &str, query: &HistoryQuery) -> Result<Vec<TypedSaved>, HostError> {
        self.saver.list_typed(ns, query).await
    }

    async fn save(&self, put: Put) -> Result<(), HostError> {
        self.take(vec![Save::Checkpoint(put)]).await
    }

    async fn save_writes(&self, put: PutWrites) -> Result<(), HostError> {
        self.take(vec![Save::Writes(put)]).await
    }

    async fn save_all(&self, batch: Vec<Save>) -> Result<(), HostError> {
        self.take(batch).await
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
        if waiting > LOG_WAITING {
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
        items::call(&self.store, self.tenant, &self.ctx, calls, self.refresh).await
    }
}
