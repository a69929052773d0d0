//! What sessions on PostgreSQL keep, and what they wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use towpath_domain::deployment::{Source, SourceConfig};
use towpath_domain::{DeploymentId, TenantId};
use towpath_store::deployments::{self, NewDeployment};
use towpath_store::{Options, Store, access, on, projects};

use crate::database::{Database, run, waiting};
use crate::migrations::{EmptyDatabase, POSTGRES};

/// A migration of a newer build changes what a statement returns that an older one has cached.
#[tokio::test]
async fn a_statement_from_before_a_migration_is_prepared_anew() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = database.store.with_own_pool(1).unwrap();
    let ask = async || {
        store
            .read(async |tx| {
                let rows: Vec<(String,)> = on!(tx, |conn| sqlx::query_as("SELECT * FROM note").fetch_all(conn).await)?;
                Ok(rows.len())
            })
            .await
    };
    assert_eq!(ask().await.unwrap(), 0);
    let newer = "ALTER TABLE note ADD COLUMN since BIGINT NOT NULL DEFAULT 0";
    database.store.write(async |tx| run(tx, newer).await).await.unwrap();
    let refused = ask().await.unwrap_err();
    assert!(refused.is_transient(), "{refused:?}");
    assert_eq!(ask().await.unwrap(), 0, "on a new connection it is another statement");
}

#[tokio::test]
async fn whoever_waits_for_a_row_too_long_is_told_that_it_is_locked() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = &database.store;
    store
        .write(async |tx| run(tx, "INSERT INTO note (text) VALUES ('one')").await)
        .await
        .unwrap();
    let lock = "SELECT 1 FROM note FOR UPDATE";
    store
        .write(async |tx| {
            run(tx, lock).await?;
            let second = store.write(async |tx| {
                towpath_store::jobs::limit_lock_wait(tx).await?;
                run(tx, lock).await
            });
            let refused = second.await.unwrap_err();
            assert!(refused.is_transient() && refused.is_contended(), "{refused:?}");
            // The connection is as good as before.
            store.read(async |tx| run(tx, "SELECT 1").await).await
        })
        .await
        .unwrap();
}

/// A migration comes while an older process reads the table that it changes, and indexes are made beside the work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_waits_for_those_who_work() {
    let Some(fresh) = EmptyDatabase::postgres().await else {
        return;
    };
    fresh.raw().await.migrate(&POSTGRES, 8).await.unwrap();
    let old = fresh.store().await;
    let (reads, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let reading = tokio::spawn({
        let (old, reads, release) = (old.clone(), reads.clone(), release.clone());
        async move {
            old.write(async |tx| {
                run(tx, "SELECT 1 FROM job").await?;
                reads.notify_one();
                release.notified().await;
                Ok(())
            })
            .await
        }
    });
    reads.notified().await;
    let new = Store::open(&fresh.uri, Options::default()).await.unwrap();
    // Not a task: the compiler cannot show that the future of sqlx's migrator is `Send`.
    let migrating = tokio::task::spawn_blocking({
        let (new, runtime) = (new.clone(), tokio::runtime::Handle::current());
        move || runtime.block_on(new.migrate())
    });
    waiting(&old, 1, || migrating.is_finished()).await;
    release.notify_one();
    reading.await.unwrap().unwrap();
    migrating.await.unwrap().unwrap();
    let indexes =
        "SELECT c.relname::text || ' ' || x.indisvalid FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid
                   WHERE c.relname IN ('job_worker', 'job_suspect', 'job_lane_over', 'job_over', 'job_lease') ORDER BY 1";
    let made = fresh.raw().await.texts(indexes).await.unwrap();
    assert_eq!(
        made,
        [
            "job_lane_over true",
            "job_over true",
            "job_suspect true",
            "job_worker true"
        ]
    );
    // One that could not be made is made at the next start, or by a process that is at work.
    fresh.raw().await.execute("DROP INDEX job_worker").await;
    new.migrate().await.unwrap();
    assert_eq!(fresh.raw().await.texts(indexes).await.unwrap(), made);
    fresh
        .raw()
        .await
        .execute("DROP INDEX job_over; DROP INDEX job_worker")
        .await;
    assert_eq!(new.make_indexes().await.unwrap(), 0, "nothing is left");
    assert_eq!(fresh.raw().await.texts(indexes).await.unwrap(), made);
}

#[tokio::test]
async fn of_two_workspaces_that_ask_at_once_one_is_the_first() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = &database.store;
    store.migrate().await.unwrap();
    let (one, other) = (TenantId::new(), TenantId::new());
    for tenant in [one, other] {
        store
            .write(async |tx| access::ensure_workspace(tx, tenant).await)
            .await
            .unwrap();
    }
    let (asked, wait) = tokio::sync::oneshot::channel();
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    let first = async {
        store
            .write(async |tx| {
                assert!(!deployments::others_have(tx, one).await?);
                asked.send(()).unwrap();
                gone.await.unwrap();
                let project = projects::ensure(tx, one, "agent").await?;
                let config = SourceConfig::default();
                let new = NewDeployment {
                    id: DeploymentId::new(),
                    name: "agent",
                    source: Source::Github,
                    config: &config,
                    project,
                };
                deployments::insert(tx, one, &new).await
            })
            .await
            .unwrap();
    };
    let over = AtomicBool::new(false);
    let second = async {
        wait.await.unwrap();
        let found = store
            .write(async |tx| deployments::others_have(tx, other).await)
            .await
            .unwrap();
        over.store(true, Ordering::Relaxed);
        found
    };
    let between = async {
        waiting(store, 1, || over.load(Ordering::Relaxed)).await;
        go.send(()).unwrap();
    };
    let ((), found, ()) = tokio::join!(first, second, between);
    assert!(found, "both workspaces were told that no other one has a deployment");
}
