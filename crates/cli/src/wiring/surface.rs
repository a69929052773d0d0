//! The HTTP of an agent server: what its operator says, and what the graphs' author says in the graph file. The file
//! may change while the server works, so the surface can be made again.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::anyhow;
use tokio_util::sync::CancellationToken;
use towpath_api::Ops;
use towpath_api::agent::{AgentApp, AuthCache, Parts, Settings as Told};
use towpath_domain::{Clock, Secret, TenantId};
use towpath_durable::Engine;
use towpath_queue::Queue;
use towpath_runtime::GraphSet;
use towpath_store::Store;
use towpath_workflows::agent::Authored;
use towpath_workflows::run_agent;

use crate::config::Settings;
use crate::graph_file::{GraphFile, Server};

/// What a surface is made of, beside the graph file.
pub struct Surface {
    /// What the operator says.
    pub settings: Settings,
    /// Where secrets are that the file names.
    pub environment: BTreeMap<String, Secret>,
    /// The server's database.
    pub store: Store,
    /// The engine of this process's workers.
    pub engine: Option<Engine>,
    /// Wakes, cancel signals and live events.
    pub queue: Queue,
    /// Its graphs.
    pub graphs: GraphSet,
    /// Whose it is.
    pub tenant: TenantId,
    /// Where API keys are kept, where callers need one.
    pub keys: Option<Store>,
    /// Whether it asks for no key because only this machine reaches it.
    pub this_machine_only: bool,
    /// Cancelled when the process begins to drain.
    pub draining: CancellationToken,
    /// Health and metrics.
    pub ops: Ops,
}

impl Surface {
    /// The surface with what a file says.
    ///
    /// # Errors
    /// The file says what cannot be used.
    pub fn app(&self, file: &GraphFile) -> anyhow::Result<AgentApp> {
        Ok(AgentApp::new(Parts {
            store: self.store.clone(),
            engine: self.engine.clone(),
            queue: self.queue.clone(),
            graphs: self.graphs.clone(),
            tenant: self.tenant,
            keys: self.keys.clone(),
            clock: Clock::system(),
            draining: self.draining.clone(),
            ops: self.ops.clone(),
            settings: Told {
                webhooks: self.authored(file)?.webhooks,
                this_machine_only: self.this_machine_only,
                ..told(&self.settings, &file.server)?
            },
        }))
    }

    /// What a file says about what runs do.
    ///
    /// # Errors
    /// The file says what cannot be used.
    pub fn authored(&self, file: &GraphFile) -> anyhow::Result<Authored> {
        Ok(Authored {
            webhooks: file.webhooks(&self.environment)?,
            thread_ttl: file.server.thread_ttl(),
            refresh_on_read: file.server.refresh_on_read(),
        })
    }
}

/// Where the surface stands below its address. What an operator says wins over what the graphs' authors do.
pub fn mount_prefix<'t>(settings: &'t Settings, server: &'t Server) -> &'t str {
    match settings.agent.mount_prefix.as_str() {
        "" => server.mount_prefix().unwrap_or_default(),
        prefix => prefix,
    }
}

fn told(settings: &Settings, server: &Server) -> anyhow::Result<Told> {
    let agent = &settings.agent;
    // What an operator says wins over what the graphs' authors do.
    let cors = server.cors().map_err(|why| anyhow!(why))?;
    let cors = if agent.cors_origins.is_empty() {
        cors
    } else {
        cors.with_origins(agent.cors_origins.clone())
    };
    Ok(Told {
        requests: settings.requests,
        failed_keys_per_minute: settings.failed_keys_per_minute,
        body_bytes: agent.body_bytes,
        slots: settings.slots_of(run_agent::POOL),
        cors,
        mount_prefix: mount_prefix(settings, server).to_owned(),
        always_resumable: agent.always_resumable,
        events_kept: agent.event_retention,
        thread_ttl: server.thread_ttl(),
        item_ttl_minutes: server.item_ttl_minutes(),
        refresh_on_read: server.refresh_on_read(),
        gateway_key: agent.gateway_key.clone(),
        custom_auth: server.auth().path.is_some(),
        own_routes_auth: server.own_routes_auth(),
        auth_cache: auth_cache(server),
        disabled: server.disabled(),
        headers_in: lower(server.configurable_headers().includes.as_ref()),
        headers_out: lower(server.configurable_headers().excludes.as_ref()),
        ..Told::default()
    })
}

/// How long answers about callers are used again. Without headers that tell callers apart, all would be the first of them:
/// nothing is kept then.
fn auth_cache(server: &Server) -> Option<AuthCache> {
    let cache = server.auth().cache.as_ref()?;
    if cache.cache_keys.is_empty() {
        return None;
    }
    Some(AuthCache {
        headers: cache.cache_keys.iter().map(|name| name.to_ascii_lowercase()).collect(),
        ttl: Duration::from_secs(cache.ttl_seconds.unwrap_or(60)),
        most: cache.max_size.unwrap_or(1000),
    })
}

fn lower(names: Option<&Vec<String>>) -> Vec<String> {
    let names = names.into_iter().flatten();
    names.map(|name| name.to_ascii_lowercase()).collect()
}
