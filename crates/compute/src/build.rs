//! From a source tree to something that can be started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use towpath_domain::Secret;
use towpath_domain::git::{PlainCommand, TreePath};

use crate::artifact::{Artifact, BuiltArtifact, Plan};
use crate::error::{Error, Result};
use crate::git::blocking;
use crate::isolation::{Isolation, PreparedCell};
use crate::launcher;
use crate::log::Log;
use crate::orphans::{self, ROOT_MARK};
use crate::program::Program;
use crate::root::Root;
use crate::tree::{self, Limits};

/// What the operator says about builds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `PATH` of the programs.
    pub path: String,
    /// What one program may take.
    pub limit: Duration,
    /// What a tree may have grown to.
    pub tree: Limits,
    /// Environment variables of this machine that builds need: proxies, registries.
    pub variables: BTreeMap<String, Secret>,
    /// The program that starts others in a cell: `towpath`.
    pub launcher: PathBuf,
    /// What keeps programs apart.
    pub isolation: Isolation,
}

/// JavaScript package managers by lock file, in the order of the reference CLI.
const LOCKS: [(&str, &str); 5] = [
    ("yarn.lock", "yarn install --frozen-lockfile"),
    ("pnpm-lock.yaml", "pnpm install --frozen-lockfile"),
    ("package-lock.json", "npm ci"),
    ("bun.lockb", "bun install"),
    ("bun.lock", "bun install"),
];

/// Configuration keys that only the official builder supports.
const OF_ANOTHER_BUILDER: [&str; 3] = ["image_distro", "pip_installer", "keep_pkg_tools"];
/// Those that ask for something of an image.
const OF_IMAGES: [&str; 2] = ["base_image", "dockerfile_lines"];

/// Builds a fetched tree. Once a program has run, the tree no longer counts as fetched, so that a failed build is not
/// repeated on its leftovers.
pub async fn build(
    settings: &Settings,
    root: &Root,
    artifact: &Artifact,
    plan: &Plan,
    log: &Log,
    cancel: &CancellationToken,
) -> Result<BuiltArtifact> {
    let Project {
        path,
        top,
        file,
        install,
        config,
    } = Project::read(artifact, plan)?;
    without_effect(&config, &OF_IMAGES, log);
    let folder = file.parent().unwrap_or(&top).to_owned();
    tree::has_room(root.path(), settings.tree.free)?;
    // Caches of package managers are no part of what was built.
    let home = root.temporary()?;
    let at = BuildContext {
        settings,
        root,
        artifact,
        home: home.path(),
    };
    let programs = async {
        if let Some(install) = &install {
            at.run("install_command", install, &top, log, cancel).await?;
        }
        if let Some(build) = &plan.build {
            at.run("build_command", build, &folder, log, cancel).await?;
        }
        Ok::<(), Error>(())
    };
    let runs = install.is_some() || plan.build.is_some();
    if runs {
        artifact.changes()?;
    }
    let ran = programs.await;
    // Some of it may be closed to its owner.
    blocking(move || tree::remove(home.path()).map_err(Error::io("removing what programs kept in HOME"))).await?;
    ran?;
    // A user's programs ran: their output must pass the same checks as the fetched tree.
    let (limits, lines) = (settings.tree, log.clone());
    blocking(move || {
        let again = tree::config(&top, &path);
        // Package managers link into each other, but inside the tree.
        tree::check(&top, limits, &lines).and(again.map(drop))
    })
    .await?;
    if runs {
        share(settings, &artifact.source()).await?;
    }
    let built = BuiltArtifact {
        plan: plan.clone(),
        variables: Vec::new(),
        image: None,
    };
    artifact.record(&built)?;
    Ok(built)
}

/// Says which of these keys ask for what this build does not do.
pub(crate) fn without_effect(config: &Value, keys: &[&str], log: &Log) {
    let asks = |value: &Value| {
        let nothing = matches!(value, Value::Null | Value::Bool(false)) || value.as_array().is_some_and(Vec::is_empty);
        !nothing
    };
    let found: Vec<&str> = OF_ANOTHER_BUILDER
        .iter()
        .chain(keys)
        .copied()
        .filter(|key| config.get(key).is_some_and(asks))
        .collect();
    if !found.is_empty() {
        log.warn(format!(
            "graph configuration: ignored in this build: {}",
            found.join(", ")
        ));
    }
}

async fn share(settings: &Settings, tree: &Path) -> Result<()> {
    let (isolation, tree) = (settings.isolation.clone(), tree.to_owned());
    blocking(move || isolation.share(&tree)).await
}

/// A tree that was fetched, and what its configuration says.
pub(crate) struct Project {
    /// The configuration file, from the top.
    pub(crate) path: TreePath,
    /// Where the tree is.
    pub(crate) top: PathBuf,
    /// Where the configuration file is.
    file: PathBuf,
    pub(crate) config: Value,
    /// What installs its packages.
    pub(crate) install: Option<String>,
}

