//! New processes for users' graphs when their code changes: what is under way ends on the old ones.
//!
//! Changes are found by looking at the files' times. A project has few files, and notifications of the kernel do not
//! come from folders that are shared with another machine, or with the host of a container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinHandle;
use towpath_api::agent::{Swap, agent_router};
use towpath_runtime::GraphSet;
use towpath_runtime::hosted::environment;
use towpath_workflows::agent::{Authored, Live};

use crate::graph_file::GraphFile;
use crate::hosting::Hosting;
use crate::wiring::{self, Surface};

/// How often files are looked at. A change counts when two looks after it see the same: editors save in several steps,
/// and tools write several files.
const EVERY: Duration = Duration::from_millis(400);
/// Folders nobody writes graphs in.
const NOT_CODE: [&str; 5] = ["__pycache__", "node_modules", "venv", "site-packages", "dist"];
/// More files than a project has.
const MOST: usize = 20_000;

/// Watches until it is dropped.
pub struct Reload(JoinHandle<()>);

impl Drop for Reload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a change leads to.
pub struct Reloaded {
    /// Loads the graphs.
    pub hosting: Arc<Hosting>,
    /// The file they come from.
    pub file: GraphFile,
    /// Where they are offered.
    pub graphs: GraphSet,
    /// Makes the server's HTTP.
    pub surface: Surface,
    /// Serves it.
    pub served: Swap,
    /// What the file says about what runs do.
    pub authored: Live<Authored>,
    /// The code as it was before it was loaded.
    pub seen: Seen,
}

/// Time and length of each file that graphs may come from.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen(BTreeMap<PathBuf, (Option<SystemTime>, u64)>);

impl Reload {
    /// Loads the graphs anew whenever their code changes.
    pub fn start(what: Reloaded) -> Self {
        Self(tokio::spawn(what.watch()))
    }
}

impl Reloaded {
    async fn watch(mut self) {
        let mut loaded = std::mem::take(&mut self.seen);
        if self.is_outdated() {
            // Written between its reading and the first look.
            loaded = Seen::default();
        }
        loop {
            tokio::time::sleep(EVERY).await;
            let mut now = Seen::look(&self.file).await;
            if now == loaded {
                continue;
            }
            loop {
                tokio::time::sleep(EVERY).await;
                let later = Seen::look(&self.file).await;
                if later == now {
                    break;
                }
                now = later;
            }
            self.reload().await;
            loaded = now;
        }
    }

    /// Whether the graph file says something else by now.
    fn is_outdated(&self) -> bool {
        let now = self.file.path.as_ref().map(std::fs::read_to_string);
        now.is_some_and(|now| now.is_ok_and(|now| now != self.file.text))
    }

    async fn reload(&mut self) {
        tracing::info!("the graphs' code changed; loading it");
        match self.load().await {
            Ok(()) => tracing::info!(
                graphs = self.graphs.current().ids().collect::<Vec<_>>().join(", "),
                "the graphs are loaded anew"
            ),
            Err(why) => tracing::error!("{why:#}; the graphs stay as they were"),
        }
    }

    async fn load(&mut self) -> anyhow::Result<()> {
        let Some(path) = self.file.path.clone() else {
            return Ok(());
        };
        let file = GraphFile::read(&path)?;
        // All of it first: what cannot be used leaves everything as it was.
        let app = self.surface.app(&file)?;
        let authored = self.surface.authored(&file)?;
        let graphs = self.hosting.load(&file).await?;
        wiring::offer(&self.surface.store, self.surface.tenant, &graphs).await?;
        // Runs hold the old set, and its processes end with the last of them.
        drop(self.graphs.swap(graphs));
        if of_server(&self.file) != of_server(&file) {
            // Also what was remembered of callers belongs to the old one.
            self.served.replace(agent_router(app));
            self.authored.replace(authored);
            tracing::info!("what the graph file says about the server is in force");
        }
        self.file = file;
        Ok(())
    }
}

/// What of a graph file is about the server itself. Headers of webhooks take values from its environment.
fn of_server(file: &GraphFile) -> (Vec<serde_json::Value>, Vec<(&str, &str)>) {
    let config: serde_json::Value = serde_json::from_str(&file.text).unwrap_or_default();
    let part = |key: &str| config.get(key).cloned().unwrap_or_default();
    let parts = ["auth", "http", "store", "checkpointer", "webhooks"].map(part).to_vec();
    let environment = file.env().iter().map(|(name, value)| (name.as_str(), value.reveal()));
    (parts, environment.collect())
}

impl Seen {
    /// Looks at every file.
    pub async fn look(file: &GraphFile) -> Self {
        let mut roots = vec![file.folder()];
        roots.extend(environment::folders(&file.wanted()).unwrap_or_default());
        let named: Vec<PathBuf> = file.path.iter().cloned().chain(file.env_file()).collect();
        let looked = tokio::task::spawn_blocking(move || {
            let mut seen = Self::default();
            for file in named {
                seen.note(&file);
            }
            for root in roots {
                seen.walk(&root);
            }
            seen
        });
        looked.await.unwrap_or_default()
    }

    fn note(&mut self, file: &Path) {
        if let Ok(about) = file.metadata() {
            self.0.insert(file.to_owned(), (about.modified().ok(), about.len()));
        }
    }

    fn walk(&mut self, folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            if self.0.len() >= MOST {
                return;
            }
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            if kind.is_dir() {
                let code = !name.starts_with('.') && !NOT_CODE.contains(&&*name);
                // A folder that is an environment holds the code of others.
                if code && !path.join("pyvenv.cfg").is_file() {
                    self.walk(&path);
                }
            } else if is_code(&name) {
                self.note(&path);
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
            let mut seen = Seen::default();
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
