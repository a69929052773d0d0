//! Revisions from a real repository to a backend that runs nothing, and their interruption at any point.

use std::time::Duration;

use object_store::path::Path as ObjectPath;
use towpath_compute::fake::FakeAction;
use towpath_domain::deployment::{DeploymentStatus, LogKind, RevisionConfig, RevisionStatus, Source};
use towpath_domain::{Clock, UploadId};
use towpath_durable::Signal;
use towpath_store::placements::PlacementState;
use towpath_store::{artifacts, deployments, revision_logs, source_uploads};
use towpath_workflows::{build_revision, delete_deployment, reconcile_deployments};

use crate::deployment_fixture::{DeploymentFixture, entries};

#[tokio::test]
async fn a_revision_goes_from_a_commit_to_what_serves() {
    let fixture = DeploymentFixture::new().await;
    let head = fixture.git(&["rev-parse", "HEAD"]);
    let id = fixture.revision(Some("touch made")).await;
    fixture.workflows.drain().await;

    let revision = fixture.read(id).await;
    assert_eq!(revision.status, RevisionStatus::Deployed, "{:?}", revision.error);
    assert_eq!(revision.config().unwrap().repo_commit_sha, Some(head));
    let (deployment, placement) = fixture.now().await;
    assert_eq!(deployment.status, DeploymentStatus::Ready);
    assert_eq!(deployment.active_revision_id, Some(id));
    let placement = placement.unwrap();
    assert_eq!((placement.revision_id, placement.state), (id, PlacementState::Serving));
    assert_eq!(fixture.fake().calls(), ["check", "replace"]);
    let built = fixture.log(id, LogKind::Build).await;
    assert!(
        built.contains("$ touch made") && built.contains(" to commit "),
        "{built}"
    );
    // Its traces use a separate key, which opens this workspace only.
    let keys = fixture
        .workflows
        .count("SELECT count(*) FROM api_key WHERE name = 'deployment agent, revision 1' AND NOT operator")
        .await;
    assert_eq!(keys, 1);
}

#[tokio::test]
async fn what_has_no_effect_is_named() {
    let fixture = DeploymentFixture::new().await;
    let sizes = r#"{"cpu": 2, "max_scale": 3, "labels": {"team": "a"}, "image_pull_secrets": [{"name": "acme"}]}"#;
    let asked = serde_json::from_str(sizes).unwrap();
    let id = fixture.revision_as(|new| new.0.resource_spec = Some(asked)).await;
    fixture.workflows.drain().await;
    let said = fixture.log(id, LogKind::Deploy).await;
    let line = "resource_spec: without effect where this deployment runs: image_pull_secrets, labels, max_scale";
    assert_eq!(said.lines().filter(|said| *said == line).count(), 1, "{said}");
    // No request, no message.
    let id = fixture.revision(None).await;
    fixture.workflows.drain().await;
    let said = fixture.log(id, LogKind::Deploy).await;
    assert!(!said.contains("resource_spec"), "{said}");
}

#[tokio::test]
async fn what_fails_leaves_what_serves_and_says_why() {
    let fixture = DeploymentFixture::new().await;
    let first = fixture.revision(None).await;
    fixture.workflows.drain().await;
    let (_, served) = fixture.now().await;

    let broken = fixture.revision(Some("ls no-such-file-here")).await;
    fixture.workflows.drain().await;
    let revision = fixture.read(broken).await;
    assert_eq!(revision.status, RevisionStatus::BuildFailed);
    let told = revision.error.unwrap();
    assert!(
        told.starts_with("install_command `ls no-such-file-here` exited with code"),
        "{told}"
    );
    assert!(
        told.contains("No such file or directory"),
        "the last lines are not in it: {told}"
    );
    assert_eq!(fixture.now().await.1, served);

    fixture.fake().act(FakeAction::Fail, FakeAction::Succeed);
    let sick = fixture.revision(None).await;
    fixture.workflows.drain().await;
    let revision = fixture.read(sick).await;
    assert_eq!(revision.status, RevisionStatus::DeployFailed);
    assert!(revision.error.unwrap().contains("did not become healthy"));
    assert_eq!(fixture.now().await.1, served);
    assert_eq!(fixture.now().await.0.active_revision_id, Some(first));

    for (field, change) in [
        (
            "repo_ref",
            RevisionConfig {
                repo_ref: Some("no-such-branch".into()),
                ..RevisionConfig::default()
            },
        ),
        (
            "graph_config_path",
            RevisionConfig {
                graph_config_path: Some("x.json".into()),
                ..RevisionConfig::default()
            },
        ),
    ] {
        let id = fixture.revision_as(|new| new.1 = new.1.clone().with(change)).await;
        fixture.workflows.drain().await;
        let revision = fixture.read(id).await;
        assert_eq!(revision.status, RevisionStatus::BuildFailed, "{field}");
        assert!(revision.error.unwrap().starts_with(field), "{field}");
    }
    let image = fixture.revision_as(|new| new.2 = Source::ExternalDocker).await;
    fixture.workflows.drain().await;
    let revision = fixture.read(image).await;
    assert_eq!(revision.status, RevisionStatus::DeployFailed);
    assert!(
        revision
            .error
            .unwrap()
            .starts_with("no container backend is configured")
    );
    let deploy = fixture.log(image, LogKind::Deploy).await;
    assert!(deploy.contains("no container backend is configured"), "{deploy}");
    assert_eq!(fixture.now().await.1, served);
}

