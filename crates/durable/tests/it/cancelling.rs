//! Cancel: at once if queued, by a signal if running, together with all descendants.

use towpath_domain::job::JobState;
use towpath_durable::{CancelOutcome, cancel, cancel_all};

use crate::on_each;
use crate::support::{Op, Script};

on_each! {
    async fn a_queued_job_is_over_at_once(world) {
        let job = world.start(Script::new("a", [])).await;
        assert_eq!(world.store.write(async |tx| cancel(tx, job).await).await.unwrap(), CancelOutcome::Ended);
        assert_eq!(world.job(job).await.state, JobState::Cancelled);
        assert_eq!(world.effects().await, ["a cancelled"]);
        assert_eq!(world.store.write(async |tx| cancel(tx, job).await).await.unwrap(), CancelOutcome::AlreadyFinished);
    }
}

on_each! {
    async fn a_running_job_is_dropped_after_its_grace_and_writes_nothing_more(world) {
        let workers = world.workers(1);
        let job = world.start(Script::new("a", [Op::Gate("never".into()), Op::Effect("late".into())])).await;
        world.until_noted("a at never", 1).await;
        assert_eq!(world.store.write(async |tx| cancel(tx, job).await).await.unwrap(), CancelOutcome::Requested);
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
        let children = world.store.read(async |tx| towpath_store::jobs::children(tx, parent, 9).await).await.unwrap();
        for child in children {
            assert_eq!(world.until_over(child.id).await.state, JobState::Cancelled);
        }
        assert_eq!(world.effects().await, ["a cancelled", "b cancelled", "c cancelled"]);
        workers.drain(crate::support::PATIENCE).await;
        world.check_invariants().await;
    }
}

on_each! {
    async fn cancelled_children_leave_no_place_behind(world) {
        // One holds the slot, two are blocked: the end of the first one promotes the second while all of them end.
        let lane = ("export:1".to_owned(), 1);
        let children = ["b", "c", "d"].map(|name| Script::new(name, [])).to_vec();
        let parent = world.start(Script::new("a", [Op::Children(children, Some(lane))])).await;
        let claimed = world.claim(1).await.remove(0);
        world.perform(claimed).await;
        world.store.write(async |tx| cancel(tx, parent).await).await.unwrap();
        assert_eq!(world.effects().await, ["a cancelled", "b cancelled", "c cancelled", "d cancelled"]);
        assert_eq!(world.count("SELECT held FROM lane").await, 0);
        world.check_invariants().await;
    }
}

on_each! {
    async fn families_are_cancelled_together(world) {
        let mut parents = Vec::new();
        for (name, lane) in [("a", "export:1"), ("b", "export:2")] {
            let children = (0..6).map(|nth| Script::new(&format!("{name}{nth}"), [])).collect();
            parents.push(world.start(Script::new(name, [Op::Children(children, Some((lane.into(), 2)))])).await);
        }
        for claimed in world.claim(2).await {
            world.perform(claimed).await;
        }
        let running = world.claim(1).await.remove(0);
        let ids = [parents[0], parents[1], towpath_domain::JobId::new()];
        let mut first = false;
        let cancelled = world.store.write(async |tx| {
            cancel_all(tx, &ids, async |_| {
                first = true;
                Ok(())
            })
            .await
        });
        cancelled.await.unwrap();
        assert!(first);
        for parent in parents {
            assert_eq!(world.job(parent).await.state, JobState::Cancelled);
        }
        // One of twelve children was running, and was signalled.
        assert_eq!(world.effects().await.len(), 2 + 11);
        assert_eq!(world.count("SELECT count(*) FROM job WHERE finished_at IS NULL").await, 1);
        assert_eq!(world.count("SELECT count(*) FROM job WHERE cancel_at IS NOT NULL").await, 1);
        world.perform(running).await;
        assert_eq!(world.effects().await.len(), 2 + 12);
        assert_eq!(world.count("SELECT count(*) FROM job WHERE finished_at IS NULL").await, 0);
        assert_eq!(world.count("SELECT count(*) FROM lane WHERE held <> 0").await, 0);
        // No row still has a cancel mark, or counts running children.
        assert_eq!(world.count("SELECT count(*) FROM job WHERE cancel_at IS NOT NULL OR open_children <> 0").await, 0);
        world.check_invariants().await;
    }
}

on_each! {
    async fn a_mark_is_seen_without_any_signal(world) {
        // As if the signal was sent between the claim and its registration in the worker.
        let workers = world.workers(1);
        let job = world.start(Script::new("a", [Op::Gate("never".into())])).await;
        world.until_noted("a at never", 1).await;
        world.store.write(async |tx| towpath_store::jobs::mark_cancel(tx, job).await).await.unwrap();
        assert_eq!(world.until_over(job).await.state, JobState::Cancelled);
        workers.drain(crate::support::PATIENCE).await;
    }
}

on_each! {
    async fn a_marked_job_that_is_handed_back_is_over(world) {
        let workers = world.workers(1);
        let job = world.start(Script::new("a", [Op::Gate("never".into())])).await;
        world.until_noted("a at never", 1).await;
        world.store.write(async |tx| towpath_store::jobs::mark_cancel(tx, job).await).await.unwrap();
        workers.drain(std::time::Duration::ZERO).await;
        assert_eq!(world.job(job).await.state, JobState::Cancelled);
        assert_eq!(world.effects().await, ["a cancelled"]);
    }
}

/// The parent starts its children while its cancel already waits for the row: they must be cancelled too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_recorded_while_the_cancel_waits_are_cancelled_too() {
    let Some(database) = crate::support::Database::postgres().await else {
        return;
    };
    let world = crate::support::World::new(database).await;
    let parent = world.start(Script::new("a", [])).await;
    world.claim(1).await;
    let (locked, release) = (
        std::sync::Arc::new(tokio::sync::Notify::new()),
        std::sync::Arc::new(tokio::sync::Notify::new()),
    );
    let waiting = tokio::spawn({
        let (store, tenant, locked, release) = (world.store.clone(), world.tenant, locked.clone(), release.clone());
        async move {
            store
                .write(async |tx| {
                    let lane = towpath_durable::Lane::new("export:1", 1);
                    towpath_store::lanes::lock(tx, lane.key(), 1).await?;
                    let row = towpath_store::jobs::lock(tx, &[parent]).await?.remove(0);
                    for name in ["b", "c"] {
                        let start = towpath_durable::Start::new(tenant).child_of(parent).lane(lane.clone());
                        towpath_durable::start(tx, &Script::new(name, []), start).await?;
                    }
                    towpath_store::jobs::count_children(tx, parent).await?;
                    let to = towpath_store::jobs::JobTransition::of(&row, JobState::Waiting);
                    towpath_store::jobs::apply(tx, &row, &to).await?;
                    crate::support::stand_still(tx).await?;
                    locked.notify_one();
                    release.notified().await;
                    Ok(())
                })
                .await
        }
    });
    locked.notified().await;
    let cancelling = tokio::spawn({
        let store = world.store.clone();
        async move { store.write(async |tx| cancel(tx, parent).await).await }
    });
    world.until_somebody_waits_for_a_lock().await;
    release.notify_one();
    waiting.await.unwrap().unwrap();
    assert_eq!(cancelling.await.unwrap().unwrap(), CancelOutcome::Ended);
    assert_eq!(world.effects().await, ["a cancelled", "b cancelled", "c cancelled"]);
    world.check_invariants().await;
}
