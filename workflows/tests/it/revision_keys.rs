//! The key that a deployment calls the platform with: one of its own for each revision.

use towpath_compute::fake::Act;
use towpath_domain::deployment::RevisionStatus;
use towpath_domain::{RevisionId, Scope, Scopes, Secret};
use towpath_store::access::{self, KeyHash, NewKey};
use towpath_store::{deployments, revision_keys};

use crate::yard::Yard;

impl Yard {
    /// The secret of a revision's key.
    async fn key_of(&self, revision: RevisionId) -> Option<Secret> {
        let tenant = self.home.tenant;
        let read = self
            .home
            .store()
            .read(async |tx| revision_keys::get(tx, tenant, revision).await);
        let key = read.await.unwrap()?;
        Some(key.secret(&self.home.world.sealer).unwrap())
    }

    /// What a key may do; `None` when it opens nothing.
    async fn allowed(&self, secret: &Secret) -> Option<Scopes> {
        let hash = KeyHash::of(secret.reveal().as_bytes());
        let read = self.home.store().read(async |tx| access::authenticate(tx, &hash).await);
        let principal = read.await.unwrap()?;
        assert_eq!(principal.workspaces, [self.home.tenant], "it opens its own workspace");
        Some(principal.scopes)
    }
}

fn scopes(scopes: &[Scope]) -> Option<Scopes> {
    Some(scopes.iter().copied().collect())
}

#[tokio::test]
async fn the_key_of_a_revision_ends_when_the_next_one_serves() {
    let yard = Yard::new().await;
    let first = yard.revision(None).await;
    yard.home.drain().await;
    let first = yard.key_of(first).await.expect("the first revision has a key");
    assert_eq!(yard.allowed(&first).await, scopes(&[Scope::TracesWrite]));

    // One that does not serve takes nothing away, and its own key ends with it.
    yard.fake().act(Act::Succeed, Act::Fail);
    let failed = yard.revision(Some("touch x")).await;
    yard.home.drain().await;
    assert_eq!(yard.read(failed).await.status, RevisionStatus::DeployFailed);
    assert!(
        yard.key_of(failed).await.is_none(),
        "the key of a failed revision stays"
    );
    assert_eq!(yard.allowed(&first).await, scopes(&[Scope::TracesWrite]));
    let valid = "SELECT count(*) FROM api_key WHERE revoked_at IS NULL";
    assert_eq!(yard.home.count(valid).await, 1);

    // Its agent server goes on with the secret it has, so no rotation takes that away.
    let hash = KeyHash::of(first.reveal().as_bytes());
    let rotated = yard.home.store().write(async |tx| {
        let key = access::authenticate(tx, &hash).await?.unwrap().key;
        access::rotate_key(tx, key, std::time::Duration::ZERO).await.map(drop)
    });
    assert!(matches!(rotated.await, Err(towpath_store::Error::Rejected(_))));

    yard.fake().act(Act::Succeed, Act::Succeed);
    let second = yard.revision(Some("touch y")).await;
    yard.home.drain().await;
    let second = yard.key_of(second).await.expect("the next revision has a key");
    assert_ne!(second.reveal(), first.reveal());
    assert_eq!(yard.allowed(&second).await, scopes(&[Scope::TracesWrite]));
    assert_eq!(
        yard.allowed(&first).await,
        None,
        "the key of the revision before goes on"
    );
    assert_eq!(yard.home.count(valid).await, 1);
}

/// Also where an old revision is deployed again, the deployment's configuration of now counts.
#[tokio::test]
async fn the_configuration_adds_scopes() {
    let yard = Yard::new().await;
    for added in [vec![Scope::TracesRead, Scope::AgentsInvoke], Vec::new()] {
        let mut config = yard.source(None);
        config.key_scopes = Some(added.clone());
        let (tenant, id) = (yard.home.tenant, yard.deployment);
        let configured = yard
            .home
            .store()
            .write(async |tx| deployments::configure(tx, tenant, id, &config).await);
        configured.await.unwrap();
        let revision = yard.revision(None).await;
        yard.home.drain().await;
        let key = yard.key_of(revision).await.expect("the revision has a key");
        let mut expected = added;
        expected.push(Scope::TracesWrite);
        assert_eq!(yard.allowed(&key).await, scopes(&expected));
    }
}

/// Deployments of earlier versions have one key for all revisions, in a file, which may do everything in the workspace.
#[tokio::test]
async fn a_key_in_a_file_ends_with_the_next_revision() {
    let yard = Yard::new().await;
    let tenant = yard.home.tenant;
    let made = yard.home.store().write(async |tx| {
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
    let file = yard.hosting.root.agent(yard.deployment).join("platform.key");
    yard.hosting.root.keep(&file, former.reveal().as_bytes()).unwrap();
    assert_eq!(yard.allowed(&former).await, Some(Scopes::of_workspaces()));

    let revision = yard.revision(None).await;
    yard.home.drain().await;
    let key = yard.key_of(revision).await.expect("the revision has a key");
    assert_eq!(yard.allowed(&key).await, scopes(&[Scope::TracesWrite]));
    assert_eq!(yard.allowed(&former).await, None, "the key in the file goes on");
    assert!(!file.exists(), "the file of a revoked key is left");
}
