//! Environments for the code of deployments: made with a build, and removed with the last artifact that needs them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use towpath_compute::artifact::{Artifact, BuiltArtifact, Origin, Plan};
use towpath_compute::process::{self, Processes};
use towpath_compute::tree::Limits;
use towpath_compute::{Backend, Error, Isolation, Launch, Log, build};
use towpath_domain::git::CommitSha;
use towpath_domain::{DeploymentId, RevisionId};

use crate::fixture::{TestRoot, lines, path, write};

/// Stands in for `towpath`: makes an environment that cannot be written, named after the file `name` beside the graphs.
const TOWPATH: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in --environment-file) to=$2 ;; --config) config=$2 ;; esac
  shift
done
echo "installing six"
environment="$TOWPATH_AGENT_HOSTS_DIR/python-$(cat "$(dirname "$config")/name")"
if [ ! -e "$environment" ]; then
  mkdir -p "$environment/bin"
  echo > "$environment.lock"
  echo > "$environment/bin/python"
  echo > "$environment/.complete"
  chmod -R a-w "$environment"
fi
printf %s "$environment" > "$to"
"#;
const CODE: &str = r#"{"graphs": {"agent": "./agent.py:graph"}}"#;

struct EnvironmentFixture {
    home: TestRoot,
    backend: Backend,
    hosts: PathBuf,
}

impl EnvironmentFixture {
    fn new(program: &str) -> Self {
        let home = TestRoot::new();
        let towpath = home.folder.path().join("towpath");
        write(&towpath, program);
        fs::set_permissions(&towpath, fs::Permissions::from_mode(0o755)).unwrap();
        let hosts = home.folder.path().join("hosts");
        let settings = process::Settings {
            program: towpath,
            path: path(),
            variables: BTreeMap::new(),
            fixed: Vec::new(),
            health: Duration::from_secs(20),
            grace: Duration::from_secs(1),
            isolation: Isolation::default(),
            hosts: hosts.clone(),
        };
        let backend = Backend::Process(Processes::new(settings, home.root.clone()));
        Self { home, backend, hosts }
    }

    /// An artifact whose code needs the environment of this name.
    fn artifact(&self, commit: char, config: &str, environment: &str) -> (Artifact, String) {
        let plan = Plan {
            origin: Origin::Git {
                url: "https://example.org/x".into(),
                name: "main".into(),
                sha: CommitSha::parse(&commit.to_string().repeat(40)).unwrap(),
            },
            config: "langgraph.json".into(),
            install: None,
            build: None,
        };
        let key = plan.key();
        let artifact = Artifact::of(&self.home.root, &key).unwrap();
        artifact.begin().unwrap();
        write(&artifact.source().join("langgraph.json"), config);
        write(&artifact.source().join("name"), environment);
        let built = BuiltArtifact {
            plan,
            variables: Vec::new(),
            image: None,
        };
        artifact.record(&built).unwrap();
        (artifact, key)
    }

    async fn prepare(&self, key: &str, limit: Duration, log: &Log) -> Result<bool, Error> {
        let settings = build::Settings {
            path: path(),
            limit,
            tree: Limits::default(),
            variables: BTreeMap::new(),
            launcher: PathBuf::new(),
            isolation: Isolation::default(),
        };
        let launch = Launch {
            deployment: DeploymentId::new(),
            revision: RevisionId::new(),
            artifact: key.to_owned(),
            variables: Vec::new(),
            cpus: None,
            memory_mb: None,
        };
        let never = CancellationToken::new();
        self.backend.prepare(&settings, &launch, log, &never).await
    }

    async fn prune(&self, hours: u64) -> usize {
        self.backend.prune_environments(hours).await.unwrap()
    }

    fn has(&self, name: &str) -> bool {
        self.hosts.join(format!("python-{name}/bin/python")).is_file()
    }
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_environment_goes_with_the_last_artifact_that_needs_it() {
    let place = EnvironmentFixture::new(TOWPATH);
    let (first, one) = place.artifact('a', CODE, "shared");
    let (second, other) = place.artifact('b', CODE, "shared");
    let (_third, third) = place.artifact('c', CODE, "own");
    let (log, said) = lines();
    for key in [&one, &other, &third] {
        assert!(place.prepare(key, LONG, &log).await.unwrap());
    }
    assert!(
        said.lock().unwrap().contains(&"installing six".to_owned()),
        "it is not in the log of the build"
    );
    assert_eq!(place.home.scratch(), 0);
    // Of an agent server that is not a deployment's.
    write(&place.hosts.join("python-foreign/bin/python"), "");
    write(&place.hosts.join("python-foreign/.complete"), "");

    assert_eq!(place.prune(0).await, 0);
    first.remove().unwrap();
    assert_eq!(place.prune(0).await, 0, "the second needs it");
    second.remove().unwrap();
    assert_eq!(place.prune(1).await, 0, "it was made a moment ago");
    assert_eq!(place.prune(0).await, 1);
    assert!(!place.has("shared") && place.has("own") && place.has("foreign"));
    let left = [
        "python-foreign",
        "python-own",
        "python-own.deployment",
        "python-own.lock",
    ];
    assert_eq!(files(&place.hosts), left);
}

#[tokio::test]
async fn an_environment_that_is_being_made_stays() {
    let place = EnvironmentFixture::new(TOWPATH);
    let (artifact, key) = place.artifact('a', CODE, "one");
    place.prepare(&key, LONG, &Log::none()).await.unwrap();
    artifact.remove().unwrap();
    let lock = fs::File::create(place.hosts.join("python-one.lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(place.prune(0).await, 0, "somebody makes it");
    drop(lock);
    // One whose removal broke off goes, too, and one whose making did.
    fs::create_dir(place.hosts.join("removed-1")).unwrap();
    fs::create_dir(place.hosts.join("python-half")).unwrap();
    assert_eq!(place.prune(0).await, 3);
    assert!(files(&place.hosts).is_empty());
}

#[tokio::test]
async fn packages_have_the_time_of_a_build_and_graphs_without_code_none() {
    let place = EnvironmentFixture::new("#!/bin/sh\necho installing torch\nsleep 600\n");
    let (_slow, key) = place.artifact('a', CODE, "one");
    let late = place.prepare(&key, Duration::from_millis(200), &Log::none()).await;
    assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
    let (_data, key) = place.artifact('b', r#"{"graphs": {"agent": {"native": "echo"}}}"#, "one");
    assert!(!place.prepare(&key, LONG, &Log::none()).await.unwrap());

    let place = EnvironmentFixture::new("#!/bin/sh\necho no such package >&2\nexit 1\n");
    let (artifact, key) = place.artifact('a', CODE, "one");
    let (log, said) = lines();
    let refused = place.prepare(&key, LONG, &log).await.unwrap_err();
    assert_eq!(refused.to_string(), "preparing the graphs exited with code 1");
    assert!(said.lock().unwrap().contains(&"no such package".to_owned()));
    assert!(!artifact.environments().exists());
}
