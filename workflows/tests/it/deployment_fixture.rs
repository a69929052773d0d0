//! A deployment of a real repository, on a backend that runs nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use towpath_compute::fake::Fake;
use towpath_compute::tree::Limits;
use towpath_compute::{Backend, Isolation, Root, build, git};
use towpath_domain::deployment::{EnvSecret, LogKind, RevisionConfig, RevisionStatus, Source, SourceConfig};
use towpath_domain::git::Transport;
use towpath_domain::{DeploymentId, RevisionId, Secret};
use towpath_outbound::{Guard, Policy};
use towpath_store::deployments::{Deployment, NewDeployment};
use towpath_store::placements::{Placement, PlacementState};
use towpath_store::revisions::{NewRevision, Revision};
use towpath_store::{access, deployments, placements, projects, revision_logs, revisions};
use towpath_workflows::deployment_host::DeploymentHost;
use towpath_workflows::{build_revision, deployment_host, reconcile_deployments};

use crate::fixture::{Database, WorkflowFixture};

pub(crate) struct DeploymentFixture {
    pub(crate) workflows: WorkflowFixture,
    pub(crate) hosting: Arc<DeploymentHost>,
    pub(crate) origin: PathBuf,
    pub(crate) deployment: DeploymentId,
    _folder: TempDir,
}

#[expect(
    clippy::disallowed_methods,
    reason = "programs are looked for where the tests' own are"
)]
fn path() -> String {
    std::env::var("PATH").unwrap()
}

impl DeploymentFixture {
    pub(crate) async fn new() -> Self {
        Self::new_on(&Database::Sqlite).await
    }

    pub(crate) async fn new_on(database: &Database) -> Self {
        Self::new_keeping(database, 10).await
    }

