//! `towpath agent`: an agent server, in one process or in several.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};
use towpath_domain::TenantId;
use towpath_outbound::{Guard, Policy};
use towpath_store::{Dialect, Store, access};
use towpath_workflows::run_agent;
use uuid::Uuid;

use crate::arguments::{Agent, flag};
use crate::config::{AgentAuth, Config, Inputs, Mode, Settings, refusal, warnings_of_file};
use crate::exit::Usage;
use crate::first_key;
use crate::graph_file::GraphFile;
use crate::graph_hosting::{self, GraphHostLauncher};
use crate::serve::{roles, warn_in_clear};
use crate::signals::{self, Signals};
use crate::storage::Storage;
use crate::telemetry;
use crate::threads::{self, Threads, block_on};
use crate::wiring::{AgentParts, AgentServer, LoadedGraphs, Roles, listen};

/// Default workspace of an agent server. It is fixed, so that all processes that share a database use the same one.
const WORKSPACE: TenantId = TenantId(Uuid::from_u128(0x0000_0000_0000_4000_8000_0000_0000_0001));

const STANDBY_MESSAGE: &str = "towpath: standing by";
const LISTENING_MESSAGE: &str = "towpath: listening";

pub fn run(command: Agent) -> anyhow::Result<()> {
    let config = config(&command)?;
    let threads = threads(&command, &config);
    block_on(threads, serve(command, config))
}

fn threads(command: &Agent, config: &Config) -> Threads {
    let agent = &config.settings.agent;
    let told = config.environment.contains_key(threads::THREADS_VARIABLE);
    if told || !roles(&command.role).worker || !GraphFile::names_code(agent.graphs.as_deref(), &config.environment) {
        return Threads::AllProcessors;
    }
    Threads::SharedWithHosts(graph_hosting::max_processes(
        &agent.hosts,
        config.settings.slots_of(run_agent::POOL),
    ))
}

fn config(command: &Agent) -> anyhow::Result<Config> {
    let flags = [
        flag("listen", "--listen", command.listen.as_ref()),
        flag(
            "agent.graphs",
            "--config",
            command.config.as_ref().map(|path| path.display()),
        ),
        flag("agent.auth", "--agent-auth", command.agent_auth.then_some("key")),
        flag(
            "data_dir",
            "--data-dir",
            command.data_dir.as_ref().map(|path| path.display()),
        ),
        flag("log.filter", "--log", command.log.as_ref()),
    ];
    let flags = flags.into_iter().flatten().collect();
    Ok(Config::load(&Inputs::from_process(
        Mode::Agent,
        flags,
        command.settings.clone(),
    ))?)
}

/// Refuses to serve if a variable of the official server requests protection that this server does not have. Warns
/// about variables of the graph file that have no effect.
pub fn check_official(config: &Config, file: &GraphFile) -> anyhow::Result<()> {
    let find = |name: &str| config.environment.get(name).or_else(|| file.env().get(name)).cloned();
    if let Some(why) = refusal(find) {
        bail!(Usage(why));
    }
    let env = file.env().iter().map(|(name, value)| (name.as_str(), value.reveal()));
    for warning in warnings_of_file(env) {
        tracing::warn!("{warning}");
    }
    Ok(())
}