#[tokio::test]
async fn a_switch_that_breaks_off_brings_the_old_one_back() {
    let fixture = DeploymentFixture::new().await;
    let first = fixture.revision(None).await;
    fixture.workflows.drain().await;
    fixture.fake().act(FakeAction::Succeed, FakeAction::Fail);
    let second = fixture.revision(Some("touch x")).await;
    fixture.workflows.drain().await;
    assert_eq!(fixture.read(second).await.status, RevisionStatus::DeployFailed);
    let (_, placement) = fixture.now().await;
    assert_eq!(
        placement.unwrap().state,
        PlacementState::Switching,
        "requests wait meanwhile"
    );

    fixture.fake().act(FakeAction::Succeed, FakeAction::Succeed);
    let (stop, keep) = fixture.keep();
    let keep = tokio::spawn(keep);
    let placement = fixture
        .until(|placement| placement.state == PlacementState::Serving)
        .await;
    assert_eq!(placement.revision_id, first);
    // An unexpected end causes a restart, which is counted.
    fixture.fake().crash(fixture.deployment);
    let placement = fixture
        .until(|placement| placement.restarts == 1 && placement.state == PlacementState::Serving)
        .await;
    assert_eq!(placement.revision_id, first);
    // A failed start is reported and retried.
    fixture.fake().act(FakeAction::Succeed, FakeAction::Fail);
    fixture.fake().crash(fixture.deployment);
    let placement = fixture.until(|placement| placement.state == PlacementState::Down).await;
    assert!(placement.error.unwrap().contains("did not become healthy"));
    fixture.fake().act(FakeAction::Succeed, FakeAction::Succeed);
    fixture
        .until(|placement| placement.state == PlacementState::Serving)
        .await;
    stop.cancel();
    keep.await.unwrap();
    assert!(
        fixture.hosting.backend.running().is_empty(),
        "something was left running"
    );
}

