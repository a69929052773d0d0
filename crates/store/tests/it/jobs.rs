//! Which jobs that are over leave for the history, who still finds them there, and when they are deleted.

use std::time::Duration;

use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId, Timestamp};
use towpath_store::attempts::{self, Attempt};
use towpath_store::jobs::{self, DeletionStep, Filter, Job, JobFence, JobTransition, NewJob, Position};
use towpath_store::steps::{self, NewStep};
use towpath_store::{Store, on};

use crate::database::{Database, run};

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
pub(crate) use on_both;

on_both!(
    a_finished_child_stays_while_its_parent_is_open,
    a_finished_child_is_forgotten_with_its_parent,
    a_dead_letter_and_what_is_recent_stay,
    what_cannot_leave_holds_up_nothing,
    a_parent_stays_until_its_children_have_ended,
    readers_find_what_has_left,
    a_job_comes_back_as_it_was,
    steps_and_attempts_go_with_their_job,
    children_come_back_with_their_parent,
    forgetting_goes_on_where_it_came_to,
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

async fn end(store: &Store, id: JobId, to: impl FnOnce(&Job) -> JobTransition) {
    let ended = store.write(async |tx| {
        let job = jobs::lock(tx, &[id]).await?.remove(0);
        jobs::apply(tx, &job, &to(&job)).await
    });
    ended.await.unwrap();
}

async fn succeed(store: &Store, id: JobId) {
    end(store, id, |job| JobTransition::of(job, JobState::Succeeded)).await;
}

async fn die(store: &Store, id: JobId) {
    let dead = |job: &Job| JobTransition {
        dead: true,
        ..JobTransition::of(job, JobState::Failed)
    };
    end(store, id, dead).await;
}

/// A time before which all jobs of a test have ended.
fn later(store: &Store) -> Timestamp {
    store.clock().now().plus(Duration::from_secs(1))
}

async fn forget(store: &Store, before: Timestamp) -> u64 {
    forget_from(store, before, Timestamp::from_micros(0), 100).await.jobs
}

async fn forget_from(store: &Store, before: Timestamp, from: Timestamp, limit: i64) -> DeletionStep {
    store
        .write(async |tx| jobs::delete_old(tx, before, from, limit).await)
        .await
        .unwrap()
}

/// Walks once through all jobs that are over, a few at a time, and returns how many left.
async fn archive(store: &Store, before: Timestamp) -> u64 {
    let (mut from, mut moved) = (Position::START, 0);
    loop {
        let step = store
            .write(async |tx| jobs::archive(tx, before, from, 2).await)
            .await
            .unwrap();
        moved += step.moved;
        from = step.position;
        if step.at_end {
            return moved;
        }
    }
}

async fn get(store: &Store, id: JobId) -> Option<Job> {
    store.read(async |tx| jobs::get(tx, id).await).await.unwrap()
}

async fn is_there(store: &Store, id: JobId) -> bool {
    get(store, id).await.is_some()
}

/// Whether everyone still has to do with it.
async fn has_left(store: &Store, id: JobId) -> bool {
    let locked = store.write(async |tx| jobs::lock(tx, &[id]).await).await;
    locked.unwrap().is_empty()
}

/// A parent asks how its children ended when it continues, which may be long after.
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
    assert_eq!(archive(&store, later(&store)).await, 1);
    assert!(has_left(&store, stranger).await);
    for child in children {
        assert!(!has_left(&store, child).await);
    }
    let of_parent = async || {
        let found = store.read(async |tx| jobs::children(tx, parent, 9).await).await;
        found.unwrap().iter().map(|child| child.id).collect::<Vec<_>>()
    };
    assert_eq!(of_parent().await, children);
    succeed(&store, parent).await;
    assert_eq!(archive(&store, later(&store)).await, 3);
    for job in children.into_iter().chain([parent]) {
        assert!(has_left(&store, job).await);
    }
    assert_eq!(
        of_parent().await,
        children,
        "also from there, if the parent is tried again"
    );
}

