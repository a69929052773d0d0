//! Agent servers as processes of this machine.
//!
//! One process has the database of a deployment, so a new revision cannot run beside the old one on it. It is started
//! beside it on an empty database first; when it is healthy there, the old one drains and stops, the new one is
//! started on the deployment's database, and the gateway holds requests meanwhile. Runs that were under way go on in
//! the new one from their last checkpoint.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use towpath_domain::git::TreePath;
use towpath_domain::{DeploymentId, RevisionId, Secret};

use crate::agent::{Agent, Startup};
use crate::artifact::Artifact;
use crate::backend::{Launch, State};
use crate::error::{Error, Result};
use crate::log::Log;
use crate::root::{self, Root};
use crate::{limits, metric, tree};

/// What the operator says about agent servers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program: `towpath`.
    pub program: PathBuf,
    /// `PATH` of its environment.
    pub path: String,
    /// Variables of this machine that agent servers need: proxies.
    pub variables: BTreeMap<String, Secret>,
    /// Settings of agent servers that their owners cannot change.
    pub fixed: Vec<(String, String)>,
    /// How long one may take until it is healthy.
    pub health: Duration,
    /// What its work gets when it is asked to stop.
    pub grace: Duration,
}

/// The processes.
#[derive(Debug)]
pub struct Processes {
    settings: Settings,
    root: Root,
    agents: Mutex<HashMap<DeploymentId, Running>>,
    ended: Arc<Notify>,
}

#[derive(Debug)]
struct Running {
    agent: Arc<Agent>,
    revision: RevisionId,
    address: String,
}

impl Processes {
    /// None yet.
    #[must_use]
    pub fn new(settings: Settings, root: Root) -> Self {
        Self {
            settings,
            root,
            agents: Mutex::default(),
            ended: Arc::default(),
        }
    }

    pub(crate) async fn check(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<()> {
        let folder = self.root.temporary()?;
        let agent = self.start(launch, folder.path(), log)?;
        let healthy = agent.healthy(self.settings.health, cancel).await;
        agent.stop().await;
        healthy.map(drop)
    }

    pub(crate) async fn replace(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<State> {
        self.stop(launch.deployment).await;
        let folder = self.root.agent(launch.deployment);
        root::make(&folder)?;
        let agent = Arc::new(self.start(launch, &folder, log)?);
        let address = match agent.healthy(self.settings.health, cancel).await {
            Ok(address) => address.to_string(),
            Err(error) => {
                agent.stop().await;
                return Err(error);
            }
        };
        limits::apply(launch, agent.pid, log);
        let state = State {
            revision: launch.revision,
            address: address.clone(),
        };
        let (mut watch, ended) = (agent.watch(), Arc::clone(&self.ended));
        let running = Running {
            agent,
            revision: launch.revision,
            address,
        };
        self.lock().insert(launch.deployment, running);
        metrics::gauge!(metric::AGENTS).set(self.lock().len() as f64);
        tokio::spawn(async move {
            let _ = watch.wait_for(Option::is_some).await;
            ended.notify_one();
        });
        Ok(state)
    }

    fn start(&self, launch: &Launch, data: &Path, log: &Log) -> Result<Agent> {
        let artifact = Artifact::of(&self.root, &launch.artifact)?;
        let built = artifact.built().ok_or_else(|| {
            Error::Refused("what was built for this revision is not on this machine any more".to_owned())
        })?;
        let path =
            TreePath::parse(&built.plan.config).map_err(|why| Error::Refused(format!("graph_config_path {why}")))?;
        let config = tree::config(&artifact.source(), &path)?;
        let machine = self.settings.variables.iter();
        let mut variables = vec![
            ("PATH".to_owned(), self.settings.path.clone()),
            ("HOME".to_owned(), data.display().to_string()),
            ("LC_ALL".to_owned(), "C.UTF-8".to_owned()),
        ];
        variables.extend(machine.map(|(name, value)| (name.clone(), value.reveal().to_owned())));
        variables.extend(built.variables);
        variables.extend(
            launch
                .variables
                .iter()
                .map(|(name, value)| (name.clone(), value.reveal().to_owned())),
        );
        // Last, so that they win.
        variables.extend(self.settings.fixed.iter().cloned());
        variables.push((
            "TOWPATH_ENGINE_DRAIN_GRACE_SECONDS".to_owned(),
            self.settings.grace.as_secs().to_string(),
        ));
        let startup = Startup {
            program: &self.settings.program,
            config: &config,
            data,
            variables,
            mark: self.root.mark(),
            grace: self.settings.grace,
        };
        artifact.touch();
        Agent::start(startup, log)
    }

    pub(crate) fn state(&self, deployment: DeploymentId) -> Option<State> {
        let agents = self.lock();
        let running = agents.get(&deployment)?;
        running.agent.has_ended().is_none().then(|| State {
            revision: running.revision,
            address: running.address.clone(),
        })
    }

    pub(crate) fn running(&self) -> Vec<DeploymentId> {
        self.lock().keys().copied().collect()
    }

    pub(crate) async fn stop(&self, deployment: DeploymentId) {
        let running = self.lock().remove(&deployment);
        if let Some(running) = running {
            running.agent.stop().await;
        }
        metrics::gauge!(metric::AGENTS).set(self.lock().len() as f64);
    }

    pub(crate) async fn stop_all(&self) {
        let all: Vec<_> = self.lock().drain().map(|(_, running)| running.agent).collect();
        // All are asked before the first is waited for.
        let stopping: Vec<_> = all
            .into_iter()
            .map(|agent| tokio::spawn(async move { agent.stop().await }))
            .collect();
        for stopped in stopping {
            let _ = stopped.await;
        }
    }

    pub(crate) async fn remove(&self, deployment: DeploymentId) -> Result<()> {
        self.stop(deployment).await;
        limits::forget(deployment);
        let folder = self.root.agent(deployment);
        crate::git::blocking(move || tree::remove(&folder).map_err(Error::io("removing the deployment's database")))
            .await
    }

    pub(crate) async fn ended(&self) {
        self.ended.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<DeploymentId, Running>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
