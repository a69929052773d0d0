//! Environments for users' Python: made from what a config file depends on, kept below the data folder, and used again
//! as long as nothing of it changes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::Command;
use towpath_domain::Secret;
use xxhash_rust::xxh3::Xxh3;

/// What graph hosts need whatever a project says.
const ALWAYS: [&str; 2] = ["langgraph", "langgraph-sdk"];
/// Files of a folder that say what it depends on.
const TELLING: [&str; 5] = ["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "uv.lock"];
/// Making an environment takes longer only where something hangs.
const PATIENCE: Duration = Duration::from_secs(1200);

/// What an environment is made of.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The folder of the config file.
    pub folder: PathBuf,
    /// `dependencies`: folders (`.`, `./pkg`) and packages.
    pub dependencies: Vec<String>,
    /// `python_version`, such as `3.12`.
    pub version: Option<String>,
    /// `pip_config_file`, relative to the folder.
    pub pip_config: Option<String>,
}

/// Why there is no environment. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EnvironmentError(String);

fn failed(text: impl Into<String>) -> EnvironmentError {
    EnvironmentError(text.into())
}

/// The folders among the dependencies.
///
/// # Errors
/// One that is not there.
pub fn folders(wanted: &Wanted) -> Result<Vec<PathBuf>, EnvironmentError> {
    let mut folders = Vec::new();
    for dependency in wanted.dependencies.iter().filter(|dependency| is_folder(dependency)) {
        let folder = wanted.folder.join(dependency);
        if !folder.is_dir() {
            return Err(failed(format!(
                "dependencies: there is no folder {dependency:?} beside the config file"
            )));
        }
        folders.push(folder);
    }
    Ok(folders)
}

fn is_folder(dependency: &str) -> bool {
    dependency.starts_with('.') || dependency.starts_with('/')
}

/// The interpreter of an environment that has what is wanted: one that was made before, or a new one.
///
/// # Errors
/// No interpreter is found, or an installation fails.
pub async fn prepare(
    wanted: &Wanted,
    root: &Path,
    process: &BTreeMap<String, Secret>,
) -> Result<PathBuf, EnvironmentError> {
    let path = process
        .get("PATH")
        .map_or("/usr/local/bin:/usr/bin:/bin", |path| path.reveal());
    let tool = Tool::find(path, wanted.version.as_deref())?;
    let environment = root.join(format!("python-{:016x}", fingerprint(wanted, &tool)?));
    let python = environment.join("bin/python");
    let complete = environment.join(".complete");
    let is_there = || complete.is_file() && python.exists();
    if is_there() {
        return Ok(python);
    }
    // Processes that share a data folder start together, and one of them makes it.
    let _one = lock(environment.with_extension("lock")).await?;
    if is_there() {
        return Ok(python);
    }
    tracing::info!(folder = %environment.display(), tool = tool.name(), "making a Python environment");
    let _ = fs::remove_dir_all(&environment);
    tool.make(&environment, wanted, process).await?;
    tool.install(&python, wanted, process).await?;
    fs::write(&complete, "").map_err(|error| failed(format!("{}: {error}", complete.display())))?;
    Ok(python)
}

/// Waits until nobody else holds the lock; it is given back when the file is dropped.
async fn lock(path: PathBuf) -> Result<fs::File, EnvironmentError> {
    let shown = path.display().to_string();
    let locked = tokio::task::spawn_blocking(move || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = fs::File::create(path)?;
        file.lock()?;
        Ok::<_, std::io::Error>(file)
    });
    match locked.await {
        Ok(Ok(file)) => Ok(file),
        Ok(Err(error)) => Err(failed(format!("{shown}: {error}"))),
        Err(error) => Err(failed(format!("{shown}: {error}"))),
    }
}

/// What makes environments.
#[derive(Debug)]
enum Tool {
    /// `uv`, which also finds or fetches the interpreter.
    Uv(PathBuf),
    /// `python -m venv` and pip.
    Venv(PathBuf),
}

