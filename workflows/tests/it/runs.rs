//! Runs of the agent server: performed one by one, interrupted, cancelled, and performed again.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use towpath_domain::agent::{CancelAction, Frame, Object, RunRequest, RunStatus, ThreadStatus};
use towpath_domain::{AssistantId, Clock, RunId, TenantId, ThreadId, WorkerId};
use towpath_durable::{Claimed, Engine, Registry, Signal};
use towpath_outbound::{Guard, Policy};
use towpath_queue::{Event, Events, Queue};
use towpath_runtime::{Graphs, Outside};
use towpath_store::assistants::{self, Content};
use towpath_store::checkpoints::{self, Place};
use towpath_store::query::Query;
use towpath_store::runs::{self, Run};
use towpath_store::threads::{self, Thread};
use towpath_store::{Options, Store, jobs, run_events};
use towpath_workflows::agent::{self, AgentWorld, EVENTS_KEPT};
use towpath_workflows::run_agent::{self, NewRun, Target};
use towpath_workflows::sweep_agent;

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
    "broken": {"native": {"kind": "script", "channels": {"log": "append"},
        "steps": [{"fail": {"type": "ValueError", "message": "it broke"}}]}}
}}"#;

struct Server {
    world: AgentWorld,
    engine: Engine,
    registry: Registry<AgentWorld>,
    tenant: TenantId,
    _folder: TempDir,
}

impl Server {
    async fn new() -> Self {
        Self::at(Clock::system()).await
    }

    async fn at(clock: Clock) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let uri = format!("sqlite://{}", folder.path().join("agent.db").display());
        let options = Options {
            clock,
            ..Options::default()
        };
        let store = Store::open(&uri, options).await.unwrap();
        store.migrate().await.unwrap();
        let queue = Queue::local();
        agent::connect(&store, &queue);
        let mut registry = agent::registry();
        registry.attach(&store);
        let tenant = TenantId::new();
        let graphs = Graphs::from_config(GRAPHS, folder.path()).unwrap();
        let graphs = graphs.with(&Outside::new(store.clock().clone()));
        for graph in graphs.ids() {
            let content = Content {
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
        Self {
            engine: Engine::new(store.clone(), towpath_durable::Settings::default()),
            world: AgentWorld {
                store,
                queue,
                graphs: graphs.into(),
                guard: Guard::new(Policy::development()),
                tracer: None,
                settings: agent::Settings::default(),
            },
            registry,
            tenant,
            _folder: folder,
        }
    }

    fn store(&self) -> &Store {
        &self.world.store
    }

    /// Records a run and reads what it streams.
    async fn start(&self, target: Target, graph: &str, request: Value) -> (Run, Events) {
        let mut body = json!({"assistant_id": graph, "input": {"log": []}, "if_not_exists": "create"});
        for (key, value) in request.as_object().unwrap() {
            body[key] = value.clone();
        }
        let request: RunRequest = serde_json::from_value(body).unwrap();
        let admitted = request.admit(matches!(target, Target::Own(_))).unwrap();
        let events = self.world.queue.subscribe(target.id()).await;
        let run = self
            .store()
            .write(async |tx| {
                let assistant = assistants::get(tx, self.tenant, AssistantId::of_graph(graph)).await?;
                let new = NewRun {
                    id: RunId::new(),
                    thread: target,
                    assistant: &assistant,
                    admitted,
                    headers: Object::new(),
                    user: None,
                    cron: None,
                    events_kept: EVENTS_KEPT,
                    ttl: None,
                };
                run_agent::start(tx, self.tenant, new).await
            })
            .await
            .unwrap();
        (run, events)
    }

    async fn claim(&self) -> Option<Claimed> {
        self.claim_of(run_agent::POOL).await
    }

    async fn claim_of(&self, pool: &str) -> Option<Claimed> {
        let lease = self.engine.settings().lease;
        let claimed = self
            .store()
            .write(async |tx| jobs::claim(tx, pool, WorkerId::new(), lease, 1, TenantId::nil()).await);
        claimed.await.unwrap().pop()
    }

    async fn perform(&self) {
        self.perform_of(run_agent::POOL).await;
    }

    async fn perform_of(&self, pool: &str) {
        let job = self.claim_of(pool).await.expect("a job is ready");
        let (_tell, told) = watch::channel(Signal::Run);
        towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told).await;
    }

