//! Agent servers as processes of this machine.
//!
//! Only one process may use a deployment's database, so a new revision cannot run on it next to the old one. It is
//! first started on an empty database; when it is healthy there, it is started again as a standby with its graphs
//! loaded. Then the old one drains and stops, the new one opens the deployment's database, and the gateway holds
//! requests for that moment, regardless of how long graphs take to load. Unfinished runs continue in the new one from
//! their last checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use towpath_domain::git::TreePath;
use towpath_domain::{DeploymentId, Secret};
use uuid::Uuid;

use crate::agent::{Agent, Startup};
use crate::artifact::Artifact;
use crate::error::{Error, Result};
use crate::instances::{Instance as _, Instances};
use crate::isolation::{Isolation, PreparedCell};
use crate::launch::{Launch, ONE_HOST, RunningAgent};
use crate::limits::Limits;
use crate::log::Log;
use crate::orphans::ROOT_MARK;
use crate::program::Program;
use crate::root::{self, Root};
use crate::{build, environments, health, launcher, orphans, tree};

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
    /// What keeps them apart.
    pub isolation: Isolation,
    /// Where they create environments for their code, without per-deployment folders.
    pub hosts: PathBuf,
}

#[derive(Debug)]
pub struct Processes {
    settings: Settings,
    root: Root,
    limits: &'static Limits,
    agents: Instances<Agent>,
}

/// What a start of `towpath agent` needs.
struct StartContext {
    artifact: Artifact,
    config: PathBuf,
    cell: Option<PreparedCell>,
    /// Where it makes environments.
    hosts: PathBuf,
    variables: Vec<(String, String)>,
}

/// The folder of an agent server that is only checked. It is removed after the server has ended, even if nothing waits
/// for that, because a draining server still writes.
struct CheckFolder {
    folder: Option<TempDir>,
    ended: watch::Receiver<Option<String>>,
}

impl Drop for CheckFolder {
    fn drop(&mut self) {
        let folder = self.folder.take();
        let mut ended = self.ended.clone();
        if ended.borrow().is_some() {
            return;
        }
        // Without a runtime nothing drains either.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = ended.wait_for(Option::is_some).await;
                drop(folder);
            });
        }
    }
}

impl Processes {
    /// None yet.
    #[must_use]
    pub fn new(settings: Settings, root: Root) -> Self {
        Self {
            settings,
            root,
            limits: Limits::of_machine(),
            agents: Instances::default(),
        }
    }

