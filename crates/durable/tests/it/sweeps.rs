//! The sweeps continue past a job that cannot be moved.

use std::time::Duration;

use towpath_domain::job::{JobState, MAX_LOST_LEASES};
use towpath_durable::{Lane, Start};

use crate::on_each;
use crate::support::{Op, PATIENCE, Script};

on_each! {
    async fn a_deadline_that_cannot_be_enforced_keeps_none_from_being(world) {
        let now = world.store.clock().now();
        let at = |seconds| Start::new(world.tenant).deadline(now.minus(Duration::from_secs(seconds)));
        let endless = world.start_as(Script::new(Script::ENDLESS, []), at(9)).await;
        let other = world.start_as(Script::new("a", []), at(1)).await;
        assert_eq!(towpath_durable::end_overdue(&world.store, Duration::ZERO).await.unwrap(), 1);
        assert_eq!(world.job(other).await.state, JobState::TimedOut);
        assert_eq!(world.job(endless).await.state, JobState::Ready, "nothing of it was written");
    }
}

on_each! {
    async fn a_lease_that_cannot_be_taken_back_keeps_none_from_being(world) {
        let endless = world.start(Script::new(Script::ENDLESS, [])).await;
        for _ in 0..MAX_LOST_LEASES {
            world.claim(1).await;
            world.end_lease(endless).await;
            assert_eq!(world.rescue().await, 1);
        }
        let other = world.start(Script::new("a", [])).await;
        assert_eq!([world.claim(2).await.len(), world.claim(2).await.len()], [1, 1]);
        world.end_lease(endless).await;
        world.end_lease(other).await;
        assert_eq!(world.rescue().await, 1);
        assert_eq!(world.job(other).await.state, JobState::Ready);
    }
}

on_each! {
    async fn a_due_job_that_cannot_enter_keeps_none_from_entering(world) {
        let after = |lane: &str| Start::new(world.tenant).lane(Lane::new(lane, 1)).after(Duration::from_micros(1));
        let stuck = world.start_as(Script::new("stuck", []), after("thread:1")).await;
        let other = world.start_as(Script::new("a", []), after("thread:2")).await;
        world.execute("DELETE FROM lane WHERE key = 'thread:1'").await;
        world.until(other, "its time", |job| job.run_at < world.store.clock().now()).await;
        towpath_durable::ready_due(&world.store).await.unwrap();
        assert_eq!(world.job(other).await.state, JobState::Ready);
        assert_eq!(world.job(stuck).await.state, JobState::Scheduled);
    }
}

on_each! {
    async fn a_job_that_cannot_be_ended_is_not_left_to_a_worker_that_let_it_go(world) {
        let workers = world.workers(1);
        let job = world.start(Script::new(Script::ENDLESS, [Op::Fatal])).await;
        let row = world.until(job, "somebody to put it off", |job| job.state == JobState::Scheduled).await;
        assert!(row.error.unwrap().contains("cannot be read"), "the error says why it is still there");
        workers.drain(PATIENCE).await;
    }
}
