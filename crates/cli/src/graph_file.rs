//! The file that declares the graphs of an agent server, and what else it says about the server.
//!
//! ```text
//! {
//!   "graphs": {"agent": {"native": "echo"}, "other": "./other.graph.json"},
//!   "env": {"NAME": "value"} or ".env",
//!   "store": {"ttl": {"default_ttl": minutes, "refresh_on_read": true}},
//!   "checkpointer": {"ttl": {"strategy": "delete" | "keep_latest", "default_ttl": minutes}},
//!   "http": {"cors": {"allow_origins": […]}, "mount_prefix": "/…"}
//! }
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use serde::Deserialize;
use towpath_domain::agent::TtlStrategy;
use towpath_domain::{Clock, Secret};
use towpath_outbound::Guard;
use towpath_runtime::{Graphs, Outside};
use towpath_store::threads::Ttl;

use crate::exit::Usage;

/// Names of such files in the current folder, the first found wins.
const USUAL: [&str; 2] = ["langgraph.json", "towpath.json"];

/// What a graph file says.
pub struct GraphFile {
    /// The graphs.
    pub graphs: Graphs,
    /// What it says about the server.
    pub server: Server,
    env: BTreeMap<String, Secret>,
}

/// What a graph file says about the server. Every part may be missing.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Server {
    #[serde(default)]
    store: Part,
    #[serde(default)]
    checkpointer: Part,
    #[serde(default)]
    http: Http,
    env: Option<Env>,
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

    fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let usage = |why: String| anyhow!(Usage(format!("{shown}: {why}")));
        let text = std::fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
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
        Ok(Self { graphs, server, env })
    }

    /// The graphs with what they need of the process: calls to the addresses that `guard` allows, and secrets by
    /// their names in the file's own environment, else in the process's.
    pub fn ready(&self, guard: Guard, environment: &BTreeMap<String, Secret>) -> Arc<Graphs> {
        let mut secrets = environment.clone();
        secrets.extend(self.env.clone());
        let outside = Outside::new(Clock::system())
            .calling(guard)
            .with_secrets(move |name| secrets.get(name).map(|secret| secret.reveal().to_owned()));
        Arc::new(self.graphs.clone().with(&outside))
    }
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
        std::fs::write(&path, r#"{"graphs": {"mine": "./mine.py:graph"}}"#).unwrap();
        let Err(refused) = GraphFile::find(Some(&path)) else {
            panic!("Python graphs are not for this build")
        };
        assert!(refused.to_string().contains("mine"), "{refused}");
        assert!(refused.is::<Usage>());
    }
}
