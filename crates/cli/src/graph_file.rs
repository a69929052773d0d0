//! The file that declares the graphs of an agent server and configures the server.
//!
//! ```text
//! {
//!   "graphs": {"agent": "./agent.py:graph", "echo": {"native": "echo"}, "other": "./other.graph.json"},
//!   "dependencies": [".", "./package", "name-of-a-package"], "python_version": "3.12",
//!   "env": {"NAME": "value"} or ".env",
//!   "auth": {"path": "./auth.py:auth", "cache": {"cache_keys": ["authorization"], "ttl_seconds": 60}},
//!   "store": {"ttl": {"default_ttl": minutes, "refresh_on_read": true},
//!             "index": {"dims": 1536, "embed": "openai:text-embedding-3-small" | "./file.py:function", "fields": ["$"]}},
//!   "checkpointer": {"ttl": {"strategy": "delete" | "keep_latest", "default_ttl": minutes}},
//!   "http": {"app": "./app.py:app", "cors": {"allow_origins": […], …}, "mount_prefix": "/…", "disable_…": true,
//!            "configurable_headers": {"includes": ["x-*"], "excludes": []}}
//! }
//! ```
//!
//! Keys about building images are ignored. Unknown keys are reported.

mod index;
mod report;
mod server;
mod variables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use towpath_domain::{Clock, Secret};
use towpath_outbound::Guard;
use towpath_runtime::hosted::environment::EnvironmentSpec;
use towpath_runtime::{GraphServices, Graphs};
use towpath_workflows::agent::WebhookRules;
use towpath_workflows::item_index::IndexSettings;

use self::server::Env;
use crate::exit::Usage;

pub use self::server::Server;

/// Default names in the current folder; the first existing one wins.
const DEFAULT_NAMES: [&str; 2] = ["langgraph.json", "towpath.json"];

pub struct GraphFile {
    /// Graphs that are declared as data. Graphs of users' own code are only named.
    pub graphs: Graphs,
    pub server: Server,
    /// `None` for the echo graph and for graphs that variables name.
    pub path: Option<PathBuf>,
    pub text: String,
    /// The folder that its paths are relative to.
    folder: PathBuf,
    env: BTreeMap<String, Secret>,
}

/// The named file, else the default file of the current folder, if it exists.
fn path(named: Option<&Path>) -> Option<&Path> {
    named.or_else(|| DEFAULT_NAMES.iter().map(Path::new).find(|path| path.is_file()))
}

impl GraphFile {
    /// One graph, `agent`, that echoes.
    pub fn echo() -> Self {
        Self {
            graphs: Graphs::echo(),
            server: Server::default(),
            path: None,
            text: "{}".to_owned(),
            folder: PathBuf::from("/"),
            env: BTreeMap::new(),
        }
    }

    /// Reads the named file, else the default file of the current folder, else what variables of an image say, else
    /// returns [`GraphFile::echo`].
    pub fn find(named: Option<&Path>, environment: &BTreeMap<String, Secret>) -> anyhow::Result<Self> {
        if let Some(path) = path(named) {
            if variables::are_set(environment) {
                tracing::warn!("{} has no effect: there is {}", variables::GRAPHS, path.display());
            }
            return Self::read(path);
        }
        match variables::text(environment).map_err(|why| anyhow!(Usage(why)))? {
            Some(text) => Self::parse(text, std::path::absolute(".")?, None, variables::GRAPHS),
            None => Ok(Self::echo()),
        }
    }