async fn serve(command: Agent, config: Config) -> anyhow::Result<()> {
    telemetry::start_logging(&config)?;
    let settings = &config.settings;
    let file = GraphFile::find(settings.agent.graphs.as_deref(), &config.environment)?;
    check_official(&config, &file)?;
    if command.prepare {
        return GraphHostLauncher::new(&config, Guard::new(Policy::default()), None)
            .prepare(&file, command.environment_file.as_deref())
            .await;
    }
    let metrics = telemetry::start_metrics()?;
    let roles = roles(&command.role);
    let mut standing = None;
    if command.standby {
        standing = stand_by(&config, &file, command.while_stdin_is_open).await?;
        if standing.is_none() {
            return Ok(());
        }
    }
    let (mut signals, loaded) = match standing {
        Some((signals, loaded)) => (signals, Some(loaded)),
        None => {
            let signals = Signals::listen()?;
            if command.while_stdin_is_open {
                signals::terminate_when_stdin_ends()?;
            }
            (signals, None)
        }
    };
    let Some(opened) = signals.unless_stopped(Storage::open(settings)).await else {
        if let Some(loaded) = loaded {
            loaded.close().await;
        }
        return Ok(());
    };
    let storage = opened?;
    if storage.store.dialect() == Dialect::Sqlite && roles != Roles::ALL {
        bail!(Usage(
            "SQLite serves one process: run all roles in it (--role all), or set DATABASE_URI to a PostgreSQL database"
                .into()
        ));
    }
    let tenant = tenant(&storage.store, settings).await?;
    let auth = match settings.agent.auth {
        AgentAuth::Auto => !settings.listen.ip().is_loopback(),
        AgentAuth::Key => true,
        AgentAuth::None => false,
    };
    if auth && roles.api && !storage.store.read(async |tx| access::has_keys(tx).await).await? {
        bail!(Usage(format!(
            "{} requires API keys and there is none: set TOWPATH_API_KEY and TOWPATH_TENANT_ID, create a key with \
             `DATABASE_URI=… towpath keys create`, or allow all callers with TOWPATH_AGENT_AUTH=none",
            settings.listen
        )));
    }
    // Signed requests come from the gateway's own machine or network.
    if roles.api && settings.agent.gateway_key.is_none() {
        warn_in_clear(settings, settings.listen);
    }
    let keys = auth.then(|| storage.store.clone());
    let parts = AgentParts {
        listener: listen(settings.listen).await?,
        store: storage.store,
        data: storage.data,
        tenant,
        public_url: settings.public_url.clone(),
        keys,
        // A gateway in front checks keys; it holds this server's standard input open.
        this_machine_only: !auth && settings.agent.auth == AgentAuth::Auto && !command.while_stdin_is_open,
        redis: settings.redis_uri.clone(),
        loopback: false,
        file,
        loaded,
        tracing: None,
        watch: false,
        metrics,
    };
    let server = AgentServer::start(&config, roles, parts).await?;
    tracing::info!(listen = %server.address(), roles = %roles, "ready");
    if command.tell_listening {
        // Standard output, because the log filter could hide it.
        writeln!(std::io::stdout(), "{LISTENING_MESSAGE}")?;
    }
    if let Some(file) = &command.address_file {
        write_address(file, server.address()).with_context(|| format!("file {}", file.display()))?;
    }
    server.run(signals).await
}

/// Loads the graphs and waits for SIGUSR1, which reports that the database is free. `None` if stopped first.
async fn stand_by(
    config: &Config,
    file: &GraphFile,
    while_stdin_is_open: bool,
) -> anyhow::Result<Option<(Signals, LoadedGraphs)>> {
    let mut signals = Signals::listen()?;
    // Until now, the signal would end the process.
    let mut go = signal(SignalKind::user_defined1())?;
    if while_stdin_is_open {
        signals::terminate_when_stdin_ends()?;
    }
    let loaded = tokio::select! {
        loaded = LoadedGraphs::new(config, file) => loaded?,
        _ = signals.next() => return Ok(None),
    };
    // Standard output, because the log filter could hide it.
    writeln!(std::io::stdout(), "{STANDBY_MESSAGE}")?;
    tokio::select! {
        _ = go.recv() => Ok(Some((signals, loaded))),
        _ = signals.next() => {
            loaded.close().await;
            Ok(None)
        }
    }
}

/// Atomic: a reader of the file finds the complete address or no file.
fn write_address(file: &Path, address: SocketAddr) -> std::io::Result<()> {
    let draft = file.with_extension("new");
    std::fs::write(&draft, format!("{address}\n"))?;
    std::fs::rename(&draft, file)
}

/// The configured workspace, else the only one in the database, else the default one.
async fn tenant(store: &Store, settings: &Settings) -> anyhow::Result<TenantId> {
    if settings.api_key.is_some() || settings.tenant_id.is_some() {
        first_key::of_agent(store, settings).await?;
    }
    if let Some(tenant) = settings.tenant_id {
        return Ok(tenant);
    }
    let known = store.read(async |tx| access::list_workspaces(tx, None).await).await?;
    match &known[..] {
        [] => {
            store
                .write(async |tx| access::ensure_workspace(tx, WORKSPACE).await)
                .await?;
            Ok(WORKSPACE)
        }
        [only] => Ok(only.id),
        _ => bail!(Usage(
            "this database has several workspaces: set TOWPATH_TENANT_ID to the workspace of this agent server".into()
        )),
    }
}
