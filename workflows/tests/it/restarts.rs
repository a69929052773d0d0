//! Deployments that end, hang, panic or stop slowly.

use std::time::Duration;

use towpath_compute::fake::FakeAction;
use towpath_domain::DeploymentId;
use towpath_store::deployments;
use towpath_store::placements::{self, PlacementState};

use crate::deployment_fixture::{DeploymentFixture, within};

/// A panic during a start is a failed start: it is retried.
#[tokio::test]
async fn a_start_that_panics_is_tried_again() {
    let fixture = DeploymentFixture::new().await;
    fixture.revision(None).await;
    fixture.workflows.drain().await;
    let (stop, keep) = fixture.keep_what_serves().await;
    fixture.fake().panic_at_replace();
    fixture.fake().crash(fixture.deployment);
    within("it serves again after a start that panicked", async {
        while fixture.fake().calls().iter().filter(|call| *call == "replace").count() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fixture
            .until(|placement| placement.state == PlacementState::Serving)
            .await;
    })
    .await;
    stop.cancel();
    keep.await.unwrap();
}

/// A hanging server is detected by health checks, although it does not end.
#[tokio::test]
async fn one_that_does_not_answer_is_started_again() {
    let fixture = DeploymentFixture::new().await;
    fixture.revision(None).await;
    fixture.workflows.drain().await;
    let (stop, keep) = fixture.keep_what_serves().await;
    fixture.fake().deafen(fixture.deployment);
    within("one that hangs is started again", async {
        fixture
            .until(|placement| placement.restarts == 1 && placement.state == PlacementState::Serving)
            .await;
    })
    .await;
    stop.cancel();
    keep.await.unwrap();
}

/// The answers of many agent servers cost no more reads of their placements than that of one.
#[tokio::test]
async fn health_checks_share_a_read_of_the_placements() {
    let mut fixture = DeploymentFixture::new().await;
    fixture.revision(None).await;
    for nth in 1..8 {
        fixture.deployment = DeploymentId::new();
        fixture.add_deployment_named(&format!("agent-{nth}")).await;
        fixture.revision(None).await;
    }
    fixture.workflows.drain().await;
    let store = fixture.workflows.store();
    let sent = store.statements();
    store.read(async |tx| placements::all(tx).await).await.unwrap();
    let of_read = store.statements() - sent;
    let (stop, keep) = fixture.keep_what_serves().await;
    // Until all of them run.
    within("every agent server runs", async {
        let serves = "SELECT count(*) FROM deployment_placement WHERE state = 'serving'";
        while fixture.workflows.count(serves).await < 8 {
            fixture.fake().until_checked(1).await;
        }
    })
    .await;
    let sent = store.statements();
    within("health checks", fixture.fake().until_checked(160)).await;
    let reads = (store.statements() - sent) / of_read;
    assert!(
        reads < 80,
        "{reads} reads of the placements for 160 health checks of 8 agent servers"
    );
    stop.cancel();
    keep.await.unwrap();
}

/// Another process may get its port while it waits for its next start.
#[tokio::test]
async fn one_that_ended_is_not_told_as_serving_while_it_waits() {
    let fixture = DeploymentFixture::new().await;
    fixture.revision(None).await;
    fixture.workflows.drain().await;
    let (stop, keep) = fixture.keep_what_serves().await;
    // Each end in a row makes the pause longer.
    within("the placement tells of a long pause", async {
        for times in 1.. {
            fixture.fake().crash(fixture.deployment);
            let ended = fixture.until(|placement| placement.restarts >= times).await;
            if ended.state == PlacementState::Down {
                assert_eq!(ended.address, None);
                assert!(ended.error.unwrap().contains("keeps ending unexpectedly"));
                break;
            }
            fixture
                .until(|placement| placement.state == PlacementState::Serving)
                .await;
        }
    })
    .await;
    stop.cancel();
    keep.await.unwrap();
}

/// A slow drain of one deployment does not delay the others.
#[tokio::test]
async fn what_is_being_stopped_keeps_nothing_else_waiting() {
    let mut fixture = DeploymentFixture::new().await;
    fixture.revision(None).await;
    fixture.workflows.drain().await;
    let (tenant, first) = (fixture.workflows.tenant, fixture.deployment);
    fixture.fake().act_at_stop(FakeAction::Hang);
    fixture
        .workflows
        .store()
        .write(async |tx| deployments::deleting(tx, tenant, first, false).await)
        .await
        .unwrap();
    fixture.deployment = DeploymentId::new();
    fixture.add_deployment_named("other").await;
    fixture.revision(None).await;
    fixture.workflows.drain().await;
    let (stop, keep) = fixture.keep_what_serves().await;
    within("the deleted one is stopped", async {
        while !fixture.fake().calls().iter().any(|call| call == "stop") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    fixture.fake().crash(fixture.deployment);
    within("the other one is started again meanwhile", async {
        fixture
            .until(|placement| placement.restarts == 1 && placement.state == PlacementState::Serving)
            .await;
    })
    .await;
    fixture.fake().release();
    stop.cancel();
    keep.await.unwrap();
}
