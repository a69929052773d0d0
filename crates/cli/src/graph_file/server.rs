//! The server settings of a graph file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use towpath_api::agent::{Cors, CorsFile};
use towpath_domain::agent::TtlStrategy;
use towpath_runtime::hosted::environment::UvSource;
use towpath_store::threads::Ttl;

use super::index::Index;

/// The server settings of a graph file. Every part is optional.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Server {
    #[serde(default)]
    store: StoreSection,
    #[serde(default)]
    checkpointer: TtlSection,
    #[serde(default)]
    http: Http,
    #[serde(default)]
    pub(super) webhooks: Webhooks,
    #[serde(default)]
    auth: Auth,
    pub(super) env: Option<Env>,
    #[serde(default)]
    pub(super) dependencies: Vec<String>,
    pub(super) python_version: Option<String>,
    pub(super) pip_config_file: Option<String>,
    source: Option<Source>,
}

/// Where packages come from, instead of `dependencies`.
#[derive(Clone, Debug, Deserialize)]
struct Source {
    kind: String,
    #[serde(default = "this_folder")]
    root: String,
    package: Option<String>,
}

fn this_folder() -> String {
    ".".to_owned()
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Webhooks {
    pub(super) env_prefix: Option<String>,
    #[serde(default)]
    pub(super) url: WebhookUrl,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    pub(super) allowed_fields: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct WebhookUrl {
    #[serde(default)]
    pub(super) require_https: bool,
    pub(super) allowed_domains: Option<Vec<String>>,
    pub(super) allowed_ports: Option<Vec<u16>>,
    pub(super) max_url_length: Option<usize>,
    pub(super) disable_loopback: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Auth {
    /// The user's auth object.
    pub path: Option<String>,
    /// Caching of its results.
    pub cache: Option<AuthCache>,
}

/// Caching of results of a user's auth.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct AuthCache {
    /// Headers that distinguish callers.
    #[serde(default)]
    pub cache_keys: Vec<String>,
    pub ttl_seconds: Option<u64>,
    /// Number of cached results.
    pub max_size: Option<usize>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct TtlSection {
    ttl: Option<TimeToLive>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct StoreSection {
    ttl: Option<TimeToLive>,
    /// Read by [`Index::read`], whose errors name the field.
    index: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct TimeToLive {
    strategy: Option<TtlStrategy>,
    /// Minutes.
    default_ttl: Option<f64>,
    refresh_on_read: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Http {
    cors: Option<CorsFile>,
    mount_prefix: Option<String>,
    app: Option<String>,
    #[serde(default)]
    configurable_headers: Headers,
    logging_headers: Option<Headers>,
    middleware_order: Option<String>,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

/// Header names, with `*` for any part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Headers {
    /// Additional headers.
    #[serde(default, alias = "include")]
    pub includes: Option<Vec<String>>,
    /// Excluded headers.
    #[serde(default, alias = "exclude")]
    pub excludes: Option<Vec<String>>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Env {
    File(PathBuf),
    Inline(BTreeMap<String, String>),
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Server {
    /// Default lifetime of items in the store, in minutes.
    pub fn item_ttl_minutes(&self) -> Option<f64> {
        self.store.ttl.as_ref()?.default_ttl.filter(|minutes| *minutes > 0.0)
    }

    /// Whether a read restarts the lifetime of an item.
    pub fn refresh_on_read(&self) -> bool {
        let ttl = self.store.ttl.as_ref();
        ttl.and_then(|ttl| ttl.refresh_on_read).unwrap_or(true)
    }

    /// The index of items. The error names the invalid key.
    pub fn index(&self) -> Result<Option<Index>, String> {
        self.store.index.as_ref().map_or(Ok(None), Index::read)
    }

    /// Default lifetime of threads.
    pub fn thread_ttl(&self) -> Option<Ttl> {
        let ttl = self.checkpointer.ttl.as_ref()?;
        Some(Ttl {
            strategy: ttl.strategy.unwrap_or(TtlStrategy::Delete),
            minutes: ttl.default_ttl.filter(|minutes| *minutes > 0.0)?,
        })
    }

    /// CORS settings. The error names the invalid key.
    pub fn cors(&self) -> Result<Cors, String> {
        Cors::read(&self.http.cors.clone().unwrap_or_default())
    }

    pub const fn has_cors(&self) -> bool {
        self.http.cors.is_some()
    }

    /// Whether webhooks are disabled.
    pub fn webhooks_are_off(&self) -> bool {
        self.http.rest.get("disable_webhooks") == Some(&serde_json::Value::Bool(true))
    }

    pub fn has_custom_routes(&self) -> bool {
        self.http.app.is_some()
    }

    /// Whether the user's auth, or the server's keys, also apply to custom routes.
    pub fn custom_routes_auth(&self) -> bool {
        self.http.rest.get("enable_custom_route_auth") == Some(&serde_json::Value::Bool(true))
    }

    pub const fn auth(&self) -> &Auth {
        &self.auth
    }

    /// Headers that are passed to a run's `configurable`.
    pub const fn configurable_headers(&self) -> &Headers {
        &self.http.configurable_headers
    }

    /// Headers that are logged.
    pub fn logging_headers(&self) -> Headers {
        self.http.logging_headers.clone().unwrap_or_default()
    }

    /// Checks keys whose values are not all available. The error names the key and what to set instead.
    pub fn check(&self) -> Result<(), String> {
        let order = self.http.middleware_order.as_deref();
        match order {
            None | Some("auth_first") => {}
            Some("middleware_first") if self.http.app.is_none() => {}
            Some("middleware_first") => {
                let text = "http.middleware_order: middleware of http.app applies to the author's own routes, after \
                            authentication; set auth_first, or remove the key";
                return Err(text.to_owned());
            }
            Some(_) => return Err("http.middleware_order: expected auth_first or middleware_first".to_owned()),
        }
        self.uv_source().map(drop)
    }

    /// The project of uv that packages come from, if it is named.
    pub fn uv_source(&self) -> Result<Option<UvSource>, String> {
        let Some(source) = &self.source else { return Ok(None) };
        if source.kind != "uv" {
            return Err("source.kind: expected uv".to_owned());
        }
        if !self.dependencies.is_empty() {
            return Err(
                "dependencies: not available with source, whose project has all packages; remove one".to_owned(),
            );
        }
        let is_empty = |text: &str| text.trim().is_empty();
        if is_empty(&source.root) {
            return Err("source.root: expected a folder such as \".\"".to_owned());
        }
        if source.package.as_deref().is_some_and(is_empty) {
            return Err("source.package: expected the name of a package".to_owned());
        }
        Ok(Some(UvSource {
            root: source.root.clone(),
            package: source.package.clone(),
        }))
    }

    /// Disabled groups of routes: `assistants`, `threads`, `runs`, `store`, `meta`, …
    pub fn disabled(&self) -> Vec<String> {
        let on = self
            .http
            .rest
            .iter()
            .filter(|(_, value)| **value == serde_json::Value::Bool(true));
        on.filter_map(|(key, _)| key.strip_prefix("disable_").map(str::to_owned))
            .collect()
    }

    pub fn mount_prefix(&self) -> Option<&str> {
        self.http
            .mount_prefix
            .as_deref()
            .filter(|prefix| prefix.starts_with('/'))
    }
}
