//! A PostgreSQL of a test's own: it may be stopped and started again without hurting anyone.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::free_address;

/// The library of the extension that counts what statements read.
const STATEMENTS: &str = "pg_stat_statements";

/// A private server on loopback, with its data in a folder of its own. Dropping it stops it at once.
#[derive(Debug)]
pub struct PostgresServer {
    programs: PathBuf,
    folder: tempfile::TempDir,
    address: SocketAddr,
    /// Options of its start beside the usual ones.
    options: String,
}

impl PostgresServer {
    /// Starts one, or `None` where PostgreSQL is not installed.
    ///
    /// # Panics
    /// If it is installed and does not start.
    pub async fn start() -> Option<Self> {
        Self::launch(installed()?, String::new()).await
    }

    /// As [`PostgresServer::start`], with the library of `pg_stat_statements` loaded where it is installed.
    ///
    /// # Panics
    /// If it is installed and does not start.
    pub async fn counting_statements() -> Option<Self> {
        let programs = installed()?;
        let options = if has_library(&programs, STATEMENTS) {
            format!(" -c shared_preload_libraries={STATEMENTS}")
        } else {
            String::new()
        };
        Self::launch(programs, options).await
    }

    async fn launch(programs: PathBuf, options: String) -> Option<Self> {
        // Not in the world's folder: the server's account must be able to walk there.
        let folder = tempfile::Builder::new()
            .prefix("towpath-postgres.")
            .tempdir()
            .expect("a temporary folder");
        let server = Self {
            programs,
            folder,
            address: free_address(),
            options,
        };
        if is_root() {
            let owned = Command::new("chown").arg("postgres").arg(server.folder.path()).status();
            assert!(owned.await.expect("chown is there").success());
        }
        let arguments = [
            "-U",
            "postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ];
        server.run("initdb", &arguments).await;
        server.begin().await;
        Some(server)
    }

    /// Address of its maintenance database, as `TOWPATH_TEST_POSTGRES` has it.
    #[must_use]
    pub fn admin_uri(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has logged so far: statements that it refused, each with its error.
    ///
    /// # Panics
    /// If it has no log.
    #[must_use]
    pub fn log_text(&self) -> String {
        let log = std::fs::read(self.folder.path().join("log"));
        String::from_utf8_lossy(&log.expect("a server that was started has a log")).into_owned()
    }

    /// Stops it as an operator does who restarts it: sessions are ended, what was committed is kept.
    ///
    /// # Panics
    /// If it does not stop.
    pub async fn stop(&self) {
        self.run("pg_ctl", &["-m", "fast", "-w", "stop"]).await;
    }

    /// Stops it as a crash does: it recovers when it begins again.
    ///
    /// # Panics
    /// If it does not stop.
    pub async fn crash(&self) {
        self.run("pg_ctl", &["-m", "immediate", "-w", "stop"]).await;
    }

    /// Starts it again on the same address.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn begin(&self) {
        let log = self.folder.path().join("log");
        let options = format!(
            "-p {} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=200{}",
            self.address.port(),
            self.options
        );
        let log = log.display().to_string();
        self.run("pg_ctl", &["-w", "-t", "60", "-l", &log, "-o", &options, "start"])
            .await;
    }

    async fn run(&self, program: &str, arguments: &[&str]) {
        let data = self.folder.path().join("data");
        let program = self.programs.join(program);
        let mut command = if is_root() {
            // The server refuses to run as root.
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(&program);
            command
        } else {
            Command::new(&program)
        };
        let done = command
            .arg("-D")
            .arg(&data)
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await
            .expect("the program is installed");
        assert!(done.success(), "{} {arguments:?} ended with {done}", program.display());
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // Its first process ends all others at once.
        let pid = std::fs::read_to_string(self.folder.path().join("data/postmaster.pid"));
        let pid = pid.ok().and_then(|text| text.lines().next()?.parse().ok());
        if let Some(pid) = pid {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGQUIT);
        }
    }
}

/// The folder of its programs: Debian keeps one per version.
fn installed() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions
        .map(|version| version.path().join("bin"))
        .filter(|programs| programs.join("initdb").is_file())
        .collect();
    found.sort();
    let elsewhere = || {
        Path::new("/usr/local/bin/initdb")
            .is_file()
            .then(|| PathBuf::from("/usr/local/bin"))
    };
    found.pop().or_else(elsewhere)
}

/// Whether the server can load a library of this name: Debian has a folder of them beside that of the programs.
fn has_library(programs: &Path, name: &str) -> bool {
    ["../lib", "../lib/postgresql"]
        .iter()
        .any(|folder| programs.join(folder).join(format!("{name}.so")).is_file())
}

/// Whether this is root, as the owner of our own process tells.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|of_us| of_us.uid() == 0)
}
