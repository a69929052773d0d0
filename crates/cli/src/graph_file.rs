//! The file that declares the graphs of an agent server, and what else it says about the server.
//!
//! ```text
//! {
//!   "graphs": {"agent": "./agent.py:graph", "echo": {"native": "echo"}, "other": "./other.graph.json"},
//!   "dependencies": [".", "./package", "name-of-a-package"], "python_version": "3.12",
//!   "env": {"NAME": "value"} or ".env",
//!   "auth": {"path": "./auth.py:auth", "cache": {"cache_keys": ["authorization"], "ttl_seconds": 60}},
//!   "store": {"ttl": {"default_ttl": minutes, "refresh_on_read": true}},
//!   "checkpointer": {"ttl": {"strategy": "delete" | "keep_latest", "default_ttl": minutes}},
//!   "http": {"app": "./app.py:app", "cors": {"allow_origins": […]}, "mount_prefix": "/…", "disable_…": true,
//!            "configurable_headers": {"includes": ["x-*"], "excludes": []}}
//! }
//! ```
//!
//! Keys that say how an image is built are for who builds one. Keys that nobody knows are reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use serde::Deserialize;
use towpath_domain::agent::TtlStrategy;
use towpath_domain::{Clock, Secret};
use towpath_outbound::Guard;
use towpath_runtime::hosted::environment::Wanted;
use towpath_runtime::{Graphs, Outside};
use towpath_store::threads::Ttl;

use crate::exit::Usage;

/// Names of such files in the current folder, the first found wins.
const USUAL: [&str; 2] = ["langgraph.json", "towpath.json"];

/// What a graph file says.
pub struct GraphFile {
    /// The graphs that are declared as data; those of users' own code are named.
    pub graphs: Graphs,
    /// What it says about the server.
    pub server: Server,
    /// Where it lies; none of the graph that echoes.
    pub path: Option<PathBuf>,
    /// Its text.
    pub text: String,
    env: BTreeMap<String, Secret>,
}

/// Keys of the file that mean something here.
const KNOWN: [&str; 10] = [
    "graphs",
    "dependencies",
    "env",
    "store",
    "checkpointer",
    "auth",
    "encryption",
    "http",
    "python_version",
    "pip_config_file",
];
/// Keys that only say how an image is built, or what its pages look like.
const OF_IMAGES: [&str; 13] = [
    "$schema",
    "node_version",
    "api_version",
    "base_image",
    "image_distro",
    "pip_installer",
    "source",
    "keep_pkg_tools",
    "dockerfile_lines",
    "_INTERNAL_docker_tag",
    "ui",
    "ui_config",
    "priority",
];
const KNOWN_OF_HTTP: [&str; 16] = [
    "app",
    "cors",
    "configurable_headers",
    "mount_prefix",
    "disable_assistants",
    "disable_threads",
    "disable_runs",
    "disable_store",
    "disable_meta",
    "disable_ui",
    "disable_mcp",
    "disable_a2a",
    "disable_webhooks",
    "disable_event_streaming",
    "enable_custom_route_auth",
    "logging_headers",
];

/// What a graph file says about the server. Every part may be missing.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Server {
    #[serde(default)]
    store: Part,
    #[serde(default)]
    checkpointer: Part,
    #[serde(default)]
    http: Http,
    #[serde(default)]
    auth: Auth,
    env: Option<Env>,
    #[serde(default)]
    dependencies: Vec<String>,
    python_version: Option<String>,
    pip_config_file: Option<String>,
}

/// Who may call, as the file says.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Auth {
    /// The user's auth object.
    pub path: Option<String>,
    /// How long an answer of it may be used again.
    pub cache: Option<AuthCache>,
}

