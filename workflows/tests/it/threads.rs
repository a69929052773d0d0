//! Threads are deleted, updated, copied and pruned while runs start, work and end. On both databases.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::sync::{Notify, watch};
use towpath_domain::agent::namespace::Namespace;
use towpath_domain::agent::{CancelAction, RunStatus, ThreadStatus};
use towpath_domain::{AssistantId, Clock, RunId, ThreadId};
use towpath_durable::Signal;
use towpath_queue::{Event, Events};
use towpath_runtime::{CheckpointRef, Graph, HistoryQuery, Host as _, StateRef, StateSnapshot, Update};
use towpath_store::query::Query;
use towpath_store::{self as store, Dialect, items, run_events};
use towpath_testing::Database;
use towpath_workflows::agent::AuthorSettings;
use towpath_workflows::run_agent::{self, Deletion, Target};
use towpath_workflows::thread_history;
use towpath_workflows::thread_state::{self, StateHost, StateUpdate, UpdateError};

use crate::fixture::migrate;
use crate::server::Server;

const GRAPHS: &str = r#"{"graphs": {
    "steps": {"native": {"kind": "workflow", "channels": {"log": "append"},
        "nodes": {"one": {"kind": "script", "steps": [{"append": {"log": "one"}}]},
                  "two": {"kind": "script", "steps": [{"append": {"log": "two"}}]}},
        "edges": [["__start__", "one"], ["one", "two"]]}},
    "slow": {"native": {"kind": "workflow", "channels": {"log": "append", "slow": "append"},
        "nodes": {"one": {"kind": "script", "steps": [{"append": {"slow": "one"}}]},
                  "two": {"kind": "script", "steps": [{"sleep_ms": 60000}]}},
        "edges": [["__start__", "one"], ["one", "two"]]}},
    "nested": {"native": {"kind": "workflow", "channels": {"log": "append", "answer": "last-value"},
        "nodes": {"sub": {"kind": "workflow", "channels": {"log": "append", "answer": "last-value"},
            "nodes": {"first": {"kind": "script", "steps": [{"append": {"log": "first"}}]},
                      "ask": {"kind": "script", "steps": [{"interrupt": "go on?", "into": "answer"}, {"append": {"log": "asked"}}]}},
            "edges": [["__start__", "first"], ["first", "ask"]]}},
        "edges": [["__start__", "sub"]]}},
    "reads": {"native": {"kind": "script", "channels": {"log": "append", "found": "last-value"},
        "steps": [{"item": {"get": {"namespace": ["users"], "key": "k"}}, "into": "found"}]}}
}}"#;

/// One test for both databases.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[tokio::test]
            async fn sqlite() {
                super::$name(super::sqlite().await).await;
            }

            #[tokio::test]
            async fn postgres() {
                if let Some(server) = super::postgres().await {
                    super::$name(server).await;
                }
            }
        }
    )*};
}

on_both!(
    a_run_that_is_over_is_not_deleted_under_one_at_work,
    a_run_that_is_over_is_deleted_before_one_that_waits,
    a_run_that_is_deleted_at_work_keeps_its_thread_busy,
    a_value_that_is_lost_is_no_empty_channel,
    a_state_is_not_written_to_a_thread_that_is_gone,
    calls_of_subgraphs_go_with_what_called_them,
    a_history_is_read_in_parts,
    pages_of_a_list_share_a_part,
    items_that_a_graph_reads_live_on,
    metadata_of_a_run_names_no_other_graph_for_its_thread,
    an_update_is_told_of_as_long_as_events_are_kept,
);

async fn sqlite() -> Server {
    Server::with(Database::sqlite(migrate).await, clock(), GRAPHS).await
}

async fn postgres() -> Option<Server> {
    Some(Server::with(Database::postgres(migrate).await?, clock(), GRAPHS).await)
}

/// Stands still until a test moves it.
fn clock() -> Clock {
    Clock::stopped(Clock::system().now())
}

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

impl Server {
    fn graph(&self, name: &str) -> Graph {
        self.world.graphs.get(name).expect("a graph of this file")
    }

    /// Records a run, performs it, and returns its id.
    async fn done(&self, thread: ThreadId, graph: &str, request: Value) -> RunId {
        let (run, _events) = self.start(Target::Existing(thread), graph, request).await;
        self.perform().await;
        run.id
    }

