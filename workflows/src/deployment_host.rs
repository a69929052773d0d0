//! The deployment host: the resources of the one process of an installation that runs deployments.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard, RwLock};
use tokio_util::sync::CancellationToken;
use towpath_compute::artifact::{self, Artifact, Removal};
use towpath_compute::{Backend, Launch, Log, Root, build, git, root};
use towpath_domain::deployment::LogKind;
use towpath_domain::{DeploymentId, RevisionId, Scope, Secret, TenantId};
use towpath_durable::{Failure, IntoFailure};
use towpath_store::access;
use towpath_store::deployments::Deployment;
use towpath_store::placements::Placement;
use towpath_store::revision_keys::{self, NewRevisionKey};
use towpath_store::revisions::Revision;
use towpath_store::sealing::Sealer;
use towpath_store::{self as store, Store, Tx, artifacts};

use crate::deployment_log::{DeploymentLog, LogOwner, LogRateLimits};

/// Served only by the process that has the [`DeploymentHost`].
pub const POOL: &str = "builds";

/// The compute backend and its resources.
pub struct DeploymentHost {
    /// The folder that contains everything.
    pub root: Root,
    pub backend: Backend,
    pub git: git::Settings,
    pub build: build::Settings,
    pub settings: Settings,
    /// Serialize changes of a running deployment, and the build of an artifact.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Artifacts that a build is creating or about to start.
    artifact_uses: Mutex<HashMap<String, usize>>,
    /// Read-locked while environments are created and recorded, write-locked while unused ones are removed.
    environments: RwLock<()>,
    /// Limits of log lines.
    rates: LogRateLimits,
    reconcile_requested: Notify,
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Artifacts kept of each deployment, the newest first.
    pub keep_artifacts: i64,
    /// Interval of health checks.
    pub health_interval: Duration,
    /// Address of the platform for traces of deployments; without it they send none.
    pub platform_url: Option<String>,
    /// Public address of the platform, from which those of deployments are derived.
    pub public_url: Option<String>,
}

/// Keeps an artifact from being removed until it is dropped.
pub struct ArtifactGuard<'a> {
    hosting: &'a DeploymentHost,
    key: String,
}

impl Drop for ArtifactGuard<'_> {
    fn drop(&mut self) {
        let mut used = self.hosting.artifact_uses.lock();
        if let Some(count) = used.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                used.remove(&self.key);
            }
        }
    }
}

/// Why artifacts may be removed.
enum RemovalReason {
    /// They are not kept, and were not used for this many hours.
    Idle(u64),
    /// Only revisions of this deployment use them.
    OnlyOf(TenantId, DeploymentId),
}

impl DeploymentHost {
    #[must_use]
    pub fn new(root: Root, backend: Backend, git: git::Settings, build: build::Settings, settings: Settings) -> Self {
        Self {
            root,
            backend,
            git,
            build,
            settings,
            locks: Mutex::default(),
            artifact_uses: Mutex::default(),
            environments: RwLock::default(),
            rates: LogRateLimits::default(),
            reconcile_requested: Notify::new(),
        }
    }

    /// Waits for exclusive access to a running deployment.
    pub async fn lock(&self, deployment: DeploymentId) -> OwnedMutexGuard<()> {
        self.mutex(format!("deployment {deployment}")).lock_owned().await
    }

    /// Waits for exclusive access to an artifact, which equal revisions of several deployments share.
    pub async fn lock_artifact(&self, key: &str) -> OwnedMutexGuard<()> {
        self.mutex(format!("artifact {key}")).lock_owned().await
    }

    /// Like [`DeploymentHost::lock_artifact`], without waiting.
    fn try_lock_artifact(&self, key: &str) -> Option<OwnedMutexGuard<()>> {
        self.mutex(format!("artifact {key}")).try_lock_owned().ok()
    }

    /// Like [`DeploymentHost::lock`], without waiting.
    #[must_use]
    pub fn try_lock(&self, deployment: DeploymentId) -> Option<OwnedMutexGuard<()>> {
        self.mutex(format!("deployment {deployment}")).try_lock_owned().ok()
    }

