//! Threads and runs, on both databases.

use serde_json::{Value, json};
use towpath_domain::agent::{MultitaskStrategy, RunStatus, ThreadStatus, TtlStrategy};
use towpath_domain::job::JobState;
use towpath_domain::{AssistantId, JobId, RunId, TenantId, ThreadId};
use towpath_store::jobs::{self, NewJob};
use towpath_store::runs::stateless::{self, NewStatelessRun};
use towpath_store::runs::{self, NewRun};
use towpath_store::threads::{self, Filter, NewThread, Search, SortBy, ThreadOutcome, Ttl};
use towpath_store::{Error, Store};

use crate::database::Database;

/// One test for both databases.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[tokio::test]
            async fn sqlite() {
                super::$name(super::migrated(super::Database::sqlite().await).await).await;
            }

            #[tokio::test]
            async fn postgres() {
                if let Some(database) = super::Database::postgres().await {
                    super::$name(super::migrated(database).await).await;
                }
            }
        }
    )*};
}

mod events;
mod filters;
mod histories;
mod removal;
mod repeats;
mod ttl;

on_both!(
    filters_mean_the_same,
    threads_are_found,
    a_thread_follows_its_runs,
    a_thread_goes_back_to_where_it_stood,
    runs_with_threads_of_their_own_come_and_go_together,
);

async fn migrated(database: Database) -> Database {
    database.store.migrate().await.unwrap();
    database
}

const fn new(id: ThreadId, metadata: &str) -> NewThread<'_> {
    NewThread {
        id,
        metadata,
        config: "{}",
        status: ThreadStatus::Idle,
        temporary: false,
        ttl: None,
    }
}

async fn thread(store: &Store, tenant: TenantId, metadata: &Value) -> ThreadId {
    let id = ThreadId::new();
    let text = metadata.to_string();
    store
        .write(async |tx| threads::insert(tx, tenant, &new(id, &text)).await)
        .await
        .unwrap();
    id
}

/// What `@>` of PostgreSQL says, written down again.
fn contains(value: &Value, filter: &Value) -> bool {
    match (value, filter) {
        (Value::Object(value), Value::Object(filter)) => filter
            .iter()
            .all(|(key, filter)| value.get(key).is_some_and(|value| contains(value, filter))),
        (Value::Array(value), Value::Array(filter)) => filter
            .iter()
            .all(|filter| value.iter().any(|value| contains(value, filter))),
        (Value::Number(value), Value::Number(filter)) => value.as_f64() == filter.as_f64(),
        _ => value == filter,
    }
}

async fn filters_mean_the_same(database: Database) {
    let store = &database.store;
    let tenant = TenantId::new();
    let values = [
        json!({}),
        json!({"a": 1}),
        json!({"a": 1.0, "b": null}),
        json!({"a": "1"}),
        json!({"a": true}),
        json!({"a": false, "c": {}}),
        json!({"a": {"b": {"c": "deep"}}}),
        json!({"a": {"b": "other"}}),
        json!({"a": [1, "two", {"k": 3}, [4, 5]]}),
        json!({"a": []}),
        json!({"a b.c[0]": 1, "qu\"ote": {"x": [1]}, "back\\slash": "y"}),
        json!({"a": null}),
        json!({"ü": "ß"}),
    ];
    let filters = [
        json!({"a": 1}),
        json!({"a": 1.0}),
        json!({"a": "1"}),
        json!({"a": true}),
        json!({"a": false}),
        json!({"a": null}),
        json!({"a": {}}),
        json!({"c": {}}),
        json!({"a": []}),
        json!({"a": {"b": {"c": "deep"}}}),
        json!({"a": {"b": {}}}),
        json!({"a": ["two"]}),
        json!({"a": ["two", 1]}),
        json!({"a": [{"k": 3}]}),
        json!({"a": [{"k": 4}]}),
        json!({"a": [[5]]}),
        json!({"a": [[6]]}),
        json!({"a": ["three"]}),
        json!({"a b.c[0]": 1}),
        json!({"qu\"ote": {"x": [1]}}),
        json!({"back\\slash": "y"}),
        json!({"back\\slash": "n"}),
        json!({"ü": "ß"}),
        json!({"a": 1, "b": null}),
    ];
    for value in &values {
        thread(store, tenant, value).await;
    }
    for filter in &filters {
        let expected = values.iter().filter(|value| contains(value, filter)).count();
        let filter_rows = Filter {
            metadata: Some(filter.clone()),
            ..Filter::default()
        };
        let found = store
            .read(async |tx| threads::count(tx, tenant, &filter_rows).await)
            .await
            .unwrap();
        assert_eq!(found, expected as i64, "{filter}");
    }
}