#[tokio::test]
async fn who_is_interrupted_stops_at_once_with_its_programs() {
    let fixture = DeploymentFixture::new().await;
    for (install, check) in [(Some("sleep 600"), FakeAction::Succeed), (None, FakeAction::Hang)] {
        fixture.fake().act(check, FakeAction::Succeed);
        let id = fixture.revision(install).await;
        let job = fixture.workflows.claim().await.unwrap();
        let mut begun = false;
        let cancelled = async {
            loop {
                let log = fixture
                    .log(
                        id,
                        if install.is_some() {
                            LogKind::Build
                        } else {
                            LogKind::Deploy
                        },
                    )
                    .await;
                if log.contains("$ sleep 600") || log.contains("checking") {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let job = fixture.read(id).await.job_id.unwrap();
            let cancel = fixture
                .workflows
                .store()
                .write(async |tx| build_revision::interrupt(tx, job).await)
                .await;
            cancel.unwrap();
            begun = true;
            Signal::Cancel
        };
        tokio::time::timeout(
            Duration::from_secs(60),
            fixture.workflows.perform_until_told(job, cancelled),
        )
        .await
        .unwrap();
        assert!(begun);
        assert_eq!(fixture.read(id).await.status, RevisionStatus::Interrupted);
    }
    assert_eq!(entries(&fixture.hosting.root.path().join("scratch")), 0);
    assert_eq!(
        fixture
            .workflows
            .count("SELECT count(*) FROM job WHERE finished_at IS NULL")
            .await,
        0
    );
}

#[tokio::test]
async fn a_newer_one_makes_those_that_wait_pointless() {
    let fixture = DeploymentFixture::new().await;
    let first = fixture.revision(None).await;
    let second = fixture.revision(None).await;
    fixture.workflows.drain().await;
    assert_eq!(fixture.read(first).await.status, RevisionStatus::Skipped);
    assert_eq!(fixture.read(second).await.status, RevisionStatus::Deployed);
    assert_eq!(fixture.fake().calls(), ["check", "replace"], "the old one was started");
}

#[tokio::test]
async fn what_was_built_is_deployed_again_whatever_became_of_its_branch() {
    let fixture = DeploymentFixture::new().await;
    let first = fixture.revision(Some("touch made")).await;
    fixture.workflows.drain().await;
    fixture.push("langgraph.json", "{broken");
    std::fs::remove_dir_all(&fixture.origin).unwrap();
    let of = fixture.read(first).await;
    let again = fixture
        .revision_as(|new| {
            new.0 = of.source_config().unwrap();
            new.1 = of.config().unwrap();
            new.3 = Some(first);
        })
        .await;
    fixture.workflows.drain().await;
    let revision = fixture.read(again).await;
    assert_eq!(revision.status, RevisionStatus::Deployed, "{:?}", revision.error);
    let built = fixture.log(again, LogKind::Build).await;
    assert!(!built.contains("$ touch made"), "it was built again: {built}");
    let tenant = fixture.workflows.tenant;
    let read = fixture.workflows.store().read(async |tx| {
        Ok((
            artifacts::for_revision(tx, tenant, first).await?,
            artifacts::for_revision(tx, tenant, again).await?,
        ))
    });
    let (one, other) = read.await.unwrap();
    assert!(one.is_some() && one == other);
    // The credentials of an image are kept with it.
    let pinned = fixture.workflows.store().write(async |tx| {
        artifacts::pin_image(tx, tenant, first, "agent@sha256:00").await?;
        Ok((
            artifacts::image_of(tx, tenant, first).await?,
            artifacts::image_of(tx, tenant, again).await?,
        ))
    });
    assert_eq!(pinned.await.unwrap(), (Some("agent@sha256:00".to_owned()), None));
}

/// A worker that dies after any of its writes continues in another process life, and builds nothing twice.
#[tokio::test]
async fn a_revision_survives_a_worker_that_goes_away() {
    let fixture = DeploymentFixture::new().await;
    fixture.fake().act(FakeAction::Hang, FakeAction::Succeed);
    let id = fixture.revision(Some("touch made")).await;
    let job = fixture.workflows.claim().await.unwrap();
    let lost = async {
        while !fixture.log(id, LogKind::Deploy).await.contains("checking") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Signal::Lost
    };
    fixture.workflows.perform_until_told(job, lost).await;
    fixture.fake().act(FakeAction::Succeed, FakeAction::Succeed);
    fixture.workflows.boot().await;
    fixture.workflows.drain().await;
    let revision = fixture.read(id).await;
    assert_eq!(revision.status, RevisionStatus::Deployed, "{:?}", revision.error);
    let built = fixture.log(id, LogKind::Build).await;
    assert_eq!(built.matches("$ touch made").count(), 1, "{built}");
    assert_eq!(built.matches("fetching").count(), 1, "{built}");
}

#[tokio::test]
async fn a_deployment_goes_with_everything_it_had() {
    let fixture = DeploymentFixture::new().await;
    fixture.revision(Some("touch made")).await;
    fixture.workflows.drain().await;
    assert_eq!(entries(&fixture.hosting.root.artifacts()), 1);
    let (tenant, id) = (fixture.workflows.tenant, fixture.deployment);
    fixture
        .workflows
        .store()
        .write(async |tx| {
            delete_deployment::start(tx, tenant, id).await?;
            deployments::deleting(tx, tenant, id, true).await
        })
        .await
        .unwrap();
    fixture.workflows.drain().await;
    for (what, text) in [
        ("deployments", "SELECT count(*) FROM deployment"),
        ("revisions", "SELECT count(*) FROM revision"),
        ("placements", "SELECT count(*) FROM deployment_placement"),
        ("artifacts", "SELECT count(*) FROM revision_artifact"),
        ("lines", "SELECT count(*) FROM revision_log"),
        ("projects", "SELECT count(*) FROM project WHERE name = 'agent'"),
        ("keys", "SELECT count(*) FROM api_key WHERE revoked_at IS NULL"),
    ] {
        assert_eq!(fixture.workflows.count(text).await, 0, "{what}");
    }
    assert_eq!(entries(&fixture.hosting.root.artifacts()), 0);
    assert!(fixture.hosting.backend.running().is_empty());
}

/// Changes of secrets share an artifact, and do not evict others.
#[tokio::test]
async fn revisions_that_share_an_artifact_count_once() {
    let fixture = DeploymentFixture::new().await;
    let first = fixture.revision(None).await;
    fixture.workflows.drain().await;
    fixture.push("more", "x");
    for _ in 0..3 {
        fixture.revision(None).await;
        fixture.workflows.drain().await;
    }
    let tenant = fixture.workflows.tenant;
    let read = fixture.workflows.store().read(async |tx| {
        let first = artifacts::for_revision(tx, tenant, first).await?;
        Ok((first, artifacts::retained(tx, 2).await?))
    });
    let (first, kept) = read.await.unwrap();
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert!(kept.contains(&first.unwrap()), "the way back is not kept: {kept:?}");
}

/// Unneeded artifacts are removed, even if another entry cannot be read.
#[tokio::test]
async fn artifacts_in_use_and_those_that_serve_stay() {
    let fixture = DeploymentFixture::new().await;
    fixture.revision(None).await;
    fixture.workflows.drain().await;
    let folder = fixture.hosting.root.artifacts();
    let (used, idle) = ("aa", "bb");
    for name in [used, idle, "no-artifact"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    let using = fixture.hosting.use_artifact(used);
    fixture.hosting.prune(fixture.workflows.store(), 0).await.unwrap();
    assert!(folder.join(used).exists(), "a build uses it");
    assert!(!folder.join(idle).exists(), "nothing needs it");
    assert_eq!(entries(&folder), 3, "what serves stays, and what was not made here");
    drop(using);
    fixture.hosting.prune(fixture.workflows.store(), 0).await.unwrap();
    assert!(!folder.join(used).exists(), "nothing needs it any more");
}

/// Many commits and failed builds leave the kept artifacts, and nothing incomplete.
#[tokio::test]
async fn what_many_revisions_leave_is_bounded() {
    let fixture = DeploymentFixture::new().await;
    for n in 0..12 {
        fixture.push("more", &n.to_string());
        fixture.revision(Some("touch made")).await;
        fixture.workflows.drain().await;
        let broken = fixture.revision(Some("ls no-such-file-here")).await;
        fixture.workflows.drain().await;
        assert_eq!(fixture.read(broken).await.status, RevisionStatus::BuildFailed);
    }
    let artifacts = fixture.hosting.root.artifacts();
    assert_eq!(entries(&artifacts), 24);
    fixture.hosting.prune(fixture.workflows.store(), 0).await.unwrap();
    assert_eq!(entries(&artifacts), 10, "as many as are kept");
    for artifact in std::fs::read_dir(&artifacts).unwrap() {
        let artifact = artifact.unwrap().path();
        assert!(artifact.join("built.json").is_file(), "a failed build is kept");
        assert!(!artifact.join("home").exists(), "caches are kept");
    }
    assert_eq!(entries(&fixture.hosting.root.path().join("scratch")), 0);
    assert_eq!(fixture.hosting.backend.running(), [fixture.deployment]);
}

/// A build that failed on its own leftovers can succeed later: the new attempt starts clean.
#[tokio::test]
async fn a_failed_build_is_repeated_on_a_fresh_tree() {
    let fixture = DeploymentFixture::new().await;
    let build = async || {
        let id = fixture.revision(Some("mkdir dist no-such-folder/x")).await;
        fixture.workflows.drain().await;
        fixture.read(id).await.error.unwrap()
    };
    let first = build().await;
    assert!(first.contains("no-such-folder"), "{first}");
    let second = build().await;
    assert!(!second.contains("File exists"), "it met its own leftovers: {second}");
}

/// Ids of lines use the process's clock, which does not stop, and so does their age here.
#[tokio::test]
async fn lines_of_agent_servers_do_not_stay_for_ever() {
    let fixture = DeploymentFixture::new().await;
    let id = fixture.revision(Some("touch made")).await;
    fixture.workflows.drain().await;
    let build = fixture.log(id, LogKind::Build).await;
    assert!(fixture.log(id, LogKind::Deploy).await.contains("checking"));
    let forget = async |before| {
        let forgotten = fixture
            .workflows
            .store()
            .write(async |tx| revision_logs::forget(tx, before, 1000).await);
        forgotten.await.unwrap()
    };
    let now = Clock::system().now();
    assert_eq!(forget(now.minus(Duration::from_secs(3600))).await, 0);
    assert!(forget(now.plus(Duration::from_secs(3600))).await > 0);
    assert_eq!(fixture.log(id, LogKind::Deploy).await, "");
    assert_eq!(fixture.log(id, LogKind::Build).await, build);
}

/// The newest lines of a revision are kept, for each kind.
#[tokio::test]
async fn lines_of_a_revision_are_bounded() {
    let fixture = DeploymentFixture::new().await;
    let id = fixture.revision(Some("touch made")).await;
    fixture.workflows.drain().await;
    let (build, deploy) = (
        fixture.log(id, LogKind::Build).await,
        fixture.log(id, LogKind::Deploy).await,
    );
    let tenant = fixture.workflows.tenant;
    let trim = async |limit| {
        let trimmed = fixture
            .workflows
            .store()
            .write(async |tx| revision_logs::trim(tx, tenant, id, LogKind::Build, 2, limit).await);
        trimmed.await.unwrap()
    };
    let lines: Vec<&str> = build.lines().collect();
    let more = lines.len() as u64 - 2;
    assert_eq!((trim(1).await, trim(1000).await, trim(1000).await), (1, more - 1, 0));
    let kept = fixture.log(id, LogKind::Build).await;
    assert_eq!(kept, lines[lines.len() - 2..].join("\n"));
    assert_eq!(fixture.log(id, LogKind::Deploy).await, deploy);
}

/// A secret is passed to the agent server only.
#[tokio::test]
async fn secrets_are_not_in_what_is_written() {
    let fixture = DeploymentFixture::new().await;
    fixture.revision(Some("env")).await;
    fixture.workflows.drain().await;
    let told = "SELECT count(*) FROM revision_log WHERE message LIKE '%canary-of-a-secret%'";
    assert_eq!(fixture.workflows.count(told).await, 0);
    let steps = "SELECT count(*) FROM step WHERE output LIKE '%canary-of-a-secret%'";
    assert_eq!(fixture.workflows.count(steps).await, 0);
}

/// Unused upload addresses are deleted with partial data; uploads stay.
#[tokio::test]
async fn addresses_of_archives_are_forgotten_when_nothing_came() {
    let fixture = DeploymentFixture::new().await;
    let (tenant, deployment, world) = (fixture.workflows.tenant, fixture.deployment, &fixture.workflows.world);
    let (sent, unsent) = (UploadId::new(), UploadId::new());
    let hand_out = async |id: UploadId, path: &str| {
        let handed = fixture
            .workflows
            .store()
            .write(async |tx| source_uploads::insert(tx, tenant, id, deployment, &[0; 32], path).await);
        handed.await.unwrap();
        world
            .objects
            .put(&ObjectPath::from(path), vec!["x".into()])
            .await
            .unwrap();
    };
    hand_out(sent, "sources/sent").await;
    hand_out(unsent, "sources/unsent").await;
    let arrived = fixture
        .workflows
        .store()
        .write(async |tx| source_uploads::mark_uploaded(tx, tenant, sent, 1).await);
    assert!(arrived.await.unwrap());

    let rows = "SELECT count(*) FROM source_upload";
    fixture
        .workflows
        .clock
        .advance(source_uploads::PATIENCE + Duration::from_secs(1));
    assert_eq!(
        reconcile_deployments::sweep_uploads(world).await.unwrap(),
        0,
        "it may be on its way still"
    );
    assert_eq!(fixture.workflows.count(rows).await, 2);
    fixture.workflows.clock.advance(source_uploads::PATIENCE);
    assert_eq!(reconcile_deployments::sweep_uploads(world).await.unwrap(), 1);
    assert_eq!(fixture.workflows.count(rows).await, 1);
    assert!(world.objects.get(&ObjectPath::from("sources/sent")).await.is_ok());
    assert!(world.objects.get(&ObjectPath::from("sources/unsent")).await.is_err());
}