/// One that ended before its parent is shown with it as long as the parent is. Those of a dead letter stay with it: it
/// may be retried.
async fn a_finished_child_is_forgotten_with_its_parent(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (late, dead) = (record(&store, None).await, record(&store, None).await);
    let children = [record(&store, Some(late)).await, record(&store, Some(dead)).await];
    for child in children {
        succeed(&store, child).await;
    }
    let between = store.clock().now().plus(Duration::from_micros(1));
    while store.clock().now() <= between {
        tokio::task::yield_now().await;
    }
    succeed(&store, late).await;
    die(&store, dead).await;
    // The parent leaves at the first walk, at the second at the latest the child.
    let moved = archive(&store, later(&store)).await + archive(&store, later(&store)).await;
    assert_eq!(moved, 2);
    assert_eq!(
        forget(&store, between).await,
        0,
        "neither goes before the parent has been over for long"
    );
    assert!(is_there(&store, late).await && is_there(&store, children[0]).await);
    assert_eq!(forget(&store, later(&store)).await, 2);
    assert!(!is_there(&store, late).await && !is_there(&store, children[0]).await);
    assert!(!has_left(&store, dead).await && !has_left(&store, children[1]).await);
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
    assert_eq!(archive(&store, early).await, 0, "it ended after that");
    assert_eq!(archive(&store, later(&store)).await, 1);
    assert_eq!(forget(&store, early).await, 0, "it was over after that");
    assert!(is_there(&store, over).await);
    assert_eq!(forget(&store, later(&store)).await, 1);
    assert!(!is_there(&store, over).await);
    assert!(is_there(&store, open).await && !has_left(&store, dead).await);
}

/// The walk continues behind what stays, so that each step is as long as any other.
async fn what_cannot_leave_holds_up_nothing(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let parent = record(&store, None).await;
    for _ in 0..20 {
        let child = record(&store, Some(parent)).await;
        succeed(&store, child).await;
    }
    let last = record(&store, None).await;
    succeed(&store, last).await;
    let before = later(&store);
    let left = async |from| {
        let left = store
            .read(async |tx| jobs::count_unarchived(tx, before, from, 100).await)
            .await;
        left.unwrap()
    };
    assert_eq!(left(Position::START).await, 21);
    let step = async |from| {
        let step = store.write(async |tx| jobs::archive(tx, before, from, 12).await).await;
        step.unwrap()
    };
    let first = step(Position::START).await;
    assert_eq!((first.moved, first.at_end), (0, false));
    assert_eq!(left(first.position).await, 9);
    let second = step(first.position).await;
    assert_eq!((second.moved, second.at_end), (1, true));
    assert!(has_left(&store, last).await);
    assert_eq!(left(second.position).await, 0);
    let again = step(second.position).await;
    assert_eq!((again.moved, again.at_end, again.position), (0, true, second.position));
}

async fn a_parent_stays_until_its_children_have_ended(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let parent = record(&store, None).await;
    let child = record(&store, Some(parent)).await;
    die_gently(&store, parent).await;
    assert_eq!(archive(&store, later(&store)).await, 0);
    succeed(&store, child).await;
    assert_eq!(archive(&store, later(&store)).await, 2);
}

/// Ends badly without being a dead letter.
async fn die_gently(store: &Store, id: JobId) {
    end(store, id, |job| JobTransition::of(job, JobState::Failed)).await;
}

async fn readers_find_what_has_left(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let mut recorded = Vec::new();
    for _ in 0..6 {
        recorded.push(record(&store, None).await);
    }
    succeed(&store, recorded[0]).await;
    die_gently(&store, recorded[1]).await;
    die_gently(&store, recorded[3]).await;
    let before: Vec<Job> = vec![
        get(&store, recorded[0]).await.unwrap(),
        get(&store, recorded[1]).await.unwrap(),
    ];
    assert_eq!(archive(&store, later(&store)).await, 3);
    die_gently(&store, recorded[4]).await;
    for job in before {
        let found = get(&store, job.id).await.unwrap();
        assert_eq!(format!("{found:?}"), format!("{job:?}"));
    }
    let list = async |filter: Filter, behind: Option<JobId>, limit| {
        let listed = store
            .read(async |tx| jobs::list(tx, &filter, behind, limit).await)
            .await;
        let place = |id| recorded.iter().position(|job| *job == id).unwrap();
        listed.unwrap().iter().map(|job| place(job.id)).collect::<Vec<_>>()
    };
    let all = || Filter {
        pool: Some("scripts".to_owned()),
        ..Filter::default()
    };
    assert_eq!(list(all(), None, 10).await, [5, 4, 3, 2, 1, 0]);
    assert_eq!(list(all(), None, 4).await, [5, 4, 3, 2]);
    assert_eq!(list(all(), Some(recorded[2]), 10).await, [1, 0]);
    let of_state = |state| Filter {
        state: Some(state),
        ..Filter::default()
    };
    assert_eq!(list(of_state(JobState::Failed), None, 10).await, [4, 3, 1]);
    assert_eq!(list(of_state(JobState::Succeeded), None, 10).await, [0]);
    assert_eq!(list(of_state(JobState::Ready), None, 10).await, [5, 2]);
}

