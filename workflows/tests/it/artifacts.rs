//! What revisions leave on the disk and in the object store, and when it goes.

use std::process::Command;
use std::time::Duration;

use object_store::path::Path as ObjectPath;
use towpath_compute::artifact::Artifact;
use towpath_domain::deployment::{RevisionStatus, Source};
use towpath_domain::{DeploymentId, RevisionId, UploadId};
use towpath_store::{Error, artifacts, deployments, source_uploads};
use towpath_workflows::{delete_deployment, sweep_archives};

use crate::home::Database;
use crate::yard::{Yard, entries};

impl Yard {
    async fn artifact_of(&self, revision: RevisionId) -> String {
        let tenant = self.home.tenant;
        let found = self
            .home
            .store()
            .read(async |tx| artifacts::of(tx, tenant, revision).await);
        found.await.unwrap().expect("the revision was built")
    }

    /// Has a deployment deleted, to the end.
    async fn delete(&self, deployment: DeploymentId) {
        let tenant = self.home.tenant;
        let asked = self.home.store().write(async |tx| {
            delete_deployment::start(tx, tenant, deployment).await?;
            deployments::deleting(tx, tenant, deployment, false).await
        });
        asked.await.unwrap();
        self.home.drain().await;
    }

    /// An archive of the repository that a client sent. Answers its path.
    async fn send_archive(&self) -> String {
        let (tenant, deployment, id) = (self.home.tenant, self.deployment, UploadId::new());
        let path = format!("sources/{tenant}/{deployment}/{id}.tar.gz");
        let made = Command::new("tar")
            .current_dir(&self.origin)
            .args(["czf", "-", "langgraph.json"])
            .output();
        let bytes = made.unwrap().stdout;
        assert!(!bytes.is_empty(), "tar made no archive");
        let size = i64::try_from(bytes.len()).unwrap();
        let to = ObjectPath::from(path.as_str());
        self.home.world.objects.put(&to, vec![bytes.into()]).await.unwrap();
        let sent = self.home.store().write(async |tx| {
            source_uploads::insert(tx, tenant, id, deployment, &[0; 32], &path).await?;
            source_uploads::arrived(tx, tenant, id, size).await
        });
        assert!(sent.await.unwrap());
        path
    }

    async fn revision_of_archive(&self, path: &str) -> RevisionId {
        self.revision_as(|new| {
            new.1.repo_ref = None;
            new.1.source_tarball_path = Some(path.to_owned());
            new.2 = Source::InternalSource;
        })
        .await
    }

    async fn has_archive(&self, path: &str) -> bool {
        self.home.world.objects.get(&ObjectPath::from(path)).await.is_ok()
    }

    /// Lets time pass, and a round of tidying. Answers how many archives went.
    async fn sweep_archives_after(&self, time: Duration) -> usize {
        self.home.wait(time).await;
        let each = self.hosting.settings.keep_artifacts;
        sweep_archives::run(&self.home.world, each).await.unwrap()
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
    yard.deployment = DeploymentId::new();
    yard.add_deployment_named("other").await;
    yard.revision(None).await;
    yard.home.drain().await;
    assert_eq!(entries(&yard.hosting.root.artifacts()), 1, "they share it");
    yard.delete(first).await;
    assert_eq!(entries(&yard.hosting.root.artifacts()), 1, "the other one runs from it");
    yard.delete(yard.deployment).await;
    assert_eq!(entries(&yard.hosting.root.artifacts()), 0);
}

const DAY: Duration = Duration::from_secs(86_401);
const ROUND: Duration = Duration::from_secs(600);

async fn archives_that_no_revision_needs_go(database: &Database) {
    let yard = Yard::new_on(database).await;
    let (built, asked_for, unused) = (
        yard.send_archive().await,
        yard.send_archive().await,
        yard.send_archive().await,
    );
    let id = yard.revision_of_archive(&built).await;
    yard.home.drain().await;
    let revision = yard.read(id).await;
    assert_eq!(revision.status, RevisionStatus::Deployed, "{:?}", revision.error);
    assert_eq!(yard.sweep_archives_after(ROUND).await, 0);
    assert_eq!(
        yard.sweep_archives_after(ROUND).await,
        0,
        "a client may be about to name it"
    );

    assert_eq!(yard.sweep_archives_after(DAY).await, 0, "it is released first");
    let (tenant, deployment) = (yard.home.tenant, yard.deployment);
    let named = async |path: &str| {
        let store = yard.home.store();
        store
            .read(async |tx| source_uploads::at(tx, tenant, deployment, path).await)
            .await
    };
    assert!(
        matches!(named(&unused).await, Err(Error::NotFound)),
        "a revision can be made of it"
    );
    assert!(named(&built).await.is_ok(), "its artifact is kept");
    // Read before it was released, and recorded behind that.
    yard.revision_of_archive(&asked_for).await;
    assert_eq!(yard.sweep_archives_after(ROUND).await, 1);
    assert!(!yard.has_archive(&unused).await);
    assert!(yard.has_archive(&built).await, "its artifact is kept");
    assert!(yard.has_archive(&asked_for).await, "a revision waits for it");
    assert!(named(&asked_for).await.is_ok(), "it is needed again");
    assert_eq!(yard.home.count("SELECT count(*) FROM source_upload").await, 2);
}

#[tokio::test]
async fn archives_that_no_revision_needs_go_on_sqlite() {
    archives_that_no_revision_needs_go(&Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_that_no_revision_needs_go_on_postgres() {
    let Some(server) = Database::postgres() else { return };
    archives_that_no_revision_needs_go(&server).await;
}

/// It is as gone at the next attempt.
#[tokio::test]
async fn an_archive_that_is_gone_is_said_to_be() {
    let yard = Yard::new().await;
    let path = yard.send_archive().await;
    yard.home
        .world
        .objects
        .delete(&ObjectPath::from(path.as_str()))
        .await
        .unwrap();
    let id = yard.revision_of_archive(&path).await;
    yard.home.drain().await;
    let revision = yard.read(id).await;
    assert_eq!(revision.status, RevisionStatus::BuildFailed);
    let told = revision.error.unwrap();
    assert!(
        told.starts_with("source_tarball_path: the archive is not there any more"),
        "{told}"
    );
}
