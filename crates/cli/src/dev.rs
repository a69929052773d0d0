//! `towpath dev`: everything in one process, kept in one folder.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use crate::arguments::{Dev, flag};
use crate::config::{Config, Mode};
use crate::first_key::{self, FirstKey};
use crate::signals::Signals;
use crate::storage::Storage;
use crate::telemetry;
use crate::wiring::{Roles, Server};

/// Runs until it is asked to stop.
///
/// # Errors
/// When something cannot be started, or breaks.
pub async fn run(command: Dev) -> anyhow::Result<()> {
    let started = Instant::now();
    let flags = [
        flag("listen", "--listen", command.listen),
        flag("agent_listen", "--agent-listen", command.agent_listen),
    ];
    let config = Config::load(&command.common.inputs(Mode::Dev, flags.into_iter().flatten().collect()))?;
    let spans = telemetry::start_logging(&config)?;
    if command.agent_listen.is_some() {
        let address = config.settings.agent_listen;
        tracing::info!(agent.listen = %address, "this build has no agent server; nothing is opened there");
    }
    let metrics = telemetry::start_metrics()?;
    let storage = Storage::open(&config.settings).await?;
    let first = first_key::of_dev(&storage.store, &config.settings, storage.data.as_ref()).await?;
    let signals = Signals::listen()?;
    let key_file = storage
        .data
        .as_ref()
        .filter(|_| first.kept)
        .map(crate::data_dir::DataDir::api_key_file);
    let server = Server::start(&config, Roles::ALL, storage, metrics).await?;
    // Whoever reads this terminal may look. What listens to others too hands out no such link.
    let link = if server.address().ip().is_loopback() {
        server.sign_in_link(&first.key).await?
    } else {
        None
    };
    println!("towpath dev is ready after {} ms\n", started.elapsed().as_millis());
    println!(
        "{}",
        banner(
            server.address(),
            &config.settings.data_dir,
            &first,
            key_file.as_deref(),
            link.as_deref()
        )
    );
    let ran = server.run(signals).await;
    spans.close().await;
    ran
}

fn banner(
    address: SocketAddr,
    data_dir: &Path,
    first: &FirstKey,
    key_file: Option<&Path>,
    link: Option<&str>,
) -> String {
    let url = format!("http://{address}");
    let link = link.map_or_else(String::new, |link| {
        format!("\nOpen the dashboard (this link signs in once, within 15 minutes):\n  {link}\n")
    });
    let tenant = first.tenant;
    let (shown, pasted) = match key_file {
        Some(file) => {
            let file = file.display();
            (
                format!("{} (kept in {file})", first.key.reveal()),
                format!("$(cat '{file}')"),
            )
        }
        None => ("as given in TOWPATH_API_KEY".to_owned(), "$TOWPATH_API_KEY".to_owned()),
    };
    format!(
        "  API          {url}/api/v1
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

Ctrl-C drains and stops; a second one stops at once. To make another key, stop and run: towpath keys create
",
        data = data_dir.display(),
    )
}
