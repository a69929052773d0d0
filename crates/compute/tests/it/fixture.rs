//! A root, and repositories to fetch from.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use towpath_compute::git::{Repository, Settings};
use towpath_compute::tree::Limits;
use towpath_compute::{Log, Result, Root};
use towpath_domain::git::{CommitSha, RepoRef, RepoUrl, Transport};
use towpath_outbound::{Guard, Policy};

#[expect(
    clippy::disallowed_methods,
    reason = "programs are looked for where the tests' own are"
)]
pub fn path() -> String {
    std::env::var("PATH").unwrap()
}

pub struct TestRoot {
    pub folder: TempDir,
    pub root: Root,
    pub settings: Settings,
}

impl TestRoot {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(&folder.path().join("root")).unwrap();
        let settings = Settings {
            transports: vec![Transport::File],
            guard: Guard::new(Policy::default()),
            path: path(),
            limit: Duration::from_secs(60),
            tree: Limits::default(),
        };
        Self { folder, root, settings }
    }

    /// A repository with one file on its branch `main`.
    pub fn repository(&self) -> TestRepository {
        let path = self.folder.path().join("origin");
        std::fs::create_dir(&path).unwrap();
        let origin = TestRepository { path };
        origin.git(&["init", "--quiet", "--initial-branch=main"]);
        origin.commit("langgraph.json", r#"{"graphs": {"agent": {"native": "echo"}}}"#);
        origin
    }

    pub async fn resolve(&self, url: &str, name: &str) -> Result<CommitSha> {
        let (url, name) = (RepoUrl::parse(url).unwrap(), RepoRef::parse(name).unwrap());
        let repository = Repository::new(&self.settings, &self.root, &url, None)?;
        repository.resolve(&name, &CancellationToken::new()).await
    }

    /// Fetches a branch or tag into a new folder.
    pub async fn fetch(&self, origin: &TestRepository, name: &str, log: &Log) -> Result<PathBuf> {
        let sha = self.resolve(&origin.url(), name).await?;
        self.fetch_commit(origin, name, &sha, log).await
    }

    pub async fn fetch_commit(
        &self,
        origin: &TestRepository,
        name: &str,
        sha: &CommitSha,
        log: &Log,
    ) -> Result<PathBuf> {
        let (url, name) = (RepoUrl::parse(&origin.url()).unwrap(), RepoRef::parse(name).unwrap());
        let repository = Repository::new(&self.settings, &self.root, &url, None)?;
        let to = self.folder.path().join("fetched");
        repository
            .fetch(&name, sha, &to, log, &CancellationToken::new())
            .await?;
        Ok(to)
    }

    /// What is in the scratch folder: nothing, once a call is over.
    pub fn scratch(&self) -> usize {
        std::fs::read_dir(self.root.path().join("scratch")).unwrap().count()
    }
}

pub struct TestRepository {
    pub path: PathBuf,
}

impl TestRepository {
    pub fn url(&self) -> String {
        format!("file://{}", self.path.display())
    }

    pub fn git(&self, args: &[&str]) -> String {
        let done = Command::new("git")
            .current_dir(&self.path)
            .args([
                "-c",
                "user.name=t",
                "-c",
                "user.email=t@example.org",
                "-c",
                "commit.gpgSign=false",
            ])
            .args(args)
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    pub fn commit(&self, file: &str, text: &str) -> String {
        write(&self.path.join(file), text);
        self.commit_all()
    }

    pub fn commit_all(&self) -> String {
        self.git(&["add", "--all", "--force", "."]);
        self.git(&["commit", "--quiet", "--message", "more"]);
        self.git(&["rev-parse", "HEAD"])
    }
}

pub fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A log that keeps its lines.
pub fn lines() -> (Log, Arc<Mutex<Vec<String>>>) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&kept);
    (Log::new([], move |line| to.lock().unwrap().push(line.message)), kept)
}