    fn mutex(&self, name: String) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        // Drops locks without holders and waiters.
        locks.retain(|other, lock| *other == name || Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(name).or_default())
    }

    /// Keeps an artifact while the returned guard exists.
    pub fn use_artifact(&self, key: &str) -> ArtifactGuard<'_> {
        let mut used = self.artifact_uses.lock();
        *used.entry(key.to_owned()).or_default() += 1;
        ArtifactGuard {
            hosting: self,
            key: key.to_owned(),
        }
    }

    /// Creates the environment of a deployment's code, and records it in the artifact. False if there is nothing to
    /// create.
    pub(crate) async fn prepare(
        &self,
        launch: &Launch,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<bool, towpath_compute::Error> {
        let _none_goes = self.environments.read().await;
        self.backend.prepare(&self.build, launch, log, cancel).await
    }

    /// Opens a log of a revision. `secrets` and the machine's credentials for proxies and registries are masked.
    #[must_use]
    pub fn log(&self, store: &Store, owner: LogOwner, mut secrets: Vec<Secret>) -> DeploymentLog {
        secrets.extend(self.machine_credentials());
        DeploymentLog::open(store, &self.rates, owner, secrets)
    }

    /// Triggers the reconciler.
    pub fn request_reconcile(&self) {
        self.reconcile_requested.notify_one();
    }

    pub(crate) async fn reconcile_requested(&self) {
        self.reconcile_requested.notified().await;
    }

    /// Removes unneeded artifacts. One that was used within the last `hours` stays, because failed revisions are often
    /// retried. An artifact that cannot be removed does not stop the others.
    pub async fn prune(&self, store: &Store, hours: u64) -> Result<(), Failure> {
        let keep = self.kept_artifacts(store).await?;
        let root = self.root.clone();
        let idle = tokio::task::spawn_blocking(move || artifact::idle(&root, &keep, hours)).await;
        let idle = idle.map_or_else(|_| Ok(Vec::new()), IntoFailure::retry)?;
        self.discard(store, idle, &RemovalReason::Idle(hours)).await
    }

    /// Removes the artifacts that only revisions of this deployment use, except those in use.
    pub(crate) async fn remove(
        &self,
        store: &Store,
        tenant: TenantId,
        deployment: DeploymentId,
    ) -> Result<(), Failure> {
        let reason = RemovalReason::OnlyOf(tenant, deployment);
        let keys = artifacts_only_of(store, tenant, deployment).await?;
        self.discard(store, keys, &reason).await
    }

    async fn kept_artifacts(&self, store: &Store) -> Result<Vec<String>, Failure> {
        let each = self.settings.keep_artifacts;
        store.read(async |tx| artifacts::retained(tx, each).await).await.retry()
    }

    async fn discard(&self, store: &Store, keys: Vec<String>, reason: &RemovalReason) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for key in keys {
            let removed = self.discard_one(store, &key, reason).await;
            if removed.is_err() {
                outcome = removed;
            }
        }
        self.backend.sweep().await.retry()?;
        // A build in progress is not named by an artifact yet, so unused environments are removed another time.
        if let Ok(_none_is_made) = self.environments.try_write() {
            let hours = match *reason {
                RemovalReason::Idle(hours) => hours,
                RemovalReason::OnlyOf(..) => 0,
            };
            self.backend.prune_environments(hours).await.retry()?;
        }
        outcome
    }

    async fn discard_one(&self, store: &Store, key: &str, reason: &RemovalReason) -> Result<(), Failure> {
        // The lock holder builds it or records its use.
        let Some(_alone) = self.try_lock_artifact(key) else {
            return Ok(());
        };
        // Another revision may have been recorded with it since the list was read, and may have ended already.
        let (may_go, hours) = match *reason {
            RemovalReason::Idle(hours) => (!self.kept_artifacts(store).await?.iter().any(|kept| kept == key), hours),
            RemovalReason::OnlyOf(tenant, deployment) => {
                let own = artifacts_only_of(store, tenant, deployment).await?;
                (own.iter().any(|own| own == key), 0)
            }
        };
        if !may_go {
            return Ok(());
        }
        let Some(removal) = self.remove_if_unused(key, hours)? else {
            return Ok(());
        };
        let finished = tokio::task::spawn_blocking(move || removal.finish()).await;
        finished.map_or(Ok(()), IntoFailure::retry)
    }

    /// Removes an artifact, unless it is in use or was within the last `hours`.
    fn remove_if_unused(&self, key: &str, hours: u64) -> Result<Option<Removal>, Failure> {
        let artifact = Artifact::of(&self.root, key).retry()?;
        // Held until the artifact is moved: a build that starts to use it finds all of it or nothing.
        let used = self.artifact_uses.lock();
        if used.contains_key(key) || !artifact.is_idle(hours) {
            return Ok(None);
        }
        artifact.begin_removal().retry()
    }

    /// Refuses a start on another database than the deployment's own: its users would lose their data.
    pub(crate) async fn check_database(&self, placement: &Placement) -> Result<(), Failure> {
        let Some(own) = &placement.database_id else {
            return Ok(());
        };
        let id = placement.deployment_id;
        let found = self.backend.database(id).await.retry()?;
        if found.as_ref() == Some(own) {
            return Ok(());
        }
        let what = match found {
            Some(_) => "this machine has another database for the deployment than the one it used",
            None => "the database of the deployment is not on this machine",
        };
        Err(Failure::fatal(format!(
            "{what}; restore its data folder or volume, or continue with the existing or an empty \
             database: towpath deployments accept-database {id}"
        )))
    }

    /// The key of a deployment from before revisions had their own keys; an old revision continues to use it.
    pub(crate) fn former_key(&self, deployment: DeploymentId) -> Option<Secret> {
        self.root.platform_key(deployment).map(Secret::new)
    }

    /// Removes the file of [`DeploymentHost::former_key`] after that key was revoked.
    pub(crate) fn forget_former_key(&self, deployment: DeploymentId) {
        let file = self.root.agent(deployment).join(root::PLATFORM_KEY);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%error, deployment.id = %deployment, "the file of a revoked key cannot be removed");
            }
            _ => {}
        }
    }

    /// The key with which the agent server of a revision calls the platform.
    async fn own_key(
        &self,
        store: &Store,
        sealer: &Sealer,
        deployment: &Deployment,
        revision: RevisionId,
    ) -> Result<Option<Secret>, Failure> {
        let tenant = deployment.tenant_id;
        let read = store.read(async |tx| revision_keys::get(tx, tenant, revision).await);
        match read.await.retry()? {
            Some(key) => key.secret(sealer).retry().map(Some),
            None => Ok(self.former_key(deployment.id)),
        }
    }

    /// Credentials in addresses that programs of deployments get from this machine: proxies and registries.
    fn machine_credentials(&self) -> Vec<Secret> {
        let values = self.build.variables.values();
        values.flat_map(|value| credentials(value.reveal())).collect()
    }

    /// The start specification of a revision; its lines go to a log of this kind.
    pub(crate) async fn launch(
        &self,
        store: &Store,
        sealer: &Sealer,
        deployment: &Deployment,
        revision: &Revision,
        artifact: &str,
        kind: LogKind,
    ) -> Result<(Launch, DeploymentLog), Failure> {
        let own_key = self.own_key(store, sealer, deployment, revision.id).await?;
        let secrets = revision.secrets(sealer).retry()?;
        let mut values: Vec<Secret> = secrets.iter().map(|secret| secret.value.clone()).collect();
        let mut variables: Vec<(String, Secret)> =
            secrets.into_iter().map(|secret| (secret.name, secret.value)).collect();
        variables.extend(self.platform_variables(deployment, revision.id, own_key.as_ref()));
        // One for each encryption key: while a key is being replaced, other gateways may sign with either.
        let keys: Vec<String> = sealer
            .derive_all(&gateway_purpose(deployment.id))
            .iter()
            .map(hex::encode)
            .collect();
        // Values that the platform adds are masked like the deployment's own secrets.
        values.extend(keys.iter().map(Secret::new));
        values.extend(own_key);
        variables.push(("TOWPATH_AGENT_GATEWAY_KEY".to_owned(), Secret::new(keys.join(","))));
        let (tenant, id) = (deployment.tenant_id, deployment.id);
        let owner = LogOwner {
            tenant,
            deployment: id,
            revision: revision.id,
            kind,
        };
        let log = self.log(store, owner, values);
        let config = revision.source_config().fatal()?;
        let sizes = config
            .resource_spec
            .unwrap_or_default()
            .with_defaults(config.deployment_type);
        let launch = Launch {
            deployment: deployment.id,
            revision: revision.id,
            artifact: artifact.to_owned(),
            variables,
            cpus: sizes.cpu_limit.map(towpath_domain::deployment::Quantity::get),
            memory_mb: sizes.memory_limit_mb.and_then(|mb| u64::try_from(mb).ok()),
        };
        Ok((launch, log))
    }

    /// Variables of the platform for an agent server: destination of traces, and identity.
    fn platform_variables(
        &self,
        deployment: &Deployment,
        revision: RevisionId,
        own_key: Option<&Secret>,
    ) -> Vec<(String, Secret)> {
        let mut variables = vec![
            ("LANGSMITH_PROJECT", deployment.name.clone()),
            ("LANGCHAIN_PROJECT", deployment.name.clone()),
            ("LANGSMITH_TENANT_ID", deployment.tenant_id.to_string()),
            ("LANGSMITH_WORKSPACE_ID", deployment.tenant_id.to_string()),
            ("LANGSMITH_DEPLOYMENT_NAME", deployment.name.clone()),
            ("LANGSMITH_HOST_PROJECT_ID", deployment.id.to_string()),
            ("LANGSMITH_HOST_PROJECT_NAME", deployment.name.clone()),
            ("LANGSMITH_HOST_REVISION_ID", revision.to_string()),
            // Its database belongs to this workspace.
            ("TOWPATH_TENANT_ID", deployment.tenant_id.to_string()),
        ];
        if let Some(platform) = &self.settings.public_url {
            // The address at the gateway; the agent server's own address is internal.
            variables.push(("TOWPATH_PUBLIC_URL", format!("{platform}/d/{}", deployment.id)));
        }
        if let (Some(url), Some(key)) = (&self.settings.platform_url, own_key) {
            variables.extend([
                ("LANGSMITH_ENDPOINT", url.clone()),
                ("LANGCHAIN_ENDPOINT", url.clone()),
                ("LANGSMITH_API_KEY", key.reveal().to_owned()),
                ("LANGCHAIN_API_KEY", key.reveal().to_owned()),
                ("LANGSMITH_TRACING", "true".to_owned()),
                ("LANGCHAIN_TRACING_V2", "true".to_owned()),
            ]);
        }
        variables
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Secret::new(value)))
            .collect()
    }
}

