//! Retries of jobs by an operator.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use towpath_domain::JobId;
use towpath_domain::job::JobState;
use towpath_durable::{Lane, Start, retry};
use towpath_store::Error;
use towpath_store::jobs::Position;

use crate::on_each;
use crate::support::{Database, Op, PATIENCE, Script, World};

pub async fn again(world: &World, job: JobId) -> Result<JobState, String> {
    match world.store.write(async |tx| retry(tx, job).await).await {
        Ok(state) => Ok(state),
        Err(Error::Rejected(why)) => Err(why.message),
        Err(error) => panic!("{error}"),
    }
}

on_each! {
    async fn a_dead_job_goes_on_behind_its_steps_with_all_its_retries(world) {
        let _scheduler = world.scheduler().await;
        let workers = world.workers(1);
        let job = world.start(Script::new("a", [Op::Step("one".into()), Op::Checkpoint(7), Op::FatalFirst(1), Op::Fail(2), Op::Step("two".into())])).await;
        let dead = world.until_over(job).await;
        assert!(dead.dead && dead.state == JobState::Failed);

        assert_eq!(again(&world, job).await, Ok(JobState::Ready));
        let row = world.until_over(job).await;
        assert_eq!(row.state, JobState::Succeeded);
        assert!(!row.dead && row.cancel_at.is_none());
        assert_eq!(row.failures, 2, "counted anew");
        assert_eq!(world.shared.count("a/one"), 1, "a finished step is never performed again");
        assert_eq!(world.shared.count("a@7"), 1);
        assert_eq!(world.shared.count("a/two"), 1);
        let effects = world.effects().await;
        assert_eq!(effects.iter().filter(|effect| *effect == "a revived").count(), 1);
        assert_eq!(again(&world, job).await, Err("the job succeeded; there is nothing to retry".into()));
        workers.drain(PATIENCE).await;
    }
}

on_each! {
    async fn what_cannot_be_right_is_refused_and_writes_nothing(world) {
        let workers = world.workers(2);
        let once = world.start(Script::new(Script::FINAL, [Op::Fatal])).await;
        world.until_over(once).await;
        assert_eq!(again(&world, once).await, Err("it was for once".into()));

        let stubborn = world.start(Script::new(Script::STUBBORN, [Op::Fatal])).await;
        world.until_over(stubborn).await;
        assert_eq!(again(&world, stubborn).await, Err("its rows say no".into()));
        assert_eq!(world.job(stubborn).await.state, JobState::Failed);
        assert!(!world.effects().await.contains(&"stubborn revived".to_owned()), "rolled back with the refusal");

        let running = world.start(Script::new("running", [Op::Gate("go".into())])).await;
        world.until_noted("running at go", 1).await;
        assert_eq!(again(&world, running).await, Err("the job has not ended: it is running".into()));

        let parent = world.start(Script::new("parent", [Op::Children(vec![Script::new("child", [Op::Fatal])], None), Op::CheckChildren])).await;
        world.until_over(parent).await;
        let children = world.store.read(async |tx| towpath_store::jobs::children(tx, parent, 10).await).await.unwrap();
        let refused = again(&world, children[0].id).await.unwrap_err();
        assert!(refused.contains(&parent.to_string()), "{refused}");

        let missing = world.store.write(async |tx| retry(tx, JobId::new()).await).await;
        assert!(matches!(missing, Err(Error::NotFound)));
        world.shared.open("go");
        world.until_over(running).await;
        workers.drain(PATIENCE).await;
    }
}

on_each! {
    async fn a_job_of_an_unknown_kind_is_refused(world) {
        let job = world.start(Script::new("a", [])).await;
        let workers = world.workers(1);
        world.until_over(job).await;
        workers.drain(PATIENCE).await;
        world.store.write(async |tx| {
            towpath_store::on!(tx, |conn| sqlx::query("UPDATE job SET kind = 'other', state = 'failed' WHERE id = $1")
                .bind(job).execute(conn).await.map(drop))?;
            Ok(())
        }).await.unwrap();
        assert_eq!(again(&world, job).await, Err("this server does not know jobs of the kind other".into()));
    }
}

on_each! {
    async fn it_queues_at_the_end_of_its_lane_also_when_that_was_pruned(world) {
        let lane = || Lane::new("thread:1", 1);
        let job = world.start_as(Script::new(Script::IN_LANE, [Op::FatalFirst(1)]), Start::new(world.tenant).lane(lane())).await;
        let workers = world.workers(1);
        world.until_over(job).await;
        workers.drain(PATIENCE).await;
        assert_eq!(world.store.write(async |tx| towpath_store::lanes::prune(tx, 10).await).await.unwrap(), 1);

        let first = world.start_as(Script::new("first", []), Start::new(world.tenant).lane(lane())).await;
        assert_eq!(again(&world, job).await, Ok(JobState::Blocked), "one place, and it is taken");
        let workers = world.workers(2);
        assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
        assert!(world.job(first).await.finished_at < world.job(job).await.finished_at);
        let held = world.store.read(async |tx| towpath_store::lanes::get(tx, "thread:1").await).await.unwrap();
        assert_eq!(held.map(|lane| lane.held), Some(0));

        // And with an empty lane, or none.
        workers.drain(PATIENCE).await;
        let job = world.start_as(Script::new(Script::IN_LANE, [Op::Fatal]), Start::new(world.tenant).lane(lane())).await;
        let workers = world.workers(1);
        world.until_over(job).await;
        workers.drain(PATIENCE).await;
        world.store.write(async |tx| towpath_store::lanes::prune(tx, 10).await).await.unwrap();
        assert_eq!(again(&world, job).await, Ok(JobState::Ready));
        world.store.write(async |tx| towpath_durable::cancel(tx, job).await).await.unwrap();
    }
}

