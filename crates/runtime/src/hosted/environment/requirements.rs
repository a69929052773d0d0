//! What pip and uv are told to install, and in which order.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::spec::{ALWAYS, EnvironmentError, EnvironmentSpec, folders, is_folder};
use super::tool::Tool;

/// The installation steps: locked packages first, each part separately, then the rest.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InstallPlan {
    /// Requirements files with hashes. Combined with others, every package would need one.
    pub(super) hashed: Vec<PathBuf>,
    /// Projects whose `uv.lock` pins the versions of their dependencies.
    pub(super) locked: Vec<PathBuf>,
    /// Arguments.
    pub(super) rest: Vec<OsString>,
}

/// What is to be installed of a project.
pub(super) fn of(wanted: &EnvironmentSpec, tool: &Tool) -> Result<InstallPlan, EnvironmentError> {
    let mut installs = InstallPlan {
        rest: ALWAYS.map(OsString::from).to_vec(),
        ..InstallPlan::default()
    };
    for folder in folders(wanted)? {
        let has = |name: &str| folder.join(name).is_file();
        let list = folder.join("requirements.txt");
        if has("pyproject.toml") && has("uv.lock") && matches!(tool, Tool::Uv(_)) {
            installs.locked.push(folder);
        } else if has("pyproject.toml") || has("setup.py") {
            if has("uv.lock") {
                tracing::warn!(folder = %folder.display(), "pip does not read uv.lock: install uv to use the locked versions");
            }
            // Its code is read where it is, so that changes are seen.
            installs.rest.extend(["-e".into(), folder.into()]);
        } else if has("requirements.txt") && is_hashed(&list) {
            installs.hashed.push(list);
        } else if has("requirements.txt") {
            installs.rest.extend(["-r".into(), list.into()]);
        }
    }
    let packages = wanted.dependencies.iter().filter(|dependency| !is_folder(dependency));
    installs.rest.extend(packages.map(OsString::from));
    Ok(installs)
}

fn is_hashed(list: &Path) -> bool {
    let text = fs::read_to_string(list).unwrap_or_default();
    let mut lines = text.lines().map(str::trim);
    lines.any(|line| !line.starts_with('#') && (line.contains("--hash=") || line == "--require-hashes"))
}

/// What a list of packages refers to on this machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reference {
    /// Another list, from where this one is.
    List(PathBuf),
    /// A project.
    Folder(PathBuf),
}

/// What a list refers to; nothing where it is not there.
pub(super) fn references(list: &Path) -> Vec<Reference> {
    let text = fs::read_to_string(list).unwrap_or_default();
    text.lines().filter_map(|line| reference(line.trim())).collect()
}

fn reference(line: &str) -> Option<Reference> {
    let path = |text: &str| {
        let text = text.trim_start_matches(['=', ' ', '\t']).split_whitespace().next()?;
        let text = text
            .strip_prefix("file://")
            .or_else(|| text.strip_prefix("file:"))
            .unwrap_or(text);
        // With what it may bring along: `./folder[extra]`.
        let text = text.split('[').next()?;
        (!text.contains("://") && !text.is_empty()).then(|| PathBuf::from(text))
    };
    for flag in ["--requirement", "--constraint", "-r", "-c"] {
        let Some(rest) = line.strip_prefix(flag) else { continue };
        if !flag.starts_with("--") || rest.starts_with(['=', ' ', '\t']) {
            return path(rest).map(Reference::List);
        }
    }
    for flag in ["--editable", "-e"] {
        if let Some(rest) = line.strip_prefix(flag) {
            return path(rest).map(Reference::Folder);
        }
    }
    if line.starts_with(['.', '/']) || line.starts_with("file:") {
        return path(line).map(Reference::Folder);
    }
    let (_, address) = line.split_once("@ file:")?;
    path(&format!("file:{address}")).map(Reference::Folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(wanted: &EnvironmentSpec, tool: &Tool) -> (Vec<PathBuf>, Vec<PathBuf>, Vec<String>) {
        let installs = of(wanted, tool).unwrap();
        let rest = installs
            .rest
            .into_iter()
            .map(|argument| argument.into_string().unwrap());
        (installs.hashed, installs.locked, rest.collect())
    }

    #[test]
    fn folders_and_packages_become_requirements() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let place = root.path().join(file);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, text).unwrap();
        };
        write("requirements.txt", "httpx\n");
        write("pkg/pyproject.toml", "");
        write("locked/pyproject.toml", "");
        write("locked/uv.lock", "");
        write("hashed/requirements.txt", "httpx==0.28.1 \\\n    --hash=sha256:00\n");
        fs::create_dir(root.path().join("bare")).unwrap();
        let dependencies = [".", "./pkg", "./locked", "./hashed", "./bare", "langchain_openai"];
        let wanted = EnvironmentSpec {
            folder: root.path().to_owned(),
            dependencies: dependencies.map(str::to_owned).to_vec(),
            version: None,
            pip_config: None,
            uv: None,
            workspace: None,
        };
        let at = |name: &str| root.path().join(name);
        let text = |name: &str| at(name).display().to_string();
        let (hashed, locked, rest) = told(&wanted, &Tool::Uv("uv".into()));
        assert_eq!(
            (hashed, locked),
            (vec![at("./hashed/requirements.txt")], vec![at("./locked")])
        );
        let expected = [
            "langgraph",
            "langgraph-sdk",
            "-r",
            &text("./requirements.txt"),
            "-e",
            &text("./pkg"),
            "langchain_openai",
        ];
        assert_eq!(rest, expected);
        let (_, locked, rest) = told(&wanted, &Tool::Venv("python3".into()));
        assert!(locked.is_empty() && rest.contains(&text("./locked")));
    }

    #[test]
    fn lists_refer_to_files_and_folders() {
        let list = |path: &str| Some(Reference::List(path.into()));
        let folder = |path: &str| Some(Reference::Folder(path.into()));
        for (line, expected) in [
            ("-r more.txt", list("more.txt")),
            ("-rmore.txt", list("more.txt")),
            ("--requirement=a/more.txt", list("a/more.txt")),
            ("-c only.txt  # why", list("only.txt")),
            ("--constraint ../only.txt", list("../only.txt")),
            ("-e ./pkg[all]", folder("./pkg")),
            ("--editable=./pkg", folder("./pkg")),
            ("./pkg", folder("./pkg")),
            ("word @ file:///srv/word", folder("/srv/word")),
            ("-r https://example.org/list.txt", None),
            ("-e git+https://example.org/x", None),
            ("--require-hashes", None),
            ("--index-url https://example.org", None),
            ("httpx==0.28 --hash=sha256:00", None),
            ("# -r no.txt", None),
            ("", None),
        ] {
            assert_eq!(reference(line), expected, "{line}");
        }
    }
}