    /// With this number of artifacts kept per deployment.
    pub(crate) async fn new_keeping(database: &Database, keep_artifacts: i64) -> Self {
        let mut home = WorkflowFixture::empty_on(database, 1).await;
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(&folder.path().join("deployments")).unwrap();
        let git = git::Settings {
            transports: vec![Transport::File],
            guard: Guard::new(Policy::default()),
            path: path(),
            limit: Duration::from_secs(60),
            tree: Limits::default(),
        };
        let build = build::Settings {
            path: path(),
            limit: Duration::from_secs(60),
            tree: Limits::default(),
            variables: BTreeMap::new(),
            launcher: "/nonexistent/towpath".into(),
            isolation: Isolation::default(),
        };
        let settings = deployment_host::Settings {
            keep_artifacts,
            health_interval: Duration::from_millis(5),
            platform_url: Some("http://127.0.0.1:8400".into()),
            public_url: Some("http://platform.example".into()),
        };
        let backend = Backend::Fake(Fake::default());
        let hosting = Arc::new(DeploymentHost::new(root, backend, git, build, settings));
        home.world.deployment_host = Some(Arc::clone(&hosting));
        let origin = folder.path().join("origin");
        std::fs::create_dir(&origin).unwrap();
        let yard = Self {
            workflows: home,
            hosting,
            origin,
            deployment: DeploymentId::new(),
            _folder: folder,
        };
        yard.git(&["init", "--quiet", "--initial-branch=main"]);
        yard.push("langgraph.json", r#"{"graphs": {"agent": {"native": "echo"}}}"#);
        yard.add_deployment().await;
        yard
    }

    pub(crate) async fn add_deployment(&self) {
        self.add_deployment_named("agent").await;
    }

    pub(crate) async fn add_deployment_named(&self, name: &str) {
        let (tenant, id) = (self.workflows.tenant, self.deployment);
        self.workflows
            .store()
            .write(async |tx| {
                access::ensure_workspace(tx, tenant).await?;
                let project = projects::ensure(tx, tenant, name).await?;
                let config = self.source(None);
                let new = NewDeployment {
                    id,
                    name,
                    source: Source::Github,
                    config: &config,
                    project,
                };
                deployments::insert(tx, tenant, &new).await
            })
            .await
            .unwrap();
    }

    pub(crate) fn fake(&self) -> &Fake {
        let Backend::Fake(fake) = &self.hosting.backend else {
            unreachable!("the yard has a fake")
        };
        fake
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        let done = Command::new("git")
            .current_dir(&self.origin)
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

    pub(crate) fn push(&self, file: &str, text: &str) -> String {
        std::fs::write(self.origin.join(file), text).unwrap();
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", "more"]);
        self.git(&["rev-parse", "HEAD"])
    }

    pub(crate) fn source(&self, install: Option<&str>) -> SourceConfig {
        SourceConfig {
            repo_url: Some(format!("file://{}", self.origin.display())),
            install_command: install.map(str::to_owned),
            ..SourceConfig::default()
        }
    }

    pub(crate) async fn revision(&self, install: Option<&str>) -> RevisionId {
        self.revision_as(|new| new.0 = self.source(install)).await
    }

    /// Records a revision and its job; `change` may modify source, revision configuration, source kind, and the
    /// redeployed revision.
    pub(crate) async fn revision_as(
        &self,
        change: impl FnOnce(&mut (SourceConfig, RevisionConfig, Source, Option<RevisionId>)),
    ) -> RevisionId {
        let config = RevisionConfig {
            repo_ref: Some("main".into()),
            graph_config_path: Some("langgraph.json".into()),
            ..RevisionConfig::default()
        };
        let mut new = (self.source(None), config, Source::Github, None);
        change(&mut new);
        let (source_config, config, source, redeploy_of) = new;
        let (tenant, deployment, id) = (self.workflows.tenant, self.deployment, RevisionId::new());
        let secrets = [EnvSecret {
            name: "TOKEN".into(),
            value: Secret::new("canary-of-a-secret"),
        }];
        self.workflows
            .store()
            .write(async |tx| {
                let job = build_revision::start(tx, tenant, deployment, id).await?;
                let new = NewRevision {
                    id,
                    deployment,
                    source,
                    status: RevisionStatus::Creating,
                    config: &config,
                    source_config: &source_config,
                    secrets: revisions::seal(&self.workflows.world.sealer, tenant, id, &secrets),
                    secret_names: vec!["TOKEN"],
                    redeploy_of,
                    job: Some(job),
                };
                revisions::insert(tx, tenant, new).await?;
                deployments::latest(tx, tenant, deployment, id).await
            })
            .await
            .unwrap();
        id
    }

    pub(crate) async fn read(&self, id: RevisionId) -> Revision {
        let tenant = self.workflows.tenant;
        self.workflows
            .store()
            .read(async |tx| revisions::get(tx, tenant, id).await)
            .await
            .unwrap()
    }

    pub(crate) async fn now(&self) -> (Deployment, Option<Placement>) {
        let (tenant, id) = (self.workflows.tenant, self.deployment);
        self.workflows
            .store()
            .read(async |tx| {
                Ok((
                    deployments::get(tx, tenant, id).await?,
                    placements::get(tx, tenant, id).await?,
                ))
            })
            .await
            .unwrap()
    }

    pub(crate) async fn log(&self, id: RevisionId, kind: LogKind) -> String {
        let (tenant, deployment) = (self.workflows.tenant, self.deployment);
        let filter = revision_logs::Filter {
            revision: Some(id),
            kind: Some(kind),
            ..revision_logs::Filter::default()
        };
        let lines = self
            .workflows
            .store()
            .read(async |tx| revision_logs::list(tx, tenant, deployment, &filter, 1000).await)
            .await
            .unwrap();
        lines
            .into_iter()
            .map(|line| line.message)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Runs the reconciler until `stop`.
    pub(crate) fn keep(&self) -> (CancellationToken, impl Future<Output = ()> + use<>) {
        let stop = CancellationToken::new();
        let world = Arc::new(self.workflows.world_again());
        (stop.clone(), reconcile_deployments::run(world, stop))
    }

    /// Runs the reconciler, and waits until it manages the deployment: it counts no end before that.
    pub(crate) async fn keep_what_serves(&self) -> (CancellationToken, JoinHandle<()>) {
        let begin = self.workflows.store().write(async |tx| placements::begin(tx).await);
        begin.await.unwrap();
        let (stop, keep) = self.keep();
        let keep = tokio::spawn(keep);
        self.until(|placement| placement.state == PlacementState::Serving).await;
        (stop, keep)
    }

    /// Waits until the placement has this state.
    pub(crate) async fn until(&self, what: impl Fn(&Placement) -> bool) -> Placement {
        loop {
            if let (_, Some(placement)) = self.now().await
                && what(&placement)
            {
                return placement;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Fails after a minute; `what` names what was awaited.
pub(crate) async fn within(what: &str, awaited: impl Future<Output = ()>) {
    let done = tokio::time::timeout(Duration::from_secs(60), awaited).await;
    assert!(done.is_ok(), "awaited: {what}");
}

pub(crate) fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}
