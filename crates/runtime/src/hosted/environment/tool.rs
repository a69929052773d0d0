//! The programs that make environments.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::Command;

use super::requirements::{self, InstallPlan};
use super::spec::{EnvironmentError, EnvironmentSpec, environment_error};
use super::uv_project::{Selection, UvProject, uv_project};
use super::variables::Variables;

/// Creating an environment only takes longer if something hangs.
const PATIENCE: Duration = Duration::from_secs(1200);

/// What makes environments.
#[derive(Debug)]
pub(super) enum Tool {
    /// `uv`, which also finds or fetches the interpreter.
    Uv(PathBuf),
    /// `python -m venv` and pip.
    Venv(PathBuf),
}

impl Tool {
    pub(super) fn find(path: &str, version: Option<&str>) -> Result<Self, EnvironmentError> {
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
            environment_error(format!(
                "Python graphs need an interpreter: install uv (https://docs.astral.sh/uv) or {which}, or set \
                 agent.python to an interpreter that has the project's packages"
            ))
        })
    }

    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Uv(_) => "uv",
            Self::Venv(_) => "venv",
        }
    }

    pub(super) fn program(&self) -> &Path {
        match self {
            Self::Uv(program) | Self::Venv(program) => program,
        }
    }

    pub(super) async fn make(
        &self,
        environment: &Path,
        wanted: &EnvironmentSpec,
        variables: &Variables,
    ) -> Result<(), EnvironmentError> {
        let mut arguments: Vec<OsString> = match self {
            Self::Uv(_) => vec!["venv".into(), "--quiet".into()],
            Self::Venv(_) => vec!["-m".into(), "venv".into()],
        };
        if let (Self::Uv(_), Some(version)) = (self, &wanted.version) {
            arguments.extend(["--python".into(), version.into()]);
        }
        arguments.push(environment.into());
        let made = perform(self.program(), &arguments, wanted, variables).await;
        made.map_err(|why| match self {
            Self::Venv(_) => environment_error(format!(
                "{why}\nthe interpreter cannot create an environment: install its venv package (python3-venv), or uv"
            )),
            Self::Uv(_) => why,
        })
    }

    /// Installs packages into an environment: locked ones first, so that the rest builds on them.
    pub(super) async fn install(
        &self,
        environment: &Path,
        wanted: &EnvironmentSpec,
        variables: &Variables,
    ) -> Result<(), EnvironmentError> {
        let python = environment.join("bin/python");
        if let Some(project) = uv_project(wanted)? {
            self.sync(&python, environment, &project, wanted, variables).await?;
        }
        let InstallPlan { hashed, locked, rest } = requirements::of(wanted, self)?;
        for list in hashed {
            let arguments = vec!["--require-hashes".into(), "-r".into(), list.into()];
            self.pip(&python, arguments, wanted, variables).await?;
        }
        for folder in locked {
            let list = environment.join("uv-lock.txt");
            self.export(&python, &folder, &list, wanted, variables).await?;
            // Hashes that stand in it are checked.
            self.pip(&python, vec!["-r".into(), list.into()], wanted, variables)
                .await?;
            let itself = vec!["--no-deps".into(), "-e".into(), folder.into()];
            self.pip(&python, itself, wanted, variables).await?;
        }
        self.pip(&python, rest, wanted, variables).await
    }

    /// Installs a project with exactly the packages of its `uv.lock`, and its own code in place.
    async fn sync(
        &self,
        python: &Path,
        environment: &Path,
        project: &UvProject,
        wanted: &EnvironmentSpec,
        variables: &Variables,
    ) -> Result<(), EnvironmentError> {
        if let Self::Venv(_) = self {
            return Err(environment_error(
                "source.kind: uv is not installed: install it (https://docs.astral.sh/uv), or set agent.python to an \
                 interpreter that has the project's packages",
            ));
        }
        let mut arguments: Vec<OsString> = ["sync", "--quiet", "--frozen", "--no-dev", "--compile-bytecode"]
            .map(OsString::from)
            .to_vec();
        let folder = match &project.selection {
            Selection::Project(folder) => folder,
            Selection::Package(_) | Selection::All => &project.root,
        };
        arguments.extend(["--python".into(), python.into(), "--project".into(), folder.into()]);
        match &project.selection {
            Selection::Package(name) => arguments.extend(["--package".into(), name.into()]),
            Selection::All => arguments.push("--all-packages".into()),
            Selection::Project(_) => {}
        }
        let variables = variables.with("UV_PROJECT_ENVIRONMENT", &environment.display().to_string());
        perform(self.program(), &arguments, wanted, &variables).await
    }

    async fn pip(
        &self,
        python: &Path,
        what: Vec<OsString>,
        wanted: &EnvironmentSpec,
        variables: &Variables,
    ) -> Result<(), EnvironmentError> {
        let mut arguments: Vec<OsString> = match self {
            // Nothing can be compiled later: it cannot be written then.
            Self::Uv(_) => vec![
                "pip".into(),
                "install".into(),
                "--compile-bytecode".into(),
                "--python".into(),
                python.into(),
            ],
            Self::Venv(_) => ["-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
                .map(OsString::from)
                .to_vec(),
        };
        arguments.extend(what);
        let program = match self {
            Self::Uv(uv) => uv.as_path(),
            Self::Venv(_) => python,
        };
        perform(program, &arguments, wanted, variables).await
    }

    /// Exports a project's `uv.lock` as a requirements file with hashes.
    async fn export(
        &self,
        python: &Path,
        folder: &Path,
        list: &Path,
        wanted: &EnvironmentSpec,
        variables: &Variables,
    ) -> Result<(), EnvironmentError> {
        let mut arguments: Vec<OsString> = ["export", "--quiet", "--frozen", "--no-dev", "--no-emit-project"]
            .map(OsString::from)
            .to_vec();
        for (name, value) in [("--python", python), ("--project", folder), ("--output-file", list)] {
            arguments.extend([name.into(), value.into()]);
        }
        perform(self.program(), &arguments, wanted, variables).await
    }
}

/// Runs a tool to its end; what it says goes to the log.
async fn perform(
    program: &Path,
    arguments: &[OsString],
    wanted: &EnvironmentSpec,
    variables: &Variables,
) -> Result<(), EnvironmentError> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(variables.all())
        .current_dir(&wanted.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let shown = program.display();
    let mut child = command
        .spawn()
        .map_err(|error| environment_error(format!("cannot start {shown}: {error}")))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let (out, err, status) = tokio::join!(listen(out), listen(err), child.wait());
        (out + &err, status)
    };
    let (said, status) = tokio::time::timeout(PATIENCE, work)
        .await
        .map_err(|_| environment_error(format!("{shown} did not finish within {} s", PATIENCE.as_secs())))?;
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(environment_error(format!(
            "{} exited with {}:\n{}",
            shown,
            told(status),
            tail(&said)
        ))),
        Err(error) => Err(environment_error(format!("{shown}: {error}"))),
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
