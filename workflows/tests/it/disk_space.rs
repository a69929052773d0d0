//! Jobs wait while a disk is nearly full, and continue later.

use std::time::Duration;

use towpath_domain::deployment::RevisionStatus;
use towpath_domain::export::{DestinationConfig, DestinationKind, ExportStatus};

use crate::deployment_fixture::DeploymentFixture;
use crate::fixture::{Database, WorkflowFixture, on_both_databases};

on_both_databases! {
    an_export_to_a_folder_waits_for_room,
}

/// Long enough for all retries.
const A_WHILE: Duration = Duration::from_secs(31);

async fn an_export_to_a_folder_waits_for_room(database: Database) {
    let mut home = WorkflowFixture::new_on(&database, 1).await;
    let to_bucket = home.export(1).await;
    let config = DestinationConfig {
        prefix: "team".to_owned(),
        ..DestinationConfig::default()
    };
    home.destination = home.add_destination(DestinationKind::File, &config).await;
    let to_folder = home.export(1).await;
    home.world.disks.exports.set_low(true);
    for _ in 0..10 {
        home.drive().await;
        home.wait(A_WHILE).await;
    }
    // Jobs that need no space here do not wait.
    assert_eq!(home.read(to_bucket).await.status, ExportStatus::Completed);
    assert_ne!(home.read(to_folder).await.status, ExportStatus::Completed);
    let waiting = home.runs(to_folder).await;
    assert!(waiting.iter().all(|run| run.files_written == 0), "{waiting:?}");
    let failed = home.count("SELECT count(*) FROM job WHERE failures > 0").await;
    assert_eq!(failed, 0, "to wait is no failure");

    home.world.disks.exports.set_low(false);
    home.drain().await;
    assert_eq!(home.read(to_folder).await.status, ExportStatus::Completed);
}

#[tokio::test]
async fn a_build_waits_for_room() {
    let yard = DeploymentFixture::new().await;
    yard.workflows.world.disks.data.set_low(true);
    let id = yard.revision(Some("touch made")).await;
    for _ in 0..10 {
        yard.workflows.drive().await;
        yard.workflows.wait(A_WHILE).await;
    }
    let waiting = yard.read(id).await;
    assert!(!waiting.status.is_final(), "{:?}", waiting.status);
    assert!(yard.fake().calls().is_empty(), "{:?}", yard.fake().calls());

    yard.workflows.world.disks.data.set_low(false);
    yard.workflows.drain().await;
    let revision = yard.read(id).await;
    assert_eq!(revision.status, RevisionStatus::Deployed, "{:?}", revision.error);
}