impl Project {
    pub(crate) fn read(artifact: &Artifact, plan: &Plan) -> Result<Self> {
        let path = TreePath::parse(&plan.config).map_err(|why| Error::Refused(format!("graph_config_path {why}")))?;
        let top = artifact.source();
        let file = tree::config(&top, &path)?;
        let config = read(&file, path.as_str())?;
        let install = install_command(plan, &config, &top);
        Ok(Self {
            path,
            top,
            file,
            config,
            install,
        })
    }
}

/// The install command: the requested one, else the one implied by lock files if the tree needs JavaScript.
fn install_command(plan: &Plan, config: &Value, top: &Path) -> Option<String> {
    if plan.install.is_some() || config.get("node_version").is_none() {
        return plan.install.clone();
    }
    let found = LOCKS.iter().find(|(lock, _)| top.join(lock).is_file());
    let found = found.map(|(_, command)| *command);
    found
        .or_else(|| top.join("package.json").is_file().then_some("npm install"))
        .map(str::to_owned)
}

/// Whether a configuration names code that needs an environment. Graphs declared as data do not, and neither does an
/// embedder that is an endpoint.
pub(crate) fn has_code(config: &Value) -> bool {
    let graphs = config.get("graphs").and_then(Value::as_object);
    let is_data = |graph: &Value| graph.get("native").is_some();
    graphs.is_none_or(|graphs| !graphs.values().all(is_data))
        || config.get("auth").is_some()
        || config.get("http").is_some()
        || config
            .pointer("/store/index/embed")
            .and_then(Value::as_str)
            .is_some_and(|embed| !embed.starts_with("openai:"))
}

/// The configuration, as far as building needs it.
pub(crate) fn read(file: &Path, shown: &str) -> Result<Value> {
    let text = std::fs::read(file).map_err(Error::io(format!("reading {shown}")))?;
    let config: Value = serde_json::from_slice(&text)
        .map_err(|error| Error::Refused(format!("graph_config_path: {shown} is not JSON: {error}")))?;
    let graphs = config.get("graphs").and_then(Value::as_object);
    if graphs.is_none_or(serde_json::Map::is_empty) {
        return Err(Error::Refused(format!("graph_config_path: {shown} declares no graphs")));
    }
    Ok(config)
}

/// Where a build's programs run.
struct BuildContext<'a> {
    settings: &'a Settings,
    root: &'a Root,
    artifact: &'a Artifact,
    /// `HOME` of its programs.
    home: &'a Path,
}

impl BuildContext<'_> {
    /// Whether this program is on `PATH`, or exists at the given path.
    fn has(&self, program: &str) -> bool {
        let mut folders = std::env::split_paths(&self.settings.path);
        program.contains('/') || folders.any(|folder| folder.join(program).is_file())
    }

    async fn run(
        &self,
        what: &'static str,
        command: &str,
        folder: &Path,
        log: &Log,
        cancel: &CancellationToken,
    ) -> Result<()> {
        let command = PlainCommand::parse(command).map_err(|why| Error::Refused(format!("{what} {why}")))?;
        let Some((program, arguments)) = command.words().split_first() else {
            return Err(Error::Refused(format!("{what} must name a program")));
        };
        log.info(format!("$ {command}"));
        let (isolation, artifact) = (&self.settings.isolation, self.artifact);
        // A program before this one had another id.
        share(self.settings, &artifact.source()).await?;
        let cell = isolation.build(self.root, &artifact.source(), self.home)?;
        let prepared = match &cell {
            Some(cell) => {
                if !self.has(program) {
                    return Err(Error::Refused(format!("this machine has no program {program:?}")));
                }
                Program::new(what, &self.settings.launcher, self.settings.limit)
                    .args([launcher::COMMAND])
                    .args(cell.arguments())
                    .args(["--", program.as_str()])
            }
            None => Program::new(what, program, self.settings.limit),
        };
        let home = self.home.display().to_string();
        let mark = self.root.mark();
        let variables = [
            ("PATH", self.settings.path.as_str()),
            ("HOME", &home),
            ("LC_ALL", "C.UTF-8"),
            ("CI", "1"),
            ("npm_config_update_notifier", "false"),
            ("npm_config_fund", "false"),
            (ROOT_MARK, &mark),
        ];
        // A cell's own `/tmp` is on the same disk.
        let watched = [self.artifact.folder(), self.home].into_iter();
        let watched = watched.chain(cell.as_ref().map(PreparedCell::folder));
        let machine = self
            .settings
            .variables
            .iter()
            .map(|(name, value)| (name, value.reveal()));
        let ended = prepared
            .args(arguments)
            .envs(machine)
            .envs(variables)
            .within(folder)
            .with_size_limit(watched, self.settings.tree)
            .run(log, cancel)
            .await;
        // Its temporary files may be many.
        let mark = self.root.mark();
        blocking(move || {
            if let Some(cell) = &cell {
                orphans::end_of_user(cell.user(), &mark);
            }
            drop(cell);
            Ok(())
        })
        .await?;
        let ended = ended?;
        match ended.code {
            Some(0) => Ok(()),
            Some(code) => Err(Error::Refused(format!("{what} `{command}` exited with code {code}"))),
            None => Err(Error::Refused(format!("{what} `{command}` was terminated by a signal"))),
        }
    }
}
