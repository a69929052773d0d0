//! The key of an environment: SHA-256 of everything that determines its content, and of the workspace.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::requirements::{self, Reference};
use super::spec::{ALWAYS, EnvironmentError, EnvironmentSpec, environment_error, folders};
use super::tool::Tool;
use super::uv_project::{Selection, uv_project};
use super::variables::Variables;

/// Another way of making environments makes others.
const WAY: &str = "2";
/// Files of a folder that say what it depends on.
const TELLING: [&str; 5] = ["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "uv.lock"];
/// Files of the project's folder that configure package managers.
const SETTINGS: [&str; 2] = [".python-version", "uv.toml"];
/// Lists of packages that one may refer to.
const MOST_LISTS: usize = 200;

/// The names of an environment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// By what the project says.
    pub(super) sources: String,
    /// And by what the machine says, and whose it is.
    pub(super) whole: String,
}

impl Keys {
    pub(super) fn of(wanted: &EnvironmentSpec, tool: &Tool, variables: &Variables) -> Result<Self, EnvironmentError> {
        let mut hash = Hash::default();
        hash.add(WAY.as_bytes());
        hash.add(tool.name().as_bytes());
        hash.add(tool.program().as_os_str().as_encoded_bytes());
        hash.add(wanted.version.as_deref().unwrap_or_default().as_bytes());
        hash.all(ALWAYS);
        hash.all(wanted.dependencies.iter().map(String::as_str));
        for name in SETTINGS {
            hash.file(&wanted.folder.join(name));
        }
        if let Some(file) = &wanted.pip_config {
            hash.file(&wanted.folder.join(file));
        }
        if let Some(project) = uv_project(wanted)? {
            // Its code is read where it is.
            hash.add(project.root.as_os_str().as_encoded_bytes());
            let package = match &project.selection {
                Selection::Package(name) => name.as_bytes(),
                Selection::Project(folder) => {
                    hash.file(&folder.join("pyproject.toml"));
                    folder.as_os_str().as_encoded_bytes()
                }
                Selection::All => b"".as_slice(),
            };
            hash.add(package);
            for name in ["pyproject.toml", "uv.lock"].into_iter().chain(SETTINGS) {
                hash.file(&project.root.join(name));
            }
        }
        let mut lists = BTreeSet::new();
        for folder in folders(wanted)? {
            if stays_where_it_is(&folder) {
                hash.add(folder.as_os_str().as_encoded_bytes());
            }
            for name in TELLING {
                hash.file(&folder.join(name));
            }
            hash.referred(wanted, &folder.join("requirements.txt"), &mut lists)?;
        }
        let sources = hash.clone().hex();

        let workspace = wanted.workspace.map(|workspace| workspace.to_string());
        hash.add(workspace.unwrap_or_default().as_bytes());
        let deciding = variables.deciding().flat_map(|(name, value)| [name, value]);
        hash.all(deciding);
        for text in variables.files().iter().filter_map(|file| fs::read(file).ok()) {
            hash.add(&text);
        }
        Ok(Self {
            sources,
            whole: hash.hex(),
        })
    }
}