    async fn delete_run(&self, thread: ThreadId, run: RunId) -> store::Result<Deletion> {
        self.store()
            .write(async |tx| run_agent::delete_run(tx, self.tenant, thread, run).await)
            .await
    }

    async fn update(&self, thread: ThreadId, id: Option<String>) -> Result<CheckpointRef, UpdateError> {
        self.tick();
        let update = Update {
            values: json!({"log": ["by hand"]}),
            as_node: Some("one".to_owned()),
            command: None,
        };
        let update = StateUpdate {
            thread,
            at: StateRef {
                id,
                ..StateRef::latest(thread.0)
            },
            supersteps: &[vec![update]],
            metadata: Map::new(),
            events_kept: self.world.settings.event_retention,
        };
        thread_state::update(self.store(), self.tenant, &self.graph("steps"), &update).await
    }

    async fn state(&self, thread: ThreadId, graph: &str) -> StateSnapshot {
        let host = StateHost::new(self.store(), thread);
        let state = self.graph(graph).state(&StateRef::latest(thread.0), &host).await;
        state.unwrap().expect("the thread has a state")
    }

    /// Changes of a thread are distinguished by their time.
    fn tick(&self) {
        self.store().clock().advance(Duration::from_millis(1));
    }

    /// Performs a run; after it has streamed `text`, performs an action, and then signals that the run was cancelled.
    async fn at_work(&self, events: &mut Events, text: &str, meanwhile: impl AsyncFnOnce()) {
        let job = self.claim().await.expect("a run is ready");
        let (tell, told) = watch::channel(Signal::Run);
        let work = towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told);
        let beside = async {
            while !matches!(events.next().await, Event::Frame(frame) if frame.contains(text)) {}
            meanwhile().await;
            tell.send_replace(Signal::Cancel);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = work => {}
            () = beside => {}
        }
    }

    async fn is_empty(&self) {
        for table in [
            "thread",
            "run",
            "checkpoints",
            "checkpoint_blobs",
            "checkpoint_writes",
            "replaced_write",
            "run_event",
        ] {
            let text = format!("SELECT count(*) FROM {table}");
            assert_eq!(self.count(&text).await, 0, "{table}");
        }
    }

    /// Waits until another session of this database waits for a lock.
    async fn somebody_waits(&self) {
        let deadline = Instant::now() + PATIENCE;
        let text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                    AND backend_type = 'client backend' AND wait_event_type = 'Lock'";
        while self.count(text).await == 0 {
            assert!(Instant::now() < deadline, "nobody waited for a lock");
        }
    }
}

fn conflict<T: std::fmt::Debug>(found: Result<T, UpdateError>) -> String {
    match found {
        Err(UpdateError::Store(store::Error::Rejected(rejection))) => rejection.message,
        other => panic!("{other:?}"),
    }
}

fn is_missing<T>(found: &Result<T, UpdateError>) -> bool {
    matches!(found, Err(UpdateError::Store(store::Error::NotFound)))
}

async fn a_run_that_is_over_is_not_deleted_under_one_at_work(server: Server) {
    let thread = ThreadId::new();
    let first = server.done(thread, "steps", json!({})).await;
    let (second, mut events) = server
        .start(Target::Existing(thread), "slow", json!({"durability": "sync"}))
        .await;
    server
        .at_work(&mut events, r#""slow":["one"]"#, async || {
            let refused = match server.delete_run(thread, first).await {
                Err(store::Error::Rejected(refused)) => refused.message,
                other => panic!("{other:?}"),
            };
            for run in [first, second.id] {
                assert!(refused.contains(&run.to_string()), "{refused}");
            }
            server.cancel(&second, CancelAction::Interrupt).await;
        })
        .await;
    assert_eq!(server.run(first).await.unwrap().status, RunStatus::Success);
    let state = server.state(thread, "slow").await;
    assert_eq!(
        state.values,
        json!({"log": ["one", "two"], "slow": ["one"]}),
        "what the first run wrote is there"
    );
    assert_eq!(server.delete_run(thread, first).await.unwrap(), Deletion::Done);
    assert!(server.run(first).await.is_none());
    let state = server.state(thread, "slow").await;
    assert_eq!(
        state.values,
        json!({"log": ["one", "two"], "slow": ["one"]}),
        "the second run's checkpoints name it"
    );
}