    /// Performs a run until it has streamed an event that holds `text`; then its worker hears `signal`.
    async fn perform_until(&self, events: &mut Events, text: &str, signal: Signal) {
        let job = self.claim().await.expect("a run is ready");
        let (tell, told) = watch::channel(Signal::Run);
        let work = towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told);
        let told_off = async {
            loop {
                if let Event::Frame(frame) = events.next().await
                    && frame.contains(text)
                {
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

    /// Performs a run, and cancels it once this text was streamed.
    async fn cancel_at_work(&self, run: &Run, events: &mut Events, text: &str, action: CancelAction) {
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

    async fn run(&self, id: RunId) -> Option<Run> {
        self.store()
            .read(async |tx| runs::get(tx, self.tenant, id).await)
            .await
            .ok()
    }

    async fn thread(&self, id: ThreadId) -> Thread {
        self.store()
            .read(async |tx| threads::get(tx, self.tenant, id).await)
            .await
            .unwrap()
    }

    /// Its checkpoints' ids, the latest first.
    async fn checkpoints(&self, thread: ThreadId) -> Vec<String> {
        let place = Place { thread, ns: "" };
        let listed = self
            .store()
            .read(async |tx| checkpoints::list(tx, place, None, None, i64::MAX).await);
        listed.await.unwrap().into_iter().map(|row| row.checkpoint_id).collect()
    }

    async fn cancel(&self, run: &Run, action: CancelAction) {
        self.store()
            .write(async |tx| {
                let open = runs::open(tx, self.tenant, Some(run.thread_id), None).await?;
                let open: Vec<_> = open.into_iter().filter(|one| one.id == run.id).collect();
                run_agent::cancel(tx, self.tenant, &open, action).await
            })
            .await
            .unwrap();
    }

    async fn count(&self, text: &str) -> i64 {
        let counted = self.store().read(async |tx| Query::new(tx, text).count(tx).await).await;
        counted.unwrap()
    }

    /// Makes what backs off due at once.
    async fn hurry(&self) {
        while self.count("SELECT count(*) FROM job WHERE state = 'scheduled'").await > 0 {
            towpath_durable::ready_due(self.store()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn values(thread: &Thread) -> Value {
    thread
        .current_values
        .as_deref()
        .map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

/// Names of the events that are there by now, and whether the end was among them.
fn seen(events: &mut Events) -> (Vec<String>, bool) {
    let (mut names, mut ended) = (Vec::new(), false);
    while let Some(event) = events.try_next() {
        let Event::Frame(text) = event else { continue };
        let frame = Frame::decode(&text).unwrap();
        ended |= frame.is_end();
        if !frame.is_end() {
            names.push(frame.event.to_owned());
        }
    }
    (names, ended)
}

#[tokio::test]
async fn a_run_leaves_its_state_on_its_thread() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let (run, mut events) = server.start(Target::On(thread), "steps", json!({})).await;
    assert_eq!(
        server.thread(thread).await.status,
        ThreadStatus::Busy,
        "from the moment it is recorded"
    );
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Success);
    let row = server.thread(thread).await;
    assert_eq!(
        (row.status, values(&row)),
        (ThreadStatus::Idle, json!({"log": ["one", "two"]}))
    );
    let (names, ended) = seen(&mut events);
    assert_eq!((names[0].as_str(), ended), ("metadata", true));
    assert!(names[1..].iter().all(|name| name == "values"), "{names:?}");
    assert_eq!(
        server.count("SELECT count(*) FROM run_event").await,
        0,
        "nobody asked to keep them"
    );
    assert!(server.count("SELECT count(*) FROM checkpoints").await >= 3);
}

#[tokio::test]
async fn a_stateless_run_leaves_nothing() {
    let server = Server::new().await;
    let (run, mut events) = server.start(Target::Own(ThreadId::new()), "steps", json!({})).await;
    server.perform().await;
    assert!(seen(&mut events).1);
    assert!(server.run(run.id).await.is_none());
    for table in [
        "thread",
        "run",
        "checkpoints",
        "checkpoint_blobs",
        "checkpoint_writes",
        "lane",
    ] {
        let text = format!("SELECT count(*) FROM {table}");
        assert_eq!(server.count(&text).await, 0, "{table}");
    }
}

#[tokio::test]
async fn a_lost_attempt_goes_on_where_it_was_and_its_events_keep_their_order() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let asked = json!({"durability": "sync", "stream_resumable": true, "stream_mode": ["values", "updates"]});
    let (run, _events) = server.start(Target::On(thread), "shaky", asked).await;
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Pending);
    server.hurry().await;
    server.perform().await;
    let done = server.run(run.id).await.unwrap();
    assert_eq!(done.status, RunStatus::Success);
    assert_eq!(
        values(&server.thread(thread).await),
        json!({"log": ["one", "two"]}),
        "no step was done twice"
    );
    let after = towpath_domain::agent::EventId::default();
    let logged = server
        .store()
        .read(async |tx| run_events::read(tx, server.tenant, thread, Some(run.id), after, 1000).await)
        .await
        .unwrap();
    let frames: Vec<String> = logged
        .iter()
        .flat_map(|batch| towpath_domain::agent::frame::split(&batch.frames))
        .map(str::to_owned)
        .collect();
    let frames: Vec<Frame<'_>> = frames.iter().map(|text| Frame::decode(text).unwrap()).collect();
    assert!(
        frames.windows(2).all(|pair| pair[0].id < pair[1].id),
        "ids rise, also from attempt to attempt"
    );
    let attempts = frames.iter().filter(|frame| frame.event == "metadata").count();
    assert_eq!(attempts, 2);
    let ones = frames
        .iter()
        .filter(|frame| frame.event == "updates" && frame.data.starts_with(r#"{"one""#))
        .count();
    assert_eq!(ones, 1, "the first step ran in the first attempt only");
    assert!(frames.last().unwrap().is_end());
}

#[tokio::test]
async fn a_run_that_only_loses_its_workers_ends_as_an_error() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let (run, mut events) = server.start(Target::On(thread), "gone", json!({})).await;
    for _ in 0..3 {
        server.perform().await;
        server.hurry().await;
    }
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Pending);
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Error);
    let row = server.thread(thread).await;
    assert_eq!(row.status, ThreadStatus::Error);
    assert!(row.error.unwrap().contains("exceeded max attempts"));
    let (names, ended) = seen(&mut events);
    assert!(ended && names.last().is_some_and(|name| name == "error"), "{names:?}");
}

#[tokio::test]
async fn what_a_graph_raises_is_final() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let (run, mut events) = server.start(Target::On(thread), "broken", json!({})).await;
    server.perform().await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Error);
    let row = server.thread(thread).await;
    let error: Value = serde_json::from_str(row.error.as_deref().unwrap()).unwrap();
    assert_eq!(error, json!({"error": "ValueError", "message": "it broke"}));
    assert_eq!(seen(&mut events).0.last().map(String::as_str), Some("error"));
    // The next run clears it.
    server.start(Target::On(thread), "steps", json!({})).await;
    server.perform().await;
    let row = server.thread(thread).await;
    assert_eq!((row.status, row.error), (ThreadStatus::Idle, None));
}

#[tokio::test]
async fn a_run_at_work_is_interrupted_and_keeps_what_it_did() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let (run, mut events) = server.start(Target::On(thread), "slow", json!({})).await;
    server
        .cancel_at_work(&run, &mut events, r#"["one"]"#, CancelAction::Interrupt)
        .await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Interrupted);
    let row = server.thread(thread).await;
    assert_eq!(row.status, ThreadStatus::Interrupted, "a step is left");
    assert_eq!(values(&row), json!({"log": ["one"]}));
    let (names, ended) = seen(&mut events);
    assert!(ended && !names.iter().any(|name| name == "error"));
}

#[tokio::test]
async fn a_run_that_is_rolled_back_was_never_there() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    server.start(Target::On(thread), "steps", json!({})).await;
    server.perform().await;
    let before = server.count("SELECT count(*) FROM checkpoints").await;
    let (run, mut events) = server
        .start(Target::On(thread), "slow", json!({"durability": "sync"}))
        .await;
    server
        .cancel_at_work(&run, &mut events, r#""two","one"]"#, CancelAction::Rollback)
        .await;
    assert!(server.run(run.id).await.is_none());
    assert_eq!(server.count("SELECT count(*) FROM checkpoints").await, before);
    let row = server.thread(thread).await;
    assert_eq!(
        (row.status, values(&row)),
        (ThreadStatus::Idle, json!({"log": ["one", "two"]}))
    );
}

/// What a run writes on the checkpoint it begins at is taken back with it: here the answer to what was asked there.
#[tokio::test]
async fn an_answer_that_is_rolled_back_was_never_given() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    server.start(Target::On(thread), "asks", json!({})).await;
    server.perform().await;
    assert_eq!(server.thread(thread).await.status, ThreadStatus::Interrupted);
    let written = async || server.count("SELECT count(*) FROM checkpoint_writes").await;
    let before = written().await;
    let answer = |text: &str| json!({"input": null, "command": {"resume": text}, "durability": "sync"});
    let (run, mut events) = server.start(Target::On(thread), "asks", answer("no")).await;
    server
        .cancel_at_work(&run, &mut events, r#"["asked"]"#, CancelAction::Rollback)
        .await;
    assert!(server.run(run.id).await.is_none());
    assert_eq!(written().await, before);
    // The question is open again, and another answer is the one that counts.
    let (run, mut events) = server.start(Target::On(thread), "asks", answer("yes")).await;
    server
        .cancel_at_work(&run, &mut events, r#"["asked"]"#, CancelAction::Interrupt)
        .await;
    assert_eq!(server.run(run.id).await.unwrap().status, RunStatus::Interrupted);
    let row = server.thread(thread).await;
    assert_eq!(values(&row), json!({"answer": "yes", "log": ["asked"]}));
}

#[tokio::test]
async fn runs_that_wait_end_at_once_when_cancelled() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let (first, _) = server.start(Target::On(thread), "steps", json!({})).await;
    let (second, mut events) = server.start(Target::On(thread), "steps", json!({})).await;
    let (third, _) = server.start(Target::On(thread), "steps", json!({})).await;
    server.cancel(&second, CancelAction::Interrupt).await;
    server.cancel(&third, CancelAction::Rollback).await;
    assert_eq!(server.run(second.id).await.unwrap().status, RunStatus::Interrupted);
    assert!(server.run(third.id).await.is_none());
    assert!(seen(&mut events).1, "its readers are told");
    assert_eq!(
        server.thread(thread).await.status,
        ThreadStatus::Busy,
        "the first is still to come"
    );
    server.perform().await;
    assert_eq!(server.run(first.id).await.unwrap().status, RunStatus::Success);
    assert_eq!(server.thread(thread).await.status, ThreadStatus::Idle);
    assert!(server.claim().await.is_none());
}

#[tokio::test]
async fn a_worker_that_dies_in_a_step_costs_that_step_only() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let asked = json!({"durability": "sync"});
    let (run, mut events) = server.start(Target::On(thread), "slow", asked).await;
    server.perform_until(&mut events, r#"["one"]"#, Signal::Lost).await;
    towpath_durable::ready_earlier_boots(server.store()).await.unwrap();
    // The next attempt begins with the second step: the first is not seen again.
    let _ = seen(&mut events);
    let job = server.claim().await.unwrap();
    let (tell, told) = watch::channel(Signal::Run);
    let work = towpath_durable::perform(&server.engine, &server.registry, &server.world, job, told);
    let stop = async {
        while !matches!(events.next().await, Event::Frame(frame) if frame.contains("metadata")) {}
        server.cancel(&run, CancelAction::Interrupt).await;
        tell.send_replace(Signal::Cancel);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = work => {}
        () = stop => {}
    }
    assert_eq!(values(&server.thread(thread).await), json!({"log": ["one"]}));
}

#[tokio::test]
async fn a_thread_is_deleted_under_its_run() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let (run, mut events) = server.start(Target::On(thread), "slow", json!({})).await;
    let job = server.claim().await.unwrap();
    let (tell, told) = watch::channel(Signal::Run);
    let work = towpath_durable::perform(&server.engine, &server.registry, &server.world, job, told);
    let delete = async {
        while !matches!(events.next().await, Event::Frame(frame) if frame.contains(r#"["one"]"#)) {}
        server
            .store()
            .write(async |tx| run_agent::delete_thread(tx, server.tenant, thread).await)
            .await
            .unwrap();
        tell.send_replace(Signal::Cancel);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = work => {}
        () = delete => {}
    }
    assert!(server.run(run.id).await.is_none());
    for table in ["thread", "run", "checkpoints", "checkpoint_blobs", "checkpoint_writes"] {
        let text = format!("SELECT count(*) FROM {table}");
        assert_eq!(server.count(&text).await, 0, "{table}");
    }
}

#[tokio::test]
async fn histories_are_cut_by_number_and_by_age_but_for_the_latest_state() {
    const DAY: Duration = Duration::from_secs(86_400);
    // Not before today: ids of checkpoints only grow within a process, whatever clock they are made by.
    let clock = Clock::stopped(Clock::system().now());
    let mut server = Server::at(clock.clone()).await;
    server.world.settings.keep_checkpoints = 5;
    server.world.settings.checkpoints_kept = DAY * 90;
    let tenant = server.tenant;
    sweep_agent::ensure(server.store(), tenant).await.unwrap();
    let sweep = async || {
        clock.advance(Duration::from_secs(61));
        towpath_durable::ready_due(server.store()).await.unwrap();
        server.perform_of("sweeps").await;
    };
    let (busy, resting) = (ThreadId::new(), ThreadId::new());
    for thread in [busy, resting] {
        for _ in 0..2 {
            drop(server.start(Target::On(thread), "steps", json!({})).await);
            server.perform().await;
        }
    }
    assert_eq!(
        server.checkpoints(busy).await.len(),
        8,
        "an input and three supersteps a run"
    );
    sweep().await;
    assert_eq!(server.checkpoints(busy).await.len(), 5);

    clock.advance(DAY * 60);
    drop(server.start(Target::On(busy), "steps", json!({})).await);
    server.perform().await;
    let latest = server.checkpoints(resting).await.remove(0);
    sweep().await;
    // Nobody swept for longer than a sweep looks back on its own: the first one after it makes up for that.
    clock.advance(DAY * 60);
    sweep().await;
    assert_eq!(server.checkpoints(resting).await, [latest], "120 days at rest");
    assert_eq!(server.checkpoints(busy).await.len(), 4, "its last run is 60 days old");
}
