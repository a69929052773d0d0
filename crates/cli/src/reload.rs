//! New processes for users' graphs when their code changes; running work ends on the old ones.
//!
//! Changes are found by polling. A project has few files, and kernel notifications do not work for folders that are
//! shared with another machine or with the host of a container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinHandle;
use towpath_api::agent::{ReloadableRouter, agent_router};
use towpath_runtime::GraphSet;
use towpath_runtime::hosted::environment;
use towpath_workflows::agent::{AuthorSettings, Reloadable};

use crate::graph_file::GraphFile;
use crate::graph_hosting::GraphHostLauncher;
use crate::wiring::assistants::ensure_assistants;
use crate::wiring::surface::Surface;

/// A change counts when two polls after it see the same state: editors save in several steps, and tools write several
/// files.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// Folders that do not contain graphs.
const NOT_CODE: [&str; 5] = ["__pycache__", "node_modules", "venv", "site-packages", "dist"];
/// Larger than any project.
const MAX_FILES: usize = 20_000;

/// Watches until it is dropped.
pub struct ReloadTask(JoinHandle<()>);

impl Drop for ReloadTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub struct Reloader {
    pub hosting: Arc<GraphHostLauncher>,
    pub file: GraphFile,
    pub graphs: GraphSet,
    pub surface: Surface,
    pub router: ReloadableRouter,
    pub author_settings: Reloadable<AuthorSettings>,
    /// State of the files before the code was loaded.
    pub snapshot: FileSnapshot,
}

/// Time and length of each file that graphs may come from.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileSnapshot(BTreeMap<PathBuf, (Option<SystemTime>, u64)>);

impl ReloadTask {
    /// Reloads the graphs whenever their code changes.
    pub fn start(what: Reloader) -> Self {
        Self(tokio::spawn(what.watch()))
    }
}

impl Reloader {
    async fn watch(mut self) {
        let mut loaded = std::mem::take(&mut self.snapshot);
        if self.is_outdated() {
            // Changed between loading and the first poll.
            loaded = FileSnapshot::default();
        }
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let mut now = FileSnapshot::capture(&self.file).await;
            if now == loaded {
                continue;
            }
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                let later = FileSnapshot::capture(&self.file).await;
                if later == now {
                    break;
                }
                now = later;
            }
            self.reload().await;
            loaded = now;
        }
    }

    fn is_outdated(&self) -> bool {
        let now = self.file.path.as_ref().map(std::fs::read_to_string);
        now.is_some_and(|now| now.is_ok_and(|now| now != self.file.text))
    }

    async fn reload(&mut self) {
        tracing::info!("the graphs' code changed; loading it");
        match self.load().await {
            Ok(()) => tracing::info!(
                graphs = self.graphs.current().ids().collect::<Vec<_>>().join(", "),
                "the graphs are reloaded"
            ),
            Err(why) => tracing::error!("{why:#}; the old graphs stay in use"),
        }
    }

    async fn load(&mut self) -> anyhow::Result<()> {
        let Some(path) = self.file.path.clone() else {
            return Ok(());
        };
        let file = GraphFile::read(&path)?;
        // Everything is loaded before anything is replaced, so that an error changes nothing.
        let app = self.surface.app(&file)?;
        let authored = self.surface.authored(&file)?;
        let index = file.index(&self.surface.environment)?;
        let graphs = self.hosting.load(&file).await?;
        ensure_assistants(&self.surface.store, self.surface.tenant, &graphs).await?;
        // Running runs hold the old set, and its processes end with the last of them.
        drop(self.graphs.replace(graphs));
        self.surface.items.configure(index);
        self.surface.items.ensure(self.surface.tenant).await?;
        if of_server(&self.file) != of_server(&file) {
            // The cached callers belong to the old router.
            self.router.replace(agent_router(app));
            self.author_settings.replace(authored);
            tracing::info!("the server settings of the graph file are in effect");
        }
        self.file = file;
        Ok(())
    }
}

/// The server settings of a graph file. Webhook headers take values from its environment.
fn of_server(file: &GraphFile) -> (Vec<serde_json::Value>, Vec<(&str, &str)>) {
    let config: serde_json::Value = serde_json::from_str(&file.text).unwrap_or_default();
    let part = |key: &str| config.get(key).cloned().unwrap_or_default();
    let parts = ["auth", "http", "store", "checkpointer", "webhooks"].map(part).to_vec();
    let environment = file.env().iter().map(|(name, value)| (name.as_str(), value.reveal()));
    (parts, environment.collect())
}

impl FileSnapshot {
    pub async fn capture(file: &GraphFile) -> Self {
        let mut roots = vec![file.folder()];
        let spec = file.environment_spec();
        roots.extend(environment::folders(&spec).unwrap_or_default());
        roots.extend(spec.uv_root());
        let named: Vec<PathBuf> = file.path.iter().cloned().chain(file.env_file()).collect();
        let looked = tokio::task::spawn_blocking(move || {
            let mut seen = Self::default();
            for file in named {
                seen.add_file(&file);
            }
            for root in roots {
                seen.walk(&root);
            }
            seen
        });
        looked.await.unwrap_or_default()
    }

    fn add_file(&mut self, file: &Path) {
        if let Ok(about) = file.metadata() {
            self.0.insert(file.to_owned(), (about.modified().ok(), about.len()));
        }
    }

    fn walk(&mut self, folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            if self.0.len() >= MAX_FILES {
                return;
            }
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            if kind.is_dir() {
                let code = !name.starts_with('.') && !NOT_CODE.contains(&&*name);
                // A folder with an environment contains other people's code.
                if code && !path.join("pyvenv.cfg").is_file() {
                    self.walk(&path);
                }
            } else if is_code(&name) {
                self.add_file(&path);
            }
        }
    }
}

fn is_code(name: &str) -> bool {
    name.ends_with(".py")
        || name.ends_with(".graph.json")
        || matches!(name, "requirements.txt" | "pyproject.toml" | "setup.py" | "setup.cfg")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_seen_and_what_is_made_of_it_is_not() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = root.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        for name in [
            "agent.py",
            "pkg/a.py",
            "notes.md",
            "__pycache__/agent.py",
            ".git/a.py",
            "own/pyvenv.cfg",
            "own/b.py",
        ] {
            write(name, "");
        }
        let look = || {
            let mut seen = FileSnapshot::default();
            seen.walk(root.path());
            seen
        };
        let before = look();
        let names: Vec<_> = before
            .0
            .keys()
            .map(|path| path.strip_prefix(root.path()).unwrap().to_owned())
            .collect();
        assert_eq!(names, [Path::new("agent.py"), Path::new("pkg/a.py")]);
        write("agent.py", "changed");
        assert_ne!(look(), before);
    }
}
