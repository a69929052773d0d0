//! A worker whose job was taken over cannot commit anything: one two-session test for each fenced write.
//!
//! The second session takes the job while the first one's write already waits for the row, a case that a fence in a
//! plain WHERE misses.

use std::collections::{HashMap, HashSet};

use towpath_domain::WorkerId;
use towpath_domain::job::JobState;
use towpath_durable::{ClaimedJob, Lane, Start, perform};
use towpath_store::jobs::{self, JobFence};
use towpath_store::{Error, steps};

use crate::on_each;
use crate::support::{Op, Script, World, fenced};

/// Claims, loses the lease to the rescue, and claims again. Returns the stale claim and the valid one.
async fn taken_over(world: &World, ops: impl Into<Vec<Op>>) -> (ClaimedJob, ClaimedJob) {
    world.start(Script::new("a", ops)).await;
    let stale = world.claim(1).await.remove(0);
    world.end_lease(stale.id).await;
    assert_eq!(world.rescue().await, 1);
    let owner = world.claim(1).await.remove(0);
    assert_eq!(owner.id, stale.id);
    assert!(owner.fence > stale.fence);
    (stale, owner)
}

/// The stale holder performs the whole script; returns what was committed.
async fn perform_stale(world: &World, stale: ClaimedJob) -> Vec<String> {
    world.perform(stale).await;
    world.effects().await
}

on_each! {
    async fn a_stale_commit_is_refused(world) {
        let (stale, owner) = taken_over(&world, [Op::Effect("x".into())]).await;
        assert!(perform_stale(&world, stale).await.is_empty());
        assert_eq!(world.job(owner.id).await.fence, owner.fence);
    }
}

on_each! {
    async fn a_stale_step_is_refused(world) {
        let (stale, owner) = taken_over(&world, [Op::Step("x".into())]).await;
        perform_stale(&world, stale).await;
        let steps = world.store.read(async |tx| steps::list(tx, owner.id).await).await.unwrap();
        assert!(steps.is_empty(), "{steps:?}");
    }
}

on_each! {
    async fn a_stale_checkpoint_is_refused(world) {
        let (stale, owner) = taken_over(&world, [Op::Checkpoint(1)]).await;
        perform_stale(&world, stale).await;
        assert_eq!(world.job(owner.id).await.cursor, None);
    }
}

on_each! {
    async fn a_stale_settle_is_refused(world) {
        let (stale, owner) = taken_over(&world, []).await;
        assert!(perform_stale(&world, stale).await.is_empty());
        assert_eq!(world.job(owner.id).await.state, JobState::Running);
    }
}

on_each! {
    async fn a_stale_completion_is_refused(world) {
        let (stale, owner) = taken_over(&world, [Op::Done]).await;
        perform_stale(&world, stale.clone()).await;
        assert_eq!(world.job(owner.id).await.state, JobState::Running);
        let hit = world.store.write(async |tx| jobs::complete(tx, &[fenced(&stale)], &[]).await).await.unwrap();
        assert!(hit.is_empty());
    }
}

on_each! {
    async fn a_turn_completes_what_is_held_and_claims_what_is_ready(world) {
        let (stale, taken) = taken_over(&world, [Op::Done]).await;
        let cancelled = world.start(Script::new("b", [Op::Done])).await;
        let held = world.start(Script::new("c", [Op::Done])).await;
        let claimed = world.claim(2).await;
        world.store.write(async |tx| towpath_durable::cancel(tx, cancelled).await).await.unwrap();
        let [next, last] = [world.start(Script::new("d", [])).await, world.start(Script::new("e", [])).await];
        let mine: Vec<_> = claimed.iter().chain([&stale]).map(fenced).collect();
        let turn = async |n| {
            world
                .store
                .write_one(async |tx| {
                    jobs::complete_and_claim(tx, &mine, &[], &jobs::ClaimRequest::new(Script::POOL_NAME, WorkerId::new(), n)).await
                })
                .await
                .unwrap()
        };
        let turned = turn(1).await;
        let mut missed: Vec<_> = turned.not_completed.iter().map(|job| job.id).collect();
        missed.sort_unstable();
        assert_eq!(missed, [taken.id, cancelled]);
        assert_eq!(turned.claimed.iter().map(|job| job.id).collect::<Vec<_>>(), [next]);
        assert_eq!(turned.claimed[0].attempt, 1);
        assert_eq!(world.job(held).await.state, JobState::Succeeded);
        assert_eq!(world.job(next).await.fence, turned.claimed[0].fence);
        assert_eq!(world.job(cancelled).await.state, JobState::Running);
        assert_eq!(world.job(taken.id).await.fence, taken.fence);
        let again = turn(9).await;
        assert_eq!(again.not_completed.len(), 3, "what is over cannot be completed");
        assert_eq!(again.claimed.iter().map(|job| job.id).collect::<Vec<_>>(), [last]);
        world.check_invariants().await;
    }
}