    /// Whether what [`GraphFile::find`] would read names graphs of users' own code. Errors are left to `find`, and so is
    /// input that can only be read once.
    pub fn names_code(named: Option<&Path>, environment: &BTreeMap<String, Secret>) -> bool {
        let (text, folder) = match path(named) {
            Some(path) if path.is_file() => {
                let folder = path.parent().unwrap_or(Path::new("/"));
                (std::fs::read_to_string(path).ok(), folder)
            }
            Some(_) => return false,
            None => (variables::text(environment).ok().flatten(), Path::new(".")),
        };
        let graphs = text.map(|text| Graphs::from_config(&text, folder));
        matches!(graphs, Some(Ok(graphs)) if !graphs.hosted_paths().is_empty())
    }

    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| anyhow!(Usage(format!("{shown}: {error}"))))?;
        let path = std::path::absolute(path)?;
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        Self::parse(text, folder, Some(path), &shown)
    }

    /// `shown` names the source in messages.
    fn parse(text: String, folder: PathBuf, path: Option<PathBuf>, shown: &str) -> anyhow::Result<Self> {
        let usage = |why: String| anyhow!(Usage(format!("{shown}: {why}")));
        report::report(&text, shown);
        let graphs = Graphs::from_config(&text, &folder).map_err(|error| usage(error.to_string()))?;
        let server: Server = serde_json::from_str(&text).map_err(|error| usage(error.to_string()))?;
        server.check().map_err(usage)?;
        server.cors().map_err(usage)?;
        server.index().map_err(usage)?;
        let env = match &server.env {
            None => BTreeMap::new(),
            Some(Env::Inline(values)) => values
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
            path,
            text,
            folder,
            env,
        })
    }

    /// The folder that its paths are relative to.
    pub fn folder(&self) -> PathBuf {
        self.folder.clone()
    }

    pub const fn env(&self) -> &BTreeMap<String, Secret> {
        &self.env
    }

    /// The file that contains the environment, if any.
    pub fn env_file(&self) -> Option<PathBuf> {
        match &self.server.env {
            Some(Env::File(file)) => Some(self.folder().join(file)),
            _ => None,
        }
    }

    /// Its webhook settings; headers with values from the environment. `loopback`: whether the operator allows calls to
    /// this machine.
    pub fn webhooks(&self, environment: &BTreeMap<String, Secret>, loopback: bool) -> anyhow::Result<WebhookRules> {
        let webhooks = &self.server.webhooks;
        if webhooks.url.disable_loopback == Some(false) && !loopback {
            let text = "webhooks.url.disable_loopback: false needs this machine among the addresses of outbound.allow, \
                        such as 127.0.0.1:8080; add it, or remove the key";
            return Err(anyhow!(Usage(text.to_owned())));
        }
        let prefix = webhooks.env_prefix.as_deref().unwrap_or("LG_WEBHOOK_");
        let mut headers = Vec::new();
        for (name, template) in &webhooks.headers {
            let value = expand_variables(template, prefix, |name| {
                self.env.get(name).or_else(|| environment.get(name))
            });
            let value = value.map_err(|why| anyhow!(Usage(format!("webhooks.headers.{name}: {why}"))))?;
            headers.push((name.clone(), Secret::new(value)));
        }
        Ok(WebhookRules {
            off: self.server.webhooks_are_off(),
            require_https: webhooks.url.require_https,
            domains: webhooks.url.allowed_domains.clone(),
            ports: webhooks.url.allowed_ports.clone(),
            max_url_bytes: webhooks.url.max_url_length,
            headers,
            fields: webhooks.allowed_fields.clone(),
            no_loopback: webhooks.url.disable_loopback == Some(true),
        })
    }

    /// The index of items. Variables of its endpoint come from the file's environment, else from that of the process.
    pub fn index(&self, environment: &BTreeMap<String, Secret>) -> anyhow::Result<Option<IndexSettings>> {
        let index = self.server.index().map_err(|why| anyhow!(Usage(why)))?;
        let find = |name: &str| {
            let value = self.env.get(name).or_else(|| environment.get(name))?;
            Some(value.clone()).filter(|value| !value.reveal().is_empty())
        };
        index
            .map(|index| index.settings(find).map_err(|why| anyhow!(Usage(why))))
            .transpose()
    }

    pub fn environment_spec(&self) -> EnvironmentSpec {
        EnvironmentSpec {
            folder: self.folder(),
            dependencies: self.server.dependencies.clone(),
            version: self.server.python_version.clone(),
            pip_config: self.server.pip_config_file.clone(),
            // Checked when the file was read.
            uv: self.server.uv_source().ok().flatten(),
            workspace: None,
        }
    }

    /// The graphs that are declared as data, with their services: calls to the addresses that `guard` allows, and
    /// secrets by name from the file's environment, else from that of the process.
    pub fn declared_graphs(&self, guard: Guard, environment: &BTreeMap<String, Secret>) -> Graphs {
        let mut secrets = environment.clone();
        secrets.extend(self.env.clone());
        let outside = GraphServices::new(Clock::system())
            .with_guard(guard)
            .with_secrets(move |name| secrets.get(name).map(|secret| secret.reveal().to_owned()));
        self.graphs.clone().with_services(&outside)
    }
}

/// `text` with `${{ env.NAME }}` replaced.
fn expand_variables<'e>(
    template: &str,
    prefix: &str,
    find: impl Fn(&str) -> Option<&'e Secret>,
) -> Result<String, String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${{") {
        let (inside, after) = after.split_once("}}").ok_or("a \"${{\" without its \"}}\"")?;
        let name = inside.trim().strip_prefix("env.").ok_or("expected ${{ env.NAME }}")?;
        if !name.starts_with(prefix) {
            return Err(format!(
                "only variables that begin with {prefix} may be sent, not {name}"
            ));
        }
        text.push_str(before);
        text.push_str(
            find(name)
                .ok_or_else(|| format!("there is no variable {name}"))?
                .reveal(),
        );
        rest = after;
    }
    Ok(text + rest)
}

