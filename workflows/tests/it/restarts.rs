//! Deployments that end, hang, panic or take long to stop, and how they are kept.

use std::time::Duration;

use towpath_compute::fake::Act;
use towpath_store::deployments;
use towpath_store::placements::PlacementState;

use crate::yard::{Yard, within};

/// A start that panics is a start that failed: it is tried again.
#[tokio::test]
async fn a_start_that_panics_is_tried_again() {
    let yard = Yard::new().await;
    yard.revision(None).await;
    yard.home.drain().await;
    let (stop, keep) = yard.keep_what_serves().await;
    yard.fake().panic_at_replace();
    yard.fake().crash(yard.deployment);
    within("it serves again after a start that panicked", async {
        while yard.fake().calls().iter().filter(|call| *call == "replace").count() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        yard.until(|placement| placement.state == PlacementState::Serving).await;
    })
    .await;
    stop.cancel();
    keep.await.unwrap();
}

/// One that hangs is found by asking, though it does not end.
#[tokio::test]
async fn one_that_does_not_answer_is_started_again() {
    let yard = Yard::new().await;
    yard.revision(None).await;
    yard.home.drain().await;
    let (stop, keep) = yard.keep_what_serves().await;
    yard.fake().deafen(yard.deployment);
    within("one that hangs is started again", async {
        yard.until(|placement| placement.restarts == 1 && placement.state == PlacementState::Serving)
            .await;
    })
    .await;
    stop.cancel();
    keep.await.unwrap();
}

/// Its port may be another's while it waits for its next start.
#[tokio::test]
async fn one_that_ended_is_not_told_as_serving_while_it_waits() {
    let yard = Yard::new().await;
    yard.revision(None).await;
    yard.home.drain().await;
    let (stop, keep) = yard.keep_what_serves().await;
    // Each end in a row makes the pause before the next start longer.
    within("the placement tells of a long pause", async {
        for times in 1.. {
            yard.fake().crash(yard.deployment);
            let ended = yard.until(|placement| placement.restarts >= times).await;
            if ended.state == PlacementState::Down {
                assert_eq!(ended.address, None);
                assert!(ended.error.unwrap().contains("ended by itself again"));
                break;
            }
            yard.until(|placement| placement.state == PlacementState::Serving).await;
        }
    })
    .await;
    stop.cancel();
    keep.await.unwrap();
}

/// A deployment that drains for long does not keep the others from being looked after.
#[tokio::test]
async fn what_is_being_stopped_keeps_nothing_else_waiting() {
    let mut yard = Yard::new().await;
    yard.revision(None).await;
    yard.home.drain().await;
    let (tenant, first) = (yard.home.tenant, yard.deployment);
    yard.fake().act_at_stop(Act::Hang);
    yard.home
        .store()
        .write(async |tx| deployments::deleting(tx, tenant, first, false).await)
        .await
        .unwrap();
    yard.deployment = towpath_domain::DeploymentId::new();
    yard.add_deployment_named("other").await;
    yard.revision(None).await;
    yard.home.drain().await;
    let (stop, keep) = yard.keep_what_serves().await;
    within("the deleted one is stopped", async {
        while !yard.fake().calls().iter().any(|call| call == "stop") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    yard.fake().crash(yard.deployment);
    within("the other one is started again meanwhile", async {
        yard.until(|placement| placement.restarts == 1 && placement.state == PlacementState::Serving)
            .await;
    })
    .await;
    yard.fake().release();
    stop.cancel();
    keep.await.unwrap();
}