on_each! {
    async fn a_turn_gives_places_to_those_who_waited_longest(world) {
        // Slots and jobs of each lane. The caller may not end those of the last two lanes.
        let mut jobs_of = HashMap::new();
        for (lane, places, count) in [("one", 1, 3), ("two", 2, 5), ("stale", 1, 2), ("cancelled", 1, 2)] {
            for nth in 1..=count {
                let name = format!("{lane} {nth}");
                let how = Start::new(world.tenant).lane(Lane::new(lane, places));
                let id = world.start_as(Script::new(&name, [Op::Done]), how).await;
                jobs_of.insert(name, id);
            }
        }
        let states = async |expected: &[(&str, JobState)]| {
            for (name, state) in expected {
                assert_eq!(world.job(jobs_of[*name]).await.state, *state, "{name}");
            }
        };
        let claimed = world.claim(9).await;
        assert_eq!(claimed.len(), 5, "each lane lets in as many as it has places");
        world.store.write(async |tx| towpath_durable::cancel(tx, jobs_of["cancelled 1"]).await).await.unwrap();
        let mut mine: Vec<JobFence> = claimed.iter().map(fenced).collect();
        for job in mine.iter_mut().filter(|job| job.id == jobs_of["stale 1"]) {
            job.fence -= 1;
        }
        let lanes = ["cancelled", "one", "stale", "two"].map(str::to_owned);
        let turned = world
            .store
            .write(async |tx| {
                jobs::complete_and_claim(tx, &mine, &lanes, &jobs::ClaimRequest::new(Script::POOL_NAME, WorkerId::new(), 2)).await
            })
            .await
            .unwrap();
        let missed: HashSet<_> = turned.not_completed.iter().map(|job| job.id).collect();
        assert_eq!(missed, HashSet::from(["stale 1", "cancelled 1"].map(|name| jobs_of[name])));
        let next: Vec<_> = turned.claimed.iter().map(|job| job.id).collect();
        assert_eq!(next, ["one 2", "two 3"].map(|name| jobs_of[name]), "the next of their lanes, in this very turn");
        states(&[
            ("one 1", JobState::Succeeded), ("one 2", JobState::Running), ("one 3", JobState::Blocked),
            ("two 1", JobState::Succeeded), ("two 2", JobState::Succeeded), ("two 3", JobState::Running),
            ("two 4", JobState::Ready), ("two 5", JobState::Blocked),
            ("stale 1", JobState::Running), ("stale 2", JobState::Blocked),
            ("cancelled 1", JobState::Running), ("cancelled 2", JobState::Blocked),
        ]).await;
        world.check_invariants().await;
        let mine: Vec<JobFence> = turned.claimed.iter().map(fenced).collect();
        let done = world.store.write(async |tx| jobs::complete(tx, &mine, &lanes).await).await.unwrap();
        assert_eq!(done.len(), 2);
        states(&[("one 3", JobState::Ready), ("two 4", JobState::Ready), ("two 5", JobState::Ready), ("stale 2", JobState::Blocked)]).await;
        world.check_invariants().await;
    }
}

on_each! {
    async fn a_stale_failure_is_refused(world) {
        let (stale, owner) = taken_over(&world, [Op::Fatal]).await;
        assert!(perform_stale(&world, stale).await.is_empty());
        assert_eq!(world.job(owner.id).await.state, JobState::Running);
    }
}

on_each! {
    async fn a_stale_wait_starts_no_children(world) {
        let (stale, owner) = taken_over(&world, [Op::Children(vec![Script::new("b", [])], None)]).await;
        perform_stale(&world, stale).await;
        let children = world.store.read(async |tx| jobs::children(tx, owner.id, 9).await).await.unwrap();
        assert!(children.is_empty());
        assert_eq!(world.job(owner.id).await.state, JobState::Running);
    }
}

