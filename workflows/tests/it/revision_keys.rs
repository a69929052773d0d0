//! The key with which a deployment calls the platform: one for each revision.

use towpath_compute::fake::FakeAction;
use towpath_domain::deployment::RevisionStatus;
use towpath_domain::{RevisionId, Scope, Scopes, Secret};
use towpath_store::access::{self, KeyHash, NewKey};
use towpath_store::{deployments, revision_keys};

use crate::deployment_fixture::DeploymentFixture;

impl DeploymentFixture {
    /// The secret of a revision's key.
    async fn key_of(&self, revision: RevisionId) -> Option<Secret> {
        let tenant = self.workflows.tenant;
        let read = self
            .workflows
            .store()
            .read(async |tx| revision_keys::get(tx, tenant, revision).await);
        let key = read.await.unwrap()?;
        Some(key.secret(&self.workflows.world.sealer).unwrap())
    }

    /// Scopes of a key; `None` if it is invalid.
    async fn allowed(&self, secret: &Secret) -> Option<Scopes> {
        let hash = KeyHash::of(secret.reveal().as_bytes());
        let read = self
            .workflows
            .store()
            .read(async |tx| access::authenticate(tx, &hash).await);
        let principal = read.await.unwrap()?;
        assert_eq!(
            principal.workspaces,
            [self.workflows.tenant],
            "it opens its own workspace"
        );
        Some(principal.scopes)
    }
}

fn scopes(scopes: &[Scope]) -> Option<Scopes> {
    Some(scopes.iter().copied().collect())
}

#[tokio::test]
async fn the_key_of_a_revision_ends_when_the_next_one_serves() {
    let fixture = DeploymentFixture::new().await;
    let first = fixture.revision(None).await;
    fixture.workflows.drain().await;
    let first = fixture.key_of(first).await.expect("the first revision has a key");
    assert_eq!(fixture.allowed(&first).await, scopes(&[Scope::TracesWrite]));

    // A revision that does not serve revokes nothing, and its own key ends with it.
    fixture.fake().act(FakeAction::Succeed, FakeAction::Fail);
    let failed = fixture.revision(Some("touch x")).await;
    fixture.workflows.drain().await;
    assert_eq!(fixture.read(failed).await.status, RevisionStatus::DeployFailed);
    assert!(
        fixture.key_of(failed).await.is_none(),
        "the key of a failed revision stays"
    );
    assert_eq!(fixture.allowed(&first).await, scopes(&[Scope::TracesWrite]));
    let valid = "SELECT count(*) FROM api_key WHERE revoked_at IS NULL";
    assert_eq!(fixture.workflows.count(valid).await, 1);

    // Its agent server keeps using its secret, so a rotation must not revoke it.
    let hash = KeyHash::of(first.reveal().as_bytes());
    let rotated = fixture.workflows.store().write(async |tx| {
        let key = access::authenticate(tx, &hash).await?.unwrap().key;
        access::rotate_key(tx, key, std::time::Duration::ZERO).await.map(drop)
    });
    assert!(matches!(rotated.await, Err(towpath_store::Error::Rejected(_))));

    fixture.fake().act(FakeAction::Succeed, FakeAction::Succeed);
    let second = fixture.revision(Some("touch y")).await;
    fixture.workflows.drain().await;
    let second = fixture.key_of(second).await.expect("the next revision has a key");
    assert_ne!(second.reveal(), first.reveal());
    assert_eq!(fixture.allowed(&second).await, scopes(&[Scope::TracesWrite]));
    assert_eq!(
        fixture.allowed(&first).await,
        None,
        "the key of the revision before goes on"
    );
    assert_eq!(fixture.workflows.count(valid).await, 1);
}

/// A redeployed old revision also uses the deployment's current configuration.
#[tokio::test]
async fn the_configuration_adds_scopes() {
    let fixture = DeploymentFixture::new().await;
    for added in [vec![Scope::TracesRead, Scope::AgentsInvoke], Vec::new()] {
        let mut config = fixture.source(None);
        config.key_scopes = Some(added.clone());
        let (tenant, id) = (fixture.workflows.tenant, fixture.deployment);
        let configured = fixture
            .workflows
            .store()
            .write(async |tx| deployments::configure(tx, tenant, id, &config).await);
        configured.await.unwrap();
        let revision = fixture.revision(None).await;
        fixture.workflows.drain().await;
        let key = fixture.key_of(revision).await.expect("the revision has a key");
        let mut expected = added;
        expected.push(Scope::TracesWrite);
        assert_eq!(fixture.allowed(&key).await, scopes(&expected));
    }
}

/// Deployments of earlier versions have one key for all revisions, in a file, with all permissions in the workspace.
#[tokio::test]
async fn a_key_in_a_file_ends_with_the_next_revision() {
    let fixture = DeploymentFixture::new().await;
    let tenant = fixture.workflows.tenant;
    let made = fixture.workflows.store().write(async |tx| {
        let workspace = access::workspace(tx, tenant).await?.expect("the workspace is there");
        let new = NewKey {
            organization: workspace.organization_id,
            workspace: Some(tenant),
            name: "deployment agent",
            operator: false,
        };
        access::create_key(tx, new).await
    });
    let (_, former) = made.await.unwrap();
    let file = fixture.hosting.root.agent(fixture.deployment).join("platform.key");
    fixture.hosting.root.keep(&file, former.reveal().as_bytes()).unwrap();
    assert_eq!(fixture.allowed(&former).await, Some(Scopes::of_workspaces()));

    let revision = fixture.revision(None).await;
    fixture.workflows.drain().await;
    let key = fixture.key_of(revision).await.expect("the revision has a key");
    assert_eq!(fixture.allowed(&key).await, scopes(&[Scope::TracesWrite]));
    assert_eq!(fixture.allowed(&former).await, None, "the key in the file goes on");
    assert!(!file.exists(), "the file of a revoked key is left");
}
