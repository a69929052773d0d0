//! What sweeps ask for: whose turn it is, and how far they have come.

use std::time::Duration;

use towpath_domain::job::JobState;
use towpath_domain::{Clock, JobId, ScheduleId, TenantId};
use towpath_store::jobs::{self, NewJob};
use towpath_store::schedules::{self, Schedule};
use towpath_store::{Options, Store, lanes, sweep_cursors};

use crate::database::Database;

async fn a_turn_is_taken_once(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let take = async |name: &str, span| {
        let taken = store
            .write(async |tx| sweep_cursors::claim_interval(tx, name, span).await)
            .await;
        taken.unwrap()
    };
    let minute = Duration::from_secs(60);
    assert!(take("a", minute).await);
    assert!(!take("a", minute).await, "it is another's until it is over");
    assert!(take("b", Duration::ZERO).await);
    let over = store.clock().now();
    while store.clock().now() <= over {
        tokio::task::yield_now().await;
    }
    assert!(take("b", minute).await, "the turn is over");
    assert!(!take("b", minute).await);
}

/// A deleted cron leaves a schedule behind that has ended.
async fn schedules_that_ended_are_forgotten(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let now = store.clock().now();
    let day = Duration::from_secs(24 * 3600);
    let ended = [None, Some(now), Some(now.minus(day)), Some(now.minus(day * 2))];
    for ended_at in ended {
        let schedule = Schedule {
            id: ScheduleId::new(),
            tenant_id: TenantId::new(),
            kind: "spawn".to_owned(),
            pool: "sweeps".to_owned(),
            input: "{}".to_owned(),
            next_at: now,
            paused: false,
            spawn_job: None,
            created_at: now,
            ended_at,
        };
        store
            .write(async |tx| schedules::insert(tx, &schedule).await)
            .await
            .unwrap();
    }
    let before = now.minus(day / 2);
    let count = async || {
        let left = store
            .read(async |tx| schedules::count_before(tx, before, 10).await)
            .await;
        left.unwrap()
    };
    assert_eq!(count().await, 2);
    for left in [1, 0] {
        let gone = store.write(async |tx| schedules::prune(tx, before, 1).await).await;
        assert_eq!(gone.unwrap(), 1);
        assert_eq!(count().await, left);
    }
    let gone = store.write(async |tx| schedules::prune(tx, before, 10).await).await;
    assert_eq!(gone.unwrap(), 0, "one goes on, and one ended a moment ago");
}

/// A host whose clock is a day ahead, and which then stops, keeps the turn from no one for a day.
#[tokio::test]
async fn a_turn_goes_by_the_clock_of_the_database() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = database.store;
    store.migrate().await.unwrap();
    let tomorrow = store.clock().now().plus(Duration::from_secs(24 * 3600));
    let options = Options {
        clock: Clock::stopped(tomorrow),
        ..Options::default()
    };
    let ahead = Store::open(&database.uri, options).await.unwrap();
    let take = async |store: &Store| {
        let taken = store
            .write(async |tx| sweep_cursors::claim_interval(tx, "a", Duration::ZERO).await)
            .await;
        taken.unwrap()
    };
    assert!(take(&ahead).await);
    let over = store.clock().now();
    while store.clock().now() <= over {
        tokio::task::yield_now().await;
    }
    assert!(take(&store).await, "the turn was over at once");
}

async fn lanes_that_stay_hold_up_no_others(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let made = store.write(async |tx| {
        for (key, held) in [("a", 1), ("b", 1), ("c", 0), ("d", 0), ("e", 0)] {
            let mut lane = lanes::lock(tx, key, 1).await?;
            lane.held = held;
            lanes::save(tx, &lane).await?;
        }
        let job = NewJob {
            id: JobId::new(),
            tenant_id: TenantId::nil(),
            kind: "script",
            pool: "scripts",
            priority: 0,
            state: JobState::Scheduled,
            run_at: tx.now().plus(Duration::from_secs(60)),
            deadline_at: None,
            input: "{}".to_owned(),
            lane: Some("c".to_owned()),
            lane_seq: None,
            lane_held: false,
            keep_place: false,
            parent_id: None,
            traceparent: None,
        };
        jobs::insert(tx, &job).await
    });
    made.await.unwrap();
    let prune = async |behind: &str| {
        let pruned = store.write(async |tx| lanes::prune_behind(tx, behind, 2).await).await;
        let pruned = pruned.unwrap();
        (pruned.deleted, pruned.last)
    };
    assert_eq!(prune("").await, (0, Some("b".to_owned())), "both are held");
    let left = store.read(async |tx| lanes::count_behind(tx, "b", 10).await).await;
    assert_eq!(left.unwrap(), 3);
    assert_eq!(
        prune("b").await,
        (1, Some("d".to_owned())),
        "a job is to enter the first"
    );
    assert_eq!(prune("d").await, (1, None));
    for (key, stays) in [("a", true), ("b", true), ("c", true), ("d", false), ("e", false)] {
        let lane = store.read(async |tx| lanes::get(tx, key).await).await.unwrap();
        assert_eq!(lane.is_some(), stays, "{key}");
    }
}

#[tokio::test]
async fn sweeps_on_sqlite() {
    a_turn_is_taken_once(Database::sqlite().await).await;
    lanes_that_stay_hold_up_no_others(Database::sqlite().await).await;
    schedules_that_ended_are_forgotten(Database::sqlite().await).await;
}

#[tokio::test]
async fn sweeps_on_postgres() {
    let databases = tokio::join!(Database::postgres(), Database::postgres(), Database::postgres());
    if let (Some(one), Some(two), Some(three)) = databases {
        a_turn_is_taken_once(one).await;
        lanes_that_stay_hold_up_no_others(two).await;
        schedules_that_ended_are_forgotten(three).await;
    }
}
