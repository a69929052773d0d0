//! Batched rows of a completion are written only if the job succeeds.

use towpath_domain::job::JobState;
use towpath_durable::cancel;

use crate::on_each;
use crate::support::{Op, Script};

fn ends_with(effect: &str) -> Script {
    Script::new(effect, [Op::Along(effect.to_owned())])
}

on_each! {
    async fn what_goes_along_is_written_with_the_end(world) {
        let _workers = world.workers(4);
        let names: Vec<String> = (0..9).map(|nth| format!("effect {nth}")).collect();
        let mut started = Vec::new();
        for name in &names {
            started.push(world.start(ends_with(name)).await);
        }
        for job in started {
            assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
        }
        assert_eq!(world.effects().await, names);
        world.check_invariants().await;
    }
}

on_each! {
    async fn nothing_goes_along_with_a_cancelled_job(world) {
        let job = world.start(ends_with("a")).await;
        let claimed = world.claim(1).await.remove(0);
        world.store.write(async |tx| cancel(tx, job).await).await.unwrap();
        world.perform(claimed).await;
        assert_eq!(world.job(job).await.state, JobState::Cancelled);
        assert_eq!(world.effects().await, ["a cancelled"]);
    }
}

on_each! {
    async fn nothing_goes_along_with_a_job_that_another_holds(world) {
        let job = world.start(ends_with("a")).await;
        let stale = world.claim(1).await.remove(0);
        world.end_lease(job).await;
        assert_eq!(world.rescue().await, 1);
        let owner = world.claim(1).await.remove(0);
        world.perform(stale).await;
        assert!(world.effects().await.is_empty());
        world.perform(owner).await;
        assert_eq!(world.effects().await, ["a"]);
    }
}

on_each! {
    async fn one_that_is_refused_takes_no_other_along(world) {
        let refused = world.start(ends_with(Script::REFUSED)).await;
        let others = [world.start(ends_with("a")).await, world.start(ends_with("b")).await];
        let _workers = world.workers(4);
        for job in others {
            assert_eq!(world.until_over(job).await.state, JobState::Succeeded);
        }
        let effects = world.effects().await;
        assert!(effects.starts_with(&["a".to_owned(), "b".to_owned()]), "{effects:?}");
        assert!(!effects.iter().any(|name| name == Script::REFUSED), "{effects:?}");
        assert_ne!(world.job(refused).await.state, JobState::Succeeded);
    }
}
