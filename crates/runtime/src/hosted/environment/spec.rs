//! What an environment is made of, and why there is none.

use std::path::PathBuf;

use towpath_domain::TenantId;

/// What graph hosts need whatever a project says.
pub(super) const ALWAYS: [&str; 2] = ["langgraph", "langgraph-sdk"];

/// What an environment is made of.
#[derive(Clone, Debug)]
pub struct EnvironmentSpec {
    /// The folder of the config file.
    pub folder: PathBuf,
    /// `dependencies`: folders (`.`, `./pkg`) and packages.
    pub dependencies: Vec<String>,
    /// `python_version`, such as `3.12`.
    pub version: Option<String>,
    /// `pip_config_file`, relative to the folder.
    pub pip_config: Option<String>,
    /// `source`: where packages come from instead of `dependencies`.
    pub uv: Option<UvSource>,
    /// Whose it is, where the server belongs to a workspace.
    pub workspace: Option<TenantId>,
}

/// A project or workspace of uv with its lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UvSource {
    /// Its folder, relative to that of the config file.
    pub root: String,
    /// The member of a workspace to install.
    pub package: Option<String>,
}

impl EnvironmentSpec {
    /// The folder of the uv project, if packages come from one.
    #[must_use]
    pub fn uv_root(&self) -> Option<PathBuf> {
        self.uv.as_ref().map(|uv| self.folder.join(&uv.root))
    }
}

/// Why there is no environment. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EnvironmentError(String);

pub(super) fn environment_error(text: impl Into<String>) -> EnvironmentError {
    EnvironmentError(text.into())
}

/// The folders among the dependencies.
pub fn folders(wanted: &EnvironmentSpec) -> Result<Vec<PathBuf>, EnvironmentError> {
    let mut folders = Vec::new();
    for dependency in wanted.dependencies.iter().filter(|dependency| is_folder(dependency)) {
        let folder = wanted.folder.join(dependency);
        if !folder.is_dir() {
            return Err(environment_error(format!(
                "dependencies: folder {dependency:?} does not exist next to the config file"
            )));
        }
        folders.push(folder);
    }
    Ok(folders)
}

pub(super) fn is_folder(dependency: &str) -> bool {
    dependency.starts_with('.') || dependency.starts_with('/')
}
