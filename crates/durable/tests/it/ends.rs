//! However a job ends, its business rows are settled with it.

use std::time::Duration;

use towpath_domain::job::JobState;
use towpath_durable::Start;

use crate::on_each;
use crate::support::{Op, Script};

on_each! {
    async fn a_deadline_ends_a_queued_job(world) {
        let _scheduler = world.scheduler().await;
        let soon = world.store.clock().now().plus(Duration::from_millis(50));
        let job = world.start_as(Script::new("a", []), Start::new(world.tenant).deadline(soon)).await;
        assert_eq!(world.until_over(job).await.state, JobState::TimedOut);
        assert_eq!(world.effects().await, ["a timed out"]);
    }
}

on_each! {
    async fn a_deadline_ends_a_running_job(world) {
        let _workers = world.workers(1);
        let soon = world.store.clock().now().plus(Duration::from_millis(300));
        let job = world.start_as(Script::new("a", [Op::Gate("never".into())]), Start::new(world.tenant).deadline(soon)).await;
        assert_eq!(world.until_over(job).await.state, JobState::TimedOut);
        assert_eq!(world.effects().await, ["a timed out"]);
    }
}

on_each! {
    async fn a_delayed_job_starts_when_it_is_due(world) {
        let job = world.start_as(Script::new("a", [Op::Done]), Start::new(world.tenant).after(Duration::from_millis(100))).await;
        assert_eq!(world.job(job).await.state, JobState::Scheduled);
        let _scheduler = world.scheduler().await;
        let _workers = world.workers(1);
        let row = world.until_over(job).await;
        assert!(row.started_at.unwrap() >= row.run_at);
    }
}
