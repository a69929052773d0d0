//! Hosting of users' own code: its environment, its processes, and new processes when the code changes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, anyhow};
use towpath_domain::{Secret, TenantId};
use towpath_outbound::{Guard, Policy};
use towpath_runtime::Graphs;
use towpath_runtime::hosted::{Launch, Options, Pool, environment, package};
use towpath_workflows::run_agent;
use towpath_workflows::tracer::{Platform, Tracer};

use crate::config::{self, Config};
use crate::graph_file::GraphFile;
use crate::threads;

/// Default destination of traces.
#[derive(Clone, Debug)]
pub struct Tracing {
    /// Address of the platform.
    pub endpoint: String,
    pub key: Secret,
    pub workspace: String,
}

/// Variables whose presence shows that the author configures tracing.
const TRACING: [&str; 7] = [
    "LANGSMITH_API_KEY",
    "LANGCHAIN_API_KEY",
    "LANGSMITH_ENDPOINT",
    "LANGCHAIN_ENDPOINT",
    "LANGSMITH_TRACING",
    "LANGSMITH_TRACING_V2",
    "LANGCHAIN_TRACING_V2",
];

pub struct GraphHostLauncher {
    settings: config::HostSettings,
    /// Slots of agent runs in this process.
    slots: usize,
    guard: Guard,
    process: BTreeMap<String, Secret>,
    /// Workspace of the server, if known.
    workspace: Option<TenantId>,
    tracing: Option<Tracing>,
    /// Created when the first process starts; it remains if the server is killed.
    sockets: OnceLock<tempfile::TempDir>,
}

impl GraphHostLauncher {
    pub fn new(config: &Config, guard: Guard, tracing: Option<Tracing>) -> Self {
        let settings = &config.settings;
        Self {
            settings: settings.agent.hosts.clone(),
            slots: settings.slots_of(run_agent::POOL),
            guard,
            process: config.environment.clone(),
            workspace: settings.tenant_id,
            tracing,
            sockets: OnceLock::new(),
        }
    }

    /// The folder for the sockets of processes.
    fn sockets(&self) -> anyhow::Result<&Path> {
        if let Some(made) = self.sockets.get() {
            return Ok(made.path());
        }
        // Socket paths have a length limit, and a data folder may be nested deeply.
        let made = tempfile::Builder::new()
            .prefix("towpath-")
            .tempdir()
            .context("a folder for sockets")?;
        // The first of concurrent callers wins.
        Ok(self.sockets.get_or_init(|| made).path())
    }

    /// Loads the graphs of a file, including its own code. Errors name what to do.
    pub async fn load(&self, file: &GraphFile) -> anyhow::Result<Graphs> {
        let graphs = self.declared(file);
        if !has_code(file, &graphs) {
            return Ok(graphs);
        }
        let launch = self.launch(file).await?;
        let pool = Pool::start(launch, self.options()).await?;
        if pool.ready().encryption.is_some_and(|encryption| encryption.json) {
            anyhow::bail!(
                "encryption: this build encrypts only values of checkpoints; remove the handlers for JSON, which \
                 would never be called"
            );
        }
        Ok(graphs.with_hosts(pool))
    }

    /// Creates the environment of a file's own code, so that a later server finds it. Its path is written to `to`, or
    /// stored below the folder in an image build.
    pub async fn prepare(&self, file: &GraphFile, to: Option<&Path>) -> anyhow::Result<()> {
        if has_code(file, &self.declared(file)) {
            let folder = &self.settings.folder;
            let python = self.python(file, folder).await?;
            match (to, python.parent().and_then(Path::parent)) {
                (Some(to), Some(environment)) => {
                    let text = environment.display().to_string();
                    std::fs::write(to, text).with_context(|| format!("writing {}", to.display()))?;
                }
                (Some(_), None) => {}
                (None, _) => environment::record(&self.environment_spec(file), folder, &self.process, &python)?,
            }
            tracing::info!(python = %python.display(), "the environment is ready");
        }
        Ok(())
    }

    /// The graphs of a file that need no process.
    pub fn declared(&self, file: &GraphFile) -> Graphs {
        file.declared_graphs(self.guard.clone(), &self.process)
    }