on_each! {
    async fn a_cancelled_or_overdue_job_is_free_of_both(world) {
        let _scheduler = world.scheduler().await;
        let soon = world.store.clock().now().plus(Duration::from_millis(50));
        let late = world.start_as(Script::new("late", []), Start::new(world.tenant).deadline(soon)).await;
        assert_eq!(world.until_over(late).await.state, JobState::TimedOut);
        let workers = world.workers(1);
        assert_eq!(again(&world, late).await, Ok(JobState::Ready));
        assert_eq!(world.until_over(late).await.state, JobState::Succeeded);

        let cancelled = world.start(Script::new("cancelled", [Op::Gate("go".into())])).await;
        world.until_noted("cancelled at go", 1).await;
        world.store.write(async |tx| towpath_durable::cancel(tx, cancelled).await).await.unwrap();
        assert_eq!(world.until_over(cancelled).await.state, JobState::Cancelled);
        assert_eq!(again(&world, cancelled).await, Ok(JobState::Ready));
        world.shared.open("go");
        world.until_noted("cancelled at go", 2).await;
        assert_eq!(world.until_over(cancelled).await.state, JobState::Succeeded);
        workers.drain(PATIENCE).await;
    }
}

on_each! {
    async fn a_job_that_backs_off_is_tried_at_once(world) {
        // No scheduler runs here: without the retry it would wait for ever.
        let job = world.start(Script::new("a", [Op::Fail(1)])).await;
        let workers = world.workers(1);
        world.until(job, "its backoff", |row| row.state == JobState::Scheduled && row.failures == 1).await;
        assert_eq!(again(&world, job).await, Ok(JobState::Ready));
        assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
        let later = world.start_as(Script::new("later", []), Start::new(world.tenant).after(PATIENCE)).await;
        assert_eq!(again(&world, later).await, Err("the job has not ended: it is scheduled".into()));
        world.store.write(async |tx| towpath_durable::cancel(tx, later).await).await.unwrap();
        workers.drain(PATIENCE).await;
    }
}

on_each! {
    async fn a_parent_that_was_counted_wrong_is_tried_again(world) {
        let parent = world.start(Script::new("parent", [Op::Children(vec![Script::new("child", [Op::Fatal])], None), Op::CheckChildren])).await;
        let workers = world.workers(1);
        assert_eq!(world.until_over(parent).await.state, JobState::Failed);
        workers.drain(PATIENCE).await;
        // As an earlier version left it, which ended the parent before it counted its children.
        world.execute("UPDATE job SET open_children = 1 WHERE parent_id IS NULL").await;
        assert_eq!(again(&world, parent).await, Ok(JobState::Ready));
        assert_eq!(world.job(parent).await.open_children, 0);
        // While a child is still ending, the retry is refused.
        world.execute("UPDATE job SET state = 'failed', finished_at = created_at WHERE parent_id IS NULL").await;
        world.execute("UPDATE job SET state = 'ready', finished_at = NULL, dead = false WHERE parent_id IS NOT NULL").await;
        let refused = again(&world, parent).await.unwrap_err();
        assert!(refused.contains("still ending"), "{refused}");
    }
}

/// The scheduler moves it to the history between two reads of the retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_leaves_meanwhile_is_tried_again() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    let how = Start::new(world.tenant).lane(Lane::new("thread:1", 1));
    let job = world.start_as(Script::new(Script::IN_LANE, [Op::Fatal]), how).await;
    let cancelled = world.store.write(async |tx| towpath_durable::cancel(tx, job).await);
    cancelled.await.unwrap();
    let (locked, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let holding = tokio::spawn({
        let (store, locked, release) = (world.store.clone(), locked.clone(), release.clone());
        async move {
            store
                .write(async |tx| {
                    towpath_store::lanes::lock(tx, "thread:1", 1).await?;
                    crate::support::stand_still(tx).await?;
                    locked.notify_one();
                    release.notified().await;
                    Ok(())
                })
                .await
        }
    });
    locked.notified().await;
    let trying = tokio::spawn({
        let store = world.store.clone();
        async move { store.write(async |tx| retry(tx, job).await).await }
    });
    // It has found the job among the open ones, and waits for its lane.
    world.until_somebody_waits_for_a_lock().await;
    let before = world.store.clock().now().plus(Duration::from_secs(1));
    let archived = world
        .store
        .write(async |tx| towpath_store::jobs::archive(tx, before, Position::START, 10).await)
        .await;
    assert_eq!(archived.unwrap().moved, 1);
    release.notify_one();
    holding.await.unwrap().unwrap();
    assert_eq!(trying.await.unwrap().unwrap(), JobState::Ready);
    world
        .store
        .write(async |tx| towpath_durable::cancel(tx, job).await)
        .await
        .unwrap();
}
