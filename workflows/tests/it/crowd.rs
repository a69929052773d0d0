//! Several deployments for a while: commits, failed builds, archives, servers that print without end. What is left is
//! counted.

use std::time::Duration;

use object_store::path::Path as ObjectPath;
use tokio::time::Instant;
use towpath_domain::deployment::{LogKind, RevisionStatus};
use towpath_domain::{DeploymentId, UploadId};
use towpath_store::{deployments, revision_logs, source_uploads};
use towpath_workflows::deployment_log::Owner;
use towpath_workflows::{delete_deployment, sweep_archives};

use crate::home::Database;
use crate::yard::{Yard, entries};

const DEPLOYMENTS: usize = 4;
const ROUNDS: usize = 5;
/// Artifacts kept of each.
const KEPT: usize = 3;
/// What a server says in each round.
const SAID: usize = 3000;

impl Yard {
    /// Lines of the server that are in the database, and those that are told to have been dropped.
    async fn heard(&self, deployment: DeploymentId) -> (usize, usize) {
        let tenant = self.home.tenant;
        let ask = async |part: &str| {
            let filter = revision_logs::Filter {
                kind: Some(LogKind::Deploy),
                query: Some(part.to_owned()),
                ..revision_logs::Filter::default()
            };
            let store = self.home.store();
            let found = store
                .read(async |tx| revision_logs::list(tx, tenant, deployment, &filter, 100_000).await)
                .await;
            found.unwrap()
        };
        let dropped = ask("and were dropped").await;
        let numbers = dropped
            .iter()
            .map(|line| line.message.split(' ').next().unwrap().parse::<usize>().unwrap());
        (ask("the graph prints").await.len(), numbers.sum())
    }

    async fn upload(&self, name: &str) {
        let (tenant, deployment, id) = (self.home.tenant, self.deployment, UploadId::new());
        let path = format!("sources/{deployment}/{name}");
        let to = ObjectPath::from(path.as_str());
        self.home.world.objects.put(&to, vec!["x".into()]).await.unwrap();
        let sent = self.home.store().write(async |tx| {
            source_uploads::insert(tx, tenant, id, deployment, &[0; 32], &path).await?;
            source_uploads::arrived(tx, tenant, id, 1).await
        });
        assert!(sent.await.unwrap());
    }
}

async fn what_a_crowd_leaves_is_bounded(database: &Database) {
    let mut yard = Yard::new_keeping(database, KEPT as i64).await;
    let mut all = vec![yard.deployment];
    for n in 1..DEPLOYMENTS {
        yard.deployment = DeploymentId::new();
        yard.add_deployment_named(&format!("agent {n}")).await;
        all.push(yard.deployment);
    }
    let begun = Instant::now();
    for round in 0..ROUNDS {
        yard.push("more", &round.to_string());
        for (n, deployment) in all.iter().enumerate() {
            yard.deployment = *deployment;
            let good = yard.revision(Some(&format!("touch made-{n}"))).await;
            yard.home.drain().await;
            let revision = yard.read(good).await;
            assert_eq!(revision.status, RevisionStatus::Deployed, "{:?}", revision.error);
            let broken = yard.revision(Some("ls no-such-file-here")).await;
            yard.home.drain().await;
            assert_eq!(yard.read(broken).await.status, RevisionStatus::BuildFailed);
            yard.upload(&format!("{round}.tar.gz")).await;
            let owner = Owner {
                tenant: yard.home.tenant,
                deployment: *deployment,
                revision: good,
                kind: LogKind::Deploy,
            };
            let log = yard.hosting.log(yard.home.store(), owner, Vec::new());
            for n in 0..SAID {
                log.log().output(format!("the graph prints {n}").as_bytes());
            }
        }
    }
    // What they may say is 4000 lines at once, and 200 a second.
    let most = 4000 + 200 * (begun.elapsed().as_secs() as usize + 1);
    for deployment in &all {
        let told = async {
            loop {
                let (written, dropped) = yard.heard(*deployment).await;
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

    let artifacts = yard.hosting.root.artifacts();
    yard.hosting.prune(yard.home.store(), 0).await.unwrap();
    assert_eq!(entries(&artifacts), DEPLOYMENTS * KEPT);
    assert_eq!(entries(&yard.hosting.root.path().join("scratch")), 0);
    let builds = yard
        .home
        .count("SELECT count(*) FROM revision_log WHERE kind = 'build'")
        .await;
    assert!(
        builds <= 40 * (2 * DEPLOYMENTS * ROUNDS) as i64,
        "{builds} lines of builds"
    );
    let open = "SELECT count(*) FROM job WHERE finished_at IS NULL";
    assert_eq!(yard.home.count(open).await, 0);
    // Nothing was made of them.
    for _ in 0..2 {
        yard.home.wait(Duration::from_secs(2 * 86_400)).await;
        sweep_archives::run(&yard.home.world, KEPT as i64).await.unwrap();
    }
    assert_eq!(yard.home.count("SELECT count(*) FROM source_upload").await, 0);
    let sources = ObjectPath::from("sources");
    assert_eq!(yard.home.world.objects.delete_below(&sources).await.unwrap(), 0);

    let tenant = yard.home.tenant;
    for deployment in all {
        let asked = yard.home.store().write(async |tx| {
            delete_deployment::start(tx, tenant, deployment).await?;
            deployments::deleting(tx, tenant, deployment, true).await
        });
        asked.await.unwrap();
    }
    yard.home.drain().await;
    for (what, text) in [
        ("deployments", "SELECT count(*) FROM deployment"),
        ("revisions", "SELECT count(*) FROM revision"),
        ("placements", "SELECT count(*) FROM deployment_placement"),
        ("artifacts", "SELECT count(*) FROM revision_artifact"),
        ("lines", "SELECT count(*) FROM revision_log"),
        ("keys", "SELECT count(*) FROM api_key WHERE revoked_at IS NULL"),
    ] {
        assert_eq!(yard.home.count(text).await, 0, "{what}");
    }
    assert_eq!(entries(&artifacts), 0);
    assert!(yard.hosting.backend.running().is_empty());
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