async fn a_run_that_is_over_is_deleted_before_one_that_waits(server: Server) {
    let thread = ThreadId::new();
    let first = server.done(thread, "steps", json!({})).await;
    let (second, _events) = server.start(Target::Existing(thread), "steps", json!({})).await;
    assert_eq!(server.delete_run(thread, first).await.unwrap(), Deletion::Done);
    server.perform().await;
    assert_eq!(server.run(second.id).await.unwrap().status, RunStatus::Success);
    let state = server.state(thread, "steps").await;
    assert_eq!(
        state.values,
        json!({"log": ["one", "two"]}),
        "as if the first had never been there"
    );
}

async fn a_run_that_is_deleted_at_work_keeps_its_thread_busy(server: Server) {
    let thread = ThreadId::new();
    server.done(thread, "steps", json!({})).await;
    let before = server.checkpoints(thread).await;
    let (run, mut events) = server
        .start(Target::Existing(thread), "slow", json!({"durability": "sync"}))
        .await;
    server
        .at_work(&mut events, r#""slow":["one"]"#, async || {
            for _ in 0..2 {
                assert_eq!(server.delete_run(thread, run.id).await.unwrap(), Deletion::Stopping);
                assert_eq!(server.thread(thread).await.status, ThreadStatus::Busy);
                let refused = conflict(server.update(thread, None).await);
                assert!(
                    refused.contains("in-flight") && refused.contains(&run.id.to_string()),
                    "{refused}"
                );
            }
        })
        .await;
    assert!(server.run(run.id).await.is_none());
    assert_eq!(server.thread(thread).await.status, ThreadStatus::Idle);
    assert_eq!(server.checkpoints(thread).await, before);
    server.update(thread, None).await.unwrap();
    let missing = server.delete_run(thread, run.id).await;
    assert!(matches!(missing, Err(store::Error::NotFound)), "{missing:?}");
    // A waiting run is deleted at once, and its thread keeps its state: the update left steps to do.
    let stood = server.thread(thread).await.status;
    assert_eq!(stood, ThreadStatus::Interrupted);
    let (run, _events) = server.start(Target::Existing(thread), "slow", json!({})).await;
    assert_eq!(server.thread(thread).await.status, ThreadStatus::Busy);
    assert_eq!(server.delete_run(thread, run.id).await.unwrap(), Deletion::Done);
    assert_eq!(server.thread(thread).await.status, stood);
}

async fn a_value_that_is_lost_is_no_empty_channel(server: Server) {
    let thread = ThreadId::new();
    server.done(thread, "steps", json!({})).await;
    let execute = async |text: &str| {
        let written = server
            .store()
            .write(async |tx| Query::new(tx, text).execute(tx).await)
            .await;
        written.unwrap()
    };
    let load = async || StateHost::new(server.store(), thread).load("", None).await;
    assert!(load().await.unwrap().is_some());
    assert!(execute("DELETE FROM checkpoint_blobs").await > 0);
    let error = load().await.unwrap_err().to_string();
    assert!(
        error.contains("checkpoint_blobs.blob") && error.contains("log"),
        "{error}"
    );
    // Data of older versions does not record which channels have a value.
    execute(match server.store().dialect() {
        Dialect::Sqlite => "UPDATE checkpoints SET checkpoint = json_remove(checkpoint, '$.channels_apart')",
        Dialect::Postgres => "UPDATE checkpoints SET checkpoint = checkpoint - 'channels_apart'",
    })
    .await;
    assert!(load().await.unwrap().is_some());
}

async fn a_state_is_not_written_to_a_thread_that_is_gone(server: Server) {
    let thread = ThreadId::new();
    server.done(thread, "steps", json!({})).await;
    server
        .store()
        .write(async |tx| run_agent::delete_thread(tx, server.tenant, thread).await)
        .await
        .unwrap();
    let updated = server.update(thread, None).await;
    assert!(is_missing(&updated), "{updated:?}");
    server.is_empty().await;
}

const CALLS: &str = "SELECT count(*) FROM checkpoints WHERE checkpoint_ns <> ''";

