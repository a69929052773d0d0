//! Revisions from a real repository to a backend that runs nothing, and what is left when they break off anywhere.

use std::time::Duration;

use object_store::path::Path as ObjectPath;
use towpath_compute::fake::Act;
use towpath_domain::deployment::{DeploymentStatus, LogKind, RevisionConfig, RevisionStatus, Source};
use towpath_domain::{Clock, UploadId};
use towpath_durable::Signal;
use towpath_store::placements::PlacementState;
use towpath_store::{artifacts, deployments, revision_logs, source_uploads};
use towpath_workflows::{build_revision, delete_deployment, keep_deployments};

use crate::yard::{Yard, entries};

#[tokio::test]
async fn a_revision_goes_from_a_commit_to_what_serves() {
    let yard = Yard::new().await;
    let head = yard.git(&["rev-parse", "HEAD"]);
    let id = yard.revision(Some("touch made")).await;
    yard.home.drain().await;

    let revision = yard.read(id).await;
    assert_eq!(revision.status, RevisionStatus::Deployed, "{:?}", revision.error);
    assert_eq!(revision.config().unwrap().repo_commit_sha, Some(head));
    let (deployment, placement) = yard.now().await;
    assert_eq!(deployment.status, DeploymentStatus::Ready);
    assert_eq!(deployment.active_revision_id, Some(id));
    let placement = placement.unwrap();
    assert_eq!((placement.revision_id, placement.state), (id, PlacementState::Serving));
    assert_eq!(yard.fake().calls(), ["check", "replace"]);
    let built = yard.log(id, LogKind::Build).await;
    assert!(built.contains("$ touch made") && built.contains("is commit"), "{built}");
    // Its traces come under a key of its own, which opens this workspace alone.
    let keys = yard
        .home
        .count("SELECT count(*) FROM api_key WHERE name = 'deployment agent, revision 1' AND NOT operator")
        .await;
    assert_eq!(keys, 1);
}

#[tokio::test]
async fn what_has_no_effect_is_named() {
    let yard = Yard::new().await;
    let sizes = r#"{"cpu": 2, "max_scale": 3, "labels": {"team": "a"}, "image_pull_secrets": [{"name": "acme"}]}"#;
    let asked = serde_json::from_str(sizes).unwrap();
    let id = yard.revision_as(|new| new.0.resource_spec = Some(asked)).await;
    yard.home.drain().await;
    let said = yard.log(id, LogKind::Deploy).await;
    let line = "resource_spec: without effect where this deployment runs: image_pull_secrets, labels, max_scale";
    assert_eq!(said.lines().filter(|said| *said == line).count(), 1, "{said}");
    // Who asks for nothing is told nothing.
    let id = yard.revision(None).await;
    yard.home.drain().await;
    let said = yard.log(id, LogKind::Deploy).await;
    assert!(!said.contains("resource_spec"), "{said}");
}

#[tokio::test]
async fn what_fails_leaves_what_serves_and_says_why() {
    let yard = Yard::new().await;
    let first = yard.revision(None).await;
    yard.home.drain().await;
    let (_, served) = yard.now().await;

    let broken = yard.revision(Some("ls no-such-file-here")).await;
    yard.home.drain().await;
    let revision = yard.read(broken).await;
    assert_eq!(revision.status, RevisionStatus::BuildFailed);
    let told = revision.error.unwrap();
    assert!(
        told.starts_with("install_command `ls no-such-file-here` ended with exit code"),
        "{told}"
    );
    assert!(
        told.contains("No such file or directory"),
        "the last lines are not in it: {told}"
    );
    assert_eq!(yard.now().await.1, served);

    yard.fake().act(Act::Fail, Act::Succeed);
    let sick = yard.revision(None).await;
    yard.home.drain().await;
    let revision = yard.read(sick).await;
    assert_eq!(revision.status, RevisionStatus::DeployFailed);
    assert!(revision.error.unwrap().contains("did not become healthy"));
    assert_eq!(yard.now().await.1, served);
    assert_eq!(yard.now().await.0.active_revision_id, Some(first));

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
        let id = yard.revision_as(|new| new.1 = new.1.clone().with(change)).await;
        yard.home.drain().await;
        let revision = yard.read(id).await;
        assert_eq!(revision.status, RevisionStatus::BuildFailed, "{field}");
        assert!(revision.error.unwrap().starts_with(field), "{field}");
    }
    let image = yard.revision_as(|new| new.2 = Source::ExternalDocker).await;
    yard.home.drain().await;
    let revision = yard.read(image).await;
    assert_eq!(revision.status, RevisionStatus::DeployFailed);
    assert!(
        revision
            .error
            .unwrap()
            .starts_with("no container backend is configured")
    );
    let deploy = yard.log(image, LogKind::Deploy).await;
    assert!(deploy.contains("no container backend is configured"), "{deploy}");
    assert_eq!(yard.now().await.1, served);
}