    fn options(&self) -> Options {
        let options = Options {
            children: max_processes(&self.settings, self.slots),
            slots: self.slots,
            max_runs: self.settings.max_runs,
            max_rss_bytes: self.settings.max_rss_bytes,
            cancel_grace: self.settings.cancel_grace,
            ..Options::default()
        };
        if self.settings.isolated {
            let most = options.children;
            return options.isolated(most);
        }
        options
    }

    async fn launch(&self, file: &GraphFile) -> anyhow::Result<Launch> {
        let runtime = &self.settings.folder;
        let package = package::write(runtime).with_context(|| format!("writing to {}", runtime.display()))?;
        let python = self.python(file, runtime).await?;
        let mut environment: BTreeMap<String, Secret> = self
            .process
            .iter()
            .filter(|(name, _)| !is_ours(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        environment.extend(file.env().clone());
        let mut paths = vec![package];
        if let Some(own) = environment.get("PYTHONPATH") {
            paths.extend(std::env::split_paths(own.reveal()));
        }
        let paths = std::env::join_paths(paths).context("PYTHONPATH")?;
        let paths = paths
            .into_string()
            .map_err(|_| anyhow!("the name of the data folder is not UTF-8"))?;
        environment.insert("PYTHONPATH".to_owned(), Secret::new(paths));
        self.add_tracing_variables(&mut environment, &file.folder());
        Ok(Launch {
            program: python,
            arguments: ["-u", "-m", "towpath_host"].map(OsString::from).to_vec(),
            fork_argument: Some("--fork-server".into()),
            environment,
            clean: true,
            folder: file.folder(),
            config: file.text.clone(),
            graphs: None,
            http: file.server.has_custom_routes(),
            sockets: self.sockets()?.to_owned(),
            start_timeout: self.settings.start_timeout,
        })
    }

    /// The configured interpreter, that of the active environment, or that of a new environment.
    async fn python(&self, file: &GraphFile, runtime: &Path) -> anyhow::Result<PathBuf> {
        if let Some(python) = &self.settings.python {
            return self.configured_interpreter(python);
        }
        if let Some(active) = self
            .process
            .get("VIRTUAL_ENV")
            .map(|folder| PathBuf::from(folder.reveal()))
            && has_langgraph(&active)
        {
            tracing::info!(folder = %active.display(), "Python graphs run in the active virtual environment");
            return Ok(active.join("bin/python"));
        }
        Ok(environment::prepare(&self.environment_spec(file), runtime, &self.process).await?)
    }

    fn environment_spec(&self, file: &GraphFile) -> environment::EnvironmentSpec {
        environment::EnvironmentSpec {
            workspace: self.workspace,
            ..file.environment_spec()
        }
    }

    fn configured_interpreter(&self, python: &Path) -> anyhow::Result<PathBuf> {
        let missing = || {
            anyhow!(
                "agent.python: {} does not exist; set it to an interpreter of Python 3.11 or newer that has langgraph \
                 and the project's packages, or unset it: an environment is then created from `dependencies`",
                python.display()
            )
        };
        // Paths are resolved against this process's folder, not the project's; plain names are looked up.
        if python.components().count() > 1 {
            let path = Some(std::path::absolute(python)?);
            return path.filter(|path| path.is_file()).ok_or_else(missing);
        }
        let path = self.process.get("PATH").map_or("", Secret::reveal);
        let found = std::env::split_paths(path).map(|folder| folder.join(python));
        found.into_iter().find(|path| path.is_file()).ok_or_else(missing)
    }

    /// Tracer of native graphs, with the same rule as for users' code: traces go to the platform of this server, or to
    /// the one that the author's environment names.
    pub fn tracer(&self, file: &GraphFile, settings: &config::Settings, guard: &Guard) -> Option<Tracer> {
        let said = |names: &[&str]| {
            let found = names
                .iter()
                .find_map(|&name| file.env().get(name).or_else(|| self.process.get(name)));
            found
                .map(|value| value.reveal().to_owned())
                .filter(|value| !value.is_empty())
        };
        let project = said(&["LANGSMITH_PROJECT", "LANGCHAIN_PROJECT"]);
        if TRACING.iter().any(|name| said(&[name]).is_some()) {
            let on = said(&["LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2"])?;
            if !on.eq_ignore_ascii_case("true") {
                return None;
            }
            let endpoint = said(&["LANGSMITH_ENDPOINT", "LANGCHAIN_ENDPOINT"])?;
            let platform = Platform {
                key: Secret::new(said(&["LANGSMITH_API_KEY", "LANGCHAIN_API_KEY"])?),
                workspace: said(&["LANGSMITH_WORKSPACE_ID", "LANGSMITH_TENANT_ID"]),
                project: project.unwrap_or_else(|| "default".to_owned()),
                endpoint,
            };
            let guard = self
                .guard_of(&platform.endpoint, settings)
                .unwrap_or_else(|| guard.clone());
            return Tracer::start(&platform, guard);
        }
        let tracing = self.tracing.as_ref()?;
        let folder = file.folder();
        let platform = Platform {
            endpoint: tracing.endpoint.clone(),
            key: tracing.key.clone(),
            workspace: Some(tracing.workspace.clone()),
            project: project.unwrap_or_else(|| project_of(&folder).to_owned()),
        };
        Tracer::start(&platform, guard.clone())
    }

    /// The platform that started this process may be called at any address: that of a deployment is on the same
    /// machine.
    fn guard_of(&self, endpoint: &str, settings: &config::Settings) -> Option<Guard> {
        // In a deployment, only the platform can set it.
        self.process
            .get("LANGSMITH_ENDPOINT")
            .filter(|named| named.reveal() == endpoint)?;
        let (_, rest) = endpoint.split_once("://")?;
        let place = rest.split(['/', '?', '#']).next()?.parse().ok()?;
        let mut allow = settings.outbound_allow.clone();
        allow.push(place);
        Some(Guard::new(Policy { loopback: false, allow }))
    }

    /// Directs traces to the platform, unless the author configures tracing.
    fn add_tracing_variables(&self, environment: &mut BTreeMap<String, Secret>, folder: &Path) {
        let Some(tracing) = &self.tracing else { return };
        if TRACING.iter().any(|name| environment.contains_key(*name)) {
            return;
        }
        let project = project_of(folder);
        for (name, value) in [
            ("LANGSMITH_TRACING", "true"),
            ("LANGSMITH_ENDPOINT", &tracing.endpoint),
            ("LANGSMITH_API_KEY", tracing.key.reveal()),
            ("LANGSMITH_WORKSPACE_ID", &tracing.workspace),
        ] {
            environment.insert(name.to_owned(), Secret::new(value));
        }
        environment
            .entry("LANGSMITH_PROJECT".to_owned())
            .or_insert_with(|| Secret::new(project));
    }
}

/// Maximum number of processes for a server with this number of slots.
pub fn max_processes(settings: &config::HostSettings, slots: usize) -> usize {
    match settings.max_processes {
        0 if settings.isolated => slots,
        0 => threads::processors().min(4),
        most => most,
    }
}

/// Whether a graph, the auth, a route or the embedder needs a process.
fn has_code(file: &GraphFile, graphs: &Graphs) -> bool {
    let embeds = || matches!(file.server.index(), Ok(Some(index)) if index.needs_host());
    !graphs.hosted_paths().is_empty()
        || file.server.auth().path.is_some()
        || file.server.has_custom_routes()
        || embeds()
}

/// Project of graphs that name none.
fn project_of(folder: &Path) -> &str {
    folder.file_name().and_then(|name| name.to_str()).unwrap_or("default")
}

/// A variable of the server, which graphs must not see because it may be secret.
fn is_ours(name: &str) -> bool {
    name.starts_with("TOWPATH_") || config::holds_secret(name)
}

fn has_langgraph(environment: &Path) -> bool {
    let Ok(versions) = std::fs::read_dir(environment.join("lib")) else {
        return false;
    };
    versions
        .flatten()
        .any(|version| version.path().join("site-packages/langgraph").is_dir())
}

/// Ends the processes of a set, even if others still hold it.
pub async fn close(graphs: &Arc<Graphs>, grace: std::time::Duration) {
    if let Some(pool) = graphs.host_pool() {
        pool.close(grace).await;
    }
}
