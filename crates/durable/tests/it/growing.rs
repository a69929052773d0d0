//! Finished jobs do not slow anything down, however many there are.

use std::time::{Duration, Instant};

use towpath_domain::job::JobState;
use towpath_domain::{JobId, TenantId, Timestamp};
use towpath_durable::{CancelOutcome, StateReason, cancel, explain};
use towpath_scheduler::{Scheduler, Settings};
use towpath_store::jobs::{self, NewJob, Position};
use towpath_store::pools;

use crate::on_each;
use crate::peers::{finished, rows_read};
use crate::retrying::again;
use crate::support::{Op, PATIENCE, Script, World};

/// Moves everything possible to the history, and returns the number.
async fn archive(world: &World) -> u64 {
    let before = world.store.clock().now().plus(Duration::from_secs(1));
    let moved = world
        .store
        .write(async |tx| jobs::archive(tx, before, Position::START, 1_000).await)
        .await;
    moved.unwrap().moved
}

on_each! {
    async fn a_job_of_the_history_is_shown_and_tried_again(world) {
        let job = world.start(Script::new("a", [Op::Step("one".into())])).await;
        world.store.write(async |tx| cancel(tx, job).await).await.unwrap();
        assert_eq!(archive(&world).await, 1);
        assert_eq!(world.count("SELECT count(*) FROM job").await, 0);

        assert_eq!(world.job(job).await.state, JobState::Cancelled);
        let told = world.store.read(async |tx| explain(tx, job).await).await.unwrap().unwrap();
        assert_eq!(told.why, StateReason::Over);
        let cancelled = world.store.write(async |tx| cancel(tx, job).await).await.unwrap();
        assert_eq!(cancelled, CancelOutcome::AlreadyFinished);

        assert_eq!(again(&world, job).await, Ok(JobState::Ready));
        let workers = world.workers(1);
        assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
        assert_eq!(archive(&world).await, 1);
        assert_eq!(again(&world, job).await, Err("the job succeeded; there is nothing to retry".into()));
        assert_eq!(world.count("SELECT count(*) FROM job").await, 0, "what is refused stays where it was");
        workers.drain(PATIENCE).await;
    }
}

on_each! {
    async fn the_scheduler_empties_the_tables(world) {
        let open = world.start(Script::new("open", [])).await;
        finished(&world, 3_000).await;
        let settings = Settings { archive_jobs: Duration::ZERO, keep_jobs: Duration::ZERO, ..Settings::default() };
        let scheduler = Scheduler::start(&world.store, settings).await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        while world.count("SELECT (SELECT count(*) FROM job) + (SELECT count(*) FROM job_history)").await > 1 {
            assert!(Instant::now() < deadline, "jobs that are over are still there");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(world.job(open).await.state, JobState::Ready);
        scheduler.stop().await;
    }
}

on_each! {
    async fn a_step_of_the_walk_reads_what_it_moves(world) {
        finished(&world, 5_000).await;
        let before = world.store.clock().now().plus(Duration::from_secs(1));
        let (step, read) = world.store.write(async |tx| {
            let read = rows_read(tx).await?;
            let step = jobs::archive(tx, before, Position::START, 100).await?;
            Ok((step, rows_read(tx).await? - read))
        }).await.unwrap();
        assert_eq!((step.moved, step.at_end), (100, false));
        assert!(read < 500, "moving 100 jobs read {read} rows");
        world.execute("DELETE FROM job").await;
    }
}

/// Records a ready job.
async fn record(world: &World, pool: &'static str, priority: i64, run_at: Timestamp) {
    let job = NewJob {
        id: JobId::new(),
        tenant_id: TenantId::new(),
        kind: "script",
        pool,
        priority,
        state: JobState::Ready,
        run_at,
        deadline_at: None,
        input: "{}".to_owned(),
        lane: None,
        lane_seq: None,
        lane_held: false,
        keep_place: false,
        parent_id: None,
        traceparent: None,
    };
    world
        .store
        .write(async |tx| jobs::insert(tx, &job).await)
        .await
        .unwrap();
}

on_each! {
    async fn counting_a_backlog_reads_no_more_than_its_bound(world) {
        world.backlog(pools::COUNTED + 2_000).await;
        let now = world.store.clock().now();
        let ago = |minutes: u64| now.minus(Duration::from_secs(60 * minutes));
        // The oldest job of a pool may have any tenant and priority. A pool behind a large one is found.
        record(&world, Script::POOL_NAME, 5, ago(1)).await;
        record(&world, Script::POOL_NAME, -5, ago(3)).await;
        record(&world, Script::POOL_NAME, 0, ago(2)).await;
        record(&world, "zebras", 0, ago(7)).await;
        let (depths, oldest, read) = world.store.read(async |tx| {
            let before = rows_read(tx).await?;
            let depths = pools::depths(tx).await?;
            let oldest = pools::oldest_ready(tx).await?;
            Ok((depths, oldest, rows_read(tx).await? - before))
        }).await.unwrap();
        assert!(read < pools::COUNTED + 200, "counting what is open read {read} rows");
        let mut depths: Vec<_> = depths.iter().map(|depth| (depth.pool.as_str(), depth.state.as_str(), depth.jobs)).collect();
        depths.sort_unstable();
        assert_eq!(depths, [(Script::POOL_NAME, "ready", pools::COUNTED), ("zebras", "ready", 1)]);
        let mut oldest: Vec<_> = oldest.iter().map(|oldest| (oldest.pool.as_str(), oldest.run_at)).collect();
        oldest.sort_unstable();
        assert_eq!(oldest, [(Script::POOL_NAME, ago(3)), ("zebras", ago(7))]);
    }
}
