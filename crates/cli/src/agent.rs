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
use crate::hosting::{self, Hosting};
use crate::serve::{roles, warn_in_clear};
use crate::signals::{self, Signals};
use crate::storage::Storage;
use crate::telemetry;
use crate::threads::{self, Threads, block_on};
use crate::wiring::{AgentParts, AgentServer, Loaded, Roles, listen};

/// The workspace of an agent server that was not told one: the same for every process that shares a database.
const WORKSPACE: TenantId = TenantId(Uuid::from_u128(0x0000_0000_0000_4000_8000_0000_0000_0001));

/// What a server says once it stands by.
const STANDING_BY: &str = "towpath: standing by";
/// What it says once it listens, where it was asked to.
const LISTENING: &str = "towpath: listening";

/// Runs until it is asked to stop.
///
/// # Errors
/// When something cannot be started, or breaks.
pub fn run(command: Agent) -> anyhow::Result<()> {
    let config = config(&command)?;
    let threads = threads(&command, &config);
    block_on(threads, serve(command, config))
}

fn threads(command: &Agent, config: &Config) -> Threads {
    let agent = &config.settings.agent;
    let told = config.environment.contains_key(threads::TOLD);
    if told || !roles(&command.role).worker || !GraphFile::names_code(agent.graphs.as_deref()) {
        return Threads::Own;
    }
    Threads::Beside(hosting::most(&agent.hosts, config.settings.slots_of(run_agent::POOL)))
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
    Ok(Config::load(&Inputs::of_process(
        Mode::Agent,
        flags,
        command.settings.clone(),
    ))?)
}

/// Refuses to serve where a variable of the official server asks for protection that this one does not give, and says
/// which variables of the graph file set nothing.
///
/// # Errors
/// The environment or the graph file holds such a variable.
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
    let file = GraphFile::find(settings.agent.graphs.as_deref())?;
    check_official(&config, &file)?;
    if command.prepare {
        return Hosting::new(&config, Guard::new(Policy::default()), None)
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
            "SQLite serves one process: run all roles in it (--role all), or give a PostgreSQL as DATABASE_URI".into()
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
            "{} asks for API keys and there is none: give TOWPATH_API_KEY and TOWPATH_TENANT_ID, make one with \
             `DATABASE_URI=… towpath keys create`, or let everybody in with TOWPATH_AGENT_AUTH=none",
            settings.listen
        )));
    }
    // What a gateway signs comes from its own machine or network.
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
        // A gateway in front has asked for keys, and says so by its hold on standard input.
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
        // Not a line of the log, which may be set to say less.
        writeln!(std::io::stdout(), "{LISTENING}")?;
    }
    if let Some(file) = &command.address_file {
        write_address(file, server.address()).with_context(|| format!("file {}", file.display()))?;
    }
    server.run(signals).await
}

/// Loads the graphs and waits until the database is free: SIGUSR1 says so. Nothing when it is asked to stop instead.
async fn stand_by(
    config: &Config,
    file: &GraphFile,
    while_stdin_is_open: bool,
) -> anyhow::Result<Option<(Signals, Loaded)>> {
    let mut signals = Signals::listen()?;
    // From here on: before, the signal ends the process.
    let mut go = signal(SignalKind::user_defined1())?;
    if while_stdin_is_open {
        signals::terminate_when_stdin_ends()?;
    }
    let loaded = tokio::select! {
        loaded = Loaded::new(config, file) => loaded?,
        _ = signals.next() => return Ok(None),
    };
    // Not a line of the log, which may be set to say less.
    writeln!(std::io::stdout(), "{STANDING_BY}")?;
    tokio::select! {
        _ = go.recv() => Ok(Some((signals, loaded))),
        _ = signals.next() => {
            loaded.close().await;
            Ok(None)
        }
    }
}

/// Whoever waits for the file finds the whole address or none.
fn write_address(file: &Path, address: SocketAddr) -> std::io::Result<()> {
    let draft = file.with_extension("new");
    std::fs::write(&draft, format!("{address}\n"))?;
    std::fs::rename(&draft, file)
}

/// The workspace whose server this is: the one that was told, else the only one there is, else one of our own.
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
            "this database has several workspaces: say as TOWPATH_TENANT_ID whose agent server this is".into()
        )),
    }
}