impl Tool {
    fn find(path: &str, version: Option<&str>) -> Result<Self, EnvironmentError> {
        let on_path = |name: &str| {
            std::env::split_paths(path)
                .map(|folder| folder.join(name))
                .find(|file| file.is_file())
        };
        if let Some(uv) = on_path("uv") {
            return Ok(Self::Uv(uv));
        }
        let python = match version {
            Some(version) => on_path(&format!("python{version}")),
            None => on_path("python3").or_else(|| on_path("python")),
        };
        python.map(Self::Venv).ok_or_else(|| {
            let which = version.map_or_else(|| "python3".to_owned(), |version| format!("python{version}"));
            failed(format!(
                "Python graphs need an interpreter: install uv (https://docs.astral.sh/uv) or {which}, or name an \
                 interpreter that has the project's packages as agent.python"
            ))
        })
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Uv(_) => "uv",
            Self::Venv(_) => "venv",
        }
    }

    fn program(&self) -> &Path {
        match self {
            Self::Uv(program) | Self::Venv(program) => program,
        }
    }

    async fn make(
        &self,
        environment: &Path,
        wanted: &Wanted,
        process: &BTreeMap<String, Secret>,
    ) -> Result<(), EnvironmentError> {
        let mut arguments: Vec<OsString> = match self {
            Self::Uv(_) => vec!["venv".into(), "--quiet".into()],
            Self::Venv(_) => vec!["-m".into(), "venv".into()],
        };
        if let (Self::Uv(_), Some(version)) = (self, &wanted.version) {
            arguments.extend(["--python".into(), version.into()]);
        }
        arguments.push(environment.into());
        let made = perform(self.program(), &arguments, wanted, process).await;
        made.map_err(|why| match self {
            Self::Venv(_) => failed(format!(
                "{why}\nthe interpreter cannot make an environment: install its venv package (python3-venv), or uv"
            )),
            Self::Uv(_) => why,
        })
    }

    async fn install(
        &self,
        python: &Path,
        wanted: &Wanted,
        process: &BTreeMap<String, Secret>,
    ) -> Result<(), EnvironmentError> {
        let mut arguments: Vec<OsString> = match self {
            Self::Uv(_) => vec!["pip".into(), "install".into(), "--python".into(), python.into()],
            Self::Venv(_) => ["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
                .map(OsString::from)
                .to_vec(),
        };
        arguments.extend(requirements(wanted)?);
        let program = match self {
            Self::Uv(uv) => uv.as_path(),
            Self::Venv(_) => python,
        };
        perform(program, &arguments, wanted, process).await
    }
}

/// What pip and uv are told to install.
fn requirements(wanted: &Wanted) -> Result<Vec<OsString>, EnvironmentError> {
    let mut arguments: Vec<OsString> = ALWAYS.map(OsString::from).to_vec();
    for folder in folders(wanted)? {
        let has = |name: &str| folder.join(name).is_file();
        if has("pyproject.toml") || has("setup.py") {
            // Its code is read where it stands, so that changes are seen.
            arguments.extend(["-e".into(), folder.clone().into()]);
        } else if has("requirements.txt") {
            arguments.extend(["-r".into(), folder.join("requirements.txt").into()]);
        }
    }
    let packages = wanted.dependencies.iter().filter(|dependency| !is_folder(dependency));
    arguments.extend(packages.map(OsString::from));
    Ok(arguments)
}

/// Changes when an environment has to be made anew.
fn fingerprint(wanted: &Wanted, tool: &Tool) -> Result<u64, EnvironmentError> {
    let mut hash = Xxh3::new();
    let mut add = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    add(tool.program().as_os_str().as_encoded_bytes());
    add(wanted.version.as_deref().unwrap_or_default().as_bytes());
    for package in ALWAYS {
        add(package.as_bytes());
    }
    for dependency in &wanted.dependencies {
        add(dependency.as_bytes());
    }
    for folder in folders(wanted)? {
        if stays_where_it_is(&folder) {
            add(folder.as_os_str().as_encoded_bytes());
        }
        for name in TELLING {
            add(&fs::read(folder.join(name)).unwrap_or_default());
        }
    }
    Ok(hash.digest())
}

/// Whether an environment made from this folder goes on reading it, so that the same in another place is another one. A
/// list of packages alone is the same everywhere, so the next revision of a deployment need not install them again.
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

