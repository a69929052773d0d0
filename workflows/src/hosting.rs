//! What a process has that keeps deployments: one of an installation does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard, RwLock};
use tokio_util::sync::CancellationToken;
use towpath_compute::artifact::{self, Artifact, Removal};
use towpath_compute::{Backend, Launch, Log, Root, build, git, root};
use towpath_domain::deployment::LogKind;
use towpath_domain::{DeploymentId, RevisionId, Scope, Secret, TenantId};
use towpath_durable::{Failure, Verdict};
use towpath_store::access;
use towpath_store::deployments::Deployment;
use towpath_store::placements::Placement;
use towpath_store::revision_keys::{self, NewRevisionKey};
use towpath_store::revisions::Revision;
use towpath_store::sealing::Sealer;
use towpath_store::{self as store, Store, Tx, artifacts};

use crate::World;
use crate::deployment_log::{DeploymentLog, Owner, Rates};

/// Served only by the process that has [`Hosting`].
pub const POOL: &str = "builds";

/// The compute backend, with what it needs.
pub struct Hosting {
    /// The folder everything lies in.
    pub root: Root,
    /// What runs agent servers.
    pub backend: Backend,
    /// How repositories are asked.
    pub git: git::Settings,
    /// How sources are built.
    pub build: build::Settings,
    /// Settings.
    pub settings: Settings,
    /// One at a time changes what runs of a deployment, or makes an artifact.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Artifacts that a build is making or about to start.
    used: Mutex<HashMap<String, usize>>,
    /// Shared while environments are made and recorded, alone while those that nothing needs are removed.
    environments: RwLock<()>,
    /// What deployments may say.
    rates: Rates,
    nudge: Notify,
}

/// Settings of deployments.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Artifacts kept of each deployment, the newest first.
    pub keep_artifacts: i64,
    /// How often agent servers are asked whether they are well.
    pub ask_every: Duration,
    /// Where deployments reach the platform, for their traces; without it they send none.
    pub platform_url: Option<String>,
    /// Where everybody reaches the platform, and below it the deployments; without it those do not know.
    pub public_url: Option<String>,
}

/// An artifact in use; it is not removed before this is dropped.
pub struct Using<'a> {
    hosting: &'a Hosting,
    key: String,
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        let mut used = self.hosting.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = used.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                used.remove(&self.key);
            }
        }
    }
}

/// Why artifacts may go.
enum Reason {
    /// They are not kept, and were not used for so many hours.
    Idle(u64),
    /// Only revisions of this deployment were built into them.
    OnlyOf(TenantId, DeploymentId),
}

impl Hosting {
    /// Puts the parts together.
    #[must_use]
    pub fn new(root: Root, backend: Backend, git: git::Settings, build: build::Settings, settings: Settings) -> Self {
        Self {
            root,
            backend,
            git,
            build,
            settings,
            locks: Mutex::default(),
            used: Mutex::default(),
            environments: RwLock::default(),
            rates: Rates::default(),
            nudge: Notify::new(),
        }
    }

    /// Waits until nobody else changes what runs of a deployment.
    pub async fn lock(&self, deployment: DeploymentId) -> OwnedMutexGuard<()> {
        self.mutex(format!("deployment {deployment}")).lock_owned().await
    }

    /// Waits until nobody else makes an artifact: equal revisions of several deployments share one.
    pub async fn lock_artifact(&self, key: &str) -> OwnedMutexGuard<()> {
        self.mutex(format!("artifact {key}")).lock_owned().await
    }

    /// As [`Hosting::lock_artifact`], unless somebody does.
    fn try_lock_artifact(&self, key: &str) -> Option<OwnedMutexGuard<()>> {
        self.mutex(format!("artifact {key}")).try_lock_owned().ok()
    }

    /// As [`Hosting::lock`], unless somebody does.
    #[must_use]
    pub fn try_lock(&self, deployment: DeploymentId) -> Option<OwnedMutexGuard<()>> {
        self.mutex(format!("deployment {deployment}")).try_lock_owned().ok()
    }

