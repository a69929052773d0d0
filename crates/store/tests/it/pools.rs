//! How much waits in a pool, and for how long.

use std::time::Duration;

use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId, Timestamp};
use towpath_store::jobs::{self, NewJob};
use towpath_store::{Store, lanes, on, pools, workers};

use crate::database::{Database, rows_read};
use crate::jobs::on_both;

on_both!(
    one_that_is_claimed_alone_counts_as_ready,
    one_pool_is_counted_as_among_all,
    one_pool_is_counted_without_the_others,
);

async fn record(store: &Store, pool: &'static str, state: JobState, run_at: Timestamp, lane: Option<&str>) -> JobId {
    let id = JobId::new();
    let recorded = store.write(async |tx| {
        let job = NewJob {
            id,
            tenant_id: TenantId::new(),
            kind: "script",
            pool,
            priority: 0,
            state,
            run_at,
            deadline_at: None,
            input: "{}".to_owned(),
            lane: lane.map(str::to_owned),
            lane_seq: lane.map(|_| 1),
            lane_held: false,
            keep_place: false,
            parent_id: None,
            traceparent: None,
        };
        jobs::insert(tx, &job).await
    });
    recorded.await.unwrap();
    id
}

/// Makes it one that lost its workers twice in a row.
async fn suspect(store: &Store, id: JobId) {
    let lost = store.write(async |tx| {
        Ok(on!(tx, |conn| sqlx::query(
            "UPDATE job SET lost_leases = 2 WHERE id = $1"
        )
        .bind(id)
        .execute(conn)
        .await
        .map(drop))?)
    });
    lost.await.unwrap();
}

async fn overview(store: &Store, pool: &str) -> Option<pools::Overview> {
    let found = store.read(async |tx| pools::overview(tx, pool, workers::HEARTBEAT_WINDOW).await);
    found.await.unwrap()
}

/// An autoscaler goes by it: with nothing but such a job, and no worker, one must be started.
async fn one_that_is_claimed_alone_counts_as_ready(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let now = store.clock().now();
    let due = now.minus(Duration::from_secs(60));
    let alone = record(&store, "scripts", JobState::Scheduled, due, None).await;
    assert_eq!(overview(&store, "scripts").await.map(|pool| pool.ready), Some(0));
    suspect(&store, alone).await;
    // Neither of these can be claimed: it is for later, or has to get its place in its lane.
    let made = store.write(async |tx| lanes::lock(tx, "one", 1).await.map(drop));
    made.await.unwrap();
    let later = record(
        &store,
        "scripts",
        JobState::Scheduled,
        now.plus(Duration::from_secs(60)),
        None,
    )
    .await;
    let in_lane = record(&store, "scripts", JobState::Scheduled, due, Some("one")).await;
    suspect(&store, later).await;
    suspect(&store, in_lane).await;

    let pool = overview(&store, "scripts").await.unwrap();
    assert_eq!((pool.ready, pool.scheduled), (1, 2));
    assert_eq!(pool.oldest_ready, Some(due));
    let all = store
        .read(async |tx| pools::list(tx, workers::HEARTBEAT_WINDOW).await)
        .await;
    assert_eq!(all.unwrap(), [pool]);
    let depths = store.read(async |tx| pools::depths(tx).await).await.unwrap();
    let of = |state: &str| depths.iter().filter(|depth| depth.state == state).count();
    assert_eq!(
        (of("ready"), of("scheduled")),
        (1, 1),
        "one number for each: {depths:?}"
    );
}

async fn one_pool_is_counted_as_among_all(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let now = store.clock().now();
    let ago = |seconds: u64| now.minus(Duration::from_secs(seconds));
    for pool in ["a", "b"] {
        record(&store, pool, JobState::Ready, ago(20), None).await;
        record(&store, pool, JobState::Ready, ago(50), None).await;
        record(
            &store,
            pool,
            JobState::Scheduled,
            now.plus(Duration::from_secs(50)),
            None,
        )
        .await;
        record(&store, pool, JobState::Blocked, ago(5), Some("one")).await;
        record(&store, pool, JobState::Waiting, ago(5), None).await;
    }
    let alone = record(&store, "b", JobState::Scheduled, ago(90), None).await;
    suspect(&store, alone).await;
    let drained = store.write(async |tx| pools::drain(tx, "b").await);
    drained.await.unwrap();
    let all = store
        .read(async |tx| pools::list(tx, workers::HEARTBEAT_WINDOW).await)
        .await
        .unwrap();
    assert_eq!(all.len(), 2);
    for pool in all {
        let ready = if pool.pool == "b" { 3 } else { 2 };
        let rest = (pool.scheduled, pool.blocked, pool.running, pool.waiting);
        assert_eq!((pool.ready, rest), (ready, (1, 1, 0, 1)), "{}", pool.pool);
        assert_eq!(overview(&store, &pool.pool).await, Some(pool));
    }
    assert_eq!(overview(&store, "c").await, None);
}

/// Explaining a job of a quiet pool does not count the backlog of another.
async fn one_pool_is_counted_without_the_others(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let filled = store.write(async |tx| {
        let now = tx.now();
        let text = towpath_store::sql!(tx,
            sqlite: "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000)
                     INSERT INTO job (id, tenant_id, kind, pool, state, run_at, input, created_at)
                     SELECT randomblob(16), $1, 'script', 'large', 'ready', $2, '', $2 FROM n",
            postgres: "INSERT INTO job (id, tenant_id, kind, pool, state, run_at, input, created_at)
                       SELECT gen_random_uuid(), $1, 'script', 'large', 'ready', $2, '', $2
                       FROM generate_series(1, 3000)");
        Ok(on!(tx, |conn| sqlx::query(text)
            .bind(TenantId::nil())
            .bind(now)
            .execute(conn)
            .await
            .map(drop))?)
    });
    filled.await.unwrap();
    record(&store, "quiet", JobState::Ready, store.clock().now(), None).await;
    let read = store.write(async |tx| {
        let before = rows_read(tx, "job").await?;
        let pool = pools::overview(tx, "quiet", workers::HEARTBEAT_WINDOW).await?;
        assert_eq!(pool.map(|pool| pool.ready), Some(1));
        Ok(rows_read(tx, "job").await? - before)
    });
    let read = read.await.unwrap();
    assert!(read < 100, "a pool with one job read {read} rows");
}
