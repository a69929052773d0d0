//! Which finished jobs are deleted, and which stay.

use std::time::Duration;

use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId, Timestamp};
use towpath_store::attempts::{self, Attempt};
use towpath_store::jobs::{self, Fenced, Job, Move, NewJob};
use towpath_store::steps::{self, NewStep};
use towpath_store::{Store, on};

use crate::database::Database;

/// One test for both databases.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[tokio::test]
            async fn sqlite() {
                super::$name(super::Database::sqlite().await).await;
            }

            #[tokio::test]
            async fn postgres() {
                if let Some(database) = super::Database::postgres().await {
                    super::$name(database).await;
                }
            }
        }
    )*};
}

on_both!(
    a_finished_child_stays_while_its_parent_is_open,
    a_finished_child_stays_as_long_as_its_parent,
    a_dead_letter_and_what_is_recent_stay,
    steps_and_attempts_go_with_their_job,
);

async fn record(store: &Store, parent: Option<JobId>) -> JobId {
    let id = JobId::new();
    let recorded = store.write(async |tx| {
        let job = NewJob {
            id,
            tenant_id: TenantId::nil(),
            kind: "script",
            pool: "scripts",
            priority: 0,
            state: JobState::Ready,
            run_at: tx.now(),
            deadline_at: None,
            input: "{}".to_owned(),
            lane: None,
            lane_seq: None,
            lane_held: false,
            keep_place: false,
            parent_id: parent,
            traceparent: None,
        };
        jobs::insert(tx, &job).await
    });
    recorded.await.unwrap();
    id
}

async fn end(store: &Store, id: JobId, to: impl FnOnce(&Job) -> Move) {
    let ended = store.write(async |tx| {
        let job = jobs::lock(tx, &[id]).await?.remove(0);
        jobs::apply(tx, &job, &to(&job)).await
    });
    ended.await.unwrap();
}

async fn succeed(store: &Store, id: JobId) {
    end(store, id, |job| Move::of(job, JobState::Succeeded)).await;
}

async fn die(store: &Store, id: JobId) {
    let dead = |job: &Job| Move {
        dead: true,
        ..Move::of(job, JobState::Failed)
    };
    end(store, id, dead).await;
}

/// A time before which all jobs of a test have ended.
fn later(store: &Store) -> Timestamp {
    store.clock().now().plus(Duration::from_secs(1))
}

async fn forget(store: &Store, before: Timestamp) -> u64 {
    store
        .write(async |tx| jobs::forget(tx, before, 100).await)
        .await
        .unwrap()
}

async fn is_there(store: &Store, id: JobId) -> bool {
    store.read(async |tx| jobs::get(tx, id).await).await.unwrap().is_some()
}

/// A parent asks how its children ended when it goes on, which may be long after.
async fn a_finished_child_stays_while_its_parent_is_open(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let parent = record(&store, None).await;
    let children = [record(&store, Some(parent)).await, record(&store, Some(parent)).await];
    for child in children {
        succeed(&store, child).await;
    }
    let stranger = record(&store, None).await;
    succeed(&store, stranger).await;
    assert_eq!(forget(&store, later(&store)).await, 1);
    assert!(!is_there(&store, stranger).await);
    let left = store
        .read(async |tx| jobs::children(tx, parent, false, 9).await)
        .await
        .unwrap();
    assert_eq!(left.iter().map(|child| child.id).collect::<Vec<_>>(), children);
    succeed(&store, parent).await;
    while forget(&store, later(&store)).await > 0 {}
    for job in children.into_iter().chain([parent]) {
        assert!(!is_there(&store, job).await, "nobody asks for it any more");
    }
}

/// One that ended later is still shown with its children, and so is a dead letter.
async fn a_finished_child_stays_as_long_as_its_parent(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (late, dead) = (record(&store, None).await, record(&store, None).await);
    let children = [record(&store, Some(late)).await, record(&store, Some(dead)).await];
    for child in children {
        succeed(&store, child).await;
    }
    let between = store.clock().now();
    succeed(&store, late).await;
    die(&store, dead).await;
    assert_eq!(forget(&store, between).await, 0, "neither parent goes");
    assert_eq!(forget(&store, later(&store)).await, 1, "the parent first");
    assert!(!is_there(&store, late).await);
    assert_eq!(forget(&store, later(&store)).await, 1, "then its child");
    assert!(!is_there(&store, children[0]).await);
    assert!(is_there(&store, dead).await && is_there(&store, children[1]).await);
}

async fn a_dead_letter_and_what_is_recent_stay(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let early = store.clock().now();
    let (open, over, dead) = (
        record(&store, None).await,
        record(&store, None).await,
        record(&store, None).await,
    );
    succeed(&store, over).await;
    die(&store, dead).await;
    assert_eq!(forget(&store, early).await, 0, "it ended after that");
    assert_eq!(forget(&store, later(&store)).await, 1);
    assert!(!is_there(&store, over).await);
    assert!(is_there(&store, open).await && is_there(&store, dead).await);
}

async fn steps_and_attempts_go_with_their_job(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (over, open) = (record(&store, None).await, record(&store, None).await);
    let written = store.write(async |tx| {
        let worker = towpath_domain::WorkerId::new();
        let claimer = jobs::Claimer::new("scripts", worker, Duration::from_secs(60), 2);
        for job in jobs::claim(tx, &claimer).await? {
            let step = NewStep {
                job: Fenced {
                    id: job.id,
                    fence: job.fence,
                },
                name: "one".to_owned(),
                output: "1".to_owned(),
            };
            steps::record(tx, &[step]).await?;
            let attempt = Attempt {
                fence: job.fence,
                outcome: "failed".to_owned(),
                failure: Some(0),
                error: "no".to_owned(),
                worker_id: Some(worker),
                at: tx.now(),
            };
            attempts::record(tx, job.id, &attempt).await?;
        }
        Ok(())
    });
    written.await.unwrap();
    succeed(&store, over).await;
    assert_eq!(forget(&store, later(&store)).await, 1);
    let left: Vec<JobId> = store
        .read(async |tx| {
            Ok(on!(tx, |conn| sqlx::query_scalar(
                "SELECT job_id FROM step UNION ALL SELECT job_id FROM attempt"
            )
            .fetch_all(conn)
            .await)?)
        })
        .await
        .unwrap();
    assert_eq!(left, [open, open], "a step and an attempt of the job that is open");
}
