//! A deployment goes on with the database it had, or says that it is away.

use towpath_domain::deployment::{LogKind, RevisionStatus};
use towpath_store::placements::{self, PlacementState};

use crate::yard::Yard;

async fn accept(yard: &Yard) {
    let deployment = yard.deployment;
    let store = yard.home.store();
    let accepted = store.write(async |tx| placements::accept_database(tx, deployment).await);
    assert!(accepted.await.unwrap());
}

#[tokio::test]
async fn a_deployment_whose_database_is_away_does_not_start() {
    let yard = Yard::new().await;
    yard.revision(None).await;
    yard.home.drain().await;
    let (stop, keep) = yard.keep_what_serves().await;
    let served = yard.now().await.1.unwrap();
    assert!(served.database_id.is_some());

    yard.fake().put_database(yard.deployment, None);
    yard.fake().crash(yard.deployment);
    let down = yard.until(|placement| placement.state == PlacementState::Down).await;
    let why = down.error.unwrap();
    assert!(why.contains("is not on this machine"), "{why}");
    assert!(
        why.contains(&format!("accept-database {}", yard.deployment)),
        "says what to do: {why}"
    );
    assert_eq!(down.database_id, served.database_id);
    assert!(yard.hosting.backend.running().is_empty());

    accept(&yard).await;
    let placement = yard.until(|placement| placement.state == PlacementState::Serving).await;
    assert!(placement.database_id.is_some_and(|id| Some(id) != served.database_id));
    stop.cancel();
    keep.await.unwrap();
}

#[tokio::test]
async fn a_revision_is_not_deployed_on_another_database() {
    let yard = Yard::new().await;
    yard.revision(None).await;
    yard.home.drain().await;
    let served = yard.now().await.1.unwrap();
    let calls = yard.fake().calls();

    yard.fake().put_database(yard.deployment, Some("other"));
    let second = yard.revision(Some("touch x")).await;
    yard.home.drain().await;
    let failed = yard.read(second).await;
    assert_eq!(failed.status, RevisionStatus::DeployFailed);
    let why = failed.error.unwrap();
    assert!(why.contains("another one than it had"), "{why}");
    assert!(
        yard.log(second, LogKind::Deploy)
            .await
            .contains("another one than it had")
    );
    assert_eq!(yard.fake().calls(), calls, "nothing was started or stopped");
    assert_eq!(yard.now().await.1, Some(served));

    accept(&yard).await;
    let third = yard.revision(Some("touch y")).await;
    yard.home.drain().await;
    assert_eq!(yard.read(third).await.status, RevisionStatus::Deployed);
    let placement = yard.now().await.1.unwrap();
    assert_eq!(placement.database_id.as_deref(), Some("other"));
}
