//! Several deployments over time: commits, failed builds, archives, and servers that print continuously. The leftovers
//! are counted.

use std::time::Duration;

use object_store::path::Path as ObjectPath;
use tokio::time::Instant;
use towpath_domain::deployment::{LogKind, RevisionStatus};
use towpath_domain::{DeploymentId, UploadId};
use towpath_store::{deployments, revision_logs, source_uploads};
use towpath_workflows::deployment_log::LogOwner;
use towpath_workflows::{delete_deployment, sweep_archives};

use crate::deployment_fixture::{DeploymentFixture, entries};
use crate::fixture::Database;

const DEPLOYMENTS: usize = 4;
const ROUNDS: usize = 5;
/// Artifacts kept per deployment.
const KEPT: usize = 3;
/// Lines that a server prints in each round.
const SAID: usize = 3000;

impl DeploymentFixture {
    /// Number of lines in the database, and number of lines reported as dropped.
    async fn heard(&self, deployment: DeploymentId) -> (usize, usize) {
        let tenant = self.workflows.tenant;
        let ask = async |part: &str| {
            let filter = revision_logs::Filter {
                kind: Some(LogKind::Deploy),
                query: Some(part.to_owned()),
                ..revision_logs::Filter::default()
            };
            let store = self.workflows.store();
            let found = store
                .read(async |tx| revision_logs::list(tx, tenant, deployment, &filter, 100_000).await)
                .await;
            found.unwrap()
        };
        let dropped = ask("lines were dropped because").await;
        let numbers = dropped
            .iter()
            .map(|line| line.message.split(' ').next().unwrap().parse::<usize>().unwrap());
        (ask("the graph prints").await.len(), numbers.sum())
    }

    async fn upload(&self, name: &str) {
        let (tenant, deployment, id) = (self.workflows.tenant, self.deployment, UploadId::new());
        let path = format!("sources/{deployment}/{name}");
        let to = ObjectPath::from(path.as_str());
        self.workflows.world.objects.put(&to, vec!["x".into()]).await.unwrap();
        let sent = self.workflows.store().write(async |tx| {
            source_uploads::insert(tx, tenant, id, deployment, &[0; 32], &path).await?;
            source_uploads::mark_uploaded(tx, tenant, id, 1).await
        });
        assert!(sent.await.unwrap());
    }
}

async fn what_a_crowd_leaves_is_bounded(database: &Database) {
    let mut fixture = DeploymentFixture::new_keeping(database, KEPT as i64).await;
    let mut all = vec![fixture.deployment];
    for n in 1..DEPLOYMENTS {
        fixture.deployment = DeploymentId::new();
        fixture.add_deployment_named(&format!("agent {n}")).await;
        all.push(fixture.deployment);
    }
    let begun = Instant::now();
    for round in 0..ROUNDS {
        fixture.push("more", &round.to_string());
        for (n, deployment) in all.iter().enumerate() {
            fixture.deployment = *deployment;
            let good = fixture.revision(Some(&format!("touch made-{n}"))).await;
            fixture.workflows.drain().await;
            let revision = fixture.read(good).await;
            assert_eq!(revision.status, RevisionStatus::Deployed, "{:?}", revision.error);
            let broken = fixture.revision(Some("ls no-such-file-here")).await;
            fixture.workflows.drain().await;
            assert_eq!(fixture.read(broken).await.status, RevisionStatus::BuildFailed);
            fixture.upload(&format!("{round}.tar.gz")).await;
            let owner = LogOwner {
                tenant: fixture.workflows.tenant,
                deployment: *deployment,
                revision: good,
                kind: LogKind::Deploy,
            };
            let log = fixture.hosting.log(fixture.workflows.store(), owner, Vec::new());
            for n in 0..SAID {
                log.log().output(format!("the graph prints {n}").as_bytes());
            }
        }
    }
    // The limit is 4000 lines at once, and 200 per second.
    let most = 4000 + 200 * (begun.elapsed().as_secs() as usize + 1);
    for deployment in &all {
        let told = async {
            loop {
                let (written, dropped) = fixture.heard(*deployment).await;
                if written + dropped == ROUNDS * SAID {
                    return written;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let written = tokio::time::timeout(Duration::from_secs(90), told).await;
        let written = written.expect("awaited: each line is written, or told to have been dropped");
        assert!(
            written <= most,
            "{written} lines of a deployment, and at most {most} may be"
        );
    }

    let artifacts = fixture.hosting.root.artifacts();
    fixture.hosting.prune(fixture.workflows.store(), 0).await.unwrap();
    assert_eq!(entries(&artifacts), DEPLOYMENTS * KEPT);
    assert_eq!(entries(&fixture.hosting.root.path().join("scratch")), 0);
    let builds = fixture
        .workflows
        .count("SELECT count(*) FROM revision_log WHERE kind = 'build'")
        .await;
    assert!(
        builds <= 40 * (2 * DEPLOYMENTS * ROUNDS) as i64,
        "{builds} lines of builds"
    );
    let open = "SELECT count(*) FROM job WHERE finished_at IS NULL";
    assert_eq!(fixture.workflows.count(open).await, 0);
    // Nothing was built from them.
    for _ in 0..2 {
        fixture.workflows.wait(Duration::from_secs(2 * 86_400)).await;
        sweep_archives::run(&fixture.workflows.world, KEPT as i64)
            .await
            .unwrap();
    }
    assert_eq!(fixture.workflows.count("SELECT count(*) FROM source_upload").await, 0);
    let sources = ObjectPath::from("sources");
    assert_eq!(fixture.workflows.world.objects.delete_below(&sources).await.unwrap(), 0);

    let tenant = fixture.workflows.tenant;
    for deployment in all {
        let asked = fixture.workflows.store().write(async |tx| {
            delete_deployment::start(tx, tenant, deployment).await?;
            deployments::deleting(tx, tenant, deployment, true).await
        });
        asked.await.unwrap();
    }
    fixture.workflows.drain().await;
    for (what, text) in [
        ("deployments", "SELECT count(*) FROM deployment"),
        ("revisions", "SELECT count(*) FROM revision"),
        ("placements", "SELECT count(*) FROM deployment_placement"),
        ("artifacts", "SELECT count(*) FROM revision_artifact"),
        ("lines", "SELECT count(*) FROM revision_log"),
        ("keys", "SELECT count(*) FROM api_key WHERE revoked_at IS NULL"),
    ] {
        assert_eq!(fixture.workflows.count(text).await, 0, "{what}");
    }
    assert_eq!(entries(&artifacts), 0);
    assert!(fixture.hosting.backend.running().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crowd_leaves_is_bounded_on_sqlite() {
    what_a_crowd_leaves_is_bounded(&Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crowd_leaves_is_bounded_on_postgres() {
    let Some(server) = Database::postgres() else { return };
    what_a_crowd_leaves_is_bounded(&server).await;
}
