//! Environments for users' Python: made from what a config file depends on, kept below the data folder, and used again
//! as long as nothing of it changes.
//!
//! Servers of several workspaces may share the folder. An environment is named after everything that decides what is in
//! it and the workspace it was made for ([`key`]), so that no one runs what another one's index has given; it is made
//! by programs that get no variable of the server but those about packages ([`variables`]), and cannot be written once
//! it is made.

mod key;
mod requirements;
mod spec;
mod tool;
mod uv_project;
mod variables;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use towpath_domain::{Secret, TenantId};

use self::key::Keys;
use self::spec::environment_error;
pub use self::spec::{EnvironmentError, EnvironmentSpec, UvSource, folders};
use self::tool::Tool;
use self::variables::Variables;

/// Says in a folder of environments which one its image was made with.
const OF_IMAGE: &str = "prepared";

/// The interpreter of an environment that has what is wanted: one that was made before, or a new one.
pub async fn prepare(
    wanted: &EnvironmentSpec,
    root: &Path,
    process: &BTreeMap<String, Secret>,
) -> Result<PathBuf, EnvironmentError> {
    let variables = Variables::of(wanted, process);
    let tool = Tool::find(variables.path(), wanted.version.as_deref())?;
    let keys = Keys::of(wanted, &tool, &variables)?;
    if let Some(python) = from_image(root, &keys) {
        return Ok(python);
    }
    let environment = root.join(format!("python-{}", keys.whole));
    if let Some(python) = complete(&environment) {
        return Ok(python);
    }
    // Processes that share a data folder start together, and one of them makes it.
    let _one = lock(environment.with_extension("lock")).await?;
    if let Some(python) = complete(&environment) {
        return Ok(python);
    }
    tracing::info!(folder = %environment.display(), tool = tool.name(), "creating a Python environment");
    let shown = environment.display().to_string();
    let unwritten = |error: io::Error| environment_error(format!("{shown}: {error}"));
    discard(&environment).map_err(unwritten)?;
    tool.make(&environment, wanted, &variables).await?;
    let python = environment.join("bin/python");
    tool.install(&environment, wanted, &variables).await?;
    let made = tokio::task::spawn_blocking(move || {
        fs::write(environment.join(".complete"), "")?;
        // A caller that runs from it later runs what was installed.
        set_modes(&environment, |mode| mode & !0o222)
    });
    made.await.map_err(io::Error::other).flatten().map_err(unwritten)?;
    Ok(python)
}

/// Says below `root` that `python` is for what is wanted, no matter which caller starts from there: for an image, which
/// has this environment alone, and is started with other variables than it was made with. One that was not made below
/// `root` is passed over.
pub fn record(
    wanted: &EnvironmentSpec,
    root: &Path,
    process: &BTreeMap<String, Secret>,
    python: &Path,
) -> Result<(), EnvironmentError> {
    let environment = python.parent().and_then(Path::parent);
    let Some(environment) = environment.filter(|environment| environment.parent() == Some(root)) else {
        return Ok(());
    };
    let variables = Variables::of(wanted, process);
    let tool = Tool::find(variables.path(), wanted.version.as_deref())?;
    let keys = Keys::of(wanted, &tool, &variables)?;
    let name = environment.file_name().unwrap_or_default().to_string_lossy();
    let file = root.join(OF_IMAGE);
    fs::write(&file, format!("{}\n{name}\n", keys.sources))
        .map_err(|error| environment_error(format!("{}: {error}", file.display())))
}

/// The interpreter that the image was made with, if it was made from what is wanted.
fn from_image(root: &Path, keys: &Keys) -> Option<PathBuf> {
    let said = fs::read_to_string(root.join(OF_IMAGE)).ok()?;
    let (sources, name) = said.trim_end().split_once('\n')?;
    let is_name = name.starts_with("python-") && !name.contains('/');
    complete(&root.join(name)).filter(|_| is_name && sources == keys.sources)
}

/// The interpreter of an environment that is whole.
fn complete(environment: &Path) -> Option<PathBuf> {
    let python = environment.join("bin/python");
    (environment.join(".complete").is_file() && python.exists()).then_some(python)
}

/// Removes what is left of an environment, also one that cannot be written.
fn discard(environment: &Path) -> io::Result<()> {
    if environment.symlink_metadata().is_err() {
        return Ok(());
    }
    set_modes(environment, |mode| mode | 0o200)?;
    fs::remove_dir_all(environment)
}