async fn calls_of_subgraphs_go_with_what_called_them(server: Server) {
    let thread = ThreadId::new();
    let cut = async || {
        server
            .store()
            .write(async |tx| thread_history::keep_latest(tx, server.tenant, thread).await)
            .await
            .unwrap();
    };
    for _ in 0..3 {
        server.done(thread, "nested", json!({})).await;
        assert_eq!(server.thread(thread).await.status, ThreadStatus::Interrupted);
        cut().await;
        assert_eq!(server.count(CALLS).await, 1, "the call that waits stays");
        let answer = json!({"input": null, "command": {"resume": "yes"}});
        server.done(thread, "nested", answer).await;
        let row = server.thread(thread).await;
        assert_eq!(row.status, ThreadStatus::Idle);
        let values: Value = serde_json::from_str(row.current_values.as_deref().unwrap()).unwrap();
        assert_eq!(values["answer"], "yes");
        assert!(server.count(CALLS).await > 1);
        cut().await;
        assert_eq!(server.count(CALLS).await, 0, "nobody waits for the calls that are over");
        assert_eq!(server.checkpoints(thread).await.len(), 1);
    }
}

async fn a_history_is_read_in_parts(server: Server) {
    let thread = ThreadId::new();
    for _ in 0..2 {
        server.done(thread, "steps", json!({})).await;
    }
    let (graph, at) = (server.graph("steps"), StateRef::latest(thread.0));
    let whole = StateHost::new(server.store(), thread);
    let whole = graph.history(&at, &HistoryQuery::default(), &whole).await.unwrap();
    assert_eq!(whole.len(), 8);
    let roomy = StateHost::new(server.store(), thread).with_part_bytes(1 << 30);
    assert_eq!(
        graph.history(&at, &HistoryQuery::default(), &roomy).await.unwrap(),
        whole
    );
    assert!(!roomy.is_truncated());
    let mut query = HistoryQuery::default();
    let mut parts = Vec::new();
    loop {
        let host = StateHost::new(server.store(), thread).with_part_bytes(1);
        let part = graph.history(&at, &query, &host).await.unwrap();
        assert_eq!(part.len(), 1, "one at least, and no more than fits");
        query.before = part[0].checkpoint.checkpoint_id.clone();
        parts.extend(part);
        if !host.is_truncated() {
            break;
        }
    }
    assert_eq!(parts, whole);
}

/// As the host of Python graphs lists them.
async fn pages_of_a_list_share_a_part(server: Server) {
    let thread = ThreadId::new();
    server.done(thread, "steps", json!({})).await;
    let all = server.checkpoints(thread).await;
    let host = StateHost::new(server.store(), thread).with_part_bytes(1);
    let page = async |before: Option<&String>| {
        let query = HistoryQuery {
            limit: Some(1),
            before: before.cloned(),
            ..HistoryQuery::default()
        };
        let page = host.list("", &query).await.unwrap();
        page.into_iter().map(|saved| saved.checkpoint.id).collect::<Vec<_>>()
    };
    assert_eq!(page(None).await, all[..1]);
    assert!(page(Some(&all[0])).await.is_empty(), "the first page is a part already");
    assert!(host.is_truncated());
    assert_eq!(page(None).await, all[..1], "a list that begins anew");
}