#[tokio::test]
async fn a_switch_that_breaks_off_brings_the_old_one_back() {
    let yard = Yard::new().await;
    let first = yard.revision(None).await;
    yard.home.drain().await;
    yard.fake().act(Act::Succeed, Act::Fail);
    let second = yard.revision(Some("touch x")).await;
    yard.home.drain().await;
    assert_eq!(yard.read(second).await.status, RevisionStatus::DeployFailed);
    let (_, placement) = yard.now().await;
    assert_eq!(
        placement.unwrap().state,
        PlacementState::Switching,
        "requests wait meanwhile"
    );

    yard.fake().act(Act::Succeed, Act::Succeed);
    let (stop, keep) = yard.keep();
    let keep = tokio::spawn(keep);
    let placement = yard.until(|placement| placement.state == PlacementState::Serving).await;
    assert_eq!(placement.revision_id, first);
    // One that ends by itself is started again, and that is counted.
    yard.fake().crash(yard.deployment);
    let placement = yard
        .until(|placement| placement.restarts == 1 && placement.state == PlacementState::Serving)
        .await;
    assert_eq!(placement.revision_id, first);
    // One that does not start says so, and is tried again.
    yard.fake().act(Act::Succeed, Act::Fail);
    yard.fake().crash(yard.deployment);
    let placement = yard.until(|placement| placement.state == PlacementState::Down).await;
    assert!(placement.error.unwrap().contains("did not become healthy"));
    yard.fake().act(Act::Succeed, Act::Succeed);
    yard.until(|placement| placement.state == PlacementState::Serving).await;
    stop.cancel();
    keep.await.unwrap();
    assert!(yard.hosting.backend.running().is_empty(), "something was left running");
}

