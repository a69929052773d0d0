//! An agent server without HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use towpath_domain::agent::{CancelAction, Object, RunRequest};
use towpath_domain::{AssistantId, Clock, RunId, TenantId, ThreadId, WorkerId};
use towpath_durable::{ClaimedJob, Engine, Registry, Signal};
use towpath_outbound::{Guard, Policy};
use towpath_queue::{Event, Events, Queue};
use towpath_runtime::{GraphServices, GraphSet, Graphs};
use towpath_store::assistants::{self, AssistantContent};
use towpath_store::checkpoints::{self, Checkpoint, ThreadNamespace};
use towpath_store::query::Query;
use towpath_store::runs::{self, Run};
use towpath_store::threads::{self, Thread};
use towpath_store::{Options, Result, Store, Tx, jobs};
use towpath_testing::Database;
use towpath_workflows::agent::{self, AgentServices, EVENT_RETENTION};
use towpath_workflows::item_index::ItemIndex;
use towpath_workflows::run_agent::{self, NewRun, Target};

use crate::fixture::migrate;

const GRAPHS: &str = r#"{"graphs": {
    "agent": {"native": "echo"},
    "steps": {"native": {"kind": "workflow", "channels": {"log": "append"},
        "nodes": {"one": {"kind": "script", "steps": [{"append": {"log": "one"}}]},
                  "two": {"kind": "script", "steps": [{"append": {"log": "two"}}]}},
        "edges": [["__start__", "one"], ["one", "two"]]}},
    "shaky": {"native": {"kind": "workflow", "channels": {"log": "append"},
        "nodes": {"one": {"kind": "script", "steps": [{"append": {"log": "one"}}]},
                  "two": {"kind": "script", "steps": [{"fail": {"type": "OSError", "message": "away", "times": 1, "retry": true}},
                                                      {"append": {"log": "two"}}]}},
        "edges": [["__start__", "one"], ["one", "two"]]}},
    "gone": {"native": {"kind": "script", "channels": {"log": "append"},
        "steps": [{"fail": {"type": "OSError", "message": "away", "retry": true}}]}},
    "slow": {"native": {"kind": "workflow", "channels": {"log": "append"},
        "nodes": {"one": {"kind": "script", "steps": [{"append": {"log": "one"}}]},
                  "two": {"kind": "script", "steps": [{"sleep_ms": 60000}]}},
        "edges": [["__start__", "one"], ["one", "two"]]}},
    "asks": {"native": {"kind": "workflow", "channels": {"log": "append", "answer": "last-value"},
        "nodes": {"ask": {"kind": "script", "steps": [{"interrupt": "go on?", "into": "answer"}, {"append": {"log": "asked"}}]},
                  "two": {"kind": "script", "steps": [{"sleep_ms": 60000}]}},
        "edges": [["__start__", "ask"], ["ask", "two"]]}},
    "asks twice": {"native": {"kind": "workflow", "channels": {"log": "append", "one": "last-value", "other": "last-value"},
        "nodes": {"ask": {"kind": "script", "steps": [{"interrupt": "one?", "into": "one"}, {"interrupt": "other?", "into": "other"},
                                                      {"append": {"log": "asked"}}]},
                  "two": {"kind": "script", "steps": [{"sleep_ms": 60000}]}},
        "edges": [["__start__", "ask"], ["ask", "two"]]}},
    "stops": {"native": {"kind": "workflow", "channels": {"log": "append"}, "interrupt_before": ["two"],
        "nodes": {"one": {"kind": "script", "steps": [{"append": {"log": "one"}}]},
                  "two": {"kind": "script", "steps": [{"append": {"log": "two"}}]}},
        "edges": [["__start__", "one"], ["one", "two"]]}},
    "asks slowly": {"native": {"kind": "workflow", "channels": {"log": "append", "answer": "last-value"},
        "nodes": {"ask": {"kind": "script", "steps": [{"interrupt": "go on?", "into": "answer"}, {"sleep_ms": 60000}]}},
        "edges": [["__start__", "ask"]]}},
    "broken": {"native": {"kind": "script", "channels": {"log": "append"},
        "steps": [{"fail": {"type": "ValueError", "message": "it broke"}}]}}
}}"#;

pub struct Server {
    pub world: AgentServices,
    pub engine: Engine,
    pub registry: Registry<AgentServices>,
    pub tenant: TenantId,
    _folder: TempDir,
    _database: Database,
}

