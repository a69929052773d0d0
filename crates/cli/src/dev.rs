//! `towpath dev`: everything in one process, with all data in one folder.

use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use towpath_domain::TenantId;
use towpath_store::{Options, Store};

use crate::arguments::{Dev, flag};
use crate::config::{AgentAuth, Config, Mode, Settings};
use crate::first_key::{self, FirstKey};
use crate::graph_file::GraphFile;
use crate::graph_hosting::Tracing;
use crate::serve::warn_in_clear;
use crate::signals::Signals;
use crate::storage::Storage;
use crate::telemetry;
use crate::wiring::{AgentParts, AgentServer, Roles, Server, listen};

pub async fn run(command: Dev) -> anyhow::Result<()> {
    let started = Instant::now();
    let flags = [
        flag("listen", "--listen", command.listen),
        flag("agent_listen", "--agent-listen", command.agent_listen),
        flag(
            "agent.graphs",
            "--graphs",
            command.graphs.as_ref().map(|path| path.display()),
        ),
        flag("agent.auth", "--agent-auth", command.agent_auth.then_some("key")),
        flag("limits.rules", "--limits", command.limits.as_ref()),
    ];
    let config = Config::load(&command.common.inputs(Mode::Dev, flags.into_iter().flatten().collect()))?;
    let spans = telemetry::start_logging(&config)?;
    let file = graphs(&config)?;
    crate::agent::check_official(&config, &file)?;
    let metrics = telemetry::start_metrics()?;
    let mut signals = Signals::listen()?;
    let opening = async {
        let storage = Storage::open(&config.settings).await?;
        let agents = agents(&config.settings).await.context("the agent server")?;
        anyhow::Ok((storage, agents))
    };
    let Some(opened) = signals.unless_stopped(opening).await else {
        spans.close().await;
        return Ok(());
    };
    let (mut storage, agents) = opened?;
    storage.agents = Some(agents.clone());
    let first = first_key::of_dev(&storage.store, &config.settings, storage.data.as_ref()).await?;
    let key_file = storage
        .data
        .as_ref()
        .filter(|_| first.is_known)
        .map(crate::data_dir::DataDir::api_key_file);
    let keys = storage.store.clone();
    for listen in [config.settings.listen, config.settings.agent_listen] {
        warn_in_clear(&config.settings, listen);
    }
    // The agent server's port is open before the platform reports ready; requests wait until the graphs are loaded.
    let listener = listen(config.settings.agent_listen).await.context("the agent server")?;
    let server = Server::start(&config, Roles::ALL, storage, metrics.clone()).await?;
    let tracing = Tracing {
        endpoint: server.local_url(),
        key: first.key.clone(),
        workspace: first.tenant.to_string(),
    };
    let agent = match agent(
        &config,
        listener,
        (agents, keys),
        first.tenant,
        (file, tracing),
        metrics,
    )
    .await
    {
        Ok(agent) => agent,
        Err(why) => {
            server.drain().await?;
            return Err(why.context("the agent server"));
        }
    };
    let ids = agent.graphs().join(", ");
    // The link is only printed on loopback: a server that others reach gives out no such link.
    let link = if server.address().ip().is_loopback() {
        server.sign_in_link(&first.key).await?
    } else {
        None
    };
    println!("towpath dev is ready after {} ms\n", started.elapsed().as_millis());
    println!(
        "{}",
        banner(
            &server.url(),
            &format!("{}   graphs: {ids}", agent.url()),
            &config.settings.data_dir,
            &first,
            key_file.as_deref(),
            link.as_deref()
        )
    );
    // Both drain at the same time, because the signal's grace time covers both.
    let ran = server.run_with(signals, agent).await;
    spans.close().await;
    ran
}

/// The graphs of dev's agent server. A file in the current folder may be meant for another server. An unusable file is
/// reported, but does not keep the platform from starting.
fn graphs(config: &Config) -> anyhow::Result<GraphFile> {
    let named = config.settings.agent.graphs.as_deref();
    match GraphFile::find(named, &config.environment) {
        Err(why) if named.is_none() => {
            tracing::warn!("{why:#}; the agent server serves the echo graph instead");
            Ok(GraphFile::echo())
        }
        found => found,
    }
}

/// The agent server has its own database file.
async fn agents(settings: &Settings) -> anyhow::Result<Store> {
    let uri = format!("sqlite://{}", settings.data_dir.join("agent.db").display());
    let options = Options {
        connections: settings.database_connections,
        ..Options::default()
    };
    std::fs::create_dir_all(&settings.data_dir)?;
    let store = Store::open(&uri, options).await.context("opening its database")?;
    store.migrate().await.context("migrating its database")?;
    Ok(store)
}

async fn agent(
    config: &Config,
    listener: TcpListener,
    (store, keys): (Store, Store),
    tenant: TenantId,
    (file, tracing): (GraphFile, Tracing),
    metrics: PrometheusHandle,
) -> anyhow::Result<AgentServer> {
    let settings = &config.settings;
    let auth = match settings.agent.auth {
        AgentAuth::Auto => !settings.agent_listen.ip().is_loopback(),
        AgentAuth::Key => true,
        AgentAuth::None => false,
    };
    let parts = AgentParts {
        listener,
        store,
        // The platform has already taken the folder.
        data: None,
        tenant,
        // `public_url` is the address of the platform.
        public_url: None,
        keys: auth.then_some(keys),
        this_machine_only: !auth && settings.agent.auth == AgentAuth::Auto,
        redis: None,
        loopback: true,
        file,
        loaded: None,
        tracing: Some(tracing),
        watch: true,
        metrics,
    };
    AgentServer::start(config, Roles::ALL, parts).await
}

fn banner(
    url: &str,
    agent: &str,
    data_dir: &Path,
    first: &FirstKey,
    key_file: Option<&Path>,
    link: Option<&str>,
) -> String {
    let link = link.map_or_else(String::new, |link| {
        format!("\nOpen the dashboard (this link signs in once, within 15 minutes):\n  {link}\n")
    });
    let tenant = first.tenant;
    let (shown, pasted) = match key_file {
        Some(file) => {
            let file = file.display();
            (
                format!("{} (stored in {file})", first.key.reveal()),
                format!("$(cat '{file}')"),
            )
        }
        None => ("the one in TOWPATH_API_KEY".to_owned(), "$TOWPATH_API_KEY".to_owned()),
    };
    format!(
        "  API          {url}/api/v1
  agent server {agent}
  reference    {url}/docs  {url}/openapi.json
  dashboard    {url}/ui
  health       {url}/livez  {url}/readyz?verbose
  metrics      {url}/metrics
  data         {data}
  X-API-Key    {shown}
  X-Tenant-Id  {tenant}
{link}
Paste this to see it answer:
  curl -s '{url}/api/v1/sessions' -H \"X-API-Key: {pasted}\" -H 'X-Tenant-Id: {tenant}'

Trace into it with the official SDK:
  export LANGSMITH_TRACING=true LANGSMITH_ENDPOINT={url} LANGSMITH_WORKSPACE_ID={tenant} LANGSMITH_API_KEY=\"{pasted}\"

Ctrl-C drains and stops; a second one stops at once. To make another key: towpath keys create --name NAME --server {url}
",
        data = data_dir.display(),
    )
}