#[derive(Clone, Default)]
struct Hash(Sha256);

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn all<'a>(&mut self, texts: impl IntoIterator<Item = &'a str>) {
        let texts: Vec<&str> = texts.into_iter().collect();
        self.add(&(texts.len() as u64).to_le_bytes());
        for text in texts {
            self.add(text.as_bytes());
        }
    }

    /// The content of a file. A missing file differs from an empty one.
    fn file(&mut self, file: &Path) {
        match fs::read(file) {
            Ok(text) => {
                self.add(b"file");
                self.add(&text);
            }
            Err(_) => self.add(b"none"),
        }
    }

    /// Local files that a requirements file refers to, recursively.
    fn referred(
        &mut self,
        wanted: &EnvironmentSpec,
        list: &Path,
        lists: &mut BTreeSet<PathBuf>,
    ) -> Result<(), EnvironmentError> {
        if !lists.insert(list.to_owned()) {
            return Ok(());
        }
        if lists.len() > MOST_LISTS {
            return Err(environment_error(format!(
                "dependencies: requirements files include more than {MOST_LISTS} others"
            )));
        }
        let beside = list.parent().unwrap_or(&wanted.folder);
        for reference in requirements::references(list) {
            match reference {
                Reference::List(path) => {
                    let other = beside.join(path);
                    self.file(&other);
                    self.referred(wanted, &other, lists)?;
                }
                Reference::Folder(path) => {
                    // pip resolves paths from its working directory, uv from the file.
                    for folder in [beside.join(&path), wanted.folder.join(&path)] {
                        for name in TELLING {
                            self.file(&folder.join(name));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn hex(self) -> String {
        hex::encode(self.0.finalize())
    }
}

/// Whether an environment keeps reading from this folder, so that the same content elsewhere needs another one.
/// Requirements files alone do not depend on the location, so the next revision of a deployment need not install them
/// again.
fn stays_where_it_is(folder: &Path) -> bool {
    if folder.join("pyproject.toml").is_file() || folder.join("setup.py").is_file() {
        return true;
    }
    let listed = fs::read_to_string(folder.join("requirements.txt")).unwrap_or_default();
    listed
        .lines()
        .map(str::trim_start)
        .any(|line| line.starts_with(['-', '.', '/']) || line.contains("file:"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use towpath_domain::{Secret, TenantId};

    use super::*;

    fn wanted(folder: &Path) -> EnvironmentSpec {
        EnvironmentSpec {
            folder: folder.to_owned(),
            dependencies: vec![".".to_owned()],
            version: None,
            pip_config: None,
            uv: None,
            workspace: None,
        }
    }

    fn keys(wanted: &EnvironmentSpec, process: &[(&str, &str)]) -> Keys {
        let process = process
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Secret::new(*value)));
        let process: BTreeMap<String, Secret> = process.collect();
        let tool = Tool::Venv("/usr/bin/python3".into());
        Keys::of(wanted, &tool, &Variables::of(wanted, &process)).unwrap()
    }

    #[test]
    fn a_list_of_packages_is_the_same_in_another_folder() {
        let roots = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let of = |file: &str, text: &str| {
            roots.each_ref().map(|root| {
                fs::write(root.path().join(file), text).unwrap();
                keys(&wanted(root.path()), &[])
            })
        };
        let [one, other] = of("requirements.txt", "httpx\nlangchain-core>=0.3\n");
        assert_eq!(one, other);
        for (file, text) in [("requirements.txt", "httpx\n-e ./here\n"), ("pyproject.toml", "")] {
            let [one, other] = of(file, text);
            assert_ne!(one, other, "{file}: {text}");
        }
    }

    #[test]
    fn whatever_decides_what_is_installed_is_part_of_the_name() {
        let root = tempfile::tempdir().unwrap();
        let config = root.path().join("named.conf");
        let process = [
            ("PIP_CONFIG_FILE", config.to_str().unwrap()),
            ("PIP_INDEX_URL", "https://one.example"),
        ];
        let wanted = wanted(root.path());
        let mut before = keys(&wanted, &process);
        fs::write(root.path().join("agent.py"), "code").unwrap();
        assert_eq!(keys(&wanted, &process), before, "code is read where it stands");
        for (file, text) in [
            ("requirements.txt", "-r more/list.txt\n./local\n"),
            ("more/list.txt", "httpx\n-c only.txt"),
            ("more/only.txt", "httpx==0.28\n"),
            ("more/only.txt", "httpx==0.27\n"),
            ("local/pyproject.toml", "[project]"),
            ("uv.lock", "version = 1"),
            ("uv.toml", "index-url = 'https://two.example'"),
            (".python-version", "3.12"),
            ("named.conf", "[global]\nindex-url = https://two.example\n"),
        ] {
            let place = root.path().join(file);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, text).unwrap();
            let now = keys(&wanted, &process);
            assert_ne!(now.whole, before.whole, "{file}: {text}");
            before = now;
        }
        // The machine's settings lead to another environment for the same sources.
        for process in [
            [process[0], ("PIP_INDEX_URL", "https://two.example")],
            [process[0], ("UV_DEFAULT_INDEX", "https://two.example")],
            [process[0], ("PIP_NO_BINARY", ":all:")],
        ] {
            let now = keys(&wanted, &process);
            assert_ne!(now.whole, before.whole, "{process:?}");
            assert_eq!(now.sources, before.sources, "{process:?}");
        }
        let elsewhere = [process[0], process[1], ("HOME", "/elsewhere"), ("TMPDIR", "/elsewhere")];
        assert_eq!(keys(&wanted, &elsewhere), before, "places decide nothing");
        let of = |workspace| {
            keys(
                &EnvironmentSpec {
                    workspace,
                    ..wanted.clone()
                },
                &process,
            )
            .whole
        };
        let one = TenantId::new();
        assert_eq!(of(Some(one)), of(Some(one)));
        assert_ne!(of(Some(one)), of(Some(TenantId::new())));
        assert_ne!(of(Some(one)), of(None));
        assert_eq!(of(None).len(), 64);
    }
}
