//! A run: executes a graph on a thread.
//!
//! ```text
//! pending ─► (job running) ─► superstep ─► superstep ─► … ─► success      the graph ended, or stopped at an interrupt
//!                 │               checkpoints, events        error        it raised, or its attempts are spent
//!                 │                                          timeout      it took too long
//!                 └── worker or database lost: again         interrupted  cancelled; or rolled back: deleted
//! ```
//! Runs of one thread are jobs in one lane with one slot, in the order they were recorded. The run of a temporary
//! thread has no lane, because it is alone on it.
//!
//! A short run needs three commits: recording, claim, and the last one with its checkpoints, its final state, that of
//! its thread, and the end of the job. Events are published immediately; only the log waits for commits.

mod checkpoint_query;
mod conclude;
mod end;
mod graph_end;
mod host;
mod host_error;
mod items;
pub(crate) mod job;
pub(crate) mod loader;
mod start;
mod stateless;
pub(crate) mod stop;
mod stream;
mod trace;
mod typed;

pub mod saver;

use std::time::Duration;

use serde_json::{Map, Value, json};
use towpath_domain::agent::merge::EVENT_STREAMING;
use towpath_domain::agent::{Durability, Kwargs, Nodes};
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_durable::{Ctx, Failure, IntoFailure, Outcome, Settlement, Workflow};
use towpath_runtime::{Execution, Graph, StreamMode};
use towpath_store::runs::Run;
use towpath_store::{self as store, Tx, attempts};

use crate::agent_services::AgentServices;

use self::conclude::Conclusion;
use self::graph_end::Ending;
use self::host::RunHost;
use self::trace::Trace;

pub use self::job::{POOL, RunAgent, lane};
pub use self::loader::RunLoader;
pub use self::start::{NewRun, Target, start, start_visible};
pub use self::stateless::{Recorder, StatelessRun};
pub(crate) use self::stop::notify_deleted;
pub use self::stop::{Deletion, cancel, delete_run, delete_thread, lock_threads, threads_of};

impl Workflow for RunAgent {
    const KIND: &'static str = "run_agent";
    const POOL: &'static str = POOL;
    // The settings limit the attempts: see `perform`. The engine limits lost workers.
    const RETRY: RetryPolicy = RetryPolicy::doubling(1000, Duration::from_millis(500), Duration::from_secs(10));
    // The next run of the thread continues from the state that this one leaves.
    const KEEP_PLACE: bool = true;
    type World = AgentServices;

    async fn run(&self, ctx: &mut Ctx, world: &AgentServices) -> Outcome {
        let &Self { tenant, run: id, .. } = self;
        let run = match world.runs.get(tenant, id).await {
            // Deleted meanwhile, alone or with its thread.
            Err(store::Error::NotFound) => return ctx.settle_as(Settlement::irrevocable(), async |_| Ok(())).await,
            run => run.retry()?,
        };
        if run.status.is_final() {
            return ctx.settle_as(Settlement::irrevocable(), async |_| Ok(())).await;
        }
        let kwargs: Kwargs = serde_json::from_str(&run.kwargs).fatal()?;
        let logged = kwargs.resumable || world.settings.log_all;
        let host = RunHost::open(ctx, world, self, &kwargs, logged).await?;
        let ending = self.perform(&host, world, &run, &kwargs).await?;
        let rest = host.into_pending();
        Conclusion {
            job: self,
            run: &run,
            kwargs: &kwargs,
            ending,
            pending: rest,
        }
        .settle(ctx)
        .await
    }

    async fn end(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> store::Result<()> {
        end::end(tx, input, ended).await
    }
}

impl RunAgent {
    /// Runs the graph to its end, or fails the attempt.
    async fn perform(
        &self,
        host: &RunHost<'_>,
        world: &AgentServices,
        run: &Run,
        kwargs: &Kwargs,
    ) -> Result<Ending, Failure> {
        let attempt = host.attempt();
        let most = world.settings.max_attempts;
        if host.failures() >= most {
            let attempts = world.store.read(async |tx| attempts::list(tx, run.job_id).await);
            let last = attempts.await.retry()?.pop();
            // The last output of a process is for the operator; how it ended is public.
            let why = last
                .as_ref()
                .and_then(|last| last.error.lines().next())
                .unwrap_or("its worker was lost");
            let message = format!("Run {} exceeded max attempts ({most}). The last one: {why}", self.run);
            return Ok(host.announce_failure("RuntimeError", &message));
        }
        host.announce_attempt(self.run, attempt);
        let graph_id = configurable(kwargs, "graph_id")
            .and_then(Value::as_str)
            .unwrap_or_default();
        // Held until the run ends, so that a replaced set of graphs finishes its runs.
        let graphs = world.graphs.current();
        let Some(graph) = graphs.get(graph_id) else {
            return Ok(host.announce_failure("ValueError", &format!("Graph '{graph_id}' not found")));
        };
        let repeated = host.is_repeated();
        let earlier = EarlierAttempts {
            attempt,
            is_repeated: repeated,
            has_written: repeated && kwargs.strict_resume && host.has_written().await?,
            command_saved: repeated && kwargs.command.is_some() && host.has_saved_command().await?,
            shared_crashes: host.shared_crashes(),
        };
        let mut execution = match self.execution(world, run, kwargs, earlier, host.fresh()) {
            Ok(execution) => execution,
            Err(error) => return Ok(host.announce_failure("ValueError", &error.to_string())),
        };
        let spent = run
            .started_at
            .map_or(Duration::ZERO, |started| host.opened().since(started));
        let limit = world.settings.timeout.saturating_sub(spent);
        let native = matches!(graph, Graph::Native(_));
        let asked = world.tracer.as_ref().zip(kwargs.feedback_keys.as_deref());
        let Some(tracer) = world.tracer.as_ref().filter(|_| native) else {
            let ending = host.run(graph, &execution, limit).await?;
            host.ask_feedback(asked, &execution, &ending).await;
            return Ok(ending);
        };
        let streamed = execution.modes.contains(&StreamMode::Tasks);
        if !streamed {
            execution.modes.push(StreamMode::Tasks);
        }
        let trace = Trace::begin(world.store.clock().clone(), &execution, streamed);
        let trace = host.attach_trace(trace);
        let ending = host.run(graph, &execution, limit).await?;
        host.ask_feedback(asked, &execution, &ending).await;
        let name = graph.name().unwrap_or(graph_id);
        tracer.enqueue(trace.end(
            name,
            &execution,
            &ending,
            kwargs.langsmith_tracer.as_ref(),
            tracer.project(),
        ));
        Ok(ending)
    }

