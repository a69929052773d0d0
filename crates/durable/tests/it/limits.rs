//! The time limit of an attempt, with simulated hours.

use std::time::Duration;

use futures::poll;
use tokio::sync::watch;
use towpath_domain::Clock;
use towpath_domain::job::JobState;
use towpath_durable::{Engine, Settings, Signal, Start, perform, ready_due};
use towpath_store::{Options, Store};

use crate::support::{Database, Op, Script, World};

const SECOND: Duration = Duration::from_secs(1);

/// Single-threaded, because time can only be paused there. It stands still while the handler waits at its gate and
/// nothing else is active, and advances during database calls.
async fn every_attempt_ends_at_its_limit(world: World) {
    let job = world
        .start(Script::new("a", [Op::Step("one".into()), Op::Gate("never".into())]))
        .await;
    for attempt in 1..=21 {
        let claimed = loop {
            ready_due(&world.store).await.unwrap();
            if let Some(claimed) = world.claim(1).await.pop() {
                break claimed;
            }
        };
        let (_tell, told) = watch::channel(Signal::Run);
        let mut work = Box::pin(perform(&world.engine, &world.registry, &*world.shared, claimed, told));
        tokio::select! {
            () = &mut work => panic!("nobody opened the gate"),
            () = world.until_noted("a at never", attempt) => {}
        }
        tokio::time::pause();
        tokio::time::advance(Script::LIMIT - 10 * SECOND).await;
        assert!(poll!(&mut work).is_pending(), "attempt {attempt} has its whole time");
        tokio::time::advance(10 * SECOND).await;
        tokio::time::resume();
        work.await;
        assert_eq!(world.shared.count("a dropped at never"), attempt, "the handler is gone");
        let row = world.job(job).await;
        assert_eq!(row.failures, i64::try_from(attempt).unwrap());
        let error = row.error.unwrap_or_default();
        assert!(error.contains("the attempt took longer than 14400s"), "{error}");
        let expected = if attempt < 21 {
            JobState::Scheduled
        } else {
            JobState::TimedOut
        };
        assert_eq!(row.state, expected, "attempt {attempt}");
    }
    let row = world.job(job).await;
    assert!(row.dead && row.finished_at.is_some(), "it is a dead letter");
    assert_eq!(world.shared.count("a/one"), 1, "its first step was not performed again");
    let effects = world.effects().await;
    assert_eq!(
        effects.iter().filter(|effect| *effect == "a timed out").count(),
        1,
        "{effects:?}"
    );
    world.check_invariants().await;
}

#[tokio::test]
async fn every_attempt_ends_at_its_limit_on_sqlite() {
    every_attempt_ends_at_its_limit(World::new(Database::sqlite().await).await).await;
}

#[tokio::test]
async fn every_attempt_ends_at_its_limit_on_postgres() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    every_attempt_ends_at_its_limit(World::new(database).await).await;
}

/// A worker whose own clock is two hours ahead ends no job early.
#[tokio::test]
async fn a_deadline_goes_by_the_databases_clock() {
    let Some(database) = Database::postgres().await else {
        return;
    };
    let world = World::new(database).await;
    let hour = SECOND * 3600;
    let deadline = world.store.clock().now().plus(hour);
    let how = Start::new(world.tenant).deadline(deadline);
    let job = world.start_as(Script::new("a", []), how).await;
    let options = Options {
        clock: Clock::stopped(deadline.plus(hour)),
        ..Options::default()
    };
    let store = Store::open(&world._database.uri, options).await.unwrap();
    let engine = Engine::new(store, Settings::default());
    let claimed = world.claim(1).await.remove(0);
    let (_tell, told) = watch::channel(Signal::Run);
    perform(&engine, &world.registry, &*world.shared, claimed, told).await;
    assert_eq!(world.job(job).await.state, JobState::Succeeded);
}
