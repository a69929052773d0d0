//! Cancel: at once when queued, asked when running, together with everything the job started.

use towpath_domain::job::JobState;
use towpath_durable::{Cancelled, cancel};

use crate::on_each;
use crate::support::{Op, Script};

on_each! {
    async fn a_queued_job_is_over_at_once(world) {
        let job = world.start(Script::new("a", [])).await;
        assert_eq!(world.store.write(async |tx| cancel(tx, job).await).await.unwrap(), Cancelled::Ended);
        assert_eq!(world.job(job).await.state, JobState::Cancelled);
        assert_eq!(world.effects().await, ["a cancelled"]);
        assert_eq!(world.store.write(async |tx| cancel(tx, job).await).await.unwrap(), Cancelled::Over);
    }
}

on_each! {
    async fn a_running_job_is_dropped_after_its_grace_and_writes_nothing_more(world) {
        let workers = world.workers(1);
        let job = world.start(Script::new("a", [Op::Gate("never".into()), Op::Effect("late".into())])).await;
        world.until_noted("a at never", 1).await;
        assert_eq!(world.store.write(async |tx| cancel(tx, job).await).await.unwrap(), Cancelled::Asked);
        assert_eq!(world.until_over(job).await.state, JobState::Cancelled);
        assert_eq!(world.effects().await, ["a cancelled"]);
        workers.drain(crate::support::PATIENCE).await;
    }
}

on_each! {
    async fn a_marked_job_cannot_write_or_settle(world) {
        let workers = world.workers(1);
        let job = world.start(Script::new("a", [Op::Gate("go".into()), Op::Effect("late".into())])).await;
        world.until_noted("a at go", 1).await;
        world.store.write(async |tx| cancel(tx, job).await).await.unwrap();
        world.shared.open("go");
        assert_eq!(world.until_over(job).await.state, JobState::Cancelled);
        assert_eq!(world.effects().await, ["a cancelled"]);
        workers.drain(crate::support::PATIENCE).await;
    }
}

on_each! {
    async fn cancelling_a_parent_takes_its_children_along(world) {
        let workers = world.workers(1);
        let children = vec![Script::new("b", [Op::Gate("never".into())]), Script::new("c", [])];
        let parent = world.start(Script::new("a", [Op::Children(children, Some(("export:1".into(), 1)))])).await;
        world.until_noted("b at never", 1).await;
        world.until_state(parent, JobState::Waiting).await;
        world.store.write(async |tx| cancel(tx, parent).await).await.unwrap();
        assert_eq!(world.job(parent).await.state, JobState::Cancelled);
        let children = world.store.read(async |tx| towpath_store::jobs::children(tx, parent, false, 9).await).await.unwrap();
        for child in children {
            assert_eq!(world.until_over(child.id).await.state, JobState::Cancelled);
        }
        assert_eq!(world.effects().await, ["a cancelled", "b cancelled", "c cancelled"]);
        workers.drain(crate::support::PATIENCE).await;
        world.check_invariants().await;
    }
}