#[tokio::test]
async fn who_is_interrupted_stops_at_once_with_its_programs() {
    let yard = Yard::new().await;
    for (install, check) in [(Some("sleep 600"), Act::Succeed), (None, Act::Hang)] {
        yard.fake().act(check, Act::Succeed);
        let id = yard.revision(install).await;
        let job = yard.home.claim().await.unwrap();
        let mut begun = false;
        let cancelled = async {
            loop {
                let log = yard
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
            let job = yard.read(id).await.job_id.unwrap();
            let cancel = yard
                .home
                .store()
                .write(async |tx| build_revision::interrupt(tx, job).await)
                .await;
            cancel.unwrap();
            begun = true;
            Signal::Cancel
        };
        tokio::time::timeout(Duration::from_secs(60), yard.home.perform_until_told(job, cancelled))
            .await
            .unwrap();
        assert!(begun);
        assert_eq!(yard.read(id).await.status, RevisionStatus::Interrupted);
    }
    assert_eq!(entries(&yard.hosting.root.path().join("scratch")), 0);
    assert_eq!(
        yard.home
            .count("SELECT count(*) FROM job WHERE finished_at IS NULL")
            .await,
        0
    );
}

#[tokio::test]
async fn a_newer_one_makes_those_that_wait_pointless() {
    let yard = Yard::new().await;
    let first = yard.revision(None).await;
    let second = yard.revision(None).await;
    yard.home.drain().await;
    assert_eq!(yard.read(first).await.status, RevisionStatus::Skipped);
    assert_eq!(yard.read(second).await.status, RevisionStatus::Deployed);
    assert_eq!(yard.fake().calls(), ["check", "replace"], "the old one was started");
}

#[tokio::test]
async fn what_was_built_is_deployed_again_whatever_became_of_its_branch() {
    let yard = Yard::new().await;
    let first = yard.revision(Some("touch made")).await;
    yard.home.drain().await;
    yard.push("langgraph.json", "{broken");
    std::fs::remove_dir_all(&yard.origin).unwrap();
    let of = yard.read(first).await;
    let again = yard
        .revision_as(|new| {
            new.0 = of.source_config().unwrap();
            new.1 = of.config().unwrap();
            new.3 = Some(first);
        })
        .await;
    yard.home.drain().await;
    let revision = yard.read(again).await;
    assert_eq!(revision.status, RevisionStatus::Deployed, "{:?}", revision.error);
    let built = yard.log(again, LogKind::Build).await;
    assert!(!built.contains("$ touch made"), "it was built again: {built}");
    let tenant = yard.home.tenant;
    let read = yard.home.store().read(async |tx| {
        Ok((
            artifacts::of(tx, tenant, first).await?,
            artifacts::of(tx, tenant, again).await?,
        ))
    });
    let (one, other) = read.await.unwrap();
    assert!(one.is_some() && one == other);
    // What pulls an image again is kept with it.
    let pinned = yard.home.store().write(async |tx| {
        artifacts::pin_image(tx, tenant, first, "agent@sha256:00").await?;
        Ok((
            artifacts::image_of(tx, tenant, first).await?,
            artifacts::image_of(tx, tenant, again).await?,
        ))
    });
    assert_eq!(pinned.await.unwrap(), (Some("agent@sha256:00".to_owned()), None));
}

/// A worker that dies behind any of its writes finishes in another life, and builds nothing twice.
#[tokio::test]
async fn a_revision_survives_a_worker_that_goes_away() {
    let yard = Yard::new().await;
    yard.fake().act(Act::Hang, Act::Succeed);
    let id = yard.revision(Some("touch made")).await;
    let job = yard.home.claim().await.unwrap();
    let lost = async {
        while !yard.log(id, LogKind::Deploy).await.contains("checking") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Signal::Lost
    };
    yard.home.perform_until_told(job, lost).await;
    yard.fake().act(Act::Succeed, Act::Succeed);
    yard.home.boot().await;
    yard.home.drain().await;
    let revision = yard.read(id).await;
    assert_eq!(revision.status, RevisionStatus::Deployed, "{:?}", revision.error);
    let built = yard.log(id, LogKind::Build).await;
    assert_eq!(built.matches("$ touch made").count(), 1, "{built}");
    assert_eq!(built.matches("fetching").count(), 1, "{built}");
}

#[tokio::test]
async fn a_deployment_goes_with_everything_it_had() {
    let yard = Yard::new().await;
    yard.revision(Some("touch made")).await;
    yard.home.drain().await;
    assert_eq!(entries(&yard.hosting.root.artifacts()), 1);
    let (tenant, id) = (yard.home.tenant, yard.deployment);
    yard.home
        .store()
        .write(async |tx| {
            delete_deployment::start(tx, tenant, id).await?;
            deployments::deleting(tx, tenant, id, true).await
        })
        .await
        .unwrap();
    yard.home.drain().await;
    for (what, text) in [
        ("deployments", "SELECT count(*) FROM deployment"),
        ("revisions", "SELECT count(*) FROM revision"),
        ("placements", "SELECT count(*) FROM deployment_placement"),
        ("artifacts", "SELECT count(*) FROM revision_artifact"),
        ("lines", "SELECT count(*) FROM revision_log"),
        ("projects", "SELECT count(*) FROM project WHERE name = 'agent'"),
        ("keys", "SELECT count(*) FROM api_key WHERE revoked_at IS NULL"),
    ] {
        assert_eq!(yard.home.count(text).await, 0, "{what}");
    }
    assert_eq!(entries(&yard.hosting.root.artifacts()), 0);
    assert!(yard.hosting.backend.running().is_empty());
}

/// Changes of secrets share an artifact, and push no other out.
#[tokio::test]
async fn revisions_that_share_an_artifact_count_once() {
    let yard = Yard::new().await;
    let first = yard.revision(None).await;
    yard.home.drain().await;
    yard.push("more", "x");
    for _ in 0..3 {
        yard.revision(None).await;
        yard.home.drain().await;
    }
    let tenant = yard.home.tenant;
    let read = yard.home.store().read(async |tx| {
        let first = artifacts::of(tx, tenant, first).await?;
        Ok((first, artifacts::kept(tx, 2).await?))
    });
    let (first, kept) = read.await.unwrap();
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert!(kept.contains(&first.unwrap()), "the way back is not kept: {kept:?}");
}

/// What nothing names goes, also when another thing among the artifacts cannot be judged.
#[tokio::test]
async fn artifacts_in_use_and_those_that_serve_stay() {
    let yard = Yard::new().await;
    yard.revision(None).await;
    yard.home.drain().await;
    let folder = yard.hosting.root.artifacts();
    let (used, idle) = ("aa", "bb");
    for name in [used, idle, "no-artifact"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    let using = yard.hosting.using(used);
    yard.hosting.prune(yard.home.store(), 0).await.unwrap();
    assert!(folder.join(used).exists(), "a build uses it");
    assert!(!folder.join(idle).exists(), "nothing needs it");
    assert_eq!(entries(&folder), 3, "what serves stays, and what was not made here");
    drop(using);
    yard.hosting.prune(yard.home.store(), 0).await.unwrap();
    assert!(!folder.join(used).exists(), "nothing needs it any more");
}

/// Many commits and failed builds leave as much as is kept, and nothing that is half made.
#[tokio::test]
async fn what_many_revisions_leave_is_bounded() {
    let yard = Yard::new().await;
    for n in 0..12 {
        yard.push("more", &n.to_string());
        yard.revision(Some("touch made")).await;
        yard.home.drain().await;
        let broken = yard.revision(Some("ls no-such-file-here")).await;
        yard.home.drain().await;
        assert_eq!(yard.read(broken).await.status, RevisionStatus::BuildFailed);
    }
    let artifacts = yard.hosting.root.artifacts();
    assert_eq!(entries(&artifacts), 24);
    yard.hosting.prune(yard.home.store(), 0).await.unwrap();
    assert_eq!(entries(&artifacts), 10, "as many as are kept");
    for artifact in std::fs::read_dir(&artifacts).unwrap() {
        let artifact = artifact.unwrap().path();
        assert!(artifact.join("built.json").is_file(), "a failed build is kept");
        assert!(!artifact.join("home").exists(), "caches are kept");
    }
    assert_eq!(entries(&yard.hosting.root.path().join("scratch")), 0);
    assert_eq!(yard.hosting.backend.running(), [yard.deployment]);
}

/// A commit whose build failed on its own leftovers can be built: nothing of the attempt before is there.
#[tokio::test]
async fn a_failed_build_is_repeated_on_a_fresh_tree() {
    let yard = Yard::new().await;
    let build = async || {
        let id = yard.revision(Some("mkdir dist no-such-folder/x")).await;
        yard.home.drain().await;
        yard.read(id).await.error.unwrap()
    };
    let first = build().await;
    assert!(first.contains("no-such-folder"), "{first}");
    let second = build().await;
    assert!(!second.contains("File exists"), "it met its own leftovers: {second}");
}

/// Ids of lines are made by the process's clock, which nobody stops, and so is what counts as old here.
#[tokio::test]
async fn lines_of_agent_servers_do_not_stay_for_ever() {
    let yard = Yard::new().await;
    let id = yard.revision(Some("touch made")).await;
    yard.home.drain().await;
    let build = yard.log(id, LogKind::Build).await;
    assert!(yard.log(id, LogKind::Deploy).await.contains("checking"));
    let forget = async |before| {
        let forgotten = yard
            .home
            .store()
            .write(async |tx| revision_logs::forget(tx, before, 1000).await);
        forgotten.await.unwrap()
    };
    let now = Clock::system().now();
    assert_eq!(forget(now.minus(Duration::from_secs(3600))).await, 0);
    assert!(forget(now.plus(Duration::from_secs(3600))).await > 0);
    assert_eq!(yard.log(id, LogKind::Deploy).await, "");
    assert_eq!(yard.log(id, LogKind::Build).await, build);
}

/// The newest lines of a revision are kept, of each kind.
#[tokio::test]
async fn lines_of_a_revision_are_bounded() {
    let yard = Yard::new().await;
    let id = yard.revision(Some("touch made")).await;
    yard.home.drain().await;
    let (build, deploy) = (yard.log(id, LogKind::Build).await, yard.log(id, LogKind::Deploy).await);
    let tenant = yard.home.tenant;
    let trim = async |limit| {
        let trimmed = yard
            .home
            .store()
            .write(async |tx| revision_logs::trim(tx, tenant, id, LogKind::Build, 2, limit).await);
        trimmed.await.unwrap()
    };
    let lines: Vec<&str> = build.lines().collect();
    let more = lines.len() as u64 - 2;
    assert_eq!((trim(1).await, trim(1000).await, trim(1000).await), (1, more - 1, 0));
    let kept = yard.log(id, LogKind::Build).await;
    assert_eq!(kept, lines[lines.len() - 2..].join("\n"));
    assert_eq!(yard.log(id, LogKind::Deploy).await, deploy);
}

/// A secret is told to the agent server and to nobody else.
#[tokio::test]
async fn secrets_are_not_in_what_is_written() {
    let yard = Yard::new().await;
    yard.revision(Some("env")).await;
    yard.home.drain().await;
    let told = "SELECT count(*) FROM revision_log WHERE message LIKE '%canary-of-a-secret%'";
    assert_eq!(yard.home.count(told).await, 0);
    let steps = "SELECT count(*) FROM step WHERE output LIKE '%canary-of-a-secret%'";
    assert_eq!(yard.home.count(steps).await, 0);
}

/// What was handed out and never sent goes, with what may lie there; what was sent stays.
#[tokio::test]
async fn addresses_of_archives_are_forgotten_when_nothing_came() {
    let yard = Yard::new().await;
    let (tenant, deployment, world) = (yard.home.tenant, yard.deployment, &yard.home.world);
    let (sent, unsent) = (UploadId::new(), UploadId::new());
    let hand_out = async |id: UploadId, path: &str| {
        let handed = yard
            .home
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
    let arrived = yard
        .home
        .store()
        .write(async |tx| source_uploads::arrived(tx, tenant, sent, 1).await);
    assert!(arrived.await.unwrap());

    let rows = "SELECT count(*) FROM source_upload";
    yard.home
        .clock
        .advance(source_uploads::PATIENCE + Duration::from_secs(1));
    assert_eq!(
        keep_deployments::sweep_uploads(world).await.unwrap(),
        0,
        "it may be on its way still"
    );
    assert_eq!(yard.home.count(rows).await, 2);
    yard.home.clock.advance(source_uploads::PATIENCE);
    assert_eq!(keep_deployments::sweep_uploads(world).await.unwrap(), 1);
    assert_eq!(yard.home.count(rows).await, 1);
    assert!(world.objects.get(&ObjectPath::from("sources/sent")).await.is_ok());
    assert!(world.objects.get(&ObjectPath::from("sources/unsent")).await.is_err());
}