    pub(crate) async fn check(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<()> {
        let folder = self.root.temporary()?;
        let isolation = self.settings.isolation.clone();
        // The first who asks waits for the trial.
        log.info(crate::git::blocking(move || Ok(isolation.report())).await?);
        let agent = self.start(launch, folder.path(), false, log).await?;
        let _held = CheckFolder {
            folder: Some(folder),
            ended: agent.lifecycle().subscribe_end(),
        };
        let healthy = agent.healthy(self.settings.health, cancel).await;
        agent.lifecycle().stop().await;
        healthy.map(drop)
    }

    pub(crate) async fn stand_by(&self, launch: &Launch, log: &Log, cancel: &CancellationToken) -> Result<Agent> {
        let folder = self.root.agent(launch.deployment);
        let agent = self.start(launch, &folder, true, log).await?;
        match agent.lifecycle().wait_loaded(self.settings.health, cancel).await {
            Ok(()) => Ok(agent),
            Err(error) => {
                agent.lifecycle().stop().await;
                Err(error)
            }
        }
    }

    pub(crate) async fn replace(
        &self,
        launch: &Launch,
        agent: Agent,
        cancel: &CancellationToken,
    ) -> Result<RunningAgent> {
        agent.lifecycle().check_standby()?;
        let limit = health::switch_limit(self.agents.state(launch.deployment).is_some(), self.settings.health);
        self.agents.stop(launch.deployment).await;
        let agent = Arc::new(agent);
        self.agents.insert(launch.deployment, Arc::clone(&agent)).await?;
        agent.open_database();
        let address = match agent.healthy(limit, cancel).await {
            Ok(address) => address.to_string(),
            Err(error) => {
                self.agents.stop(launch.deployment).await;
                return Err(error);
            }
        };
        Ok(self
            .agents
            .set_healthy(launch.deployment, agent, launch.revision, address))
    }

    /// Creates the environment for a deployment's code, as the last step of its build: with a build's time limit, and
    /// isolated like the agent server, which finds it there. False if there is no such code.
    pub(crate) async fn prepare(
        &self,
        launch: &Launch,
        settings: &build::Settings,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<bool> {
        const WHAT: &str = "preparing the graphs";
        let folder = self.root.temporary()?;
        let StartContext {
            artifact,
            config,
            cell,
            hosts,
            variables,
        } = self.setting(launch, folder.path()).await?;
        let shown = config.display().to_string();
        if !build::has_code(&build::read(&config, &shown)?) {
            return Ok(false);
        }
        tree::has_room(self.root.path(), settings.tree.free)?;
        let program = match &cell {
            Some(cell) => Program::new(WHAT, &self.settings.program, settings.limit)
                .args([launcher::COMMAND])
                .args(cell.arguments())
                .arg("--")
                .arg(&self.settings.program),
            None => Program::new(WHAT, &self.settings.program, settings.limit),
        };
        let to = folder.path().join("environment");
        let ended = program
            // With what the package manager says.
            .args(["agent", "--prepare", "--log", "info,towpath_runtime::hosted=debug"])
            .args(["--settings", "/dev/null", "--environment-file"])
            .arg(&to)
            .arg("--config")
            .arg(&config)
            .arg("--data-dir")
            .arg(folder.path())
            .envs(variables)
            .envs([(ROOT_MARK, self.root.mark())])
            .within(config.parent().unwrap_or(folder.path()))
            .reserve_disk_space(self.root.path(), settings.tree.free)
            .run(log, cancel)
            .await;
        let is_shared = cell.is_none();
        crate::git::blocking(move || {
            // Temporary files and caches may be many.
            drop(cell);
            let code = ended?.code;
            if code != Some(0) {
                let how = code.map_or_else(
                    || "was terminated by a signal".to_owned(),
                    |code| format!("exited with code {code}"),
                );
                return Err(Error::Refused(format!("{WHAT} {how}")));
            }
            let made = environments::acquire(&to, &hosts)?;
            tree::remove(folder.path()).map_err(Error::io("removing what package managers kept"))?;
            made.map_or(Ok(()), |made| environments::record(&artifact, &made, is_shared))?;
            Ok(true)
        })
        .await
    }

    /// Removes environments older than this many hours that no artifact needs. Call it while none is being created.
    pub(crate) async fn prune_environments(&self, hours: u64) -> Result<usize> {
        let (root, shared) = (self.root.clone(), self.settings.hosts.clone());
        crate::git::blocking(move || environments::prune(&root, &shared, hours)).await
    }

    async fn start(&self, launch: &Launch, data: &Path, standby: bool, log: &Log) -> Result<Agent> {
        let StartContext {
            artifact,
            config,
            cell,
            mut variables,
            ..
        } = self.setting(launch, data).await?;
        if !standby {
            variables.push((ONE_HOST.0.to_owned(), ONE_HOST.1.to_owned()));
        }
        let run = Uuid::now_v7().to_string();
        let groups = self.limits.groups(launch, &run);
        let groups = groups.map_err(Error::io("creating the control group of the agent server"))?;
        let startup = Startup {
            program: &self.settings.program,
            config: &config,
            data,
            variables,
            mark: self.root.mark(),
            grace: self.settings.grace,
            run,
            groups,
            cell,
            standby,
        };
        artifact.touch();
        Agent::start(startup, log)
    }

    async fn setting(&self, launch: &Launch, data: &Path) -> Result<StartContext> {
        let artifact = Artifact::of(&self.root, &launch.artifact)?;
        let built = artifact
            .built()
            .ok_or_else(|| Error::Refused("the build of this revision is no longer on this machine".to_owned()))?;
        let path =
            TreePath::parse(&built.plan.config).map_err(|why| Error::Refused(format!("graph_config_path {why}")))?;
        let config = tree::config(&artifact.source(), &path)?;
        root::make(&self.root.agent(launch.deployment))?;
        let (isolation, source) = (self.settings.isolation.clone(), artifact.source());
        let (root, deployment, folder) = (self.root.clone(), launch.deployment, data.to_owned());
        let cell = crate::git::blocking(move || {
            // It was built without isolation, or no program ran in it.
            isolation.share_once(&source)?;
            isolation.agent(&root, deployment, &folder, &source)
        });
        let cell = cell.await?;
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
        let own = cell.as_ref().and_then(|cell| cell.hosts.clone());
        let hosts = own.unwrap_or_else(|| self.settings.hosts.clone());
        variables.push(("TOWPATH_AGENT_HOSTS_DIR".to_owned(), hosts.display().to_string()));
        // An interpreter downloaded by uv stays with the environments that link to it.
        let interpreters = hosts.join("interpreters").display().to_string();
        variables.push(("UV_PYTHON_INSTALL_DIR".to_owned(), interpreters));
        variables.push((
            "TOWPATH_ENGINE_DRAIN_GRACE_SECONDS".to_owned(),
            self.settings.grace.as_secs().to_string(),
        ));
        Ok(StartContext {
            artifact,
            config,
            cell,
            hosts,
            variables,
        })
    }

    /// The fields of a resource specification that apply here, for the agent server and all its children.
    pub(crate) const fn honours(&self) -> &'static [&'static str] {
        match (self.limits.cpu(), self.limits.memory()) {
            (true, true) => &["cpu", "cpu_limit", "memory_mb", "memory_limit_mb"],
            (true, false) => &["cpu", "cpu_limit"],
            (false, true) => &["memory_mb", "memory_limit_mb"],
            (false, false) => &[],
        }
    }

    pub(crate) const fn root(&self) -> &Root {
        &self.root
    }

    pub(crate) const fn agents(&self) -> &Instances<Agent> {
        &self.agents
    }

    pub(crate) async fn remove(&self, deployment: DeploymentId) -> Result<()> {
        self.agents.stop(deployment).await;
        let (folder, hosts) = (self.root.agent(deployment), self.root.hosts(deployment));
        let (isolation, root) = (self.settings.isolation.clone(), self.root.clone());
        crate::git::blocking(move || {
            if let Some(user) = isolation.user_of(&root, deployment) {
                // Another deployment may have the id after this one.
                orphans::end_of_user(user, &root.mark());
            }
            // The data folder says whose id it was: it goes last.
            tree::remove(&hosts).map_err(Error::io("removing the deployment's environments"))?;
            tree::remove(&folder).map_err(Error::io("removing the deployment's database"))
        })
        .await
    }
}