    fn mutex(&self, name: String) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody holds or waits for need not be kept.
        locks.retain(|other, lock| *other == name || Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(name).or_default())
    }

    /// Keeps an artifact while the answer lives.
    pub fn using(&self, key: &str) -> Using<'_> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used.entry(key.to_owned()).or_default() += 1;
        Using {
            hosting: self,
            key: key.to_owned(),
        }
    }

    /// Makes what the code of a deployment runs in, and has its artifact say that it needs that. False where there is
    /// nothing to make.
    pub(crate) async fn prepare(
        &self,
        launch: &Launch,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<bool, towpath_compute::Error> {
        let _none_goes = self.environments.read().await;
        self.backend.prepare(&self.build, launch, log, cancel).await
    }

    /// Opens a log of a revision. `secrets` are masked, and so is what opens proxies and registries of this machine.
    #[must_use]
    pub fn log(&self, store: &Store, owner: Owner, mut secrets: Vec<Secret>) -> DeploymentLog {
        secrets.extend(self.machine_credentials());
        DeploymentLog::open(store, &self.rates, owner, secrets)
    }

    /// Something changed that whoever keeps deployments should look at.
    pub fn nudge(&self) {
        self.nudge.notify_one();
    }

    pub(crate) async fn nudged(&self) {
        self.nudge.notified().await;
    }

    /// Removes artifacts that nothing needs. One that was used within the last `hours` stays: what failed is often tried
    /// again.
    ///
    /// # Errors
    /// Those of the database and of the disk. One that cannot be removed keeps no other from being removed.
    pub async fn prune(&self, store: &Store, hours: u64) -> Result<(), Failure> {
        let keep = self.kept(store).await?;
        let root = self.root.clone();
        let idle = tokio::task::spawn_blocking(move || artifact::idle(&root, &keep, hours)).await;
        let idle = idle.map_or_else(|_| Ok(Vec::new()), Verdict::retry)?;
        self.discard(store, idle, &Reason::Idle(hours)).await
    }

    /// Removes the artifacts that only this deployment's revisions were built into, but those in use.
    ///
    /// # Errors
    /// As [`Hosting::prune`].
    pub(crate) async fn remove(
        &self,
        store: &Store,
        tenant: TenantId,
        deployment: DeploymentId,
    ) -> Result<(), Failure> {
        let reason = Reason::OnlyOf(tenant, deployment);
        let keys = only_of(store, tenant, deployment).await?;
        self.discard(store, keys, &reason).await
    }

    async fn kept(&self, store: &Store) -> Result<Vec<String>, Failure> {
        let each = self.settings.keep_artifacts;
        store.read(async |tx| artifacts::kept(tx, each).await).await.retry()
    }

    async fn discard(&self, store: &Store, keys: Vec<String>, reason: &Reason) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for key in keys {
            let removed = self.discard_one(store, &key, reason).await;
            if removed.is_err() {
                outcome = removed;
            }
        }
        self.backend.sweep().await.retry()?;
        // While one is being made, no artifact names it yet: another round finds the rest.
        if let Ok(_none_is_made) = self.environments.try_write() {
            let hours = match *reason {
                Reason::Idle(hours) => hours,
                Reason::OnlyOf(..) => 0,
            };
            self.backend.prune_environments(hours).await.retry()?;
        }
        outcome
    }

    async fn discard_one(&self, store: &Store, key: &str, reason: &Reason) -> Result<(), Failure> {
        // Who has it makes it, or records whose it is.
        let Some(_alone) = self.try_lock_artifact(key) else {
            return Ok(());
        };
        // Another revision may have been recorded with it since the list was read, and be over already.
        let (may_go, hours) = match *reason {
            Reason::Idle(hours) => (!self.kept(store).await?.iter().any(|kept| kept == key), hours),
            Reason::OnlyOf(tenant, deployment) => {
                let own = only_of(store, tenant, deployment).await?;
                (own.iter().any(|own| own == key), 0)
            }
        };
        if !may_go {
            return Ok(());
        }
        let Some(removal) = self.withdraw(key, hours)? else {
            return Ok(());
        };
        let finished = tokio::task::spawn_blocking(move || removal.finish()).await;
        finished.map_or(Ok(()), Verdict::retry)
    }

    /// Takes an artifact from its place, unless it is in use or was within the last `hours`.
    fn withdraw(&self, key: &str, hours: u64) -> Result<Option<Removal>, Failure> {
        let artifact = Artifact::of(&self.root, key).retry()?;
        // Held until it is moved: a build that begins to use it finds all of it or nothing.
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.contains_key(key) || !artifact.is_idle(hours) {
            return Ok(None);
        }
        artifact.withdraw().retry()
    }

    /// Refuses a start on another database than the one a deployment had: to its users everything would be gone.
    ///
    /// # Errors
    /// It is another one, or away.
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
            Some(_) => "the database of the deployment that is on this machine is another one than it had",
            None => "the database that the deployment had is not on this machine",
        };
        Err(Failure::fatal(format!(
            "{what}; bring back the data folder or the volume it lies in, or go on with what is there, or with an empty \
             one: towpath deployments accept-database {id}"
        )))
    }

    /// The key of a deployment from before revisions had keys of their own: what was deployed then goes on with it.
    pub(crate) fn former_key(&self, deployment: DeploymentId) -> Option<Secret> {
        self.root.platform_key(deployment).map(Secret::new)
    }

    /// Removes the file of [`Hosting::former_key`], after that key was revoked.
    pub(crate) fn forget_former_key(&self, deployment: DeploymentId) {
        let file = self.root.agent(deployment).join(root::PLATFORM_KEY);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%error, deployment.id = %deployment, "the file of a revoked key cannot be removed");
            }
            _ => {}
        }
    }

    /// The key that the agent server of a revision calls the platform with.
    async fn own_key(
        &self,
        world: &World,
        deployment: &Deployment,
        revision: RevisionId,
    ) -> Result<Option<Secret>, Failure> {
        let tenant = deployment.tenant_id;
        let read = world
            .store
            .read(async |tx| revision_keys::get(tx, tenant, revision).await);
        match read.await.retry()? {
            Some(key) => key.secret(&world.sealer).retry().map(Some),
            None => Ok(self.former_key(deployment.id)),
        }
    }

    /// User names and passwords in addresses that programs of deployments get from this machine: proxies, registries.
    fn machine_credentials(&self) -> Vec<Secret> {
        let values = self.build.variables.values();
        values.flat_map(|value| credentials(value.reveal())).collect()
    }

    /// What starts a revision, and where its lines of this kind go.
    pub(crate) async fn launch(
        &self,
        world: &World,
        deployment: &Deployment,
        revision: &Revision,
        artifact: &str,
        kind: LogKind,
    ) -> Result<(Launch, DeploymentLog), Failure> {
        let own_key = self.own_key(world, deployment, revision.id).await?;
        let secrets = revision.secrets(&world.sealer).retry()?;
        let mut values: Vec<Secret> = secrets.iter().map(|secret| secret.value.clone()).collect();
        let mut variables: Vec<(String, Secret)> =
            secrets.into_iter().map(|secret| (secret.name, secret.value)).collect();
        variables.extend(self.platform_variables(deployment, revision.id, own_key.as_ref()));
        // Of each encryption key: while one is replaced, gateways that know the other one first sign, too.
        let keys: Vec<String> = world
            .sealer
            .derive_all(&gateway_purpose(deployment.id))
            .iter()
            .map(hex::encode)
            .collect();
        // What the platform adds is masked in the log as the deployment's own secrets are.
        values.extend(keys.iter().map(Secret::new));
        values.extend(own_key);
        variables.push(("TOWPATH_AGENT_GATEWAY_KEY".to_owned(), Secret::new(keys.join(","))));
        let (tenant, id) = (deployment.tenant_id, deployment.id);
        let owner = Owner {
            tenant,
            deployment: id,
            revision: revision.id,
            kind,
        };
        let log = self.log(&world.store, owner, values);
        let config = revision.source_config().fatal()?;
        let sizes = config.resource_spec.unwrap_or_default().filled(config.deployment_type);
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

    /// What the platform tells an agent server: where its traces go, and who it is.
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
            // Its database is of this workspace.
            ("TOWPATH_TENANT_ID", deployment.tenant_id.to_string()),
        ];
        if let Some(platform) = &self.settings.public_url {
            // By the gateway: where the agent server itself listens is nobody's business.
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

async fn only_of(store: &Store, tenant: TenantId, deployment: DeploymentId) -> Result<Vec<String>, Failure> {
    let own = store.read(async |tx| artifacts::only_of(tx, tenant, deployment).await);
    own.await.retry()
}

/// What the gateway signs requests to a deployment with.
#[must_use]
pub fn gateway_key(sealer: &Sealer, deployment: DeploymentId) -> [u8; 32] {
    sealer.derive(&gateway_purpose(deployment))
}

/// What stands before the `@` of addresses, and the password in it: programs print either.
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

/// Makes sure that a revision has a key of its own: for traces and feedback links in its workspace, and for what the
/// deployment's configuration adds.
pub(crate) async fn ensure_key(
    tx: &mut Tx<'_>,
    sealer: &Sealer,
    deployment: &Deployment,
    revision: &Revision,
) -> store::Result<()> {
    let tenant = deployment.tenant_id;
    let workspace = access::workspace(tx, tenant).await?.ok_or(store::Error::NotFound)?;
    // As it is now, also where an old revision is deployed again: what was taken away stays away.
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

/// Revokes what the deployment's agent servers called the platform with before this revision served.
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