async fn a_job_comes_back_as_it_was(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let job = record(&store, None).await;
    die_gently(&store, job).await;
    let was = get(&store, job).await.unwrap();
    let recall = async || store.write(async |tx| jobs::restore(tx, job).await).await.unwrap();
    assert!(!recall().await, "it has not left");
    assert_eq!(archive(&store, later(&store)).await, 1);
    assert!(recall().await);
    assert!(!has_left(&store, job).await);
    assert_eq!(format!("{:?}", get(&store, job).await.unwrap()), format!("{was:?}"));
    assert!(!recall().await, "nothing is left behind");
    assert_eq!(forget(&store, later(&store)).await, 0);
    assert_eq!(archive(&store, later(&store)).await, 1, "and it may leave again");
}

async fn steps_and_attempts_go_with_their_job(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (over, open) = (record(&store, None).await, record(&store, None).await);
    let written = store.write(async |tx| {
        let worker = towpath_domain::WorkerId::new();
        let claimer = jobs::ClaimRequest::new("scripts", worker, 2);
        for job in jobs::claim(tx, &claimer).await? {
            let step = NewStep {
                job: JobFence {
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
    assert_eq!(archive(&store, later(&store)).await, 1);
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

/// Else they could be forgotten while it runs.
async fn children_come_back_with_their_parent(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    let (parent, stranger) = (record(&store, None).await, record(&store, None).await);
    let children = [record(&store, Some(parent)).await, record(&store, Some(parent)).await];
    succeed(&store, children[0]).await;
    die_gently(&store, children[1]).await;
    die_gently(&store, parent).await;
    succeed(&store, stranger).await;
    assert_eq!(archive(&store, later(&store)).await, 4);
    let recalled = store.write(async |tx| jobs::restore(tx, parent).await).await;
    assert!(recalled.unwrap());
    for job in children.into_iter().chain([parent]) {
        assert!(!has_left(&store, job).await, "{job} is still in the history");
    }
    assert!(has_left(&store, stranger).await);
    let revived = store.write(async |tx| jobs::revive(tx, parent).await).await;
    revived.unwrap();
    assert_eq!(archive(&store, later(&store)).await, 0, "their parent is open again");
    assert_eq!(forget(&store, later(&store)).await, 1, "the stranger");
    for job in children {
        assert!(is_there(&store, job).await);
    }
    let recalled = store.write(async |tx| jobs::restore(tx, parent).await).await;
    assert!(!recalled.unwrap(), "it is not in the history");
}

/// What was deleted stays in the index until the table is vacuumed. From the start each step would read all of it
/// again.
async fn forgetting_goes_on_where_it_came_to(database: Database) {
    let store = database.store;
    store.migrate().await.unwrap();
    for _ in 0..5 {
        let job = record(&store, None).await;
        succeed(&store, job).await;
        let over = store.clock().now();
        while store.clock().now() <= over {
            tokio::task::yield_now().await;
        }
    }
    let before = later(&store);
    assert_eq!(archive(&store, before).await, 5);
    let ended: Vec<Timestamp> = store
        .read(async |tx| {
            Ok(on!(tx, |conn| sqlx::query_scalar(
                "SELECT over_at FROM job_history ORDER BY over_at"
            )
            .fetch_all(conn)
            .await)?)
        })
        .await
        .unwrap();
    let step = |jobs, reached, at_end| DeletionStep {
        jobs,
        last_finished_at: reached,
        at_end,
    };
    let start = Timestamp::from_micros(0);
    assert_eq!(forget_from(&store, before, start, 2).await, step(2, ended[1], false));
    let left = async |from| {
        let left = store
            .read(async |tx| jobs::count_deletable_from(tx, before, from, 100).await)
            .await;
        left.unwrap()
    };
    assert_eq!((left(ended[1]).await, left(ended[3]).await), (3, 2));
    assert_eq!(
        forget_from(&store, before, ended[3], 2).await,
        step(2, ended[4], false),
        "the first of them is behind"
    );
    assert_eq!(forget_from(&store, before, ended[4], 2).await, step(0, ended[4], true));
    assert_eq!(forget_from(&store, before, start, 2).await, step(1, ended[2], true));
}

/// Where many jobs are over, making the index of the walk takes long. Without it each step would read all jobs.
#[tokio::test]
async fn nothing_leaves_before_the_index_of_the_walk_is_there() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let store = database.store;
    store.migrate().await.unwrap();
    let job = record(&store, None).await;
    succeed(&store, job).await;
    let dropped = store.write(async |tx| run(tx, "DROP INDEX job_over").await).await;
    dropped.unwrap();
    assert_eq!(archive(&store, later(&store)).await, 0);
    assert!(!has_left(&store, job).await);
    assert_eq!(store.make_indexes().await.unwrap(), 0, "nothing is left to be made");
    assert_eq!(archive(&store, later(&store)).await, 1);
}
