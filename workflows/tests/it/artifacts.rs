//! What revisions leave on the disk and in the object store, and when it goes.

use towpath_compute::artifact::Artifact;
use towpath_store::{artifacts, deployments};
use towpath_workflows::delete_deployment;

use crate::yard::{Yard, entries};

impl Yard {
    async fn artifact_of(&self, revision: towpath_domain::RevisionId) -> String {
        let tenant = self.home.tenant;
        let found = self
            .home
            .store()
            .read(async |tx| artifacts::of(tx, tenant, revision).await);
        found.await.unwrap().expect("the revision was built")
    }

    /// Has a deployment deleted, to the end.
    async fn delete(&self, deployment: towpath_domain::DeploymentId) {
        let tenant = self.home.tenant;
        let asked = self.home.store().write(async |tx| {
            delete_deployment::start(tx, tenant, deployment).await?;
            deployments::deleting(tx, tenant, deployment, false).await
        });
        asked.await.unwrap();
        self.home.drain().await;
    }
}

/// Whoever has the lock of an artifact may be recording a revision of another deployment with it.
#[tokio::test]
async fn an_artifact_that_somebody_records_outlives_its_deployment() {
    let yard = Yard::new().await;
    let id = yard.revision(Some("touch made")).await;
    yard.home.drain().await;
    let key = yard.artifact_of(id).await;
    let recording = yard.hosting.lock_artifact(&key).await;
    yard.delete(yard.deployment).await;
    let count = "SELECT count(*) FROM deployment";
    assert_eq!(yard.home.count(count).await, 0, "its removal waits for nobody");
    let artifact = Artifact::of(&yard.hosting.root, &key).unwrap();
    assert!(artifact.built().is_some(), "another revision is being recorded with it");
    drop(recording);
    yard.hosting.prune(yard.home.store(), 0).await.unwrap();
    assert_eq!(entries(&yard.hosting.root.artifacts()), 0, "nothing needs it any more");
}

#[tokio::test]
async fn an_artifact_of_two_deployments_goes_with_the_last() {
    let mut yard = Yard::new().await;
    let first = yard.deployment;
    yard.revision(None).await;
    yard.home.drain().await;
    yard.deployment = towpath_domain::DeploymentId::new();
    yard.add_deployment_named("other").await;
    yard.revision(None).await;
    yard.home.drain().await;
    assert_eq!(entries(&yard.hosting.root.artifacts()), 1, "they share it");
    yard.delete(first).await;
    assert_eq!(entries(&yard.hosting.root.artifacts()), 1, "the other one runs from it");
    yard.delete(yard.deployment).await;
    assert_eq!(entries(&yard.hosting.root.artifacts()), 0);
}
