//! A deployment continues with its own database, or reports that it is missing.

use towpath_domain::deployment::{LogKind, RevisionStatus};
use towpath_store::placements::{self, PlacementState};

use crate::deployment_fixture::DeploymentFixture;

async fn accept(fixture: &DeploymentFixture) {
    let deployment = fixture.deployment;
    let store = fixture.workflows.store();
    let accepted = store.write(async |tx| placements::accept_database(tx, deployment).await);
    assert!(accepted.await.unwrap());
}

#[tokio::test]
async fn a_deployment_whose_database_is_away_does_not_start() {
    let fixture = DeploymentFixture::new().await;
    fixture.revision(None).await;
    fixture.workflows.drain().await;
    let (stop, keep) = fixture.keep_what_serves().await;
    let served = fixture.now().await.1.unwrap();
    assert!(served.database_id.is_some());

    fixture.fake().put_database(fixture.deployment, None);
    fixture.fake().crash(fixture.deployment);
    let down = fixture.until(|placement| placement.state == PlacementState::Down).await;
    let why = down.error.unwrap();
    assert!(why.contains("is not on this machine"), "{why}");
    assert!(
        why.contains(&format!("accept-database {}", fixture.deployment)),
        "says what to do: {why}"
    );
    assert_eq!(down.database_id, served.database_id);
    assert!(fixture.hosting.backend.running().is_empty());

    accept(&fixture).await;
    let placement = fixture
        .until(|placement| placement.state == PlacementState::Serving)
        .await;
    assert!(placement.database_id.is_some_and(|id| Some(id) != served.database_id));
    stop.cancel();
    keep.await.unwrap();
}

#[tokio::test]
async fn a_revision_is_not_deployed_on_another_database() {
    let fixture = DeploymentFixture::new().await;
    fixture.revision(None).await;
    fixture.workflows.drain().await;
    let served = fixture.now().await.1.unwrap();
    let calls = fixture.fake().calls();

    fixture.fake().put_database(fixture.deployment, Some("other"));
    let second = fixture.revision(Some("touch x")).await;
    fixture.workflows.drain().await;
    let failed = fixture.read(second).await;
    assert_eq!(failed.status, RevisionStatus::DeployFailed);
    let why = failed.error.unwrap();
    assert!(why.contains("has another database"), "{why}");
    assert!(
        fixture
            .log(second, LogKind::Deploy)
            .await
            .contains("has another database")
    );
    assert_eq!(fixture.fake().calls(), calls, "nothing was started or stopped");
    assert_eq!(fixture.now().await.1, Some(served));

    accept(&fixture).await;
    let third = fixture.revision(Some("touch y")).await;
    fixture.workflows.drain().await;
    assert_eq!(fixture.read(third).await.status, RevisionStatus::Deployed);
    let placement = fixture.now().await.1.unwrap();
    assert_eq!(placement.database_id.as_deref(), Some("other"));
}
