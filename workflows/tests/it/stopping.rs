//! Stopping many runs of an agent server at once.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::Notify;
use towpath_domain::agent::{CancelAction, RunStatus};
use towpath_domain::{AssistantId, ThreadId};
use towpath_store::{Store, jobs, lanes, on, runs};
use towpath_workflows::run_agent::{self, Target, lane};

use crate::server::Server;

/// Stops all runs of the server and returns the number of statements.
async fn stop_all(server: &Server) -> u64 {
    let before = server.store().statements();
    let stopped = server.store().write(async |tx| {
        let open = runs::open(tx, server.tenant, None, None).await?;
        run_agent::cancel(tx, server.tenant, &open, CancelAction::Interrupt).await
    });
    stopped.await.unwrap();
    server.store().statements() - before
}

async fn many_are_stopped_in_as_many_statements_as_a_few(server: Server) {
    // Running ones are signalled, and end in their workers.
    let mut told = Vec::new();
    for runs in [10, 60] {
        let mut claimed = Vec::new();
        for _ in 0..runs {
            server.start(Target::Existing(ThreadId::new()), "slow", json!({})).await;
            claimed.push(server.claim().await.expect("a run is ready"));
        }
        told.push(stop_all(&server).await);
        let marked = server
            .count("SELECT count(*) FROM job WHERE cancel_at IS NOT NULL")
            .await;
        assert_eq!(marked, runs);
        let noted = "SELECT count(*) FROM run WHERE cancel_action = 'interrupt'";
        assert_eq!(server.count(noted).await, runs);
        for table in ["DELETE FROM job", "DELETE FROM thread", "DELETE FROM lane"] {
            execute(server.store(), table).await;
        }
    }
    assert_eq!(told[0], told[1]);

    // Waiting ones end in the same transaction, each with its own end and lane.
    let mut ended = Vec::new();
    for runs in [10, 60] {
        for _ in 0..runs {
            server.start(Target::Existing(ThreadId::new()), "slow", json!({})).await;
        }
        ended.push(stop_all(&server).await);
        let interrupted = "SELECT count(*) FROM run WHERE status = 'interrupted'";
        assert_eq!(server.count(interrupted).await, runs);
        assert_eq!(
            server.count("SELECT count(*) FROM job WHERE finished_at IS NULL").await,
            0
        );
        assert_eq!(server.count("SELECT count(*) FROM lane WHERE held <> 0").await, 0);
        assert_eq!(
            server.count("SELECT count(*) FROM thread WHERE status <> 'idle'").await,
            0
        );
        execute(server.store(), "DELETE FROM run").await;
    }
    let each = (ended[1] - ended[0]) / 50;
    assert!(each <= 5, "{each} statements for each run: {ended:?}");
}

async fn execute(store: &Store, text: &'static str) {
    let done = store.write(async |tx| Ok(on!(tx, |conn| sqlx::query(text).execute(conn).await.map(drop))?));
    done.await.unwrap();
}

#[tokio::test]
async fn many_are_stopped_in_as_many_statements_as_a_few_on_sqlite() {
    many_are_stopped_in_as_many_statements_as_a_few(Server::new().await).await;
}

#[tokio::test]
async fn many_are_stopped_in_as_many_statements_as_a_few_on_postgres() {
    if let Some(server) = Server::postgres().await {
        many_are_stopped_in_as_many_statements_as_a_few(server).await;
    }
}

/// A run starts on another thread while the request that stops the assistant's runs waits for the lane of the first.
/// Its lane must be locked before the jobs, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_begins_meanwhile_is_locked_in_order() {
    let Some(server) = Server::postgres().await else {
        return;
    };
    let assistant = AssistantId::of_graph("slow");
    let threads = [ThreadId::new(), ThreadId::new()];
    let (first, _) = server.start(Target::Existing(threads[0]), "slow", json!({})).await;
    let store = server.store();
    let locked = Notify::new();
    let stopping = async {
        locked.notified().await;
        let stopped = store.write(async |tx| {
            let open = run_agent::lock_threads(tx, server.tenant, assistant, &[]).await?;
            assert_eq!(open.len(), 2, "both are locked");
            let second = store.write(async |other| {
                jobs::limit_lock_wait(other).await?;
                lanes::lock_existing(other, lane(threads[1]).key()).await.map(drop)
            });
            let refused = second.await.expect_err("the lane of the second is locked");
            assert!(refused.is_contended(), "{refused:?}");
            run_agent::cancel(tx, server.tenant, &open, CancelAction::Interrupt).await
        });
        stopped.await
    };
    let beginning = async {
        let held = store.write(async |tx| {
            lanes::lock_existing(tx, lane(threads[0]).key()).await?;
            locked.notify_one();
            until_waiting(store).await;
            // It is recorded while the other transaction waits.
            server.start(Target::Existing(threads[1]), "slow", json!({})).await;
            Ok(())
        });
        held.await
    };
    let (began, stopped) = tokio::join!(beginning, stopping);
    began.unwrap();
    stopped.unwrap();
    assert_eq!(server.run(first.id).await.unwrap().status, RunStatus::Interrupted);
    assert_eq!(
        server.count("SELECT count(*) FROM run WHERE status = 'pending'").await,
        0
    );
}

const PATIENCE: Duration = Duration::from_secs(4);

/// Waits until a session waits for a lock.
async fn until_waiting(store: &Store) {
    let text = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let deadline = Instant::now() + PATIENCE;
    while count(store, text).await == 0 {
        assert!(Instant::now() < deadline, "nobody waits for a lock");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn count(store: &Store, text: &'static str) -> i64 {
    let counted = store.read(async |tx| Ok(on!(tx, |conn| sqlx::query_scalar(text).fetch_one(conn).await)?));
    counted.await.unwrap()
}
