//! The HTTP surface of an agent server, from the operator's settings and the graph file. The file may change while the
//! server runs, so the surface can be rebuilt.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::anyhow;
use tokio_util::sync::CancellationToken;
use towpath_api::Ops;
use towpath_api::agent::{AgentApp, AuthCache, Cors, CorsFile, DeploymentIdentity, Parts, Settings as Told};
use towpath_domain::{Clock, Secret, TenantId};
use towpath_durable::Engine;
use towpath_queue::Queue;
use towpath_runtime::GraphSet;
use towpath_store::Store;
use towpath_workflows::agent::AuthorSettings;
use towpath_workflows::item_index::ItemIndex;
use towpath_workflows::run_agent;

use crate::config::Settings;
use crate::exit::Usage;
use crate::graph_file::{GraphFile, Server};

/// Inputs of a surface, besides the graph file.
pub struct Surface {
    /// Settings of the operator.
    pub settings: Settings,
    /// The source of secrets that the file names.
    pub environment: BTreeMap<String, Secret>,
    pub store: Store,
    /// The engine of this process's workers.
    pub engine: Option<Engine>,
    pub queue: Queue,
    pub graphs: GraphSet,
    pub items: ItemIndex,
    pub tenant: TenantId,
    /// Storage of API keys, if callers need one.
    pub keys: Option<Store>,
    /// Whether it needs no key because only this machine reaches it.
    pub this_machine_only: bool,
    /// Whether webhooks can be allowed to call this machine.
    pub loopback: bool,
    /// Cancelled when the process begins to drain.
    pub draining: CancellationToken,
    pub ops: Ops,
}

impl Surface {
    /// Builds the surface for a graph file.
    pub fn app(&self, file: &GraphFile) -> anyhow::Result<AgentApp> {
        Ok(AgentApp::new(Parts {
            store: self.store.clone(),
            engine: self.engine.clone(),
            queue: self.queue.clone(),
            graphs: self.graphs.clone(),
            items: self.items.clone(),
            tenant: self.tenant,
            keys: self.keys.clone(),
            clock: Clock::system(),
            draining: self.draining.clone(),
            ops: self.ops.clone(),
            settings: Told {
                webhooks: self.authored(file)?.webhooks,
                this_machine_only: self.this_machine_only,
                deployment: self.deployment(),
                ..surface_settings(&self.settings, &file.server, &self.environment)?
            },
        }))
    }

    /// Ids from the variables that the platform sets for its deployments.
    fn deployment(&self) -> DeploymentIdentity {
        let id = |name: &str| {
            let value = self.environment.get(name)?.reveal();
            (!value.is_empty()).then(|| value.to_owned())
        };
        DeploymentIdentity {
            project: id("LANGSMITH_HOST_PROJECT_ID"),
            revision: id("LANGSMITH_HOST_REVISION_ID"),
            server_revision: id("LANGSMITH_LANGGRAPH_API_REVISION"),
            tenant: id("LANGSMITH_TENANT_ID"),
        }
    }

    /// The author settings of a graph file.
    pub fn authored(&self, file: &GraphFile) -> anyhow::Result<AuthorSettings> {
        Ok(AuthorSettings {
            webhooks: file.webhooks(&self.environment, self.loopback)?,
            thread_ttl: file.server.thread_ttl(),
            refresh_on_read: file.server.refresh_on_read(),
        })
    }
}

/// The mount prefix. The operator's setting overrides that of the graph file.
pub fn mount_prefix<'t>(settings: &'t Settings, server: &'t Server) -> &'t str {
    match settings.agent.mount_prefix.as_str() {
        "" => server.mount_prefix().unwrap_or_default(),
        prefix => prefix,
    }
}

/// The variable with the `http.cors` of a graph file that has none.
const CORS: &str = "CORS_CONFIG";