impl Server {
    pub async fn new() -> Self {
        Self::at(Clock::system()).await
    }

    pub async fn at(clock: Clock) -> Self {
        Self::with(Database::sqlite(migrate).await, clock, GRAPHS).await
    }

    /// On the server that `TOWPATH_TEST_POSTGRES` names.
    pub async fn postgres() -> Option<Self> {
        let database = Database::postgres(migrate).await?;
        Some(Self::with(database, Clock::system(), GRAPHS).await)
    }

    /// On this database, with the graphs of this file.
    pub async fn with(database: Database, clock: Clock, graphs: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            clock,
            ..Options::default()
        };
        let store = Store::open(&database.uri, options).await.unwrap();
        let queue = Queue::local();
        agent::connect(&store, &queue);
        let mut registry = agent::registry();
        registry.attach(&store);
        let tenant = TenantId::new();
        let graphs = Graphs::from_config(graphs, folder.path()).unwrap();
        let graphs = graphs.with_services(&GraphServices::new(store.clock().clone()));
        for graph in graphs.ids() {
            let content = AssistantContent {
                graph_id: graph.to_owned(),
                name: graph.to_owned(),
                description: None,
                config: "{}".to_owned(),
                context: "{}".to_owned(),
                metadata: "{}".to_owned(),
            };
            store
                .write(async |tx| assistants::create(tx, tenant, AssistantId::of_graph(graph), &content).await)
                .await
                .unwrap();
        }
        let graphs = GraphSet::new(graphs);
        let guard = Guard::new(Policy::development());
        Self {
            engine: Engine::new(store.clone(), towpath_durable::Settings::default()),
            world: AgentServices {
                runs: run_agent::RunLoader::new(store.clone()),
                items: ItemIndex::new(store.clone(), graphs.clone(), guard.clone()),
                store,
                queue,
                graphs,
                guard,
                tracer: None,
                settings: agent::Settings::default(),
            },
            registry,
            tenant,
            _folder: folder,
            _database: database,
        }
    }

    pub fn store(&self) -> &Store {
        &self.world.store
    }

    /// Records a run and subscribes to its events.
    pub async fn start(&self, target: Target, graph: &str, request: Value) -> (Run, Events) {
        let events = self.world.queue.subscribe(target.id()).await;
        let run = self
            .store()
            .write(async |tx| self.record(tx, target, graph, &request).await)
            .await
            .unwrap();
        (run, events)
    }

    /// Records a run in a transaction.
    pub async fn record(&self, tx: &mut Tx<'_>, target: Target, graph: &str, request: &Value) -> Result<Run> {
        let mut body = json!({"assistant_id": graph, "input": {"log": []}, "if_not_exists": "create"});
        for (key, value) in request.as_object().unwrap() {
            body[key] = value.clone();
        }
        let request: RunRequest = serde_json::from_value(body).unwrap();
        let admitted = request.admit(matches!(target, Target::New(_))).unwrap();
        let assistant = assistants::get(tx, self.tenant, AssistantId::of_graph(graph)).await?;
        let new = NewRun {
            id: RunId::new(),
            thread: target,
            assistant: &assistant,
            admitted,
            headers: Object::new(),
            user: None,
            cron: None,
            events_kept: EVENT_RETENTION,
            ttl: None,
        };
        run_agent::start(tx, self.tenant, new).await
    }

    pub async fn claim(&self) -> Option<ClaimedJob> {
        self.claim_of(run_agent::POOL).await
    }

    pub async fn claim_of(&self, pool: &str) -> Option<ClaimedJob> {
        let claimed = self.store().write(async |tx| {
            let claimer = jobs::ClaimRequest::new(pool, WorkerId::new(), 1);
            let claimed = jobs::claim(tx, &claimer).await?;
            if !claimed.is_empty() {
                return Ok(claimed);
            }
            // A job whose workers were lost repeatedly.
            jobs::claim_suspects(tx, &claimer).await
        });
        claimed.await.unwrap().pop()
    }

    pub async fn perform(&self) {
        self.perform_of(run_agent::POOL).await;
    }

    pub async fn perform_of(&self, pool: &str) {
        let job = self.claim_of(pool).await.expect("a job is ready");
        let (_tell, told) = watch::channel(Signal::Run);
        towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told).await;
    }

    /// Performs a run until it has streamed an event with `text` and saved `step`; then signals its worker.
    pub async fn perform_until(&self, thread: ThreadId, events: &mut Events, text: &str, step: i64, signal: Signal) {
        let saved = async || self.saved(thread, step).await;
        self.perform_until_saved(events, text, saved, signal).await;
    }

    /// Performs a run until it has streamed an event with `text` and `saved` returns true; then signals its worker.
    pub async fn perform_until_saved(
        &self,
        events: &mut Events,
        text: &str,
        saved: impl AsyncFn() -> bool,
        signal: Signal,
    ) {
        let job = self.claim().await.expect("a run is ready");
        let (tell, told) = watch::channel(Signal::Run);
        let work = towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told);
        let told_off = async {
            loop {
                if let Event::Frame(frame) = events.next().await
                    && frame.contains(text)
                {
                    // The event precedes the save that it reports.
                    let deadline = std::time::Instant::now() + Duration::from_secs(180);
                    while !saved().await {
                        assert!(
                            std::time::Instant::now() < deadline,
                            "what the event {text} tells of was not saved"
                        );
                    }
                    tell.send_replace(signal);
                    return std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = told_off => {}
        }
    }

    /// Performs a run, and cancels it when `text` was streamed.
    pub async fn cancel_at_work(&self, run: &Run, events: &mut Events, text: &str, action: CancelAction) {
        let job = self.claim().await.expect("a run is ready");
        let (tell, told) = watch::channel(Signal::Run);
        let work = towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told);
        let cancel = async {
            loop {
                if let Event::Frame(frame) = events.next().await
                    && frame.contains(text)
                {
                    self.cancel(run, action).await;
                    tell.send_replace(Signal::Cancel);
                    return std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = cancel => {}
        }
    }

    pub async fn run(&self, id: RunId) -> Option<Run> {
        self.store()
            .read(async |tx| runs::get(tx, self.tenant, id).await)
            .await
            .ok()
    }

    pub async fn thread(&self, id: ThreadId) -> Thread {
        self.store()
            .read(async |tx| threads::get(tx, self.tenant, id).await)
            .await
            .unwrap()
    }

    /// Ids of its checkpoints, the latest first.
    pub async fn checkpoints(&self, thread: ThreadId) -> Vec<String> {
        let listed = self.list_checkpoints(thread).await;
        listed.into_iter().map(|row| row.checkpoint_id).collect()
    }

    /// Whether a superstep has its checkpoint.
    async fn saved(&self, thread: ThreadId, step: i64) -> bool {
        let rows = self.list_checkpoints(thread).await;
        rows.iter().any(|row| {
            let metadata: Value = serde_json::from_str(&row.metadata).unwrap();
            metadata["step"] == step
        })
    }

    async fn list_checkpoints(&self, thread: ThreadId) -> Vec<Checkpoint> {
        let place = ThreadNamespace { thread, ns: "" };
        self.store()
            .read(async |tx| checkpoints::list(tx, place, None, None, i64::MAX).await)
            .await
            .unwrap()
    }

    pub async fn cancel(&self, run: &Run, action: CancelAction) {
        self.store()
            .write(async |tx| {
                let open = runs::open(tx, self.tenant, Some(run.thread_id), None).await?;
                let open: Vec<_> = open.into_iter().filter(|one| one.id == run.id).collect();
                run_agent::cancel(tx, self.tenant, &open, action).await
            })
            .await
            .unwrap();
    }

    pub async fn count(&self, text: &str) -> i64 {
        let counted = self.store().read(async |tx| Query::new(tx, text).count(tx).await).await;
        counted.unwrap()
    }

    /// Makes jobs that back off due at once.
    pub async fn hurry(&self) {
        // Jobs that lost two leases stay scheduled: they are claimed directly when due.
        let rest = "SELECT count(*) FROM job WHERE state = 'scheduled' AND lost_leases < 2";
        let suspects = "SELECT count(*) FROM job WHERE state = 'scheduled' AND lost_leases >= 2";
        loop {
            towpath_durable::ready_due(self.store()).await.unwrap();
            let due = self.store().read(async |tx| jobs::suspects(tx).await).await.unwrap();
            if self.count(rest).await == 0 && (!due.is_empty() || self.count(suspects).await == 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