    fn execution(
        &self,
        world: &AgentServices,
        run: &Run,
        kwargs: &Kwargs,
        earlier: EarlierAttempts,
        fresh: bool,
    ) -> Result<Execution, serde_json::Error> {
        let mut metadata: Map<String, Value> = serde_json::from_str(&run.metadata)?;
        metadata.extend(own_metadata(world, earlier.attempt));
        let mut config = kwargs.config.clone();
        config.insert("metadata".to_owned(), Value::Object(metadata.clone()));
        if let (Some(tracing), Some(Value::Object(configurable))) =
            (&kwargs.langsmith_tracer, config.get_mut("configurable"))
        {
            // The names that graph hosts expect.
            let told = [
                ("__langsmith_project__", &tracing.project_name),
                ("__langsmith_example_id__", &tracing.example_id),
            ];
            for (name, value) in told {
                if let Some(value) = value {
                    configurable.insert(name.to_owned(), json!(value));
                }
            }
        }
        let command = kwargs.command.clone().map(Value::Object);
        Ok(Execution {
            input: kwargs.input.clone(),
            command: command.map(serde_json::from_value).transpose()?,
            config,
            context: kwargs.context.clone().map(Value::Object),
            metadata,
            modes: stream_modes(kwargs),
            subgraphs: kwargs.subgraphs,
            interrupt_before: nodes(kwargs.interrupt_before.as_ref()),
            interrupt_after: nodes(kwargs.interrupt_after.as_ref()),
            durability: match kwargs.durability {
                Durability::Sync => towpath_runtime::Durability::Sync,
                Durability::Async => towpath_runtime::Durability::Async,
                Durability::Exit => towpath_runtime::Durability::Exit,
            },
            // An earlier attempt with writes was accepted, and may have consumed answers.
            strict_resume: kwargs.strict_resume && !earlier.has_written,
            attempt: earlier.attempt,
            is_retry: earlier.is_repeated,
            command_saved: earlier.command_saved,
            shared_crashes: earlier.shared_crashes,
            run_id: self.run.0,
            thread_id: self.thread.0,
            temporary: self.temporary,
            new_thread: fresh,
        })
    }
}

/// What is known of earlier attempts.
#[derive(Clone, Copy)]
struct EarlierAttempts {
    /// Number of this attempt.
    attempt: u32,
    /// Whether there was an earlier one, counted or not.
    is_repeated: bool,
    /// Whether one wrote something.
    has_written: bool,
    /// Whether one saved the writes of the command.
    command_saved: bool,
    /// How many ended with a process that they shared.
    shared_crashes: u32,
}

/// Metadata that this server adds to runs; clients show it.
fn own_metadata(world: &AgentServices, attempt: u32) -> Map<String, Value> {
    let url = world.settings.api_url.as_deref().unwrap_or_default();
    match json!({
        "run_attempt": attempt,
        "langgraph_version": env!("CARGO_PKG_VERSION"),
        "langgraph_api_version": env!("CARGO_PKG_VERSION"),
        "langgraph_plan": "self_hosted",
        "langgraph_host": "self-hosted",
        "langgraph_api_url": url,
    }) {
        Value::Object(own) => own,
        _ => Map::new(),
    }
}

/// Stream modes of a run. Runs shown by the streaming protocol also stream tool calls, which is not a mode of requests.
fn stream_modes(kwargs: &Kwargs) -> Vec<StreamMode> {
    let asked = kwargs.stream_mode.iter();
    let mut modes: Vec<StreamMode> = asked.filter_map(|mode| mode.as_str().parse().ok()).collect();
    if configurable(kwargs, EVENT_STREAMING) == Some(&Value::Bool(true)) {
        modes.push(StreamMode::Tools);
    }
    modes
}

fn nodes(asked: Option<&Nodes>) -> towpath_runtime::Nodes {
    match asked {
        None => towpath_runtime::Nodes::default(),
        Some(Nodes::One(star)) if star == "*" => towpath_runtime::Nodes::All,
        Some(Nodes::One(one)) => towpath_runtime::Nodes::Some(vec![one.clone()]),
        Some(Nodes::Some(names)) if names.iter().any(|name| name == "*") => towpath_runtime::Nodes::All,
        Some(Nodes::Some(names)) => towpath_runtime::Nodes::Some(names.clone()),
    }
}

fn configurable<'k>(kwargs: &'k Kwargs, key: &str) -> Option<&'k Value> {
    kwargs.config.get("configurable")?.get(key)
}
