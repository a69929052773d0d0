//! Artifacts and archives of revisions, and their removal.

use std::process::Command;
use std::time::Duration;

use object_store::path::Path as ObjectPath;
use towpath_compute::artifact::Artifact;
use towpath_domain::deployment::{RevisionStatus, Source};
use towpath_domain::{DeploymentId, RevisionId, UploadId};
use towpath_store::{Error, artifacts, deployments, source_uploads};
use towpath_workflows::{delete_deployment, sweep_archives};

use crate::deployment_fixture::{DeploymentFixture, entries};
use crate::fixture::Database;

impl DeploymentFixture {
    async fn artifact_of(&self, revision: RevisionId) -> String {
        let tenant = self.workflows.tenant;
        let found = self
            .workflows
            .store()
            .read(async |tx| artifacts::for_revision(tx, tenant, revision).await);
        found.await.unwrap().expect("the revision was built")
    }

    /// Deletes a deployment, to the end.
    async fn delete(&self, deployment: DeploymentId) {
        let tenant = self.workflows.tenant;
        let asked = self.workflows.store().write(async |tx| {
            delete_deployment::start(tx, tenant, deployment).await?;
            deployments::deleting(tx, tenant, deployment, false).await
        });
        asked.await.unwrap();
        self.workflows.drain().await;
    }

    /// A source archive uploaded by a client. Returns its path.
    async fn send_archive(&self) -> String {
        let (tenant, deployment, id) = (self.workflows.tenant, self.deployment, UploadId::new());
        let path = format!("sources/{tenant}/{deployment}/{id}.tar.gz");
        let made = Command::new("tar")
            .current_dir(&self.origin)
            .args(["czf", "-", "langgraph.json"])
            .output();
        let bytes = made.unwrap().stdout;
        assert!(!bytes.is_empty(), "tar made no archive");
        let size = i64::try_from(bytes.len()).unwrap();
        let to = ObjectPath::from(path.as_str());
        self.workflows.world.objects.put(&to, vec![bytes.into()]).await.unwrap();
        let sent = self.workflows.store().write(async |tx| {
            source_uploads::insert(tx, tenant, id, deployment, &[0; 32], &path).await?;
            source_uploads::mark_uploaded(tx, tenant, id, size).await
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
        self.workflows.world.objects.get(&ObjectPath::from(path)).await.is_ok()
    }

    /// Moves the clock and runs a clean-up. Returns the number of removed archives.
    async fn sweep_archives_after(&self, time: Duration) -> usize {
        self.workflows.wait(time).await;
        let each = self.hosting.settings.keep_artifacts;
        sweep_archives::run(&self.workflows.world, each).await.unwrap()
    }
}

/// The lock holder of an artifact may be recording a revision of another deployment with it.
#[tokio::test]
async fn an_artifact_that_somebody_records_outlives_its_deployment() {
    let fixture = DeploymentFixture::new().await;
    let id = fixture.revision(Some("touch made")).await;
    fixture.workflows.drain().await;
    let key = fixture.artifact_of(id).await;
    let recording = fixture.hosting.lock_artifact(&key).await;
    fixture.delete(fixture.deployment).await;
    let count = "SELECT count(*) FROM deployment";
    assert_eq!(fixture.workflows.count(count).await, 0, "its removal waits for nobody");
    let artifact = Artifact::of(&fixture.hosting.root, &key).unwrap();
    assert!(artifact.built().is_some(), "another revision is being recorded with it");
    drop(recording);
    fixture.hosting.prune(fixture.workflows.store(), 0).await.unwrap();
    assert_eq!(
        entries(&fixture.hosting.root.artifacts()),
        0,
        "nothing needs it any more"
    );
}

#[tokio::test]
async fn an_artifact_of_two_deployments_goes_with_the_last() {
    let mut fixture = DeploymentFixture::new().await;
    let first = fixture.deployment;
    fixture.revision(None).await;
    fixture.workflows.drain().await;
    fixture.deployment = DeploymentId::new();
    fixture.add_deployment_named("other").await;
    fixture.revision(None).await;
    fixture.workflows.drain().await;
    assert_eq!(entries(&fixture.hosting.root.artifacts()), 1, "they share it");
    fixture.delete(first).await;
    assert_eq!(
        entries(&fixture.hosting.root.artifacts()),
        1,
        "the other one runs from it"
    );
    fixture.delete(fixture.deployment).await;
    assert_eq!(entries(&fixture.hosting.root.artifacts()), 0);
}

const DAY: Duration = Duration::from_secs(86_401);
const ROUND: Duration = Duration::from_secs(600);

async fn archives_that_no_revision_needs_go(database: &Database) {
    let fixture = DeploymentFixture::new_on(database).await;
    let (built, asked_for, unused) = (
        fixture.send_archive().await,
        fixture.send_archive().await,
        fixture.send_archive().await,
    );
    let id = fixture.revision_of_archive(&built).await;
    fixture.workflows.drain().await;
    let revision = fixture.read(id).await;
    assert_eq!(revision.status, RevisionStatus::Deployed, "{:?}", revision.error);
    assert_eq!(fixture.sweep_archives_after(ROUND).await, 0);
    assert_eq!(
        fixture.sweep_archives_after(ROUND).await,
        0,
        "a client may be about to name it"
    );

    assert_eq!(fixture.sweep_archives_after(DAY).await, 0, "it is released first");
    let (tenant, deployment) = (fixture.workflows.tenant, fixture.deployment);
    let named = async |path: &str| {
        let store = fixture.workflows.store();
        store
            .read(async |tx| source_uploads::get_by_path(tx, tenant, deployment, path).await)
            .await
    };
    assert!(
        matches!(named(&unused).await, Err(Error::NotFound)),
        "a revision can be made of it"
    );
    assert!(named(&built).await.is_ok(), "its artifact is kept");
    // Read before the archive was released, and recorded after that.
    fixture.revision_of_archive(&asked_for).await;
    assert_eq!(fixture.sweep_archives_after(ROUND).await, 1);
    assert!(!fixture.has_archive(&unused).await);
    assert!(fixture.has_archive(&built).await, "its artifact is kept");
    assert!(fixture.has_archive(&asked_for).await, "a revision waits for it");
    assert!(named(&asked_for).await.is_ok(), "it is needed again");
    assert_eq!(fixture.workflows.count("SELECT count(*) FROM source_upload").await, 2);
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

/// A retry does not find it either.
#[tokio::test]
async fn an_archive_that_is_gone_is_said_to_be() {
    let fixture = DeploymentFixture::new().await;
    let path = fixture.send_archive().await;
    fixture
        .workflows
        .world
        .objects
        .delete(&ObjectPath::from(path.as_str()))
        .await
        .unwrap();
    let id = fixture.revision_of_archive(&path).await;
    fixture.workflows.drain().await;
    let revision = fixture.read(id).await;
    assert_eq!(revision.status, RevisionStatus::BuildFailed);
    let told = revision.error.unwrap();
    assert!(
        told.starts_with("source_tarball_path: the archive no longer exists"),
        "{told}"
    );
}
