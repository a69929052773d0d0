//! Failures, panics, snoozes.

use towpath_domain::job::JobState;

use crate::on_each;
use crate::support::{Op, Script};

on_each! {
    async fn twenty_retries_then_the_job_has_failed(world) {
        let job = world.start(Script::new("a", [Op::Fail(1000)])).await;
        let _scheduler = world.scheduler().await;
        let _workers = world.workers(1);
        let row = world.until_over(job).await;
        assert_eq!(row.state, JobState::Failed);
        assert_eq!(row.failures, 21);
        assert_eq!(world.shared.count("a starts"), 21);
        assert!(row.dead, "it is a dead letter");
        let effects = world.effects().await;
        for n in 0..=20 {
            assert!(effects.contains(&format!("a retry_{n}: a fails")), "retry_{n} is noted");
        }
        assert_eq!(effects.iter().filter(|effect| *effect == "a failed").count(), 1);
        let attempts = world.store.read(async |tx| towpath_store::attempts::list(tx, job).await).await.unwrap();
        assert_eq!(attempts.len(), 21);
        assert_eq!(attempts[20].failure, Some(20));
    }
}

on_each! {
    async fn attempts_are_at_least_the_delay_apart(world) {
        let job = world.start(Script::new("a", [Op::Fail(3)])).await;
        let _scheduler = world.scheduler().await;
        let _workers = world.workers(1);
        world.until_over(job).await;
        let attempts = world.store.read(async |tx| towpath_store::attempts::list(tx, job).await).await.unwrap();
        for pair in attempts.windows(2) {
            assert!(pair[1].at.since(pair[0].at).as_millis() >= 30, "{pair:?}");
        }
    }
}

on_each! {
    async fn a_panic_is_a_failed_attempt(world) {
        let job = world.start(Script::new("a", [Op::Panic(1)])).await;
        let _scheduler = world.scheduler().await;
        let _workers = world.workers(1);
        let row = world.until_over(job).await;
        assert_eq!(row.state, JobState::Succeeded);
        assert_eq!(row.failures, 1);
        assert!(row.error.unwrap().contains("a panics"));
    }
}

on_each! {
    async fn a_fatal_failure_is_not_repeated(world) {
        let job = world.start(Script::new("a", [Op::Fatal])).await;
        let _scheduler = world.scheduler().await;
        let _workers = world.workers(1);
        assert_eq!(world.until_over(job).await.state, JobState::Failed);
        assert_eq!(world.shared.count("a starts"), 1);
        assert!(world.effects().await.contains(&"a failed".to_owned()));
    }
}

on_each! {
    async fn a_snooze_is_no_attempt(world) {
        let job = world.start(Script::new("a", [Op::Snooze(3, 10)])).await;
        let _scheduler = world.scheduler().await;
        let _workers = world.workers(1);
        let row = world.until_over(job).await;
        assert_eq!((row.attempt, row.failures), (1, 0));
        assert_eq!(world.shared.count("a starts"), 4);
    }
}