/// While a transaction that takes the job away holds the row, a step, a commit and a completion of the old holder wait
/// for it; after the commit they must see the new fence, not that of their snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_waits_for_the_row_sees_the_new_fence() {
    let Some(database) = crate::support::Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    for kind in [
        "step", "one step", "complete", "leave", "turn", "give up", "commit", "settle",
    ] {
        let effects = (kind != "settle").then(|| Op::Effect("x".into()));
        let id = world
            .start(Script::new("a", effects.into_iter().collect::<Vec<_>>()))
            .await;
        let stale = world.claim(1).await.remove(0);
        assert_eq!(stale.id, id);
        let locked = std::sync::Arc::new(tokio::sync::Notify::new());
        let release = std::sync::Arc::new(tokio::sync::Notify::new());
        let taking = {
            let (store, locked, release) = (world.store.clone(), locked.clone(), release.clone());
            tokio::spawn(async move {
                store
                    .write(async |tx| {
                        let job = jobs::lock(tx, &[id]).await?.remove(0);
                        let mut to = jobs::JobTransition::of(&job, JobState::Ready);
                        to.fence += 1;
                        jobs::apply(tx, &job, &to).await?;
                        crate::support::stand_still(tx).await?;
                        locked.notify_one();
                        release.notified().await;
                        Ok(())
                    })
                    .await
            })
        };
        locked.notified().await;
        let writing = {
            let (store, job, engine, registry, shared) = (
                world.store.clone(),
                stale.clone(),
                world.engine.clone(),
                world.registry.clone(),
                world.shared.clone(),
            );
            tokio::spawn(async move {
                let held = JobFence {
                    id: job.id,
                    fence: job.fence,
                };
                let step = steps::NewStep {
                    job: held,
                    name: "s".into(),
                    output: "1".into(),
                };
                match kind {
                    "step" => store
                        .write(async |tx| steps::record(tx, &[step]).await)
                        .await
                        .map(|hit| hit.len()),
                    "one step" => store
                        .write_one(async |tx| steps::record_one(tx, &step).await)
                        .await
                        .map(usize::from),
                    "complete" => store
                        .write(async |tx| jobs::complete(tx, &[held], &[]).await)
                        .await
                        .map(|hit| hit.len()),
                    "leave" => store
                        .write(async |tx| jobs::complete(tx, &[held], &["thread:1".to_owned()]).await)
                        .await
                        .map(|hit| hit.len()),
                    "turn" => {
                        let turned = store
                            .write_one(async |tx| {
                                let claimer = jobs::ClaimRequest::new(Script::POOL_NAME, WorkerId::new(), 1);
                                jobs::complete_and_claim(tx, &[held], &[], &claimer).await
                            })
                            .await;
                        turned.map(|turned| 1 - turned.not_completed.len() + turned.claimed.len())
                    }
                    "give up" => towpath_durable::give_up(&store, held).await.map(usize::from),
                    _ => {
                        let (_signal, receiver) = tokio::sync::watch::channel(towpath_durable::Signal::Run);
                        perform(&engine, &registry, &*shared, job, receiver).await;
                        Ok::<_, Error>(0)
                    }
                }
            })
        };
        // The write must wait for the row before it is released.
        world.until_somebody_waits_for_a_lock().await;
        release.notify_one();
        taking.await.unwrap().unwrap();
        assert_eq!(writing.await.unwrap().unwrap(), 0, "{kind} slipped through");
        assert!(world.effects().await.is_empty(), "{kind} wrote an effect");
        assert_eq!(world.job(id).await.state, JobState::Ready);
        let steps = world.store.read(async |tx| steps::list(tx, id).await).await.unwrap();
        assert!(steps.is_empty());
        world
            .store
            .write(async |tx| towpath_durable::cancel(tx, id).await)
            .await
            .unwrap();
        world
            .store
            .write(async |tx| {
                towpath_store::on!(tx, |conn| sqlx::query("DELETE FROM effect")
                    .execute(conn)
                    .await
                    .map(drop))?;
                Ok(())
            })
            .await
            .unwrap();
    }
}