async fn threads_are_found(database: Database) {
    let store = &database.store;
    let (tenant, other) = (TenantId::new(), TenantId::new());
    let first = thread(store, tenant, &json!({"user": "ada"})).await;
    let second = thread(store, tenant, &json!({"user": "bob"})).await;
    thread(store, other, &json!({"user": "ada"})).await;
    let hidden = ThreadId::new();
    store
        .write(async |tx| {
            let hidden = NewThread {
                temporary: true,
                ..new(hidden, "{}")
            };
            threads::insert(tx, tenant, &hidden).await?;
            let left = ThreadOutcome {
                state: Some((r#"{"n":1}"#, r#"{"task":[{"id":"i","value":1}]}"#)),
                error: None,
            };
            threads::settle(tx, tenant, second, ThreadStatus::Interrupted, &left).await
        })
        .await
        .unwrap();
    let find = async |filter: Filter, ascending: bool| {
        let search = Search {
            filter,
            sort_by: SortBy::ThreadId,
            ascending,
            limit: 10,
            offset: 0,
            with_values: true,
        };
        let found = store.read(async |tx| threads::search(tx, tenant, &search).await).await;
        found.unwrap().into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(find(Filter::default(), true).await, [first, second]);
    assert_eq!(find(Filter::default(), false).await, [second, first]);
    let by_user = Filter {
        metadata: Some(json!({"user": "ada"})),
        ..Filter::default()
    };
    assert_eq!(find(by_user, true).await, [first], "not another workspace's");
    let by_values = Filter {
        values: Some(json!({"n": 1})),
        status: Some(ThreadStatus::Interrupted),
        ..Filter::default()
    };
    assert_eq!(find(by_values, true).await, [second]);
    let by_ids = Filter {
        ids: Some(vec![first]),
        ..Filter::default()
    };
    assert_eq!(find(by_ids, true).await, [first]);
    let none = Filter {
        ids: Some(Vec::new()),
        ..Filter::default()
    };
    assert_eq!(find(none, true).await, []);
    let foreign = store.read(async |tx| threads::get(tx, other, first).await).await;
    assert!(matches!(foreign, Err(Error::NotFound)));
    let again = store
        .write(async |tx| threads::insert(tx, other, &new(first, "{}")).await)
        .await;
    assert!(matches!(again, Err(Error::Conflict { .. })), "ids are taken for all");
    let made = store
        .write(async |tx| threads::insert_new(tx, tenant, &new(first, "{}")).await)
        .await;
    assert!(!made.unwrap());
}

async fn run(store: &Store, tenant: TenantId, thread: ThreadId) -> RunId {
    let id = RunId::new();
    store
        .write(async |tx| {
            let run = NewRun {
                id,
                thread,
                assistant: AssistantId::of_graph("agent"),
                job: JobId::new(),
                cron: None,
                metadata: "{}",
                kwargs: "{}",
                strategy: MultitaskStrategy::Enqueue,
                created_at: tx.now(),
            };
            runs::insert(tx, tenant, &run).await
        })
        .await
        .unwrap();
    id
}

async fn a_thread_follows_its_runs(database: Database) {
    let store = &database.store;
    let tenant = TenantId::new();
    let id = ThreadId::new();
    store
        .write(async |tx| {
            let ttl = Ttl {
                strategy: TtlStrategy::KeepLatest,
                minutes: 1.5,
            };
            let new = NewThread {
                ttl: Some(ttl),
                ..new(id, "{}")
            };
            threads::insert(tx, tenant, &new).await.map(drop)
        })
        .await
        .unwrap();
    let (one, two) = (run(store, tenant, id).await, run(store, tenant, id).await);
    let settle = async |run: RunId, status: RunStatus| {
        store
            .write(async |tx| {
                let hit = runs::finish(tx, tenant, run, status).await?;
                let left = ThreadOutcome {
                    state: Some((r#"{"n":1}"#, "{}")),
                    error: None,
                };
                threads::settle(tx, tenant, id, ThreadStatus::Idle, &left).await?;
                Ok(hit)
            })
            .await
            .unwrap()
    };
    let read = async || store.read(async |tx| threads::get(tx, tenant, id).await).await.unwrap();
    assert!(settle(one, RunStatus::Success).await);
    assert_eq!(read().await.status, ThreadStatus::Busy, "another run is open");
    assert!(!settle(one, RunStatus::Error).await, "a final state never changes");
    let open = store
        .read(async |tx| runs::open(tx, tenant, Some(id), None).await)
        .await
        .unwrap();
    assert_eq!(open.iter().map(|run| run.id).collect::<Vec<_>>(), [two]);
    assert!(settle(two, RunStatus::Success).await);
    let row = read().await;
    assert_eq!(
        (row.status, row.current_values.as_deref()),
        (ThreadStatus::Idle, Some(r#"{"n":1}"#))
    );
    let lives = row.expires_at.unwrap().since(row.updated_at);
    assert_eq!(lives.as_secs(), 90, "its time begins anew with each run");
    let page = runs::Page {
        status: Some(RunStatus::Success),
        limit: 10,
        offset: 0,
    };
    let listed = store
        .read(async |tx| runs::list(tx, tenant, id, page).await)
        .await
        .unwrap();
    assert_eq!(
        listed.iter().map(|run| run.id).collect::<Vec<_>>(),
        [two, one],
        "newest first"
    );
    store
        .write(async |tx| threads::delete(tx, tenant, id).await)
        .await
        .unwrap();
    let gone = store.read(async |tx| runs::get(tx, tenant, one).await).await;
    assert!(matches!(gone, Err(Error::NotFound)), "runs go with their thread");
}

async fn a_thread_goes_back_to_where_it_stood(database: Database) {
    let store = &database.store;
    let tenant = TenantId::new();
    let id = thread(store, tenant, &json!({})).await;
    let read = async || store.read(async |tx| threads::get(tx, tenant, id).await).await.unwrap();
    let busy = async || {
        store
            .write(async |tx| threads::busy(tx, tenant, id, "{}", "{}").await)
            .await
            .unwrap();
    };
    let untouched = async |run: RunId| {
        store
            .write(async |tx| {
                runs::delete(tx, tenant, run).await?;
                threads::settle_untouched(tx, tenant, id).await
            })
            .await
            .unwrap();
    };
    let failed = r#"{"error":"E"}"#;
    for (status, error) in [
        (ThreadStatus::Interrupted, None),
        (ThreadStatus::Error, Some(failed)),
        (ThreadStatus::Idle, None),
    ] {
        let ended = run(store, tenant, id).await;
        busy().await;
        store
            .write(async |tx| {
                runs::finish(tx, tenant, ended, RunStatus::Success).await?;
                // No one is asked anything: it was to stop before a node.
                let left = ThreadOutcome {
                    state: Some((r#"{"n":1}"#, "{}")),
                    error,
                };
                threads::settle(tx, tenant, id, status, &left).await
            })
            .await
            .unwrap();
        assert_eq!(read().await.status, status);
        let (one, two) = (run(store, tenant, id).await, run(store, tenant, id).await);
        busy().await;
        busy().await;
        untouched(one).await;
        assert_eq!(read().await.status, ThreadStatus::Busy, "another run is open");
        let copied = store
            .write(async |tx| threads::copy(tx, tenant, id, ThreadId::new()).await)
            .await
            .unwrap();
        assert_eq!(copied.status, status, "what is in flight is not copied");
        untouched(two).await;
        let row = read().await;
        assert_eq!((row.status, row.error.as_deref()), (status, error));
    }
}

async fn runs_with_threads_of_their_own_come_and_go_together(database: Database) {
    let store = database.store;
    let tenant = TenantId::new();
    let now = store.clock().now();
    // More than one statement takes, and no multiple of it.
    let ids: Vec<(RunId, ThreadId, String)> = (0..13)
        .map(|nth| {
            let text = json!({"nth": nth, "text": "a\"b'c"}).to_string();
            (RunId::new(), ThreadId::new(), text)
        })
        .collect();
    let jobs: Vec<NewJob<'_>> = ids
        .iter()
        .map(|(_, _, text)| NewJob {
            id: JobId::new(),
            tenant_id: tenant,
            kind: "run_agent",
            pool: "agent",
            priority: 0,
            state: JobState::Ready,
            run_at: now,
            deadline_at: None,
            input: text.clone(),
            lane: None,
            lane_seq: None,
            lane_held: false,
            keep_place: true,
            parent_id: None,
            traceparent: None,
        })
        .collect();
    let ttl = Ttl {
        strategy: TtlStrategy::Delete,
        minutes: 5.0,
    };
    let rows: Vec<NewStatelessRun<'_>> = ids
        .iter()
        .zip(&jobs)
        .map(|((run, thread, text), job)| NewStatelessRun {
            job,
            thread: NewThread {
                temporary: true,
                ttl: Some(ttl),
                ..new(*thread, text)
            },
            run: NewRun {
                id: *run,
                thread: *thread,
                assistant: AssistantId::new(),
                job: job.id,
                cron: None,
                metadata: text,
                kwargs: text,
                strategy: MultitaskStrategy::Enqueue,
                created_at: now,
            },
        })
        .collect();
    let insert = async || store.write(async |tx| stateless::insert(tx, tenant, &rows).await).await;
    insert().await.unwrap();
    assert!(matches!(insert().await, Err(Error::Conflict { .. })));
    let asked: Vec<RunId> = ids.iter().map(|one| one.0).chain([RunId::new()]).collect();
    let get = async || store.read(async |tx| runs::get_each(tx, &asked).await).await.unwrap();
    let found = get().await;
    assert_eq!(found.len(), ids.len());
    for (owner, run) in found {
        let (_, thread, text) = ids.iter().find(|one| one.0 == run.id).unwrap();
        assert_eq!(
            (owner, run.thread_id, run.status),
            (tenant, *thread, RunStatus::Pending)
        );
        assert_eq!(&run.kwargs, text);
        let job = store
            .read(async |tx| jobs::get(tx, run.job_id).await)
            .await
            .unwrap()
            .unwrap();
        assert_eq!((&job.input, job.state, job.keep_place), (text, JobState::Ready, true));
        let kept = store
            .read(async |tx| threads::get(tx, tenant, *thread).await)
            .await
            .unwrap();
        assert!(kept.temporary && kept.expires_at.is_some() && kept.metadata == *text);
    }
    let (gone, left): (Vec<ThreadId>, Vec<ThreadId>) = ids.iter().map(|one| one.1).partition(|id| *id != ids[5].1);
    store
        .write(async |tx| stateless::delete(tx, tenant, &gone).await)
        .await
        .unwrap();
    let found: Vec<ThreadId> = get().await.into_iter().map(|(_, run)| run.thread_id).collect();
    assert_eq!(found, left);
}