/// CORS settings of the graph file, else of the variable.
fn cors(server: &Server, environment: &BTreeMap<String, Secret>) -> anyhow::Result<Cors> {
    let set = environment.get(CORS).map(Secret::reveal);
    let Some(text) = set.filter(|text| !text.trim().is_empty() && !server.has_cors()) else {
        return server.cors().map_err(|why| anyhow!(why));
    };
    let file: Option<CorsFile> =
        serde_json::from_str(text).map_err(|error| anyhow!(Usage(format!("{CORS}: {error}"))))?;
    Cors::read(&file.unwrap_or_default()).map_err(|why| anyhow!(Usage(format!("{CORS}: {why}"))))
}

fn surface_settings(
    settings: &Settings,
    server: &Server,
    environment: &BTreeMap<String, Secret>,
) -> anyhow::Result<Told> {
    let agent = &settings.agent;
    // The operator's setting overrides those.
    let cors = cors(server, environment)?;
    let cors = if agent.cors_origins.is_empty() {
        cors
    } else {
        cors.with_origins(agent.cors_origins.clone())
    };
    let logging = server.logging_headers();
    Ok(Told {
        max_requests: settings.max_requests,
        failed_keys_per_minute: settings.failed_keys_per_minute,
        body_bytes: agent.body_bytes,
        slots: settings.slots_of(run_agent::POOL),
        cors,
        mount_prefix: mount_prefix(settings, server).to_owned(),
        always_resumable: agent.always_resumable,
        event_retention: agent.event_retention,
        thread_ttl: server.thread_ttl(),
        item_ttl_minutes: server.item_ttl_minutes(),
        refresh_on_read: server.refresh_on_read(),
        gateway_key: agent.gateway_key.clone(),
        custom_auth: server.auth().path.is_some(),
        custom_routes_auth: server.custom_routes_auth(),
        auth_cache: auth_cache(server),
        disabled: server.disabled(),
        headers_in: lower(server.configurable_headers().includes.as_ref()),
        headers_out: lower(server.configurable_headers().excludes.as_ref()),
        metric_prefix: agent.metric_prefix.clone(),
        redis_connections: settings.redis_connections,
        logged_headers: lower(logging.includes.as_ref()),
        unlogged_headers: lower(logging.excludes.as_ref()),
        ..Told::default()
    })
}

/// Caching of auth results. Without headers that distinguish callers, all would share the first result, so nothing is
/// cached then.
fn auth_cache(server: &Server) -> Option<AuthCache> {
    let cache = server.auth().cache.as_ref()?;
    if cache.cache_keys.is_empty() {
        return None;
    }
    Some(AuthCache {
        headers: cache.cache_keys.iter().map(|name| name.to_ascii_lowercase()).collect(),
        ttl: Duration::from_secs(cache.ttl_seconds.unwrap_or(60)),
        max_entries: cache.max_size.unwrap_or(1000),
    })
}

fn lower(names: Option<&Vec<String>>) -> Vec<String> {
    let names = names.into_iter().flatten();
    names.map(|name| name.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_the_cors_of_a_file_without_any() {
        let own: Server =
            serde_json::from_str(r#"{"http": {"cors": {"allow_origins": ["https://file.test"]}}}"#).unwrap();
        let set = |text: &str| BTreeMap::from([(CORS.to_owned(), Secret::new(text))]);
        let origins = |server: &Server, text: &str| format!("{:?}", cors(server, &set(text)).unwrap());
        let text = r#"{"allow_origins": ["https://variable.test"]}"#;
        assert!(origins(&Server::default(), text).contains("https://variable.test"));
        assert!(origins(&own, text).contains("https://file.test"));
        for none in ["", "null"] {
            assert_eq!(
                origins(&Server::default(), none),
                format!("{:?}", Server::default().cors().unwrap())
            );
        }
        let refused = cors(&Server::default(), &set("[1]")).unwrap_err();
        assert!(refused.to_string().starts_with("CORS_CONFIG: "), "{refused}");
    }
}