/// Parses `NAME=value`, with or without `export` and quotes. `None` for comments and blank lines.
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
    use towpath_domain::agent::TtlStrategy;
    use towpath_runtime::hosted::environment::UvSource;

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
        let file = GraphFile::find(Some(&path), &BTreeMap::new()).unwrap();
        assert_eq!(file.graphs.ids().collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(file.server.item_ttl_minutes(), Some(5.0));
        assert!(!file.server.refresh_on_read());
        let ttl = file.server.thread_ttl().unwrap();
        assert_eq!((ttl.strategy, ttl.minutes), (TtlStrategy::Delete, 60.0));
        assert!(file.server.cors().is_ok() && !file.server.webhooks_are_off());
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
        let Err(refused) = GraphFile::find(Some(&path), &BTreeMap::new()) else {
            panic!("JavaScript graphs are not for this build")
        };
        assert!(refused.to_string().contains("mine"), "{refused}");
        assert!(refused.is::<Usage>());
    }

    #[test]
    fn an_index_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("langgraph.json");
        let text = r#"{"graphs": {"e": {"native": "echo"}}, "env": {"OPENAI_API_KEY": "k"},
            "store": {"index": {"dims": 8, "embed": "openai:small"}}}"#;
        std::fs::write(&path, text).unwrap();
        let index = GraphFile::read(&path)
            .unwrap()
            .index(&BTreeMap::new())
            .unwrap()
            .unwrap();
        assert_eq!(
            (index.dims, index.embed.as_str(), &index.fields[..]),
            (8, "openai:small", &["$".to_owned()][..])
        );
        std::fs::write(&path, text.replace("8", "\"8\"")).unwrap();
        let Err(refused) = GraphFile::read(&path) else {
            panic!("dimensions are a number")
        };
        assert!(refused.to_string().contains("store.index.dims"), "{refused}");
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
        let file = GraphFile::find(Some(&path), &BTreeMap::new()).unwrap();
        assert_eq!(file.graphs.ids().collect::<Vec<_>>(), ["e"]);
        assert_eq!(file.graphs.hosted_paths().keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(file.server.auth().path.as_deref(), Some("./auth.py:auth"));
        assert_eq!(file.server.disabled(), ["store"]);
        assert!(file.server.has_custom_routes());
        let wanted = file.environment_spec();
        assert_eq!(
            (wanted.dependencies.len(), wanted.version.as_deref()),
            (2, Some("3.12"))
        );
    }

    #[test]
    fn values_that_are_not_available_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("langgraph.json");
        let read = |more: &str| {
            let text = format!(r#"{{"graphs": {{"e": {{"native": "echo"}}}}, {more}}}"#);
            std::fs::write(&path, text).unwrap();
            GraphFile::read(&path).map(|file| file.environment_spec().uv)
        };
        for (more, expected) in [
            (
                r#""http": {"app": "./a.py:app", "middleware_order": "middleware_first"}"#,
                "auth_first",
            ),
            (
                r#""http": {"middleware_order": "last"}"#,
                "http.middleware_order: expected",
            ),
            (r#""source": {"kind": "pip"}"#, "source.kind: expected uv"),
            (r#""source": {"kind": "uv", "root": " "}"#, "source.root: expected"),
            (r#""source": {"kind": "uv", "package": ""}"#, "source.package: expected"),
            (
                r#""source": {"kind": "uv"}, "dependencies": ["."]"#,
                "dependencies: not available",
            ),
        ] {
            let refused = read(more).unwrap_err();
            assert!(
                refused.is::<Usage>() && refused.to_string().contains(expected),
                "{more}: {refused}"
            );
        }
        assert_eq!(
            read(r#""http": {"middleware_order": "middleware_first"}"#).unwrap(),
            None
        );
        let order = r#""http": {"app": "./a.py:app", "middleware_order": "auth_first"}"#;
        assert_eq!(read(order).unwrap(), None);
        let uv = UvSource {
            root: ".".to_owned(),
            package: None,
        };
        assert_eq!(read(r#""source": {"kind": "uv"}"#).unwrap(), Some(uv));
    }

    #[test]
    fn a_file_says_what_webhooks_may() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("langgraph.json");
        let text = r#"{"graphs": {"e": {"native": "echo"}}, "env": {"LG_WEBHOOK_KEY": "k", "OTHER": "o"},
            "webhooks": {"url": {"require_https": true, "allowed_domains": ["a.example"]},
                         "headers": {"x-key": "Bearer ${{ env.LG_WEBHOOK_KEY }}"}, "allowed_fields": ["run_id"]}}"#;
        std::fs::write(&path, text).unwrap();
        let webhooks = |loopback| GraphFile::read(&path).unwrap().webhooks(&BTreeMap::new(), loopback);
        let rules = webhooks(false).unwrap();
        assert_eq!(rules.headers[0].1.reveal(), "Bearer k");
        assert!(rules.check_address("http://a.example/").is_some());
        std::fs::write(&path, text.replace("LG_WEBHOOK_KEY }}", "OTHER }}")).unwrap();
        let refused = webhooks(false).unwrap_err();
        assert!(refused.to_string().contains("OTHER"), "{refused}");
        let of_loopback = |value: &str| {
            let text = text.replace("\"url\": {", &format!("\"url\": {{\"disable_loopback\": {value}, "));
            std::fs::write(&path, text).unwrap();
        };
        of_loopback("true");
        assert!(webhooks(true).unwrap().no_loopback);
        // Without calls to this machine it would have no effect.
        of_loopback("false");
        assert!(!webhooks(true).unwrap().no_loopback);
        let refused = webhooks(false).unwrap_err();
        assert!(refused.to_string().contains("outbound.allow"), "{refused}");
    }
}