async fn items_that_a_graph_reads_live_on(server: Server) {
    let clock = server.store().clock().clone();
    let space = Namespace::new("namespace", vec!["users".to_owned()]).unwrap();
    server
        .store()
        .write(async |tx| items::put(tx, server.tenant, &space, "k", r#"{"n":1}"#, Some(10.0), None).await)
        .await
        .unwrap();
    let is_there = async || {
        let read = server
            .store()
            .read(async |tx| items::get(tx, server.tenant, &space, "k").await);
        read.await.unwrap().is_some()
    };
    // Recorded now: due times use the database's clock, which stays unchanged.
    for _ in 0..4 {
        server
            .start(Target::Existing(ThreadId::new()), "reads", json!({}))
            .await;
    }
    for _ in 0..3 {
        clock.advance(Duration::from_secs(9 * 60));
        server.perform().await;
        assert!(is_there().await, "each look gives it ten minutes more");
    }
    server.world.settings.author_settings.replace(AuthorSettings {
        refresh_on_read: false,
        ..AuthorSettings::default()
    });
    clock.advance(Duration::from_secs(9 * 60));
    server.perform().await;
    clock.advance(Duration::from_secs(2 * 60));
    assert!(
        !is_there().await,
        "where the graphs' author does not want that, it does not live on"
    );
}

/// The graph in its metadata reads and updates its state.
async fn metadata_of_a_run_names_no_other_graph_for_its_thread(server: Server) {
    let metadata = json!({"graph_id": "slow", "assistant_id": "another", "owner": "ada"});
    let asked = json!({"metadata": metadata, "on_completion": "keep"});
    for target in [Target::Existing(ThreadId::new()), Target::New(ThreadId::new())] {
        server.start(target, "steps", asked.clone()).await;
        server.perform().await;
        let row = server.thread(target.id()).await;
        assert_eq!(thread_state::graph_of(&row).as_deref(), Some("steps"), "{target:?}");
        let metadata: Value = serde_json::from_str(&row.metadata).unwrap();
        let assistant = json!(AssistantId::of_graph("steps"));
        assert_eq!(
            (&metadata["assistant_id"], &metadata["owner"]),
            (&assistant, &json!("ada")),
            "{target:?}"
        );
    }
}

async fn an_update_is_told_of_as_long_as_events_are_kept(mut server: Server) {
    server.world.settings.event_retention = Duration::from_secs(10);
    let thread = ThreadId::new();
    server.done(thread, "steps", json!({})).await;
    server.update(thread, None).await.unwrap();
    let prune = async || {
        let pruned = server.store().write(async |tx| run_events::prune(tx, 100).await).await;
        pruned.unwrap()
    };
    server.store().clock().advance(Duration::from_secs(9));
    assert_eq!(prune().await, 0, "9 of 10 seconds are over");
    server.store().clock().advance(Duration::from_secs(2));
    assert_eq!(prune().await, 1, "11 of 10 seconds are over");
}

/// The thread is deleted between the read and the record of an update. On SQLite nothing can happen between the two
/// locks.
#[tokio::test]
async fn a_thread_that_is_deleted_under_an_update_stays_gone() {
    let Some(server) = postgres().await else { return };
    let thread = ThreadId::new();
    server.done(thread, "steps", json!({})).await;
    let deleted = Notify::new();
    let delete = server.store().write(async |tx| {
        run_agent::delete_thread(tx, server.tenant, thread).await?;
        deleted.notify_one();
        server.somebody_waits().await;
        Ok(())
    });
    let update = async {
        deleted.notified().await;
        server.update(thread, None).await
    };
    let (deleted, updated) = tokio::join!(delete, update);
    deleted.unwrap();
    assert!(is_missing(&updated), "{updated:?}");
    server.is_empty().await;
}

/// The updated checkpoint is deleted between the read and the record; the latest one stays.
#[tokio::test]
async fn an_update_is_not_made_of_a_checkpoint_that_is_deleted() {
    let Some(server) = postgres().await else { return };
    let thread = ThreadId::new();
    let first = server.done(thread, "steps", json!({})).await;
    let made = server.checkpoints(thread).await[1].clone();
    server.done(thread, "steps", json!({})).await;
    let deleted = Notify::new();
    let delete = server.store().write(async |tx| {
        run_agent::delete_run(tx, server.tenant, thread, first).await?;
        deleted.notify_one();
        server.somebody_waits().await;
        Ok(())
    });
    let update = async {
        deleted.notified().await;
        server.update(thread, Some(made)).await
    };
    let (deleted, updated) = tokio::join!(delete, update);
    deleted.unwrap();
    assert!(matches!(updated, Err(UpdateError::Graph(_))), "{updated:?}");
    assert_eq!(server.checkpoints(thread).await.len(), 4, "nothing was written");
}

/// A run is recorded while the thread is about to be pruned, and starts from an old checkpoint.
#[tokio::test]
async fn a_thread_is_not_cut_under_a_run_that_is_recorded() {
    let Some(server) = postgres().await else { return };
    let thread = ThreadId::new();
    server.done(thread, "steps", json!({})).await;
    let before = server.checkpoints(thread).await;
    let request = json!({"checkpoint_id": before[1], "input": null});
    let recorded = Notify::new();
    let record = server.store().write(async |tx| {
        let run = server.record(tx, Target::Existing(thread), "steps", &request).await?;
        recorded.notify_one();
        server.somebody_waits().await;
        Ok(run.id)
    });
    let cut = async {
        recorded.notified().await;
        server
            .store()
            .write(async |tx| thread_history::keep_latest(tx, server.tenant, thread).await)
            .await
    };
    let (run, cut) = tokio::join!(record, cut);
    cut.unwrap();
    assert_eq!(server.checkpoints(thread).await, before);
    server.perform().await;
    assert_eq!(server.run(run.unwrap()).await.unwrap().status, RunStatus::Success);
}
