//! Steps and checkpoints: finished work is not repeated.

use towpath_domain::job::JobState;

use crate::on_each;
use crate::support::{Op, Script};

on_each! {
    async fn a_finished_step_is_not_performed_again(world) {
        let job = world.start(Script::new("a", [Op::Step("one".into()), Op::Checkpoint(7), Op::Fail(2), Op::Step("two".into())])).await;
        let scheduler = world.scheduler().await;
        let workers = world.workers(2);
        let row = world.until_over(job).await;
        assert_eq!(row.state, JobState::Succeeded);
        assert_eq!(world.shared.count("a starts"), 3);
        assert_eq!(world.shared.count("a/one"), 1);
        assert_eq!(world.shared.count("a@7"), 1);
        assert_eq!(world.shared.count("a/two"), 1);
        assert_eq!(row.failures, 2);
        scheduler.stop().await;
        workers.drain(crate::support::PATIENCE).await;
        world.check_invariants().await;
    }
}

on_each! {
    async fn a_step_name_used_twice_fails_the_job(world) {
        let job = world.start(Script::new("a", [Op::Step("one".into()), Op::Step("one".into())])).await;
        let _workers = world.workers(1);
        let row = world.until_over(job).await;
        assert_eq!(row.state, JobState::Failed);
        assert!(row.error.unwrap().contains("twice"), "the error says what is wrong");
        assert_eq!(world.shared.count("a/one"), 1);
    }
}

on_each! {
    async fn many_jobs_with_nothing_to_write_are_all_completed(world) {
        let mut jobs = Vec::new();
        for nth in 0..200 {
            jobs.push(world.start(Script::new(&format!("job {nth}"), [Op::Done])).await);
        }
        let workers = world.workers(16);
        for (nth, job) in jobs.into_iter().enumerate() {
            assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
            assert_eq!(world.shared.count(&format!("job {nth} starts")), 1);
        }
        assert_eq!(workers.drain(crate::support::PATIENCE).await.handed_back, 0);
    }
}
