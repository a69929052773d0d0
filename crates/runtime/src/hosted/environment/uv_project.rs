//! The project of uv that an environment is installed from.

use std::fs;
use std::path::{Path, PathBuf};

use super::spec::{EnvironmentError, EnvironmentSpec, environment_error};

/// The uv project that packages come from, with the files that it needs.
pub(super) fn uv_project(wanted: &EnvironmentSpec) -> Result<Option<UvProject>, EnvironmentError> {
    let Some(uv) = &wanted.uv else { return Ok(None) };
    let root = wanted.folder.join(&uv.root);
    for name in ["pyproject.toml", "uv.lock"] {
        if !root.join(name).is_file() {
            return Err(environment_error(format!(
                "source.root: there is no {name} in {:?}; name the folder in which `uv lock` is run",
                uv.root
            )));
        }
    }
    let selection = match &uv.package {
        Some(package) => Selection::Package(package.clone()),
        None => match member(&wanted.folder, &root) {
            Some(folder) => Selection::Project(folder),
            None => Selection::All,
        },
    };
    Ok(Some(UvProject { root, selection }))
}

pub(super) struct UvProject {
    pub(super) root: PathBuf,
    pub(super) selection: Selection,
}

/// What of a project is installed.
pub(super) enum Selection {
    /// A member by its name.
    Package(String),
    /// The project in this folder: the root, or a member.
    Project(PathBuf),
    /// All members of a workspace whose root is no package.
    All,
}

/// The innermost folder that contains `folder` and has a package, up to `root`. Outside of `root`, it is `root` itself.
fn member(folder: &Path, root: &Path) -> Option<PathBuf> {
    let (folder, top) = (folder.canonicalize().ok()?, root.canonicalize().ok()?);
    let inside = folder.ancestors().take_while(|folder| folder.starts_with(&top));
    let mut places: Vec<&Path> = inside.collect();
    if places.is_empty() {
        places.push(&top);
    }
    let found = places.into_iter().find(|folder| has_package(folder));
    found.map(Path::to_owned)
}

/// Whether the `pyproject.toml` of a folder describes a package, and not only a workspace.
fn has_package(folder: &Path) -> bool {
    let text = fs::read_to_string(folder.join("pyproject.toml")).unwrap_or_default();
    text.lines().any(|line| line.trim() == "[project]")
}