/// Runs a tool to its end; what it says goes to the log.
async fn perform(
    program: &Path,
    arguments: &[OsString],
    wanted: &Wanted,
    process: &BTreeMap<String, Secret>,
) -> Result<(), EnvironmentError> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(process.iter().map(|(name, value)| (name, value.reveal())))
        .current_dir(&wanted.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    if let Some(file) = &wanted.pip_config {
        command.env("PIP_CONFIG_FILE", wanted.folder.join(file));
    }
    let shown = program.display();
    let mut child = command
        .spawn()
        .map_err(|error| failed(format!("cannot start {shown}: {error}")))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let (out, err, status) = tokio::join!(listen(out), listen(err), child.wait());
        (out + &err, status)
    };
    let (said, status) = tokio::time::timeout(PATIENCE, work)
        .await
        .map_err(|_| failed(format!("{shown} did not end within {} s", PATIENCE.as_secs())))?;
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(format!(
            "{} ended with {}:\n{}",
            shown,
            told(status),
            tail(&said)
        ))),
        Err(error) => Err(failed(format!("{shown}: {error}"))),
    }
}

fn told(status: ExitStatus) -> String {
    status
        .code()
        .map_or_else(|| status.to_string(), |code| format!("status {code}"))
}

async fn listen(from: Option<impl AsyncRead + Unpin>) -> String {
    let Some(from) = from else { return String::new() };
    let mut said = String::new();
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::debug!("{line}");
        said.push_str(&line);
        said.push('\n');
    }
    said
}

/// The last lines, where the reason is.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(folder: &Path, dependencies: &[&str]) -> Wanted {
        Wanted {
            folder: folder.to_owned(),
            dependencies: dependencies.iter().map(|&dependency| dependency.to_owned()).collect(),
            version: None,
            pip_config: None,
        }
    }

    #[test]
    fn folders_and_packages_become_requirements() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("requirements.txt"), "httpx\n").unwrap();
        fs::create_dir(root.path().join("pkg")).unwrap();
        fs::write(root.path().join("pkg/pyproject.toml"), "").unwrap();
        fs::create_dir(root.path().join("bare")).unwrap();
        let wanted = wanted(root.path(), &[".", "./pkg", "./bare", "langchain_openai"]);
        let told: Vec<String> = requirements(&wanted)
            .unwrap()
            .into_iter()
            .map(|argument| argument.into_string().unwrap())
            .collect();
        let at = |name: &str| root.path().join(name).display().to_string();
        let expected = [
            "langgraph",
            "langgraph-sdk",
            "-r",
            &at("./requirements.txt"),
            "-e",
            &at("./pkg"),
            "langchain_openai",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_list_of_packages_is_the_same_in_another_folder() {
        let tool = Tool::Venv("python3".into());
        let roots = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let prints = |file: &str, text: &str| {
            roots.each_ref().map(|root| {
                fs::write(root.path().join(file), text).unwrap();
                fingerprint(&wanted(root.path(), &["."]), &tool).unwrap()
            })
        };
        let [one, other] = prints("requirements.txt", "httpx\nlangchain-core>=0.3\n");
        assert_eq!(one, other);
        for (file, text) in [("requirements.txt", "httpx\n-e ./here\n"), ("pyproject.toml", "")] {
            let [one, other] = prints(file, text);
            assert_ne!(one, other, "{file}: {text}");
        }
    }

    #[test]
    fn an_environment_is_kept_until_something_changes() {
        let root = tempfile::tempdir().unwrap();
        let wanted = wanted(root.path(), &["."]);
        let tool = Tool::Venv("/usr/bin/python3".into());
        let before = fingerprint(&wanted, &tool).unwrap();
        fs::write(root.path().join("agent.py"), "code").unwrap();
        assert_eq!(fingerprint(&wanted, &tool).unwrap(), before);
        fs::write(root.path().join("requirements.txt"), "httpx").unwrap();
        assert_ne!(fingerprint(&wanted, &tool).unwrap(), before);
    }

    #[test]
    fn what_is_missing_is_named() {
        let root = tempfile::tempdir().unwrap();
        let missing = folders(&wanted(root.path(), &["./gone"])).unwrap_err();
        assert!(missing.to_string().contains("./gone"), "{missing}");
        let nothing = Tool::find(root.path().to_str().unwrap(), None).unwrap_err();
        assert!(nothing.to_string().contains("agent.python"), "{nothing}");
    }
}