async fn artifacts_only_of(store: &Store, tenant: TenantId, deployment: DeploymentId) -> Result<Vec<String>, Failure> {
    let own = store.read(async |tx| artifacts::exclusive_to(tx, tenant, deployment).await);
    own.await.retry()
}

/// The keys with which the gateway signs requests to a deployment.
#[must_use]
pub fn gateway_key(sealer: &Sealer, deployment: DeploymentId) -> [u8; 32] {
    sealer.derive(&gateway_purpose(deployment))
}

/// The user info of addresses, and the password alone, because programs print either.
fn credentials(text: &str) -> Vec<Secret> {
    let addresses = text.split(|c: char| c.is_whitespace() || c == ',');
    let users = addresses.filter_map(|address| {
        let (_, rest) = address.split_once("://")?;
        let authority = rest.split(['/', '?', '#']).next()?;
        Some(authority.rsplit_once('@')?.0)
    });
    users
        .flat_map(|user| {
            let password = user.split_once(':').map(|(_, password)| password);
            [Some(user), password]
        })
        .flatten()
        .map(Secret::new)
        .collect()
}

fn gateway_purpose(deployment: DeploymentId) -> String {
    format!("gateway {deployment}")
}

/// Ensures that a revision has its own key: for traces and feedback links in its workspace, and for the scopes in the
/// deployment's configuration.
pub(crate) async fn ensure_key(
    tx: &mut Tx<'_>,
    sealer: &Sealer,
    deployment: &Deployment,
    revision: &Revision,
) -> store::Result<()> {
    let tenant = deployment.tenant_id;
    let workspace = access::workspace(tx, tenant).await?.ok_or(store::Error::NotFound)?;
    // The current scopes, also for a redeployed old revision, so that removed ones stay removed.
    let added = deployment.config()?.key_scopes.unwrap_or_default();
    let name = format!("deployment {}, revision {}", deployment.name, revision.seq);
    let new = NewRevisionKey {
        revision: revision.id,
        deployment: deployment.id,
        organization: workspace.organization_id,
        name: &name,
        scopes: added.into_iter().chain([Scope::TracesWrite]).collect(),
    };
    revision_keys::ensure(tx, tenant, sealer, &new).await
}

/// Revokes the keys that agent servers of the deployment used before this revision.
pub(crate) async fn revoke_older_keys(
    tx: &mut Tx<'_>,
    deployment: &Deployment,
    revision: RevisionId,
    former: Option<&Secret>,
) -> store::Result<()> {
    revision_keys::revoke_all(tx, deployment.tenant_id, deployment.id, Some(revision)).await?;
    match former {
        Some(key) => access::revoke_secret(tx, key).await,
        None => Ok(()),
    }
}

/// One revision of a deployment at a time.
pub(crate) fn lane_of(deployment: DeploymentId) -> towpath_durable::Lane {
    towpath_durable::Lane::new(format!("deployment:{deployment}"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_addresses_are_found() {
        let found = |text: &str| -> Vec<String> {
            let found = credentials(text);
            found.iter().map(|secret| secret.reveal().to_owned()).collect()
        };
        assert_eq!(found("http://proxy.example:3128"), [""; 0]);
        assert_eq!(
            found("http://me:pass:word@proxy:3128/@x"),
            ["me:pass:word", "pass:word"]
        );
        assert_eq!(found("https://token@a/simple https://b/simple"), ["token"]);
        assert_eq!(found("localhost,.example,127.0.0.1"), [""; 0]);
    }
}