/// Changes the modes of a folder and of everything in it. Links are left alone: they lead to the interpreter.
fn set_modes(top: &Path, change: impl Fn(u32) -> u32) -> io::Result<()> {
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let about = path.symlink_metadata()?;
        if about.is_symlink() {
            continue;
        }
        let mode = about.permissions().mode();
        fs::set_permissions(&path, fs::Permissions::from_mode(change(mode)))?;
        if about.is_dir() {
            for entry in fs::read_dir(&path)? {
                left.push(entry?.path());
            }
        }
    }
    Ok(())
}

/// Waits until no other caller holds the lock; it is returned when the file is dropped.
async fn lock(path: PathBuf) -> Result<fs::File, EnvironmentError> {
    let shown = path.display().to_string();
    let locked = tokio::task::spawn_blocking(move || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        loop {
            let file = fs::File::create(&path)?;
            file.lock()?;
            // Who had it may have removed the file with the environment.
            let is_there = path.metadata().is_ok_and(|there| {
                file.metadata()
                    .is_ok_and(|held| (held.dev(), held.ino()) == (there.dev(), there.ino()))
            });
            if is_there {
                return Ok::<_, io::Error>(file);
            }
        }
    });
    match locked.await {
        Ok(Ok(file)) => Ok(file),
        Ok(Err(error)) => Err(environment_error(format!("{shown}: {error}"))),
        Err(error) => Err(environment_error(format!("{shown}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stands in for `uv`: notes what it was called with and what it was told, and makes an interpreter that is none.
    const UV: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "called: $*" >> "$here/calls"
env >> "$here/seen"
for last; do :; done
if [ "$1" = venv ]; then mkdir -p "$last/bin" && : > "$last/bin/python"; fi
"#;

    struct Machine {
        folder: tempfile::TempDir,
        process: BTreeMap<String, Secret>,
    }

    impl Machine {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let tools = folder.path().join("tools");
            fs::create_dir(&tools).unwrap();
            fs::create_dir(folder.path().join("project")).unwrap();
            fs::write(tools.join("uv"), UV).unwrap();
            fs::set_permissions(tools.join("uv"), fs::Permissions::from_mode(0o755)).unwrap();
            let path = format!("{}:/usr/bin:/bin", tools.display());
            let process = [
                ("PATH", path.as_str()),
                ("HOME", "/nonexistent"),
                ("PIP_INDEX_URL", "https://mirror.example/simple"),
                ("LANGSMITH_API_KEY", "canary"),
                ("TOWPATH_ENCRYPTION_KEY", "canary"),
                ("DATABASE_URI", "canary"),
                ("AWS_SECRET_ACCESS_KEY", "canary"),
            ];
            let process = process.map(|(name, value)| (name.to_owned(), Secret::new(value)));
            Self {
                folder,
                process: BTreeMap::from(process),
            }
        }

        fn wanted(&self, workspace: Option<TenantId>) -> EnvironmentSpec {
            EnvironmentSpec {
                folder: self.folder.path().join("project"),
                dependencies: vec![".".to_owned(), "six".to_owned()],
                version: None,
                pip_config: None,
                uv: None,
                workspace,
            }
        }

        async fn prepare(&self, workspace: Option<TenantId>) -> PathBuf {
            let root = self.folder.path().join("hosts");
            prepare(&self.wanted(workspace), &root, &self.process).await.unwrap()
        }

        fn said(&self, file: &str) -> String {
            fs::read_to_string(self.folder.path().join("tools").join(file)).unwrap()
        }
    }

    #[tokio::test]
    async fn what_installs_packages_is_told_of_packages_alone() {
        let machine = Machine::new();
        machine.prepare(None).await;
        let seen = machine.said("seen");
        assert!(seen.contains("PIP_INDEX_URL=https://mirror.example/simple"), "{seen}");
        assert!(!seen.contains("canary"), "{seen}");
    }

    #[tokio::test]
    async fn an_environment_is_of_one_workspace_and_cannot_be_written() {
        let machine = Machine::new();
        let (one, other) = (TenantId::new(), TenantId::new());
        let python = machine.prepare(Some(one)).await;
        let calls = machine.said("calls");
        assert_eq!(machine.prepare(Some(one)).await, python);
        assert_eq!(machine.said("calls"), calls, "it was made again");
        assert_ne!(machine.prepare(Some(other)).await, python);

        let environment = python.parent().unwrap().parent().unwrap();
        for path in [environment, environment.join("bin").as_path(), python.as_path()] {
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o222, 0, "{}: {mode:o}", path.display());
        }
        // One that lost its interpreter is made again.
        set_modes(environment, |mode| mode | 0o200).unwrap();
        fs::remove_file(&python).unwrap();
        set_modes(environment, |mode| mode & !0o222).unwrap();
        assert_eq!(machine.prepare(Some(one)).await, python);
        assert!(python.exists());
    }

    #[tokio::test]
    async fn an_image_is_started_with_the_environment_it_was_made_with() {
        let mut machine = Machine::new();
        let root = machine.folder.path().join("hosts");
        let python = machine.prepare(None).await;
        record(&machine.wanted(None), &root, &machine.process, &python).unwrap();
        machine
            .process
            .insert("PIP_INDEX_URL".to_owned(), Secret::new("https://other.example"));
        assert_eq!(machine.prepare(Some(TenantId::new())).await, python);
        // For other sources it is not.
        fs::write(machine.folder.path().join("project/requirements.txt"), "httpx").unwrap();
        assert_ne!(machine.prepare(Some(TenantId::new())).await, python);
    }

    #[tokio::test]
    async fn a_project_of_uv_is_installed_from_its_lock() {
        let machine = Machine::new();
        let project = machine.folder.path().join("project");
        let app = project.join("packages/app");
        let root = machine.folder.path().join("hosts");
        let wanted = |package: Option<&str>| EnvironmentSpec {
            folder: app.clone(),
            dependencies: Vec::new(),
            uv: Some(UvSource {
                root: "../..".to_owned(),
                package: package.map(str::to_owned),
            }),
            ..machine.wanted(None)
        };
        let prepared = async |package: Option<&str>| prepare(&wanted(package), &root, &machine.process).await;
        let last_sync = || {
            let calls = machine.said("calls");
            let line = calls.lines().rfind(|line| line.starts_with("called: sync")).unwrap();
            line.to_owned()
        };
        fs::create_dir_all(&app).unwrap();
        let missing = prepared(None).await.unwrap_err().to_string();
        assert!(
            missing.starts_with("source.root: there is no pyproject.toml"),
            "{missing}"
        );
        fs::write(project.join("pyproject.toml"), "[tool.uv.workspace]\n").unwrap();
        let missing = prepared(None).await.unwrap_err().to_string();
        assert!(missing.starts_with("source.root: there is no uv.lock"), "{missing}");
        fs::write(project.join("uv.lock"), "version = 1\n").unwrap();

        let all = prepared(None).await.unwrap();
        let call = last_sync();
        assert!(call.contains("--frozen") && call.ends_with("--all-packages"), "{call}");
        let environment = all.parent().unwrap().parent().unwrap();
        let told = format!("UV_PROJECT_ENVIRONMENT={}\n", environment.display());
        assert!(machine.said("seen").contains(&told));

        fs::write(app.join("pyproject.toml"), "[project]\nname = \"app\"\n").unwrap();
        let member = prepared(None).await.unwrap();
        assert_ne!(member, all);
        let folder = app.canonicalize().unwrap();
        let call = last_sync();
        assert!(call.ends_with(&format!("--project {}", folder.display())), "{call}");

        let named = prepared(Some("lib")).await.unwrap();
        assert!(
            named != member && last_sync().ends_with("--package lib"),
            "{}",
            last_sync()
        );
        fs::write(project.join("uv.lock"), "version = 1\nrevision = 2\n").unwrap();
        assert_ne!(prepared(Some("lib")).await.unwrap(), named);

        let pip = Tool::Venv("python3".into());
        let variables = Variables::of(&wanted(None), &machine.process);
        let refused = pip.install(&root, &wanted(None), &variables).await.unwrap_err();
        assert!(refused.to_string().contains("uv is not installed"), "{refused}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let machine = Machine::new();
        let wanted = EnvironmentSpec {
            dependencies: vec!["./gone".to_owned()],
            ..machine.wanted(None)
        };
        let missing = folders(&wanted).unwrap_err();
        assert!(missing.to_string().contains("./gone"), "{missing}");
        let nothing = Tool::find(machine.folder.path().to_str().unwrap(), None).unwrap_err();
        assert!(nothing.to_string().contains("agent.python"), "{nothing}");
    }
}