/// How long an answer of a user's auth may be used again.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct AuthCache {
    /// Headers that tell callers apart.
    #[serde(default)]
    pub cache_keys: Vec<String>,
    /// Seconds.
    pub ttl_seconds: Option<u64>,
    /// Answers kept.
    pub max_size: Option<usize>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Part {
    ttl: Option<TimeToLive>,
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
    #[serde(default)]
    cors: Cors,
    mount_prefix: Option<String>,
    app: Option<String>,
    #[serde(default)]
    configurable_headers: Headers,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

/// Names of headers, with `*` for any part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Headers {
    /// These too.
    #[serde(default, alias = "include")]
    pub includes: Option<Vec<String>>,
    /// Not these.
    #[serde(default, alias = "exclude")]
    pub excludes: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Cors {
    allow_origins: Option<Vec<String>>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Env {
    File(PathBuf),
    Here(BTreeMap<String, String>),
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Server {
    /// How long items of the store live that do not say, in minutes.
    pub fn item_ttl_minutes(&self) -> Option<f64> {
        self.store.ttl.as_ref()?.default_ttl.filter(|minutes| *minutes > 0.0)
    }

    /// Whether reading an item lets its time begin anew.
    pub fn refresh_on_read(&self) -> bool {
        let ttl = self.store.ttl.as_ref();
        ttl.and_then(|ttl| ttl.refresh_on_read).unwrap_or(true)
    }

    /// How long threads live that do not say.
    pub fn thread_ttl(&self) -> Option<Ttl> {
        let ttl = self.checkpointer.ttl.as_ref()?;
        Some(Ttl {
            strategy: ttl.strategy.unwrap_or(TtlStrategy::Delete),
            minutes: ttl.default_ttl.filter(|minutes| *minutes > 0.0)?,
        })
    }

    /// Web pages that may call.
    pub fn cors_origins(&self) -> Option<Vec<String>> {
        let origins = self.http.cors.allow_origins.as_ref()?;
        if origins.iter().any(|origin| origin == "*") {
            return Some(Vec::new());
        }
        Some(origins.clone())
    }

    /// Whether the file names routes of the user's own.
    pub fn own_routes(&self) -> bool {
        self.http.app.is_some()
    }

    /// Whether the user's auth, or the server's keys, decide about those routes too.
    pub fn own_routes_auth(&self) -> bool {
        self.http.rest.get("enable_custom_route_auth") == Some(&serde_json::Value::Bool(true))
    }

    /// Who may call.
    pub const fn auth(&self) -> &Auth {
        &self.auth
    }

    /// Which headers reach a run's `configurable`.
    pub const fn configurable_headers(&self) -> &Headers {
        &self.http.configurable_headers
    }

    /// Groups of routes that are not offered: `assistants`, `threads`, `runs`, `store`, `meta`, …
    pub fn disabled(&self) -> Vec<String> {
        let on = self
            .http
            .rest
            .iter()
            .filter(|(_, value)| **value == serde_json::Value::Bool(true));
        on.filter_map(|(key, _)| key.strip_prefix("disable_").map(str::to_owned))
            .collect()
    }

    /// Where the server stands below its address.
    pub fn mount_prefix(&self) -> Option<&str> {
        self.http
            .mount_prefix
            .as_deref()
            .filter(|prefix| prefix.starts_with('/'))
    }
}

impl GraphFile {
    /// One graph, `agent`, that echoes.
    pub fn echo() -> Self {
        Self {
            graphs: Graphs::echo(),
            server: Server::default(),
            path: None,
            text: "{}".to_owned(),
            env: BTreeMap::new(),
        }
    }

    /// Reads the file that was named, else the usual one of the current folder, else answers [`GraphFile::echo`].
    ///
    /// # Errors
    /// Wrong usage: the file cannot be read, or a graph of it cannot be used.
    pub fn find(named: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = named {
            return Self::read(path);
        }
        match USUAL.iter().map(Path::new).find(|path| path.is_file()) {
            Some(path) => Self::read(path),
            None => Ok(Self::echo()),
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Wrong usage: the file cannot be read, or says what cannot be used.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let usage = |why: String| anyhow!(Usage(format!("{shown}: {why}")));
        let text = std::fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
        let path = std::path::absolute(path)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        report(&text, shown.to_string().as_str())?;
        let graphs = Graphs::from_config(&text, folder).map_err(|error| usage(error.to_string()))?;
        let server: Server = serde_json::from_str(&text).map_err(|error| usage(error.to_string()))?;
        let env = match &server.env {
            None => BTreeMap::new(),
            Some(Env::Here(values)) => values
                .iter()
                .map(|(name, value)| (name.clone(), Secret::new(value)))
                .collect(),
            Some(Env::File(file)) => {
                let file = folder.join(file);
                let text = std::fs::read_to_string(&file).with_context(|| format!("file {}", file.display()))?;
                text.lines().filter_map(line_of_env).collect()
            }
        };
        Ok(Self {
            graphs,
            server,
            env,
            text,
            path: Some(path.clone()),
        })
    }

    /// The folder its paths are relative to.
    pub fn folder(&self) -> PathBuf {
        let parent = self.path.as_deref().and_then(Path::parent);
        parent.unwrap_or(Path::new("/")).to_owned()
    }

    /// The file's own environment.
    pub const fn env(&self) -> &BTreeMap<String, Secret> {
        &self.env
    }

    /// The file that holds the environment, where one does.
    pub fn env_file(&self) -> Option<PathBuf> {
        match &self.server.env {
            Some(Env::File(file)) => Some(self.folder().join(file)),
            _ => None,
        }
    }

    /// What the environment of its Python code is made of.
    pub fn wanted(&self) -> Wanted {
        Wanted {
            folder: self.folder(),
            dependencies: self.server.dependencies.clone(),
            version: self.server.python_version.clone(),
            pip_config: self.server.pip_config_file.clone(),
        }
    }

    /// The graphs that are declared as data with what they need of the process: calls to the addresses that `guard`
    /// allows, and secrets by their names in the file's own environment, else in the process's.
    pub fn declared(&self, guard: Guard, environment: &BTreeMap<String, Secret>) -> Graphs {
        let mut secrets = environment.clone();
        secrets.extend(self.env.clone());
        let outside = Outside::new(Clock::system())
            .calling(guard)
            .with_secrets(move |name| secrets.get(name).map(|secret| secret.reveal().to_owned()));
        self.graphs.clone().with(&outside)
    }
}

/// Whether something at this place asks for anything.
fn in_use(config: &serde_json::Value, place: &str) -> bool {
    use serde_json::Value;
    !matches!(config.pointer(place), None | Some(Value::Null | Value::Bool(false)))
}

/// Says which keys of the file nobody knows, and refuses those that ask for what this build does not do.
fn report(text: &str, file: &str) -> anyhow::Result<()> {
    let config: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let Some(keys) = config.as_object().map(serde_json::Map::keys) else {
        return Ok(());
    };
    if in_use(&config, "/webhooks") {
        return Err(anyhow!(Usage(format!(
            "{file}: webhooks: this build does not read it; which addresses webhooks may call is said by the setting \
             outbound.allow. Remove the key"
        ))));
    }
    let unknown =
        keys.filter(|key| !KNOWN.contains(&key.as_str()) && !OF_IMAGES.contains(&key.as_str()) && *key != "webhooks");
    for key in unknown {
        tracing::warn!("{file}: unknown key {key:?}");
    }
    let http = config.get("http").and_then(serde_json::Value::as_object);
    let unknown = http.into_iter().flat_map(serde_json::Map::keys);
    for key in unknown.filter(|key| !KNOWN_OF_HTTP.contains(&key.as_str())) {
        tracing::warn!("{file}: unknown key \"http.{key}\"");
    }
    for key in ["/http/disable_meta", "/http/disable_webhooks", "/http/logging_headers"] {
        if in_use(&config, key) {
            tracing::warn!(
                "{file}: {} has no effect in this build",
                key.trim_start_matches('/').replace('/', ".")
            );
        }
    }
    let cors = http
        .and_then(|http| http.get("cors"))
        .and_then(serde_json::Value::as_object);
    for key in cors
        .into_iter()
        .flat_map(serde_json::Map::keys)
        .filter(|key| *key != "allow_origins")
    {
        tracing::warn!("{file}: http.cors.{key} has no effect: every method and header is allowed");
    }
    if in_use(&config, "/store/index") {
        tracing::warn!(
            "{file}: store.index: this build keeps no vectors; a search with a query finds by filter and time"
        );
    }
    Ok(())
}

/// `NAME=value`, with or without `export` and quotes. Comments and blank lines are none.
fn line_of_env(line: &str) -> Option<(String, Secret)> {
    let line = line.trim();
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (name, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
    let value = value.trim();
    let unquoted = |quote: char| value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote));
    let value = unquoted('"').or_else(|| unquoted('\'')).unwrap_or(value);
    Some((name.trim().to_owned(), Secret::new(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_the_server_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("langgraph.json");
        std::fs::write(folder.path().join(".env"), "# keys\nexport A='x y'\nB=\"2\"\n\nC\n").unwrap();
        let text = r#"{
            "graphs": {"one": {"native": "echo"}, "two": {"native": "echo"}}, "env": ".env", "dependencies": ["."],
            "store": {"ttl": {"default_ttl": 5, "refresh_on_read": false}},
            "checkpointer": {"ttl": {"default_ttl": 60}},
            "http": {"cors": {"allow_origins": ["https://a.example"]}, "mount_prefix": "/x"}
        }"#;
        std::fs::write(&path, text).unwrap();
        let file = GraphFile::find(Some(&path)).unwrap();
        assert_eq!(file.graphs.ids().collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(file.server.item_ttl_minutes(), Some(5.0));
        assert!(!file.server.refresh_on_read());
        let ttl = file.server.thread_ttl().unwrap();
        assert_eq!((ttl.strategy, ttl.minutes), (TtlStrategy::Delete, 60.0));
        assert_eq!(file.server.cors_origins().unwrap(), ["https://a.example"]);
        assert_eq!(file.server.mount_prefix(), Some("/x"));
        let names: Vec<&str> = file.env.keys().map(String::as_str).collect();
        assert_eq!(names, ["A", "B"]);
        assert_eq!(file.env["A"].reveal(), "x y");
    }

    #[test]
    fn a_graph_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("towpath.json");
        std::fs::write(&path, r#"{"graphs": {"mine": "./mine.ts:graph"}}"#).unwrap();
        let Err(refused) = GraphFile::find(Some(&path)) else {
            panic!("JavaScript graphs are not for this build")
        };
        assert!(refused.to_string().contains("mine"), "{refused}");
        assert!(refused.is::<Usage>());
    }

    #[test]
    fn a_file_of_python_graphs_says_what_they_need() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("langgraph.json");
        let text = r#"{
            "graphs": {"a": "./a.py:graph", "b": {"path": "pkg.b:make", "description": "B"}, "e": {"native": "echo"}},
            "dependencies": [".", "httpx"], "python_version": "3.12", "dockerfile_lines": [],
            "auth": {"path": "./auth.py:auth"}, "http": {"app": "./app.py:app", "disable_store": true}
        }"#;
        std::fs::write(&path, text).unwrap();
        let file = GraphFile::find(Some(&path)).unwrap();
        assert_eq!(file.graphs.ids().collect::<Vec<_>>(), ["e"]);
        assert_eq!(file.graphs.code().keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(file.server.auth().path.as_deref(), Some("./auth.py:auth"));
        assert_eq!(file.server.disabled(), ["store"]);
        assert!(file.server.own_routes());
        let wanted = file.wanted();
        assert_eq!(
            (wanted.dependencies.len(), wanted.version.as_deref()),
            (2, Some("3.12"))
        );
        std::fs::write(
            &path,
            r#"{"graphs": {"e": {"native": "echo"}}, "webhooks": {"url": {}}}"#,
        )
        .unwrap();
        let Err(refused) = GraphFile::find(Some(&path)) else {
            panic!("what is not done is refused")
        };
        assert!(refused.to_string().contains("webhooks"), "{refused}");
    }
}
